//! File systems made by mke2fs and changed by debugfs, and what debugfs says of them.
#![expect(
    clippy::disallowed_methods,
    reason = "e2fsprogs makes files, and reads them"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use base::IoError;
use tempfile::TempDir;
use world::simulated::SimulatedRandom;

use super::{FileKind, FormatError, Owner, ScanError, Source, View};

pub(crate) const BYTES_MAX: u64 = 64 << 20;

/// A disk that is in memory.
pub(crate) struct Image(pub(crate) Vec<u8>);

impl Source for Image {
    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), IoError> {
        let end = offset.saturating_add(out.len() as u64);
        if end > self.0.len() as u64 {
            return Err(IoError::OutOfRange {
                offset,
                length: out.len() as u64,
                size: self.0.len() as u64,
            });
        }
        out.copy_from_slice(&self.0[offset as usize..end as usize]);
        Ok(())
    }
}

impl Image {
    pub(crate) fn view(&self) -> Result<View, ScanError> {
        View::read(self, self.0.len() as u64, BYTES_MAX)
    }
}

/// A program of e2fsprogs, which users that are not root do not have in their path.
pub(crate) fn program(name: &str) -> Command {
    let path = PathBuf::from("/usr/sbin").join(name);
    assert!(
        path.is_file(),
        "{name} is missing; run `tools/packages guest`"
    );
    Command::new(path)
}

pub(crate) fn run(command: &mut Command) -> String {
    let done = command.output().expect("it can be run");
    let said = String::from_utf8_lossy(&done.stdout).into_owned();
    let wrong = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{command:?}: {said}{wrong}");
    said
}

/// Files of all kinds, as they come to be in some time.
fn fill(folder: &Path, random: &SimulatedRandom) {
    let write = |path: PathBuf, length: u64| {
        let content: Vec<u8> = (0..length).map(|at| (at % 251) as u8).collect();
        fs::write(path, content).expect("written");
    };
    for name in ["etc", "etc/deep/er/and/deeper", "bin", "many", "empty"] {
        fs::create_dir_all(folder.join(name)).expect("made");
    }
    write(folder.join("etc/passwd"), 1500);
    write(folder.join("etc/deep/er/and/deeper/file"), 70_000);
    write(folder.join("bin/large"), 3_000_000);
    write(folder.join("bin/none"), 0);
    for number in 0..700 {
        let name = format!("many/{}-{number}", "x".repeat(random.index(100)));
        write(folder.join(name), random.below(9000));
    }
    let link = |target: &str, name: &str| {
        std::os::unix::fs::symlink(target, folder.join(name)).expect("linked");
    };
    link("etc/passwd", "short");
    link(&"long/".repeat(40), "long");
    fs::hard_link(folder.join("etc/passwd"), folder.join("etc/shadow")).expect("linked");
    // A file with holes.
    let sparse = fs::File::create(folder.join("sparse")).expect("made");
    for at in [0, 1 << 20, 5 << 20, 40 << 20] {
        std::os::unix::fs::FileExt::write_all_at(&sparse, &[7; 5000], at).expect("written");
    }
}

/// Features that change what lies where.
pub(crate) const KINDS: [(&str, &[&str]); 12] = [
    ("ext2", &["-t", "ext2", "-b", "1024"]),
    ("ext3", &["-t", "ext3", "-b", "1024", "-J", "size=4"]),
    ("ext4", &["-t", "ext4", "-b", "4096"]),
    (
        "ext4-small-blocks",
        &["-t", "ext4", "-b", "1024", "-g", "1024"],
    ),
    (
        "meta-bg",
        &[
            "-t",
            "ext4",
            "-b",
            "1024",
            "-g",
            "512",
            "-O",
            "meta_bg,^resize_inode,^flex_bg",
        ],
    ),
    (
        "no-64-bit",
        &[
            "-t",
            "ext4",
            "-b",
            "2048",
            "-I",
            "128",
            "-O",
            "^64bit,^metadata_csum,^flex_bg",
        ],
    ),
    (
        "no-extents",
        &[
            "-t",
            "ext4",
            "-b",
            "1024",
            "-O",
            "^extent,^sparse_super,^64bit,^resize_inode",
        ],
    ),
    (
        "sparse-super-2",
        &[
            "-t",
            "ext4",
            "-b",
            "1024",
            "-g",
            "1024",
            "-O",
            "sparse_super2,^resize_inode",
        ],
    ),
    (
        "inline-data",
        &["-t", "ext4", "-b", "4096", "-I", "256", "-O", "inline_data"],
    ),
    (
        "clusters",
        &["-t", "ext4", "-b", "4096", "-C", "16384", "-O", "bigalloc"],
    ),
    (
        "old",
        &[
            "-t",
            "ext2",
            "-b",
            "1024",
            "-O",
            "^filetype,^sparse_super,^ext_attr,^resize_inode",
        ],
    ),
    // Its first group begins before the superblock.
    (
        "clusters-of-small-blocks",
        &["-t", "ext4", "-b", "1024", "-C", "4096", "-O", "bigalloc"],
    ),
];

