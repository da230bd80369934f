//! Real file systems as seeds, in `images/`: made by mke2fs and changed by debugfs.
//!
//! Each has three states: as it was made, after changes, and as it was made with the changes in its
//! journal, if it has one. `mutate --make-images FOLDER` makes them again.
//!
//! A file consists of the first state and the difference of each other state (XOR), encoded as
//! `length u32 │ zeroes u32 │ bytes u32 │ bytes … │ zeroes …`, little-endian. So a megabyte needs a
//! few kilobytes.

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::OnceLock;

/// A file system in its three states, which have the same length.
pub struct Image {
    pub name: &'static str,
    pub before: Vec<u8>,
    pub after: Vec<u8>,
    /// With the changes in the journal; equal to `before` without a journal.
    pub journaled: Vec<u8>,
    /// The blocks that are not empty in a state, and some empty ones.
    pub blocks: Vec<u64>,
}

/// The name, the options of mke2fs, and the size of each image.
const KINDS: [(&str, &[&str], &str); 11] = [
    ("old", &["-t", "ext2", "-r", "0", "-O", "none"], "512K"),
    ("ext2", &["-t", "ext2"], "512K"),
    ("ext3", &["-t", "ext3", "-J", "size=1"], "3M"),
    ("ext4", &["-t", "ext4", "-J", "size=1"], "3M"),
    ("extents", &["-t", "ext4", "-O", NO_JOURNAL], "512K"),
    (
        "many-groups",
        &["-t", "ext4", "-g", "256", "-O", NO_JOURNAL],
        "1M",
    ),
    ("meta-bg", &["-t", "ext4", "-g", "256", "-O", META_BG], "1M"),
    (
        "inline-data",
        &["-t", "ext4", "-I", "256", "-O", INLINE_DATA],
        "512K",
    ),
    (
        "clusters",
        &["-t", "ext4", "-C", "4096", "-O", CLUSTERS],
        "2M",
    ),
    (
        "inline-names",
        &["-t", "ext4", "-I", "256", "-O", INLINE_DATA],
        "512K",
    ),
    (GROWS, &["-t", "ext4", "-g", "1024", "-J", "size=1"], "3M"),
];

/// The image that grows, and the size of its disk.
const GROWS: &str = "grows";
const GROWS_TO_BYTES: u64 = 6 << 20;

/// Commands that store the names of a directory in an extended attribute.
const INLINE_NAMES: &str = "mkdir etc/inline\nea_set -f ATTRIBUTE etc/inline system.data\n\
    sif etc/inline size 128\n";

const NO_JOURNAL: &str = "^has_journal,^metadata_csum,^uninit_bg,^resize_inode";
const META_BG: &str = "^has_journal,^metadata_csum,^uninit_bg,^resize_inode,^flex_bg,meta_bg";
const INLINE_DATA: &str = "^has_journal,^metadata_csum,^uninit_bg,^resize_inode,inline_data";
const CLUSTERS: &str = "^has_journal,^metadata_csum,^uninit_bg,^resize_inode,bigalloc";

const CHANGES: &str = "mkdir etc/new\nln etc/passwd etc/new/alias\ncd bin\nwrite SOURCE trojan\n\
    cd /\nrm bin/large\nsif etc/passwd mode 0100600\nsif short uid 1000\nsif sparse size 100\n\
    symlink etc/away /far/away\n";

/// All images.
pub fn images() -> &'static [Image] {
    static IMAGES: OnceLock<Vec<Image>> = OnceLock::new();
    IMAGES.get_or_init(|| {
        [
            ("old", &include_bytes!("../images/old")[..]),
            ("ext2", include_bytes!("../images/ext2")),
            ("ext3", include_bytes!("../images/ext3")),
            ("ext4", include_bytes!("../images/ext4")),
            ("extents", include_bytes!("../images/extents")),
            ("many-groups", include_bytes!("../images/many-groups")),
            ("meta-bg", include_bytes!("../images/meta-bg")),
            ("inline-data", include_bytes!("../images/inline-data")),
            ("clusters", include_bytes!("../images/clusters")),
            ("inline-names", include_bytes!("../images/inline-names")),
            ("grows", include_bytes!("../images/grows")),
        ]
        .map(|(name, packed)| unpack(name, packed))
        .into()
    })
}

/// A header that cryptsetup made: the first 512 bytes of its first copy, and its JSON text.
pub fn luks_header() -> (Vec<u8>, Vec<u8>) {
    let header = unpack_one(&mut &include_bytes!("../images/luks2")[..]);
    let text = &header[4096..];
    let end = text.iter().position(|byte| *byte == 0).expect("text");
    (header[..512].to_vec(), text[..end].to_vec())
}

