//! [`JoinToken`]: a one-time secret for which the authority signs a certificate.

use std::fmt;
use std::fmt::Write as _;
use std::str::FromStr;

use aws_lc_rs::digest::{SHA256, digest};
use world::Random;
use zeroize::Zeroizing;

/// The prefix by which users and secret scanners recognize a token.
const PREFIX: &str = "scree-join-";

/// A secret of 256 random bits, valid for one certificate. It is wiped from memory when dropped,
/// and printed only by [`JoinToken::reveal`].
pub struct JoinToken(Zeroizing<[u8; 32]>);

/// The hash of a token. It is stored in place of the token and cannot be used as one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TokenHash(pub [u8; 32]);

/// The error for text that is not a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("this is not a join token: a join token is scree-join- and 64 hex digits")]
pub struct BadToken;

impl JoinToken {
    /// A new token.
    #[must_use]
    pub fn generate(random: &dyn Random) -> Self {
        let mut bytes = Zeroizing::new([0; 32]);
        random.fill(&mut *bytes);
        Self(bytes)
    }

    /// The token's hash, to be stored.
    #[must_use]
    pub fn hash(&self) -> TokenHash {
        let hash = digest(&SHA256, &*self.0);
        TokenHash(hash.as_ref().try_into().expect("SHA-256 has 32 bytes"))
    }

    /// The token's text, for the party that joins.
    #[must_use]
    pub fn reveal(&self) -> Zeroizing<String> {
        let mut text = Zeroizing::new(String::with_capacity(PREFIX.len() + 64));
        text.push_str(PREFIX);
        for byte in *self.0 {
            let _ = write!(text, "{byte:02x}");
        }
        text
    }
}

impl fmt::Debug for JoinToken {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("JoinToken(..)")
    }
}

impl FromStr for JoinToken {
    type Err = BadToken;

    fn from_str(text: &str) -> Result<Self, BadToken> {
        let digits = text.trim().strip_prefix(PREFIX).ok_or(BadToken)?;
        if digits.len() != 64 {
            return Err(BadToken);
        }
        let mut bytes = Zeroizing::new([0; 32]);
        for (byte, pair) in bytes.iter_mut().zip(digits.as_bytes().chunks_exact(2)) {
            let digit = |digit: u8| match digit {
                b'0'..=b'9' => Ok(digit - b'0'),
                b'a'..=b'f' => Ok(digit - b'a' + 10),
                _ => Err(BadToken),
            };
            *byte = digit(pair[0])? << 4 | digit(pair[1])?;
        }
        Ok(Self(bytes))
    }
}

#[cfg(test)]
mod tests {
    use world::simulated::SimulatedRandom;

    use super::*;

    #[test]
    fn a_token_survives_being_printed_and_parsed_and_has_its_own_hash() {
        let random = SimulatedRandom::new(1);
        let (one, other) = (JoinToken::generate(&random), JoinToken::generate(&random));
        let text = one.reveal();
        let read: JoinToken = text.parse().expect("a token");
        assert_eq!(read.hash(), one.hash());
        assert_ne!(read.hash(), other.hash());
        assert!(!format!("{one:?}").contains(&text[PREFIX.len()..]));
    }

    #[test]
    fn text_that_is_not_a_token_is_refused() {
        let token = JoinToken::generate(&SimulatedRandom::new(1)).reveal();
        let texts = [
            "",
            "scree-join-",
            &token[1..],
            &token[..token.len() - 1],
            &token.to_uppercase(),
            &token.replace("scree-join-", "scree-join-0"),
        ];
        for text in texts {
            assert!(text.parse::<JoinToken>().is_err(), "{text:?}");
        }
    }
}
