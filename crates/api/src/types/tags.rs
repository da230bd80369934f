//! Tags, by which volumes and snapshots are found.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::described::TagsSchema;

/// The largest number of tags of a volume or snapshot.
pub const TAGS_MAX: usize = 50;

/// Longest key of a tag in characters.
pub const TAG_KEY_LENGTH_MAX: usize = 128;

/// Longest value of a tag in characters.
pub const TAG_VALUE_LENGTH_MAX: usize = 256;

/// Tags by which an object is found: up to [`TAGS_MAX`], with keys of 1 to [`TAG_KEY_LENGTH_MAX`]
/// characters without `=`, and values of up to [`TAG_VALUE_LENGTH_MAX`]; no control characters in
/// either.
pub type Tags = BTreeMap<String, String>;

/// A request to replace the tags of a volume or snapshot.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SetTags {
    /// The new tags.
    #[schema(value_type = TagsSchema)]
    pub tags: Tags,
}
