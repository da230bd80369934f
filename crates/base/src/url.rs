//! The URLs of folders: `file://` and the percent-encoded path. Encoding and decoding are inverse
//! to each other for every path, also one that is not UTF-8.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, percent_encode};

const SCHEME: &str = "file://";

/// The bytes that are encoded: all except RFC 3986's unreserved bytes and the slash.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~')
    .remove(b'/');

/// A path, percent-encoded as a part of a URI.
#[must_use]
pub fn encode(path: &Path) -> String {
    percent_encode(path.as_os_str().as_bytes(), ENCODED).to_string()
}

/// The path that a part of a URI encodes; `None` if a `%` is not followed by two hex digits.
#[must_use]
pub fn decode(text: &str) -> Option<PathBuf> {
    let is_code = |after: &str| {
        let code = after.as_bytes().get(..2);
        code.is_some_and(|code| code.iter().all(u8::is_ascii_hexdigit))
    };
    if !text.split('%').skip(1).all(is_code) {
        return None;
    }
    let bytes: Vec<u8> = percent_decode_str(text).collect();
    Some(OsString::from_vec(bytes).into())
}

/// The URL of the folder at `path`.
#[must_use]
pub fn url_of(path: &Path) -> String {
    format!("{SCHEME}{}", encode(path))
}

/// The path of the folder at `url`; `None` if that is not the URL of a folder.
#[must_use]
pub fn path_of(url: &str) -> Option<PathBuf> {
    decode(url.strip_prefix(SCHEME)?)
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;

    use super::*;

    /// A unit in `/srv/100%41` was once opened in `/srv/100A`.
    #[test]
    fn a_url_decodes_to_the_path_that_it_encodes() {
        for bytes in [
            &b"/srv/u1"[..],
            b"/srv/a b/100%41/%/%%25?x=#\xc3\xbc",
            b"/srv/\xff\n",
            b"/",
        ] {
            let path = Path::new(OsStr::from_bytes(bytes));
            let url = url_of(path);
            assert!(
                url.is_ascii() && !url.contains([' ', '\n', '?', '#']),
                "{url}"
            );
            assert_eq!(path_of(&url).as_deref(), Some(path), "{url}");
        }
        assert_eq!(url_of(Path::new("/srv/u-1_a.b~")), "file:///srv/u-1_a.b~");
        for bad in [
            "/srv",
            "s3://bucket",
            "file:///%",
            "file:///%4",
            "file:///%4g",
            "file:///%%41",
        ] {
            assert_eq!(path_of(bad), None, "{bad}");
        }
    }
}