/// A file system of one of the kinds, with files in it some of which were removed.
pub(crate) fn make(name: &str, options: &[&str], folder: &TempDir) -> (PathBuf, Image) {
    let files = folder.path().join("files");
    let image = folder.path().join(name);
    if !files.is_dir() {
        fill(&files, &SimulatedRandom::new(7));
    }
    let mut make = program("mke2fs");
    make.args(["-q", "-F", "-d"]).arg(&files).args(options);
    run(make.arg(&image).arg("96M"));
    let mut change = String::new();
    for number in (0..700).step_by(3) {
        let listed = fs::read_dir(files.join("many")).expect("listed");
        let ends = format!("-{number}");
        let mut names = listed.map(|entry| entry.expect("an entry").file_name());
        let name = names.find(|name| name.to_string_lossy().ends_with(&ends));
        let name = name.expect("it was made").to_string_lossy().into_owned();
        change += &format!("rm many/{name}\n");
    }
    // What is made now lies where there was something.
    change += &format!("write {} again\n", files.join("bin/large").display());
    change += "mkdir later\nln etc/passwd later/third\nrm bin/none\n";
    let mut debugfs = program("debugfs");
    let mut process = debugfs
        .args(["-w", "-f", "-"])
        .arg(&image)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("debugfs can be run");
    let mut input = process.stdin.take().expect("it is piped");
    input.write_all(change.as_bytes()).expect("written");
    drop(input);
    assert!(process.wait().expect("it ends").success());
    let bytes = fs::read(&image).expect("read");
    (image, Image(bytes))
}

pub(crate) fn debugfs(image: &Path, request: &str) -> String {
    run(program("debugfs").args(["-R", request]).arg(image))
}

/// Which inode each block is of, as debugfs says.
fn owners_by_debugfs(image: &Path, blocks: u64) -> BTreeMap<u64, u32> {
    let mut owners = BTreeMap::new();
    let all: Vec<u64> = (0..blocks).collect();
    for part in all.chunks(15_000) {
        let numbers: Vec<String> = part.iter().map(u64::to_string).collect();
        let said = debugfs(image, &format!("icheck {}", numbers.join(" ")));
        for line in said.lines().skip(1) {
            let mut words = line.split_whitespace();
            let block = words.next().and_then(|word| word.parse().ok());
            let inode = words.next().and_then(|word| word.parse().ok());
            if let (Some(block), Some(inode)) = (block, inode) {
                owners.insert(block, inode);
            }
        }
    }
    owners
}

#[test]
fn every_block_is_whose_debugfs_says() {
    let folder = TempDir::new().expect("a folder");
    for (name, options) in KINDS {
        let (path, image) = make(name, options, &folder);
        let view = image.view().expect(name);
        assert_eq!(view.damaged(), 0, "{name}");
        let blocks = view.superblock().blocks;
        let expected = owners_by_debugfs(&path, blocks);
        assert!(expected.len() > 1000, "{name}: {}", expected.len());
        for block in 0..blocks {
            let found = match view.owner(block) {
                Owner::Content { inode, .. } | Owner::Map { inode } => Some(inode),
                _ => None,
            };
            let by_debugfs = expected.get(&block).copied();
            assert_eq!(found, by_debugfs, "{name}: block {block}");
        }
        fs::remove_file(path).expect("removed");
    }
}