fn make_luks(folder: &Path, work: &Path) {
    let (disk, key) = (work.join("disk"), work.join("key"));
    std::fs::write(&disk, vec![0; 17 << 20]).expect("written");
    std::fs::write(&key, "correct horse").expect("written");
    let slot = ["--pbkdf", "argon2id", "--pbkdf-memory", "1024"];
    let costs = ["--pbkdf-force-iterations", "4", "--pbkdf-parallel", "1"];
    run(Command::new("/usr/sbin/cryptsetup")
        .args(["luksFormat", "--type", "luks2", "--batch-mode", "--cipher"])
        .args(["aes-xts-plain64", "--key-size", "512"])
        .args(slot)
        .args(costs)
        .arg("--key-file")
        .arg(key)
        .arg(&disk));
    let disk = std::fs::read(disk).expect("read");
    let mut packed = Vec::new();
    pack(&disk[..16 << 10], &mut packed);
    std::fs::write(folder.join("luks2"), packed).expect("written");
}

fn pack(bytes: &[u8], into: &mut Vec<u8>) {
    let mut put = |number: usize| into.extend((number as u32).to_le_bytes());
    put(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let zeroes = bytes[at..].iter().take_while(|byte| **byte == 0).count();
        at += zeroes;
        // A few zeroes within other bytes cost less than a run of their own.
        let rest = &bytes[at..];
        let end = rest.windows(8).position(|window| window == [0; 8]);
        let end = end.unwrap_or(rest.len());
        let mut put = |number: usize| into.extend((number as u32).to_le_bytes());
        put(zeroes);
        put(end);
        into.extend(&rest[..end]);
        at += end;
    }
}

fn unpack_one(packed: &mut &[u8]) -> Vec<u8> {
    let mut take = |length: usize| {
        let (part, rest) = packed.split_at(length);
        *packed = rest;
        part
    };
    let number = |bytes: &[u8]| u32::from_le_bytes(bytes.try_into().expect("4 bytes")) as usize;
    let length = number(take(4));
    let mut bytes = Vec::with_capacity(length);
    while bytes.len() < length {
        let (zeroes, literal) = (number(take(4)), number(take(4)));
        bytes.resize(bytes.len() + zeroes, 0);
        bytes.extend(take(literal));
    }
    bytes
}

fn xor(one: &[u8], other: &[u8]) -> Vec<u8> {
    one.iter()
        .zip(other)
        .map(|(one, other)| one ^ other)
        .collect()
}

fn unpack(name: &'static str, mut packed: &[u8]) -> Image {
    let before = unpack_one(&mut packed);
    let after = xor(&before, &unpack_one(&mut packed));
    let journaled = xor(&before, &unpack_one(&mut packed));
    let is_empty = |block: &u64| {
        let range = *block as usize * 1024..(*block as usize + 1) * 1024;
        let states = [&before, &after, &journaled];
        let mut bytes = states.into_iter().flat_map(|state| &state[range.clone()]);
        bytes.all(|byte| *byte == 0)
    };
    let (empty, other): (Vec<u64>, Vec<u64>) =
        (0..(before.len() / 1024) as u64).partition(is_empty);
    let blocks = other.into_iter().chain(empty.into_iter().take(16));
    Image {
        blocks: blocks.collect(),
        name,
        before,
        after,
        journaled,
    }
}

/// A program of e2fsprogs; all that it makes is the same each time.
fn program(name: &str) -> Command {
    let mut command = Command::new(format!("/usr/sbin/{name}"));
    command.env("E2FSPROGS_FAKE_TIME", "1700000000");
    command.stderr(Stdio::null()).stdout(Stdio::null());
    command
}

fn run(command: &mut Command) {
    let done = command.status().expect("e2fsprogs is installed");
    assert!(done.success(), "{command:?}");
}

fn debugfs(image: &Path, requests: &str, folder: &Path) {
    let script = folder.join("requests");
    std::fs::write(&script, requests).expect("written");
    run(program("debugfs").args(["-w", "-f"]).arg(script).arg(image));
}

fn fill(folder: &Path) {
    use std::os::unix::fs::{FileExt as _, symlink};
    for name in ["etc/deep/er", "bin", "many", "empty"] {
        std::fs::create_dir_all(folder.join(name)).expect("made");
    }
    // Of a block of zeroes mke2fs makes a hole.
    let content =
        |length: usize| -> Vec<u8> { (0..length).map(|at| u8::from(at % 1024 == 0)).collect() };
    let write = |name: &str, length: usize| {
        std::fs::write(folder.join(name), content(length)).expect("written");
    };
    write("etc/passwd", 1500);
    write("etc/deep/er/file", 40);
    write("bin/large", 20_000);
    for number in 0..30 {
        write(&format!("many/{}-{number}", "n".repeat(40)), number % 3);
    }
    symlink("etc/passwd", folder.join("short")).expect("linked");
    symlink("long/".repeat(30), folder.join("long")).expect("linked");
    // Its map needs a block of its own.
    let sparse = std::fs::File::create(folder.join("sparse")).expect("made");
    for at in 0..8 {
        sparse
            .write_all_at(&content(700), at << 17)
            .expect("written");
    }
}

