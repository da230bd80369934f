//! [`Spec`]: what a filter's process is told before the first request: over the socket that
//! requests come by, as a length (4 bytes, little-endian) and as much JSON.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use chain::Attribution;
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

/// A longer one is none: a policy and a few passphrases, in bytes.
const BYTES_MAX: usize = 192 << 10;

/// Why there is no spec.
#[derive(Debug, thiserror::Error)]
pub enum SpecError {
    /// It cannot be read or sent.
    #[error("what the filter is told cannot be read or sent")]
    Socket(#[from] io::Error),
    /// It is longer than any.
    #[error("what the filter is told has {0} bytes")]
    Long(usize),
    /// It is no JSON of this form.
    #[error("what the filter is told makes no sense")]
    Form(#[from] serde_json::Error),
    /// A key is not base64.
    #[error("a key makes no sense")]
    Key(#[from] base64::DecodeError),
}

/// See the module's head.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Spec {
    /// A chain of this filter, inline.
    pub policy: String,
    /// Whose disk it is.
    pub whose: Attribution,
    /// Passphrases by name, in base64.
    keys: BTreeMap<String, Zeroizing<String>>,
}

impl Spec {
    /// Of a filter with that policy, before a disk of `whose`.
    #[must_use]
    pub fn new(policy: &str, whose: &Attribution) -> Self {
        Self {
            policy: policy.to_owned(),
            whose: whose.clone(),
            keys: BTreeMap::new(),
        }
    }

    /// Gives it a passphrase.
    pub fn add_key(&mut self, name: &str, passphrase: &[u8]) {
        let text = Zeroizing::new(STANDARD.encode(passphrase));
        self.keys.insert(name.to_owned(), text);
    }

    /// The passphrase of that name.
    ///
    /// # Errors
    /// If it is not base64.
    pub fn key(&self, name: &str) -> Result<Option<Zeroizing<Vec<u8>>>, SpecError> {
        let text = self.keys.get(name);
        let decoded = text.map(|text| STANDARD.decode(text.as_bytes()));
        Ok(decoded.transpose()?.map(Zeroizing::new))
    }

    /// Sends it. It is as short as fits into an empty socket.
    ///
    /// # Errors
    /// [`SpecError`].
    pub fn send(&self, to: &mut impl Write) -> Result<(), SpecError> {
        let text = Zeroizing::new(serde_json::to_vec(self)?);
        if text.len() > BYTES_MAX {
            return Err(SpecError::Long(text.len()));
        }
        let mut whole = Zeroizing::new((text.len() as u32).to_le_bytes().to_vec());
        whole.extend_from_slice(&text);
        Ok(to.write_all(&whole)?)
    }

    /// Receives it; waits for it.
    ///
    /// # Errors
    /// [`SpecError`].
    pub fn receive(from: &mut impl Read) -> Result<Self, SpecError> {
        let mut length = [0; 4];
        from.read_exact(&mut length)?;
        let length = u32::from_le_bytes(length) as usize;
        if length > BYTES_MAX {
            return Err(SpecError::Long(length));
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
    fn what_is_sent_is_received_and_nothing_longer() {
        let whose = Attribution {
            tenant: "alice".to_owned(),
            vm: Some("libvirt:web".to_owned()),
            volume: "web-1".to_owned(),
            volume_id: None,
        };
        let mut spec = Spec::new("volume = \"*\"", &whose);
        spec.add_key("disk", b"secret\xff");
        let mut sent = Vec::new();
        spec.send(&mut sent).expect("it fits");
        let received = Spec::receive(&mut &*sent).expect("it is one");
        assert_eq!(received.whose, whose);
        assert_eq!(received.policy, "volume = \"*\"");
        let key = received.key("disk").expect("base64").expect("it is there");
        assert_eq!(*key, b"secret\xff");
        assert!(received.key("other").expect("none").is_none());
        let long = (BYTES_MAX as u32 + 1).to_le_bytes();
        assert!(matches!(
            Spec::receive(&mut &long[..]),
            Err(SpecError::Long(_))
        ));
        let cut = &sent[..sent.len() - 1];
        assert!(matches!(
            Spec::receive(&mut &*cut),
            Err(SpecError::Socket(_))
        ));
    }
}