#[test]
fn every_file_has_the_names_and_the_content_that_debugfs_says() {
    let folder = TempDir::new().expect("a folder");
    for (name, options) in KINDS {
        let (path, image) = make(name, options, &folder);
        let view = image.view().expect(name);
        let mut inodes: Vec<u32> = view.inodes().filter(|inode| *inode > 11).collect();
        inodes.sort_unstable();
        assert!(inodes.len() > 400, "{name}: {}", inodes.len());
        let numbers: Vec<String> = inodes.iter().map(u32::to_string).collect();
        let said = debugfs(&path, &format!("ncheck {}", numbers.join(" ")));
        let mut names: BTreeMap<u32, BTreeSet<Vec<u8>>> = BTreeMap::new();
        for line in said.lines().skip(1) {
            let (inode, path) = line.split_once('\t').expect("an inode and a path");
            let path = path.replace("//", "/").into_bytes();
            let inode = inode.parse().expect("a number");
            names.entry(inode).or_default().insert(path);
        }
        for inode in &inodes {
            let found = view.path(*inode).unwrap_or_default();
            let known = names.get(inode);
            let is_known = known.is_some_and(|known| known.contains(&found));
            let shown = String::from_utf8_lossy(&found);
            assert!(is_known, "{name}: inode {inode}: {shown:?} {known:?}");
        }
        check_content(name, &view, &image, &path, &inodes, folder.path());
        fs::remove_file(path).expect("removed");
    }
}

/// A guest was running: what its journal has counts, as e2fsck would have it.
#[test]
fn what_is_in_the_journal_counts() {
    let folder = TempDir::new().expect("a folder");
    for (name, options) in [KINDS[1], KINDS[2], KINDS[8]] {
        let (path, before) = make(name, options, &folder);
        let change = |request: &str| {
            run(program("debugfs").args(["-w", "-R", request]).arg(&path));
        };
        change("mkdir etc/new");
        change("ln etc/passwd etc/new/alias");
        change("rm bin/large");
        let after = Image(fs::read(&path).expect("read"));
        let replayed = journalled(&path, &before, &after, folder.path());
        let journal_is_used = replayed.view().expect(name).superblock().needs_recovery;
        assert!(journal_is_used, "{name}: debugfs has written its journal");
        let (found, expected) = (replayed.view().expect(name), after.view().expect(name));
        for block in 0..expected.superblock().blocks {
            assert_eq!(found.owner(block), expected.owner(block), "{name}: {block}");
        }
        let names = |view: &View| -> BTreeMap<u32, Option<Vec<u8>>> {
            view.inodes()
                .map(|inode| (inode, view.path(inode)))
                .collect()
        };
        assert_eq!(names(&found), names(&expected), "{name}");
        fs::remove_file(path).expect("removed");
    }
}

/// As `before`, and what is otherwise in `after` in the journal.
pub(crate) fn journalled(path: &Path, before: &Image, after: &Image, folder: &Path) -> Image {
    fs::write(path, &before.0).expect("written");
    let view = before.view().expect("a file system");
    let block_bytes = view.superblock().block_bytes as usize;
    let blocks = before
        .0
        .chunks(block_bytes)
        .zip(after.0.chunks(block_bytes));
    let (mut numbers, mut contents) = (Vec::new(), Vec::new());
    for (number, (_, is)) in blocks.enumerate().filter(|(_, (was, is))| was != is) {
        numbers.push(number.to_string());
        contents.extend(is);
    }
    assert!(numbers.len() > 3, "{}: {numbers:?}", path.display());
    let content = folder.join("blocks");
    fs::write(&content, contents).expect("written");
    let write = format!(
        "journal_write -b {} {}",
        numbers.join(","),
        content.display()
    );
    let script = folder.join("requests");
    let requests = format!("journal_open\n{write}\njournal_close\n");
    fs::write(&script, requests).expect("written");
    run(program("debugfs")
        .arg("-w")
        .arg("-f")
        .arg(&script)
        .arg(path));
    Image(fs::read(path).expect("read"))
}

