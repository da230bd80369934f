//! Validation of what users write: names, enum values and sizes.

use std::collections::BTreeMap;
use std::str::FromStr;

use base::{
    AttachmentId, BlockSize, ChainId, ClusterId, DatabaseId, GrantId, KeyId, Lineage, PartyId,
    ProjectId, SnapshotId, UnitId, VolumeId,
};

use crate::database::Quota;
use crate::error::ControlError;
use api::types::{TAG_KEY_LENGTH_MAX, TAG_VALUE_LENGTH_MAX, TAGS_MAX};
use base::size::exact_bytes;

/// The largest volume in bytes, 64 TiB: less than a map of three levels can address, and more than
/// the file systems of guests need.
pub const VOLUME_BYTES_MAX: u64 = 64 << 40;

/// Names are 1 to 63 letters long, as host names are.
const NAME_LENGTH_MAX: usize = 63;

/// Checks the name of a new volume, snapshot, project or wrapping key.
///
/// # Errors
/// [`ControlError::Invalid`].
pub fn name(text: &str) -> Result<&str, ControlError> {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let mut bytes = text.bytes();
    let good = text.len() <= NAME_LENGTH_MAX
        && bytes.next().is_some_and(plain)
        && bytes.all(|byte| plain(byte) || matches!(byte, b'.' | b'_' | b'-'));
    if !good {
        return Err(ControlError::invalid(
            "name",
            format!(
                "{text:?} is not a name: use 1 to {NAME_LENGTH_MAX} lowercase letters, digits, dots, \
                 underscores and hyphens, and begin with a letter or digit"
            ),
        ));
    }
    refuse_id(text)?;
    Ok(text)
}

/// Checks the name of a zone.
///
/// # Errors
/// [`ControlError::Invalid`].
pub fn zone(text: &str) -> Result<&str, ControlError> {
    name(text).map_err(|error| match error {
        ControlError::Invalid { reason, .. } => ControlError::invalid("zone", reason),
        other => other,
    })
}

/// Refuses a name that looks like an id of any kind: names and ids are accepted in the same places,
/// and a user's name is a project's name as well.
///
/// # Errors
/// [`ControlError::Invalid`].
pub fn refuse_id(text: &str) -> Result<(), ControlError> {
    fn is<T: FromStr>(text: &str) -> bool {
        text.parse::<T>().is_ok()
    }
    let kinds = [
        is::<VolumeId>,
        is::<SnapshotId>,
        is::<UnitId>,
        is::<PartyId>,
        is::<AttachmentId>,
        is::<ChainId>,
        is::<KeyId>,
        is::<ProjectId>,
        is::<GrantId>,
        is::<ClusterId>,
        is::<DatabaseId>,
        is::<Lineage>,
    ];
    if kinds.iter().any(|is| is(text)) {
        let reason = format!("{text:?} would be taken for an id; choose another name");
        return Err(ControlError::invalid("name", reason));
    }
    Ok(())
}

/// Parses a field with a word of an enumeration ([`api::words`]).
///
/// # Errors
/// [`ControlError::Invalid`] about `field`, with the words that there are.
pub fn word<W: FromStr<Err = String>>(field: &'static str, text: &str) -> Result<W, ControlError> {
    text.parse()
        .map_err(|reason| ControlError::invalid(field, reason))
}

/// Whether a text has no control characters: a terminal would carry them out.
#[must_use]
pub fn is_plain(text: &str) -> bool {
    !text.chars().any(char::is_control)
}

/// Checks the tags of a volume or snapshot.
///
/// # Errors
/// [`ControlError::Invalid`].
pub fn tags(tags: &BTreeMap<String, String>) -> Result<(), ControlError> {
    let invalid = |reason| Err(ControlError::invalid("tags", reason));
    if tags.len() > TAGS_MAX {
        return invalid(format!(
            "{} tags; at most {TAGS_MAX} are allowed",
            tags.len()
        ));
    }
    for (key, value) in tags {
        let key_length = key.chars().count();
        // A list is filtered by KEY=VALUE.
        let is_key = (1..=TAG_KEY_LENGTH_MAX).contains(&key_length) && !key.contains('=');
        if !is_key || !is_plain(key) {
            return invalid(format!(
                "{key:?} cannot be the key of a tag: use 1 to {TAG_KEY_LENGTH_MAX} characters of plain text, \
                 and no `=`"
            ));
        }
        if value.chars().count() > TAG_VALUE_LENGTH_MAX || !is_plain(value) {
            return invalid(format!(
                "the value of the tag {key:?} is too long, or not plain text: use up to \
                 {TAG_VALUE_LENGTH_MAX} characters"
            ));
        }
    }
    Ok(())
}

