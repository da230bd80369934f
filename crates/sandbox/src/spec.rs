//! [`Spec`]: the configuration of a filter's process. It is the first message on the socket on
//! which requests follow: a length (4 bytes, little-endian) and JSON of that length.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use chain::Attribution;
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

/// The maximal length of the JSON, in bytes. It has room for a policy and a few passphrases.
const BYTES_MAX: usize = 192 << 10;

/// Why a spec could not be sent or received.
#[derive(Debug, thiserror::Error)]
pub enum SpecError {
    /// The socket failed.
    #[error("cannot send or receive the filter's configuration")]
    Socket(#[from] io::Error),
    /// The JSON is too long.
    #[error("the filter's configuration has {0} bytes; the maximum is {BYTES_MAX}")]
    TooLong(usize),
    /// The JSON does not describe a spec.
    #[error("the filter's configuration is invalid")]
    Json(#[from] serde_json::Error),
    /// A key is not base64.
    #[error("a key in the filter's configuration is not base64")]
    Key(#[from] base64::DecodeError),
}

/// The configuration of a filter's process.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Spec {
    /// The policy of a chain that has only this filter, inline.
    pub policy: String,
    /// The tenant, VM and volume to which the disk belongs.
    pub attribution: Attribution,
    /// Passphrases by name, in base64.
    keys: BTreeMap<String, Zeroizing<String>>,
}

impl Spec {
    /// The configuration of a filter without keys.
    #[must_use]
    pub fn new(policy: &str, attribution: &Attribution) -> Self {
        Self {
            policy: policy.to_owned(),
            attribution: attribution.clone(),
            keys: BTreeMap::new(),
        }
    }

    /// Adds a passphrase.
    pub fn add_key(&mut self, name: &str, passphrase: &[u8]) {
        let text = Zeroizing::new(STANDARD.encode(passphrase));
        self.keys.insert(name.to_owned(), text);
    }

    /// The passphrase with a name; `None` if there is none.
    ///
    /// # Errors
    /// [`SpecError::Key`].
    pub fn key(&self, name: &str) -> Result<Option<Zeroizing<Vec<u8>>>, SpecError> {
        let text = self.keys.get(name);
        let decoded = text.map(|text| STANDARD.decode(text.as_bytes()));
        Ok(decoded.transpose()?.map(Zeroizing::new))
    }

    /// Sends the spec. It fits into the buffer of an empty socket, so this does not wait.
    ///
    /// # Errors
    /// [`SpecError`].
    pub fn send(&self, to: &mut impl Write) -> Result<(), SpecError> {
        let text = Zeroizing::new(serde_json::to_vec(self)?);
        if text.len() > BYTES_MAX {
            return Err(SpecError::TooLong(text.len()));
        }
        let mut whole = Zeroizing::new((text.len() as u32).to_le_bytes().to_vec());
        whole.extend_from_slice(&text);
        Ok(to.write_all(&whole)?)
    }

    /// Receives a spec from a blocking socket.
    ///
    /// # Errors
    /// [`SpecError`].
    pub fn receive(from: &mut impl Read) -> Result<Self, SpecError> {
        let mut length = [0; 4];
        from.read_exact(&mut length)?;
        let length = u32::from_le_bytes(length) as usize;
        if length > BYTES_MAX {
            return Err(SpecError::TooLong(length));
        }
        let mut text = Zeroizing::new(vec![0; length]);
        from.read_exact(&mut text)?;
        Ok(serde_json::from_slice(&text)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spec_survives_a_round_trip_and_a_longer_one_is_refused() {
        let attribution = Attribution {
            tenant: "alice".to_owned(),
            vm: Some("libvirt:web".to_owned()),
            volume: "web-1".to_owned(),
            volume_id: None,
        };
        let mut spec = Spec::new("volume = \"*\"", &attribution);
        spec.add_key("disk", b"secret\xff");
        let mut sent = Vec::new();
        spec.send(&mut sent).expect("it fits");
        let received = Spec::receive(&mut &*sent).expect("it is one");
        assert_eq!(received.attribution, attribution);
        assert_eq!(received.policy, "volume = \"*\"");
        let key = received.key("disk").expect("base64").expect("it is there");
        assert_eq!(*key, b"secret\xff");
        assert!(received.key("other").expect("none").is_none());
        let long = (BYTES_MAX as u32 + 1).to_le_bytes();
        assert!(matches!(
            Spec::receive(&mut &long[..]),
            Err(SpecError::TooLong(_))
        ));
        let cut = &sent[..sent.len() - 1];
        assert!(matches!(
            Spec::receive(&mut &*cut),
            Err(SpecError::Socket(_))
        ));
    }
}
