//! Words by which volumes and snapshots are found.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::described::TagsSchema;

/// A volume or snapshot has at most so many tags.
pub const TAGS_MAX: usize = 50;

/// The longest key of a tag, in characters.
pub const TAG_KEY_LENGTH_MAX: usize = 128;

/// The longest value of a tag, in characters.
pub const TAG_VALUE_LENGTH_MAX: usize = 256;

/// Words for finding things: up to [`TAGS_MAX`], with keys of 1 to
/// [`TAG_KEY_LENGTH_MAX`] characters and no `=`, and values of up to
/// [`TAG_VALUE_LENGTH_MAX`]; no control characters in either.
pub type Tags = BTreeMap<String, String>;

/// A volume's or snapshot's tags.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SetTags {
    /// What takes the place of those that it has.
    #[schema(value_type = TagsSchema)]
    pub tags: Tags,
}