/// Checks the quota of a project: a limit must fit the database's integers.
///
/// # Errors
/// [`ControlError::Invalid`].
pub fn quota(quota: Quota) -> Result<Quota, ControlError> {
    let limits = [
        ("volumes", quota.volumes_max),
        ("snapshots", quota.snapshots_max),
        ("bytes", quota.bytes_max),
    ];
    for (field, limit) in limits {
        if limit.is_some_and(|limit| i64::try_from(limit).is_err()) {
            let reason = "leave it out for no limit, or give at most 2^63 - 1";
            return Err(ControlError::invalid(field, reason));
        }
    }
    Ok(quota)
}

/// Checks the size of a volume.
///
/// # Errors
/// [`ControlError::Invalid`].
pub fn volume_size(size_bytes: u64, block_size: BlockSize) -> Result<u64, ControlError> {
    let block_bytes = block_size.bytes() as u64;
    let size = exact_bytes(size_bytes);
    let reason = if size_bytes > VOLUME_BYTES_MAX {
        format!("{size} is more than a volume can have (at most 64T)")
    } else if size_bytes < block_bytes {
        let block = exact_bytes(block_bytes);
        format!("{size} is less than one block; give at least {block}")
    } else if !size_bytes.is_multiple_of(block_bytes) {
        let below = size_bytes - size_bytes % block_bytes;
        format!(
            "{size} is not a multiple of the block size ({}); the nearest multiples are {} and {}",
            exact_bytes(block_bytes),
            exact_bytes(below),
            exact_bytes(below + block_bytes)
        )
    } else {
        return Ok(size_bytes);
    };
    Err(ControlError::invalid("size", reason))
}

/// Checks a block size.
///
/// # Errors
/// [`ControlError::Invalid`].
pub fn block_size(bytes: u64) -> Result<BlockSize, ControlError> {
    BlockSize::new(bytes).ok_or_else(|| {
        let size = exact_bytes(bytes);
        let reason = format!("a block size cannot be {size}; use 4K, 8K, 16K, 32K or 64K");
        ControlError::invalid("block_size", reason)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_plain_and_never_look_like_ids() {
        let longest = "a".repeat(63);
        let near = ["vol-1", "proj-0000000000000000x", "web-00000000000000001"];
        for good in ["a", "0", "web-1.data_2", longest.as_str()]
            .into_iter()
            .chain(near)
        {
            assert_eq!(name(good).expect("a name"), good);
        }
        let too_long = "a".repeat(64);
        for bad in [
            "",
            "-a",
            ".a",
            "A",
            "a b",
            "a/b",
            "ä",
            "a\n",
            "..",
            &too_long,
            "vol-00000000000000001",
            "proj-00000000000000001",
            "party-0123456789abcdef0",
            "lineage-00000000000000000000000000000001",
        ] {
            assert!(name(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn the_size_of_a_volume_is_a_multiple_of_its_block_size_within_limits() {
        let block = BlockSize::new(8192).expect("a power of two");
        assert!(volume_size(8192, block).is_ok());
        assert!(volume_size(VOLUME_BYTES_MAX, block).is_ok());
        for bad in [0, 1, 4096, 8193, VOLUME_BYTES_MAX + 8192, u64::MAX] {
            assert!(volume_size(bad, block).is_err(), "{bad}");
        }
    }

    /// For a size of one byte, 0 was once suggested and then refused.
    #[test]
    fn suggested_sizes_are_valid() {
        let said = |bytes| {
            let block = BlockSize::new(8192).expect("a power of two");
            let refused = volume_size(bytes, block).expect_err("no size");
            refused.to_string()
        };
        assert_eq!(said(0), "0 bytes is less than one block; give at least 8K");
        assert_eq!(said(1), "1 byte is less than one block; give at least 8K");
        assert_eq!(
            said((1 << 30) + 4096),
            "1048580K is not a multiple of the block size (8K); the nearest multiples are 1G and \
             1048584K"
        );
        assert!(
            said(65 << 40).starts_with("65T is more"),
            "{}",
            said(65 << 40)
        );
    }
}
