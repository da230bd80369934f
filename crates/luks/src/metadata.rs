//! The JSON area, as far as it is understood: LUKS2 specification, 3. The text itself is
//! kept as a tree ([`super::Header`]), so what is not understood here stays in it.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Deserializer, de::Error as _};
use serde_json::Value;

/// All of it. Objects are named by numbers.
#[derive(Debug, Clone, Deserialize)]
pub struct Metadata {
    pub keyslots: BTreeMap<String, Keyslot>,
    /// What other software keeps; one is ours.
    pub tokens: BTreeMap<String, Value>,
    pub segments: BTreeMap<String, Segment>,
    pub digests: BTreeMap<String, Digest>,
    pub config: Config,
}

/// Where a volume key lies, sealed with a passphrase.
#[derive(Debug, Clone, Deserialize)]
pub struct Keyslot {
    #[serde(rename = "type")]
    pub kind: String,
    pub key_size: u64,
    pub af: Splitter,
    pub area: Area,
    pub kdf: WrittenKdf,
    /// The highest is tried first.
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
    /// To the end of the disk.
    Dynamic,
}

/// What tells that a volume key is the right one, and whose.
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

/// 64 bits do not fit into what JSON calls a number everywhere: they are written as text.
pub fn number<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
    let text = String::deserialize(from)?;
    parse(&text).ok_or_else(|| D::Error::custom(format!("{text:?} is no number")))
}

/// Digits, and nothing else.
pub fn parse(text: &str) -> Option<u64> {
    let is_plain = text.bytes().all(|byte| byte.is_ascii_digit());
    is_plain.then(|| text.parse().ok()).flatten()
}

fn size<'de, D: Deserializer<'de>>(from: D) -> Result<Size, D::Error> {
    let text = String::deserialize(from)?;
    match (text.as_str(), parse(&text)) {
        ("dynamic", _) => Ok(Size::Dynamic),
        (_, Some(bytes)) => Ok(Size::Bytes(bytes)),
        (_, None) => Err(D::Error::custom(format!("{text:?} is no size"))),
    }
}

pub fn bytes<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<u8>, D::Error> {
    let text = String::deserialize(from)?;
    STANDARD.decode(text).map_err(D::Error::custom)
}

pub fn base64(bytes: &[u8]) -> String {
    STANDARD.encode(bytes)
}