/// Compares some files with what debugfs reads of them.
fn check_content(
    name: &str,
    view: &View,
    image: &Image,
    path: &Path,
    inodes: &[u32],
    folder: &Path,
) {
    let mut compared = 0;
    for inode in inodes.iter().copied() {
        let file = view.inode(inode).expect("in use");
        let is_large = file.size > 100_000;
        if file.kind != FileKind::File || !(is_large || inode.is_multiple_of(50)) {
            continue;
        }
        let out = folder.join("content");
        debugfs(path, &format!("dump <{inode}> {}", out.display()));
        let expected = fs::read(&out).expect("dumped");
        let block_bytes = view.superblock().block_bytes as usize;
        let mut found = vec![0; expected.len().next_multiple_of(block_bytes)];
        for run in view.runs(inode).iter().filter(|run| !run.is_unwritten) {
            for at in 0..run.length as usize {
                let place = (run.place as usize + at) * block_bytes;
                let block = (run.block as usize + at) * block_bytes;
                let Some(there) = found.get_mut(place..place + block_bytes) else {
                    continue;
                };
                there.copy_from_slice(&image.0[block..block + block_bytes]);
            }
        }
        found.truncate(expected.len());
        assert_eq!(file.size, expected.len() as u64, "{name}: inode {inode}");
        let has_blocks = !view.runs(inode).is_empty();
        assert!(found == expected || !has_blocks, "{name}: inode {inode}");
        compared += u64::from(has_blocks);
    }
    assert!(compared > 3, "{name}: {compared}");
}

#[test]
fn what_is_no_such_file_system_is_said_to_be_none() {
    let empty = Image(vec![0; 1 << 20]);
    let none = |image: &Image| match image.view() {
        Err(ScanError::Format(error)) => error,
        other => panic!("{:?}", other.map(|view| view.damaged())),
    };
    assert_eq!(none(&empty), FormatError::Magic);
    assert_eq!(none(&Image(Vec::new())), FormatError::Magic);
    let folder = TempDir::new().expect("a folder");
    let (_, mut image) = make("ext4", KINDS[2].1, &folder);
    // A disk that is shorter than what lies on it.
    let whole = image.0.len();
    image.0.truncate(whole - 4096);
    assert_eq!(none(&image), FormatError::Nonsense("its size"));
    image.0.resize(whole, 0);
    // A feature of years to come.
    image.0[1024 + 99] = 0x40;
    assert_eq!(none(&image), FormatError::Features(0x4000_0000));
    // It has more files than there is memory for.
    image.0[1024 + 99] = 0;
    let few = View::read(&image, image.0.len() as u64, 10_000);
    assert!(matches!(few, Err(ScanError::Large(10_000))));
}

/// Whatever lies there: no panic, and an end.
#[test]
fn a_damaged_file_system_is_read_as_far_as_it_makes_sense() {
    let folder = TempDir::new().expect("a folder");
    for (number, (name, options)) in KINDS.iter().enumerate() {
        let (path, image) = make(name, options, &folder);
        fs::remove_file(path).expect("removed");
        let view = image.view().expect(name);
        let block_bytes = u64::from(view.superblock().block_bytes);
        let is_metadata = |block: &u64| match view.owner(*block) {
            Owner::Nobody => false,
            Owner::Content { inode, .. } => view
                .inode(inode)
                .is_some_and(|inode| inode.kind == FileKind::Directory),
            _ => true,
        };
        let metadata: Vec<u64> = (0..view.superblock().blocks).filter(is_metadata).collect();
        let random = SimulatedRandom::new(number as u64);
        let mut damaged = 0;
        let mut bad = Image(image.0.clone());
        for _ in 0..20 {
            let mut changed = Vec::new();
            for _ in 0..1 + random.below(200) {
                let begin = (metadata[random.index(metadata.len())] * block_bytes) as usize;
                let end = begin + block_bytes as usize;
                changed.push(begin..end);
                let at = begin + random.below(block_bytes) as usize;
                match random.below(3) {
                    0 => bad.0[at] ^= 1 << random.below(8),
                    1 => bad.0[at] = 0xFF,
                    // What is there lies there once more.
                    _ => {
                        let from = metadata[random.index(metadata.len())] * block_bytes;
                        let from = from as usize..(from + block_bytes) as usize;
                        bad.0.copy_within(from, begin);
                    }
                }
            }
            if let Ok(view) = bad.view() {
                damaged += view.damaged();
                view.inodes().for_each(|inode| drop(view.path(inode)));
            }
            for there in changed {
                bad.0[there.clone()].copy_from_slice(&image.0[there]);
            }
        }
        assert!(damaged > 0, "{name}: nothing was noticed");
    }
}
