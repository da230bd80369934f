//! Files encrypted by `age -p`: the format age-encryption.org/v1 with a passphrase, as text or as
//! bytes.
//!
//! ```text
//!   age-encryption.org/v1
//!   -> scrypt SALT LOG2_N          SALT: 16 bytes
//!   BODY                           16 bytes of file key, 16 of tag
//!   --- MAC                        32 bytes, over all before it and "---"
//!   nonce (16 bytes), payload      one chunk: at most 64 KiB, and a tag
//! ```
//!
//! Bytes in the header are base64 without padding.

use aws_lc_rs::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};
use aws_lc_rs::hkdf::{HKDF_SHA256, Salt};
use aws_lc_rs::hmac;
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD};
use zeroize::Zeroizing;

const MAGIC: &str = "age-encryption.org/v1";
const ARMOR_BEGIN: &str = "-----BEGIN AGE ENCRYPTED FILE-----";
const ARMOR_END: &str = "-----END AGE ENCRYPTED FILE-----";

/// scrypt uses 2^N KiB of memory; the limit is 1 GiB. age itself writes 18.
const LOG2_N_MAX: u8 = 20;

/// Why an encrypted file cannot be decrypted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum EncryptedFileError {
    /// The file does not follow the format.
    #[error("the file is damaged, or was not created by `age -p`: {0}")]
    Form(&'static str),
    /// Decryption would need too much memory.
    #[error(
        "its scrypt work factor {log2_n} is larger than the limit {LOG2_N_MAX}; encrypt it again"
    )]
    TooExpensive {
        /// The work factor of the file.
        log2_n: u8,
    },
    /// The passphrase is wrong.
    #[error("the passphrase is wrong")]
    WrongPassphrase,
}

use EncryptedFileError::Form;

/// Whether this is a file that age encrypted, to a recipient or with a passphrase.
pub(super) fn is_encrypted(content: &[u8]) -> bool {
    content.starts_with(MAGIC.as_bytes()) || content.starts_with(ARMOR_BEGIN.as_bytes())
}

fn unarmored(content: &[u8]) -> Result<Vec<u8>, EncryptedFileError> {
    let form = Form("its armor");
    if !content.starts_with(ARMOR_BEGIN.as_bytes()) {
        return Ok(content.to_vec());
    }
    let text = std::str::from_utf8(content).map_err(|_| form)?;
    let inner = text.trim().strip_prefix(ARMOR_BEGIN).ok_or(form)?;
    let inner = inner.strip_suffix(ARMOR_END).ok_or(form)?;
    let base64: String = inner.lines().map(str::trim).collect();
    STANDARD.decode(base64).map_err(|_| form)
}

/// The next line, and the bytes after it.
fn line(bytes: &[u8]) -> Option<(&str, &[u8])> {
    let end = bytes.iter().position(|byte| *byte == b'\n')?;
    let text = std::str::from_utf8(&bytes[..end]).ok()?;
    Some((text, &bytes[end + 1..]))
}

fn unbase64<const N: usize>(text: &str) -> Option<[u8; N]> {
    STANDARD_NO_PAD.decode(text).ok()?.try_into().ok()
}

fn hkdf(key: &[u8], salt: &[u8], info: &[u8]) -> Zeroizing<[u8; 32]> {
    let mut bytes = Zeroizing::new([0; 32]);
    Salt::new(HKDF_SHA256, salt)
        .extract(key)
        .expand(&[info], HKDF_SHA256)
        .and_then(|key| key.fill(&mut *bytes))
        .expect("SHA-256 yields 32 bytes");
    bytes
}

/// Decrypts with ChaCha20-Poly1305 and a key that is used once.
fn open(key: &[u8; 32], nonce: [u8; 12], sealed: &[u8]) -> Option<Zeroizing<Vec<u8>>> {
    let key = UnboundKey::new(&CHACHA20_POLY1305, key).expect("32 bytes are a key");
    let mut buffer = Zeroizing::new(sealed.to_vec());
    let nonce = Nonce::assume_unique_for_key(nonce);
    let opened = LessSafeKey::new(key).open_in_place(nonce, Aad::empty(), &mut buffer);
    let length = opened.ok()?.len();
    buffer.truncate(length);
    Some(buffer)
}

/// Decrypts a file whose content fits into one chunk.
pub(super) fn decrypt(
    content: &[u8],
    passphrase: &str,
) -> Result<Zeroizing<Vec<u8>>, EncryptedFileError> {
    let bytes = unarmored(content)?;
    let (magic, rest) = line(&bytes).ok_or(Form("its first line"))?;
    if magic != MAGIC {
        return Err(Form("its first line"));
    }
    let (stanza, rest) = line(rest).ok_or(Form("its recipient"))?;
    let mut words = stanza.split(' ');
    if (words.next(), words.next()) != (Some("->"), Some("scrypt")) {
        return Err(Form(
            "it is encrypted to a recipient, not with a passphrase",
        ));
    }
    let (Some(salt), Some(log2_n), None) = (words.next(), words.next(), words.next()) else {
        return Err(Form("its recipient"));
    };
    let salt: [u8; 16] = unbase64(salt).ok_or(Form("its salt"))?;
    let log2_n: u8 = log2_n.parse().map_err(|_| Form("its work factor"))?;
    let (body, rest) = line(rest).ok_or(Form("its file key"))?;
    let body: [u8; 32] = unbase64(body).ok_or(Form("its file key"))?;
    let (mac_line, payload) = line(rest).ok_or(Form("its MAC"))?;
    let mac = mac_line.strip_prefix("--- ").ok_or(Form("its MAC"))?;
    let mac: [u8; 32] = unbase64(mac).ok_or(Form("its MAC"))?;
    let signed = &bytes[..bytes.len() - rest.len() + "---".len()];
    let (nonce, chunk) = payload
        .split_at_checked(16)
        .ok_or(Form("its end is missing"))?;

    if log2_n > LOG2_N_MAX {
        return Err(EncryptedFileError::TooExpensive { log2_n });
    }
    let params = scrypt::Params::new(log2_n, 8, 1, 32).map_err(|_| Form("its work factor"))?;
    let mut wrapping = Zeroizing::new([0; 32]);
    let salt = [b"age-encryption.org/v1/scrypt".as_slice(), &salt].concat();
    scrypt::scrypt(passphrase.as_bytes(), &salt, &params, &mut *wrapping)
        .map_err(|_| Form("its work factor"))?;
    let file_key = open(&wrapping, [0; 12], &body).ok_or(EncryptedFileError::WrongPassphrase)?;
    let mac_key = hmac::Key::new(hmac::HMAC_SHA256, &*hkdf(&file_key, &[], b"header"));
    hmac::verify(&mac_key, signed, &mac).map_err(|_| Form("its MAC is wrong"))?;
    // The first chunk, marked as the last one.
    let chunk_nonce = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
    open(&hkdf(&file_key, nonce, b"payload"), chunk_nonce, chunk).ok_or(Form("its content"))
}
