//! File systems made by mke2fs and changed by debugfs.
#![expect(
    clippy::disallowed_methods,
    reason = "e2fsprogs makes files, and reads them"
)]

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use base::IoError;
use tempfile::TempDir;
use world::simulated::SimulatedRandom;

use crate::{Live, ScanError, Source, View};

/// The memory limit of the views that tests read, in bytes.
pub const BYTES_MAX: u64 = 64 << 20;

/// The content of a disk, in memory.
pub struct Image(pub Vec<u8>);

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
    /// Reads the file system.
    ///
    /// # Errors
    /// As [`View::read`].
    pub fn view(&self) -> Result<View, ScanError> {
        View::read(self, self.0.len() as u64, BYTES_MAX)
    }
}

/// A program of e2fsprogs. Its folder is not in the `PATH` of ordinary users.
///
/// # Panics
/// If the program is not installed.
pub fn program(name: &str) -> Command {
    let path = PathBuf::from("/usr/sbin").join(name);
    assert!(
        path.is_file(),
        "{name} is missing; run `tools/packages guest`"
    );
    Command::new(path)
}

/// Runs a program and returns its standard output.
///
/// # Panics
/// If the program fails; the message has its output.
pub fn run(command: &mut Command) -> String {
    let done = command.output().expect("it can be run");
    let said = String::from_utf8_lossy(&done.stdout).into_owned();
    let wrong = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{command:?}: {said}{wrong}");
    said
}

/// Creates files of all kinds.
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

/// Kinds of file systems with different layouts, as a name and the arguments of mke2fs.
pub const KINDS: [(&str, &[&str]); 12] = [
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
    // The first group begins before the superblock.
    (
        "clusters-of-small-blocks",
        &["-t", "ext4", "-b", "1024", "-C", "4096", "-O", "bigalloc"],
    ),
];

/// Creates a file system of one of the [`KINDS`] in which some files were removed. Returns its
/// path and content.
pub fn make(name: &str, options: &[&str], folder: &TempDir) -> (PathBuf, Image) {
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
    // New files use blocks of removed ones.
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

/// The output of a request to debugfs.
///
/// # Panics
/// If debugfs is not installed or fails.
pub fn debugfs(image: &Path, request: &str) -> String {
    run(program("debugfs").args(["-R", request]).arg(image))
}

/// The image `before` with the blocks that differ in `after` committed to its journal.
pub fn journaled(path: &Path, before: &Image, after: &Image, folder: &Path) -> Image {
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

impl Image {
    /// Reads the file system in order to follow its changes.
    ///
    /// # Panics
    /// If the image is not a file system that can be followed.
    pub fn live(&self) -> Live {
        Live::read(self, self.0.len() as u64, BYTES_MAX).expect("a file system")
    }

    /// The blocks that differ in `after`, with their content there.
    pub fn written<'a>(&'a self, after: &'a Self, block_bytes: usize) -> Vec<(u64, &'a [u8])> {
        let blocks = self.0.chunks(block_bytes).zip(after.0.chunks(block_bytes));
        let changed = (0..).zip(blocks).filter(|(_, (was, is))| was != is);
        let block = |(number, (_, is)): (u64, (&'a [u8], &'a [u8]))| (number, is);
        changed.map(block).collect()
    }
}

/// The requests to debugfs with which [`changed`] changes a file system.
const CHANGES: &str = "mkdir etc/new\n\
    ln etc/passwd etc/new/alias\n\
    cd bin\nwrite etc/passwd trojan\ncd /\n\
    rm bin/large\n\
    sif etc/passwd mode 0100600\n\
    sif again uid 1000\n\
    sif again size 100\n";

/// Creates and changes a file system of this kind. Returns its path and the images before and after
/// the change.
pub fn changed(name: &str, options: &[&str], folder: &TempDir) -> (PathBuf, Image, Image) {
    changed_by(CHANGES, name, options, folder)
}

pub fn changed_by(
    changes: &str,
    name: &str,
    options: &[&str],
    folder: &TempDir,
) -> (PathBuf, Image, Image) {
    let (path, before) = make(name, options, folder);
    let script = folder.path().join("changes");
    let source = folder.path().join("files/etc/passwd");
    let source = source.display().to_string();
    let changes = changes.replace("write etc/passwd", &format!("write {source}"));
    fs::write(&script, changes).expect("written");
    run(program("debugfs")
        .arg("-w")
        .arg("-f")
        .arg(&script)
        .arg(&path));
    let after = Image(fs::read(&path).expect("read"));
    (path, before, after)
}
