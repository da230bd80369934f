//! The types of the JSON area (LUKS2 specification, 3). The text is also kept as a tree in
//! [`super::Header`], which preserves fields that these types do not have.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Deserializer, de::Error as _};
use serde_json::Value;

/// The JSON area. Objects are named by numbers.
#[derive(Debug, Clone, Deserialize)]
pub struct Metadata {
    pub keyslots: BTreeMap<String, Keyslot>,
    /// The tokens of other software, and one of Scree.
    pub tokens: BTreeMap<String, Value>,
    pub segments: BTreeMap<String, Segment>,
    pub digests: BTreeMap<String, Digest>,
    pub config: Config,
}

/// A key slot, which holds a volume key sealed with a passphrase.
#[derive(Debug, Clone, Deserialize)]
pub struct Keyslot {
    #[serde(rename = "type")]
    pub kind: String,
    pub key_size: u64,
    pub af: Splitter,
    pub area: Area,
    pub kdf: WrittenKdf,
    /// The priority; slots with the highest are tried first.
    pub priority: Option<u64>,
}

#[derive(Debug, Clone, Deserialize)]
pub struct Splitter {
    #[serde(rename = "type")]
    pub kind: String,
    pub stripes: u64,
    pub hash: String,
}

#[derive(Debug, Clone, Deserialize)]
pub struct Area {
    #[serde(rename = "type")]
    pub kind: String,
    #[serde(deserialize_with = "number")]
    pub offset: u64,
    #[serde(deserialize_with = "number")]
    pub size: u64,
    pub encryption: String,
    pub key_size: u64,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(tag = "type", rename_all = "lowercase")]
pub enum WrittenKdf {
    Argon2id(WrittenArgon2),
    Argon2i(WrittenArgon2),
    Pbkdf2 {
        hash: String,
        iterations: u32,
        #[serde(deserialize_with = "bytes")]
        salt: Vec<u8>,
    },
}

#[derive(Debug, Clone, Deserialize)]
pub struct WrittenArgon2 {
    pub time: u32,
    pub memory: u32,
    pub cpus: u32,
    #[serde(deserialize_with = "bytes")]
    pub salt: Vec<u8>,
}

/// A range of the disk that is encrypted.
#[derive(Debug, Clone, Deserialize)]
pub struct Segment {
    #[serde(rename = "type")]
    pub kind: String,
    #[serde(deserialize_with = "number")]
    pub offset: u64,
    #[serde(deserialize_with = "size")]
    pub size: Size,
    #[serde(deserialize_with = "number")]
    pub iv_tweak: u64,
    pub encryption: String,
    pub sector_size: u64,
    pub integrity: Option<Value>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Size {
    Bytes(u64),
    /// The rest of the disk.
    Dynamic,
}

/// A digest, which verifies a volume key and names its key slots and segments.
#[derive(Debug, Clone, Deserialize)]
pub struct Digest {
    #[serde(rename = "type")]
    pub kind: String,
    pub keyslots: Vec<String>,
    pub segments: Vec<String>,
    pub hash: String,
    pub iterations: u32,
    #[serde(deserialize_with = "bytes")]
    pub salt: Vec<u8>,
    #[serde(deserialize_with = "bytes")]
    pub digest: Vec<u8>,
}

#[derive(Debug, Clone, Deserialize)]
pub struct Config {
    #[serde(deserialize_with = "number")]
    pub json_size: u64,
    #[serde(deserialize_with = "number")]
    pub keyslots_size: u64,
    #[serde(default)]
    pub requirements: Requirements,
}

#[derive(Debug, Clone, Default, Deserialize)]
pub struct Requirements {
    #[serde(default)]
    pub mandatory: Vec<String>,
}

/// Deserializes a 64-bit number. LUKS2 writes them as text, since JSON numbers may be less precise.
pub fn number<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
    let text = String::deserialize(from)?;
    parse(&text).ok_or_else(|| D::Error::custom(format!("{text:?} is not a number")))
}

/// Parses a number that consists of digits only.
pub fn parse(text: &str) -> Option<u64> {
    let is_plain = text.bytes().all(|byte| byte.is_ascii_digit());
    is_plain.then(|| text.parse().ok()).flatten()
}

fn size<'de, D: Deserializer<'de>>(from: D) -> Result<Size, D::Error> {
    let text = String::deserialize(from)?;
    match (text.as_str(), parse(&text)) {
        ("dynamic", _) => Ok(Size::Dynamic),
        (_, Some(bytes)) => Ok(Size::Bytes(bytes)),
        (_, None) => Err(D::Error::custom(format!("{text:?} is not a size"))),
    }
}

pub fn bytes<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<u8>, D::Error> {
    let text = String::deserialize(from)?;
    STANDARD.decode(text).map_err(D::Error::custom)
}

pub fn base64(bytes: &[u8]) -> String {
    STANDARD.encode(bytes)
}
