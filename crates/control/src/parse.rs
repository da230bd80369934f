//! What people write, parsed once: names, sizes, the URLs of units.

use std::path::PathBuf;

use base::{BlockSize, SnapshotId, VolumeId};
use unit::folder::url;
pub use unit::folder::url::encode as percent_encode;

use crate::error::ControlError;
use crate::spell::exact_bytes;

/// The largest volume, 64 TiB: what a map of three levels addresses with room
/// to spare, and more than any file system a guest will put on it.
pub const VOLUME_BYTES_MAX: u64 = 64 << 40;

/// The most copies that a segment has. The database's table of volumes says so
/// too.
pub const REPLICAS_MAX: u8 = 4;

/// Names are 1 to 63 letters long, as host names are.
const NAME_LENGTH_MAX: usize = 63;

/// Checks the name of a new volume or snapshot.
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
                "{text:?} is not a name: use 1 to {NAME_LENGTH_MAX} of a-z, 0-9, '.', '_' and \
                 '-', beginning with a letter or a digit"
            ),
        ));
    }
    if text.parse::<VolumeId>().is_ok() || text.parse::<SnapshotId>().is_ok() {
        let reason = format!("{text:?} would be taken for an id; choose another name");
        return Err(ControlError::invalid("name", reason));
    }
    Ok(text)
}

/// Reads a number of bytes: `4096`, `64K`, `512M`, `10G`, `1T`, also as
/// `10GiB` or `10GB`; always powers of 1024.
///
/// # Errors
/// [`ControlError::Invalid`].
pub fn bytes(field: &'static str, text: &str) -> Result<u64, ControlError> {
    let invalid = || {
        let reason = format!("{text:?} is not a size: write it as 512M, 10G or 1T, or in bytes");
        ControlError::invalid(field, reason)
    };
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, suffix) = text.split_at(digits);
    let number: u64 = number.parse().map_err(|_| invalid())?;
    let suffix = suffix.trim_start().to_ascii_lowercase();
    let suffix = suffix
        .strip_suffix("ib")
        .or(suffix.strip_suffix('b'))
        .unwrap_or(&suffix);
    let shift = match suffix {
        "" => 0,
        "k" => 10,
        "m" => 20,
        "g" => 30,
        "t" => 40,
        "p" => 50,
        _ => return Err(invalid()),
    };
    number.checked_mul(1 << shift).ok_or_else(|| {
        let reason = format!("{text} is more than any volume can have (at most 64T)");
        ControlError::invalid(field, reason)
    })
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
            "{size} is not a multiple of the block size ({}); the next sizes that are: {} and {}",
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
        let given = exact_bytes(bytes);
        let reason = format!("a block size of {given}; use 4K, 8K, 16K, 32K or 64K");
        ControlError::invalid("block_size", reason)
    })
}

/// Reads where a folder unit is: `file:///path`, or a plain absolute path.
///
/// # Errors
/// [`ControlError::Invalid`].
pub fn unit_folder(text: &str) -> Result<PathBuf, ControlError> {
    let invalid = |reason: String| ControlError::invalid("url", reason);
    let path = match text.split_once("://") {
        Some(("file", path)) => url::decode(path).ok_or_else(|| {
            invalid(format!(
                "{text:?} is not a URL: a % is not followed by two hex digits"
            ))
        })?,
        Some((scheme, _)) => {
            return Err(invalid(format!(
                "{scheme}:// units are not known; give a folder as file:///path"
            )));
        }
        None => PathBuf::from(text),
    };
    if !path.is_absolute() {
        return Err(invalid(format!(
            "{text:?} is not an absolute path; write file:///path/to/folder"
        )));
    }
    // Two spellings of one folder should not look like two units.
    Ok(path.components().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_plain_and_never_look_like_ids() {
        let longest = "a".repeat(63);
        for good in ["a", "0", "web-1.data_2", longest.as_str()] {
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
        ] {
            assert!(name(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn sizes_are_powers_of_1024() {
        for (text, expected) in [
            ("4096", 4096),
            ("64K", 65536),
            ("512M", 512 << 20),
            ("10G", 10 << 30),
            ("10g", 10 << 30),
            ("10GiB", 10 << 30),
            ("1 TB", 1 << 40),
        ] {
            assert_eq!(bytes("size", text).expect("a size"), expected, "{text}");
        }
        for bad in [
            "",
            "G",
            "-1",
            "1.5G",
            "10X",
            "10GG",
            "0x10",
            "99999999999999999999",
            "99999P",
        ] {
            assert!(bytes("size", bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_volume_has_whole_blocks_and_a_sane_size() {
        let block = BlockSize::new(8192).expect("a power of two");
        assert!(volume_size(8192, block).is_ok());
        assert!(volume_size(VOLUME_BYTES_MAX, block).is_ok());
        for bad in [0, 1, 4096, 8193, VOLUME_BYTES_MAX + 8192, u64::MAX] {
            assert!(volume_size(bad, block).is_err(), "{bad}");
        }
    }

    /// Of one byte it was said that the next sizes are 0 and 4096, and 0 was
    /// refused.
    #[test]
    fn the_sizes_that_are_advised_are_sizes() {
        let said = |bytes| {
            let block = BlockSize::new(8192).expect("a power of two");
            let refused = volume_size(bytes, block).expect_err("no size");
            refused.to_string()
        };
        assert_eq!(said(0), "0 bytes is less than one block; give at least 8K");
        assert_eq!(said(1), "1 byte is less than one block; give at least 8K");
        assert_eq!(
            said((1 << 30) + 4096),
            "1048580K is not a multiple of the block size (8K); the next sizes that are: 1G and \
             1048584K"
        );
        assert!(
            said(65 << 40).starts_with("65T is more"),
            "{}",
            said(65 << 40)
        );
    }

    #[test]
    fn a_unit_is_a_folder_by_path_or_url() {
        let folder = |text| unit_folder(text).ok();
        assert_eq!(folder("/srv/u1/"), Some(PathBuf::from("/srv/u1")));
        assert_eq!(
            folder("file:///srv/./u%201"),
            Some(PathBuf::from("/srv/u 1"))
        );
        for bad in ["srv/u1", "file://srv", "s3://bucket", "", "file:///a%2"] {
            assert_eq!(folder(bad), None, "{bad}");
        }
    }
}
