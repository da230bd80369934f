//! Directories whose names are in their inodes and in an attribute.
#![expect(
    clippy::disallowed_methods,
    reason = "e2fsprogs makes files, and reads them"
)]

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use tempfile::TempDir;

use super::live_tests::assert_alike;
use super::testing::changed_by;
use super::testing::{Image, KINDS, debugfs, journaled, make};
use super::{Event, Live, View};

const KIND: (&str, &[&str]) = KINDS[8];

/// The names that an attribute has: of a file and of a directory.
const FILE: &str = "/etc/passwd";
const DIRECTORY: &str = "/many";

fn of(view: &View, wanted: &str) -> u32 {
    let mut inodes = view.inodes();
    let is_it = |inode: &u32| view.paths(*inode).any(|path| path == wanted.as_bytes());
    inodes.find(is_it).expect("it is there")
}

/// An attribute that fills what an inode of 256 bytes has left, as the kernel makes it:
/// debugfs makes a block of names that do not fit the map's place.
fn attribute(view: &View) -> Vec<u8> {
    let mut value = Vec::new();
    for (name, inode, length) in [("late-1", FILE, 16), ("late-2", DIRECTORY, 52_u16)] {
        let begin = value.len();
        value.extend(of(view, inode).to_le_bytes());
        value.extend(length.to_le_bytes());
        value.extend([name.len() as u8, 0]);
        value.extend(name.as_bytes());
        value.resize(begin + usize::from(length), 0);
    }
    value
}

/// The file system with an empty directory, with names in its attribute, and where it is.
fn made(folder: &TempDir) -> (std::path::PathBuf, Image, Image) {
    let (_, image) = make(KIND.0, KIND.1, folder);
    let value = folder.path().join("value");
    fs::write(&value, attribute(&image.view().expect("a file system"))).expect("written");
    let changes = format!(
        "mkdir inline\nmkdir inline/first\nea_set -f {} inline system.data\n\
         sif inline size 128\nmkdir bin/new\nsif short uid 7\n",
        value.display()
    );
    changed_by(&changes, KIND.0, KIND.1, folder)
}

/// The names in the directory, as debugfs reports them.
fn names_by_debugfs(image: &Path) -> BTreeSet<(u32, String)> {
    let said = debugfs(image, "ls -p /inline");
    let entries = said.lines().filter_map(|line| {
        let mut fields = line.split('/').skip(1);
        let inode = fields.next()?.parse().ok()?;
        Some((inode, fields.nth(3)?.to_owned()))
    });
    let is_own = |name: &str| name == "." || name == "..";
    let entries = entries.filter(|(inode, name)| *inode != 0 && !is_own(name));
    entries.collect()
}

fn names(view: &View) -> BTreeSet<(u32, String)> {
    let mut names = BTreeSet::new();
    for inode in view.inodes() {
        for path in view.paths(inode) {
            let path = String::from_utf8(path).expect("UTF-8");
            if let Some(name) = path
                .strip_prefix("/inline/")
                .filter(|name| !name.contains('/'))
            {
                names.insert((inode, name.to_owned()));
            }
        }
    }
    names
}

#[test]
fn names_in_an_attribute_of_a_directory_are_read_and_followed() {
    let folder = TempDir::new().expect("a folder");
    let (path, before, after) = made(&folder);
    let expected = names_by_debugfs(&path);
    assert_eq!(expected.len(), 3, "{expected:?}");
    let read = after.view().expect("a file system");
    assert_eq!((names(&read), read.damaged()), (expected.clone(), 0));
    let replayed = journaled(&path, &before, &after, folder.path());
    for (written, is_committed) in [(&after, false), (&replayed, true)] {
        let mut live = Live::read(&before, before.0.len() as u64, super::testing::BYTES_MAX)
            .expect("a file system");
        let mut events = Vec::new();
        for (block, content) in before.written(written, 4096) {
            live.was_written(block * 4096, content, &mut events);
        }
        for block in live.take_wanted() {
            let content = after.0[block as usize * 4096..][..4096].to_vec();
            live.were_found([(block, content)].into(), &mut events);
        }
        assert_alike("inline", live.view(), &read);
        assert_eq!(names(live.view()), expected);
        let linked = Event::Linked {
            inode: of(&read, FILE),
            path: b"/inline/late-1".to_vec(),
        };
        assert!(!is_committed || events.contains(&linked), "{events:?}");
        if is_committed {
            continue;
        }
        // All names are removed again.
        for (block, content) in after.written(&before, 4096) {
            live.was_written(block * 4096, content, &mut events);
        }
        assert_alike(
            "inline",
            live.view(),
            &before.view().expect("a file system"),
        );
        assert_eq!(names(live.view()), BTreeSet::new());
    }
}

/// A hostile attribute may claim any position, length and name.
#[test]
fn an_attribute_is_never_read_beyond_its_inode() {
    let folder = TempDir::new().expect("a folder");
    let (_, _, after) = made(&folder);
    let read = after.view().expect("a file system");
    let all = names(&read).len();
    // Only this attribute has this value.
    let value = attribute(&read);
    let mut windows = after.0.windows(value.len());
    let at = windows.position(|window| window == value).expect("there");
    let inode = at / 256 * 256;
    for place in (128..132).chain(160..188) {
        for flip in [1, 0x10, 0x80, 0xFF] {
            let mut bad = Image(after.0.clone());
            bad.0[inode + place] ^= flip;
            let view = bad.view().expect("a file system");
            assert!(names(&view).len() <= all, "{place}");
        }
    }
    // The value begins beyond the end of the inode.
    let mut bad = Image(after.0.clone());
    bad.0[inode + 166..inode + 168].copy_from_slice(&[0xFF, 0xFF]);
    let view = bad.view().expect("a file system");
    let left: Vec<String> = names(&view).into_iter().map(|(_, name)| name).collect();
    assert_eq!((&left[..], view.damaged()), (&["first".to_owned()][..], 1));
}