/// Two names of a file, which fill what an inode has room for.
fn attribute_of_names() -> Vec<u8> {
    let mut value = Vec::new();
    for (name, length) in [("late-1", 16), ("late-2", 52_u16)] {
        let begin = value.len();
        value.extend(13_u32.to_le_bytes());
        value.extend(length.to_le_bytes());
        value.extend([name.len() as u8, 0]);
        value.extend(name.as_bytes());
        value.resize(begin + usize::from(length), 0);
    }
    value
}

/// As `before`, but for what `journaled` has changed in `after`: that is the journal, and that
/// it is in use.
fn with_journal_of(before: &[u8], after: &[u8], journaled: &[u8]) -> Vec<u8> {
    let mut made = before.to_vec();
    let blocks = after.chunks(1024).zip(journaled.chunks(1024));
    for (number, (was, is)) in blocks.enumerate().skip(2) {
        if was != is {
            made[number * 1024..][..1024].copy_from_slice(is);
        }
    }
    made[1024 + 96] |= 4;
    made
}

/// Makes the image `name` of the files in `files`.
fn format(image: &Path, files: &Path, name: &str, options: &[&str], size: &str) {
    let make = ["-q", "-F", "-b", "1024", "-N", "64", "-m", "0"];
    let mut fixed = "hash_seed=11111111-2222-3333-4444-555555555555,root_owner=0:0".to_owned();
    if name == GROWS {
        // Few blocks are reserved for descriptors, since each of them reads their inode again.
        fixed += ",resize=40000";
    }
    let uuid = "99999999-2222-3333-4444-555555555555";
    run(program("mke2fs")
        .args(make)
        .args(["-U", uuid, "-E", &fixed])
        .args(options)
        .arg("-d")
        .arg(files)
        .arg(image)
        .arg(size));
}

/// Writes the blocks that differ between `before` and `after` into the journal of `image`.
fn write_to_journal(image: &Path, before: &[u8], after: &[u8], work: &Path) {
    let (mut numbers, mut contents) = (Vec::new(), Vec::new());
    for (number, (was, is)) in before.chunks(1024).zip(after.chunks(1024)).enumerate() {
        if was != is {
            numbers.push(number.to_string());
            contents.extend(is);
        }
    }
    let content = work.join("content");
    std::fs::write(&content, contents).expect("written");
    let write = format!(
        "journal_write -b {} {}",
        numbers.join(","),
        content.display()
    );
    let requests = format!("journal_open\n{write}\njournal_close\n");
    debugfs(image, &requests, work);
}

/// Makes all images in `folder`.
pub fn make(folder: &Path) {
    std::fs::create_dir_all(folder).expect("made");
    let work = std::env::temp_dir().join(format!("scree-images-{}", std::process::id()));
    let files = work.join("files");
    fill(&files);
    for (name, options, size) in KINDS {
        let image = work.join(name);
        format(&image, &files, name, options, size);
        let grows = name == GROWS;
        let read = || {
            let mut bytes = std::fs::read(&image).expect("read");
            if grows {
                bytes.resize(GROWS_TO_BYTES as usize, 0);
            }
            bytes
        };
        let mut changes =
            CHANGES.replace("SOURCE", &files.join("etc/passwd").display().to_string());
        if name == "inline-names" {
            let attribute = work.join("attribute");
            std::fs::write(&attribute, attribute_of_names()).expect("written");
            changes += &INLINE_NAMES.replace("ATTRIBUTE", &attribute.display().to_string());
        }
        let before = read();
        if grows {
            std::fs::write(&image, &before).expect("written");
            run(program("e2fsck").args(["-fp"]).arg(&image));
            run(program("resize2fs").arg(&image));
        }
        debugfs(&image, &changes, &work);
        let after = read();
        // debugfs writes only blocks of the file system into a journal.
        let journaled_in = if grows { &after } else { &before };
        std::fs::write(&image, journaled_in).expect("written");
        if options.contains(&"-J") {
            write_to_journal(&image, &before, &after, &work);
        }
        let mut journaled = read();
        if grows {
            journaled = with_journal_of(&before, &after, &journaled);
        }
        let mut packed = Vec::new();
        pack(&before, &mut packed);
        pack(&xor(&before, &after), &mut packed);
        pack(&xor(&before, &journaled), &mut packed);
        std::fs::write(folder.join(name), packed).expect("written");
    }
    make_luks(folder, &work);
    std::fs::remove_dir_all(work).expect("removed");
}
