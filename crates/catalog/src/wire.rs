//! The form of bytes in JSON.

/// As base64, for `#[serde(with = …)]`.
pub mod bytes {
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD;
    use serde::de::Error as _;
    use serde::{Deserialize as _, Deserializer, Serializer};

    /// Base64, with padding.
    ///
    /// # Errors
    /// Those of the serializer.
    pub fn serialize<S: Serializer>(bytes: &impl AsRef<[u8]>, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&STANDARD.encode(bytes))
    }

    /// Decodes base64 into bytes of the length that `T` has.
    ///
    /// # Errors
    /// If it is not base64, or of another length.
    pub fn deserialize<'de, D: Deserializer<'de>, T: TryFrom<Vec<u8>>>(
        from: D,
    ) -> Result<T, D::Error> {
        let text = std::borrow::Cow::<str>::deserialize(from)?;
        let bytes = STANDARD.decode(&*text).map_err(D::Error::custom)?;
        T::try_from(bytes).map_err(|_| D::Error::custom("it has not the length it should have"))
    }
}
