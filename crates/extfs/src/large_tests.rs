//! A file system with a million files: memory and time.
#![expect(
    clippy::disallowed_methods,
    reason = "e2fsprogs makes files, and what is measured is this machine"
)]

use std::fs;
use std::hint::black_box;
use std::os::unix::fs::FileExt as _;
use std::time::Instant;

use base::IoError;
use tempfile::TempDir;
use world::simulated::SimulatedRandom;

use super::testing::{program, run};
use super::{Event, Live, Owner, Source};

/// The default memory limit of a monitor, in bytes.
const BYTES_MAX: u64 = 512 << 20;

const LOOKUPS: u64 = 1_000_000;

struct Disk(fs::File);

impl Source for Disk {
    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), IoError> {
        let read = self.0.read_exact_at(out, offset);
        read.map_err(|error| IoError::Damaged(error.to_string()))
    }
}

/// The resident memory of this process, in bytes.
fn resident() -> u64 {
    let status = fs::read_to_string("/proc/self/status").expect("Linux");
    let line = status.lines().find(|line| line.starts_with("VmRSS:"));
    let kib = line.and_then(|line| line.split_whitespace().nth(1));
    kib.expect("it is said").parse::<u64>().expect("a number") << 10
}

/// Follows a file system with `directories` directories of 1000 files, and prints memory and time.
fn measure(directories: u32, folder: &TempDir) {
    let tree = folder.path().join(format!("tree-{directories}"));
    for directory in 0..directories {
        let path = tree.join(format!("directory-{directory}"));
        fs::create_dir_all(&path).expect("made");
        for file in 0..1000 {
            fs::write(path.join(format!("file-{directory}-{file}")), []).expect("made");
        }
    }
    let image = folder.path().join("image");
    run(program("mke2fs")
        .args(["-q", "-F", "-t", "ext4", "-b", "4096", "-d"])
        .arg(&tree)
        .args(["-N", &(directories * 1001 + 1000).to_string()])
        .arg(&image)
        .arg("2G"));
    fs::remove_dir_all(&tree).expect("removed");
    let disk = Disk(fs::File::open(&image).expect("it is there"));

    let (before, begun) = (resident(), Instant::now());
    let mut live = Live::read(&disk, 2 << 30, BYTES_MAX).expect("it fits");
    let (read_for, taken) = (begun.elapsed(), resident().saturating_sub(before));
    let view = live.view();
    let files = view.inodes().count() as u64;
    assert!(files >= u64::from(directories) * 1001, "{files}");
    // The allocator's overhead is only some MiB.
    let counted = live.bytes() + (8 << 20);
    assert!(live.is_within_bounds() && taken <= counted, "{taken}");

    let random = SimulatedRandom::new(1);
    let begun = Instant::now();
    for _ in 0..LOOKUPS {
        black_box(view.owner(random.below(view.superblock().blocks)));
    }
    let owner_for = begun.elapsed();
    let inodes: Vec<u32> = view.inodes().collect();
    let begun = Instant::now();
    for _ in 0..LOOKUPS {
        black_box(view.path(inodes[random.index(inodes.len())]));
    }
    let path_for = begun.elapsed();

    // The file system is not mounted, so each table block takes effect at once.
    let blocks = view.superblock().blocks;
    let tables = (0..blocks).filter(|block| matches!(view.owner(*block), Owner::InodeTable(_)));
    let tables: Vec<u64> = tables.take(2000).collect();
    let mut events = Vec::new();
    let mut changed_for = std::time::Duration::ZERO;
    for block in tables {
        let mut content = vec![0; 4096];
        disk.read(block * 4096, &mut content).expect("read");
        for inode in content
            .chunks_exact_mut(256)
            .filter(|inode| inode[1] == 0x81)
        {
            inode[0] ^= 1;
        }
        let begun = Instant::now();
        live.was_written(block * 4096, &content, &mut events);
        changed_for += begun.elapsed();
    }
    let is_chmod = |event: &Event| matches!(event, Event::Permissions { .. });
    assert!(!events.is_empty() && events.iter().all(is_chmod));
    eprintln!(
        "{files} files: read in {read_for:?}; {} MiB counted, {} MiB taken; an owner {:?}, \
         a path {:?}, a change {:?}",
        live.bytes() >> 20,
        taken >> 20,
        owner_for / LOOKUPS as u32,
        path_for / LOOKUPS as u32,
        changed_for / events.len() as u32,
    );
}

/// Prints how long an owner, a path and a change take with a thousand and with a million files.
#[test]
#[ignore = "takes minutes: mke2fs copies a million files"]
fn a_million_files_are_followed_within_512_mib() {
    let folder = TempDir::new().expect("a folder");
    measure(1, &folder);
    measure(1000, &folder);
}
