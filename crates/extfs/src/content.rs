//! Which files have content in a range of a file system, and how many bytes of it.
//!
//! The last block of a file counts up to the end of the file. Blocks that are reserved and not
//! written read as zeroes and are not content. The content of a small file may be in its inode; all
//! of it counts at the beginning of the inode.

use std::ops::Range;

use super::inode::{FileKind, Map};
use super::map::Run;
use super::names::FIRST_FILE;
use super::owners::Owner;
use super::view::View;

impl View {
    /// Whether an inode is a regular file of a user, and neither a directory or device nor a file
    /// of the file system itself, such as its journal.
    #[must_use]
    pub fn is_regular(&self, inode: u32) -> bool {
        let kind = self.inode(inode).map(|file| file.kind);
        inode >= FIRST_FILE && kind == Some(FileKind::File)
    }

    /// Calls `each` with the regular files that have content in a range of the file system, in
    /// bytes, and the number of their bytes there. The same file may be passed several times.
    pub fn content_in(&self, bytes: Range<u64>, mut each: impl FnMut(u32, u64)) {
        let block_bytes = u64::from(self.superblock().block_bytes);
        let blocks = bytes.start / block_bytes..bytes.end.div_ceil(block_bytes);
        for block in blocks {
            let begin = block * block_bytes;
            let part = begin.max(bytes.start)..(begin + block_bytes).min(bytes.end);
            match self.owner(block) {
                Owner::Content { inode, place } if self.is_regular(inode) => {
                    let size = self.inode(inode).map_or(0, |file| file.size);
                    let in_file = u64::from(place) * block_bytes;
                    let left = size.saturating_sub(in_file).min(block_bytes);
                    let end = part.end.min(begin + left);
                    if end > part.start && self.is_written(inode, place) {
                        each(inode, end - part.start);
                    }
                }
                Owner::InodeTable(table) => {
                    for (inode, at) in self.inline_in(table) {
                        let size = self.inode(inode).map_or(0, |file| file.size);
                        if part.contains(&(begin + at)) && size > 0 {
                            each(inode, size.min(self.superblock().inode_bytes.into()));
                        }
                    }
                }
                _ => {}
            }
        }
    }

    /// Whether a block of a file was written after it was reserved.
    fn is_written(&self, inode: u32, place: u32) -> bool {
        let runs = self.runs(inode);
        let after = runs.partition_point(|run| run.place <= place);
        let run: Option<&Run> = after.checked_sub(1).map(|at| &runs[at]);
        run.is_some_and(|run| !run.is_unwritten)
    }

    /// The files in a block of the inode table whose content is in their inodes, each with the
    /// offset of the inode in the block, in bytes.
    fn inline_in(&self, table: u32) -> impl Iterator<Item = (u32, u64)> {
        let inode_bytes = u64::from(self.superblock().inode_bytes);
        let offsets = (0..).map(move |at: u64| at * inode_bytes);
        let is_inline = |inode: u32| {
            let map = self.inode(inode).map(|file| &file.map);
            self.is_regular(inode) && matches!(map, Some(Map::Inline(_)))
        };
        let inodes = self.inodes_in(table).zip(offsets);
        inodes.filter(move |(inode, _)| is_inline(*inode))
    }
}

#[cfg(test)]
mod tests {
    #![expect(
        clippy::disallowed_methods,
        reason = "e2fsprogs makes files, and reads them"
    )]

    use std::collections::BTreeMap;
    use std::fs;

    use super::super::View;
    use super::super::testing::{KINDS, debugfs, make, program, run};

    fn counted(view: &View, end: u64, step: u64) -> BTreeMap<u32, u64> {
        let mut counted = BTreeMap::new();
        for begin in (0..end).step_by(step as usize) {
            view.content_in(begin..end.min(begin + step), |inode, bytes| {
                *counted.entry(inode).or_default() += bytes;
            });
        }
        counted
    }

    /// Compares with the lengths and blocks that `debugfs` reports.
    #[test]
    fn each_byte_of_a_file_is_counted_once_for_any_split_into_ranges() {
        for (name, options) in KINDS {
            let folder = tempfile::TempDir::new().expect("a folder");
            let (_, image) = make(name, options, &folder);
            let view = image.view().expect("a file system");
            let end = image.0.len() as u64;
            let counted_whole = counted(&view, end, end);
            for step in [1000, 4096, 65_536] {
                assert_eq!(counted(&view, end, step), counted_whole, "{name} {step}");
            }
            let mut files = 0;
            for inode in view.inodes().filter(|inode| view.is_regular(*inode)) {
                let size = view.inode(inode).expect("it is there").size;
                let bytes = counted_whole.get(&inode).copied().unwrap_or(0);
                // One is sparse.
                assert!(bytes <= size, "{name} {inode}");
                let is_whole = view.paths(inode).all(|path| !path.ends_with(b"sparse"));
                assert!(
                    bytes == size || !is_whole,
                    "{name} {inode}: {bytes} of {size}"
                );
                files += usize::from(bytes > 0);
            }
            assert!(files > 400, "{name}: {files}");
        }
    }

    #[test]
    fn holes_and_what_was_reserved_only_are_no_content_and_inodes_have_some() {
        let folder = tempfile::TempDir::new().expect("a folder");
        let path = |name: &str| folder.path().join(name);
        fs::create_dir(path("tree")).expect("made");
        fs::write(path("tree/tiny"), [7; 100]).expect("written");
        fs::write(path("tree/end"), [8; 5000]).expect("written");
        let sparse = fs::File::create(path("tree/sparse")).expect("made");
        sparse.set_len(1 << 20).expect("longer");
        std::os::unix::fs::FileExt::write_all_at(&sparse, &[9; 4096], 65_536).expect("written");
        let image = path("image");
        let made = program("mkfs.ext4")
            .args(["-q", "-O", "inline_data", "-d"])
            .arg(path("tree"))
            .arg(&image)
            .arg("16m")
            .output();
        assert!(made.expect("run").status.success());
        run(program("debugfs")
            .args(["-w", "-R", "fallocate end 8 20"])
            .arg(&image));
        let said = debugfs(&image, "stat end");
        assert!(said.contains("[u]"), "{said}");
        let image = super::super::testing::Image(fs::read(&image).expect("read"));
        let view = image.view().expect("a file system");
        let counted = counted(&view, image.0.len() as u64, 4096);
        let of = |name: &str| {
            let mut inodes = view.inodes();
            let is_it = |inode: &u32| view.paths(*inode).any(|path| path == name.as_bytes());
            counted[&inodes.find(is_it).expect("it is there")]
        };
        assert_eq!((of("/tiny"), of("/end")), (100, 5000));
        // mke2fs writes the last block of a file, whatever is in it.
        assert!(
            [4096, 5120, 8192].contains(&of("/sparse")),
            "{}",
            of("/sparse")
        );
    }
}
