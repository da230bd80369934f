//! Partial replicas: a guest's file system changes, replicas die and return, and the power of
//! everything fails.
#![expect(
    clippy::disallowed_methods,
    reason = "e2fsprogs writes and reads files"
)]

use base::Request;
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use tempfile::TempDir;

use super::*;
use extfs::testing::{Image, journaled, program, run};
use extfs::{Owner, View};

const FS_BLOCK: usize = 1024;
const PATHS: &str = "paths = ['/etc/**', '/home/*/mail/**']";

/// A file system through a series of changes.
struct Story {
    states: Vec<Image>,
    /// The steps from each state to the next one.
    steps: Vec<Step>,
}

/// A transaction, in the phases in which Linux writes it: content; the mark that the journal is in
/// use; the journal; its commit; each block in its own place; the empty journal; and the mark that
/// the journal is not in use. A flush follows each phase.
struct Step {
    phases: [Vec<(u64, Vec<u8>)>; 7],
    /// The blocks that undo what a crash left in the journal.
    undo: Vec<(u64, Vec<u8>)>,
}

fn owned(written: &[(u64, &[u8])]) -> Vec<(u64, Vec<u8>)> {
    let block = |(number, content): &(u64, &[u8])| (*number, content.to_vec());
    written.iter().map(block).collect()
}

fn apply(image: &mut Image, blocks: &[(u64, Vec<u8>)]) {
    for (block, content) in blocks {
        let begin = *block as usize * FS_BLOCK;
        image.0[begin..begin + FS_BLOCK].copy_from_slice(content);
    }
}

fn is_content(view: &View, block: u64) -> Option<u32> {
    match view.owner(block) {
        Owner::Content { inode, .. } => {
            let kind = view.inode(inode).map(|inode| inode.kind);
            (inode > 10 && kind == Some(extfs::FileKind::File)).then_some(inode)
        }
        _ => None,
    }
}

impl Step {
    fn between(before: &Image, after: &Image, folder: &Path) -> Self {
        let view = after.view().expect("a file system");
        let all = owned(&before.written(after, FS_BLOCK));
        let content = all.into_iter();
        let content = content.filter(|(block, _)| is_content(&view, *block).is_some());
        let content: Vec<_> = content.collect();
        let mut middle = Image(before.0.clone());
        apply(&mut middle, &content);
        let replayed = journaled(&folder.join("journaled"), &middle, after, folder);
        let commits = |(_, content): &(u64, Vec<u8>)| {
            content.starts_with(&[0xC0, 0x3B, 0x39, 0x98, 0, 0, 0, 2])
        };
        let (commit, journal): (Vec<_>, Vec<_>) = owned(&middle.written(&replayed, FS_BLOCK))
            .into_iter()
            .partition(commits);
        assert_eq!(commit.len(), 1, "a transaction");
        let is_superblock = |(block, _): &(u64, Vec<u8>)| *block == 1;
        let (open, journal) = journal.into_iter().partition(is_superblock);
        // An emptied journal has its earlier content again.
        let first = view.runs(8)[0].block;
        let is_of_journal = |block| matches!(view.owner(block), Owner::Content { inode: 8, .. });
        let is_late = |(block, _): &(u64, Vec<u8>)| *block == 1 || is_of_journal(*block);
        let (late, home): (Vec<_>, Vec<_>) = owned(&replayed.written(after, FS_BLOCK))
            .into_iter()
            .partition(is_late);
        let (empty, close) = late.into_iter().partition(|(block, _)| *block == first);
        let undo = owned(&replayed.written(&middle, FS_BLOCK));
        Self {
            phases: [content, open, journal, commit, home, empty, close],
            undo,
        }
    }
}

fn write(folder: &Path, name: &str, length: usize, seed: u64) -> PathBuf {
    let random = SimulatedRandom::new(seed);
    let content: Vec<u8> = (0..length).map(|_| random.next() as u8 | 1).collect();
    let path = folder.join(name);
    fs::create_dir_all(path.parent().expect("a folder")).expect("made");
    fs::write(&path, content).expect("written");
    path
}

impl Story {
    fn make() -> Self {
        let folder = TempDir::new().expect("a folder");
        let files = folder.path().join("files");
        for (seed, (name, length)) in (1..).zip([
            ("etc/passwd", 1500),
            ("etc/deep/file", 70_000),
            ("home/a/mail/1", 300_000),
            ("home/b/old/2", 90_000),
            ("home/b/old/inner/3", 5000),
            ("var/large", 3_000_000),
            ("var/log", 700_000),
            ("tmp/up", 400_000),
        ]) {
            write(&files, name, length, seed);
        }
        for number in 0..60 {
            write(&files, &format!("var/many/{number}"), 3000, 100 + number);
        }
        let link = std::os::unix::fs::symlink("long/".repeat(40), files.join("etc/long"));
        link.expect("linked");
        let image = folder.path().join("image");
        run(program("mke2fs")
            .args(["-q", "-F", "-t", "ext4", "-b", "1024", "-J", "size=1", "-d"])
            .arg(&files)
            .arg(&image)
            .arg("16M"));
        let new = write(folder.path(), "new", 200_000, 1000)
            .display()
            .to_string();
        let more = write(folder.path(), "more", 1_000_000, 1001)
            .display()
            .to_string();
        let mut states = vec![Image(fs::read(&image).expect("read"))];
        let mut steps = Vec::new();
        for script in [
            format!("cd etc\nwrite {new} new\ncd /var\nwrite {new} new\n"),
            format!("ln tmp/up etc/up\nunlink tmp/up\ncd var\nwrite {new} x\n"),
            format!("rm etc/passwd\nrm var/large\ncd etc\nwrite {new} passwd\n"),
            format!("mkdir etc/made\ncd etc/made\nwrite {more} again\n"),
            format!(
                "ln etc/deep/file var/file\nunlink etc/deep/file\n\
                 ln var/log home/a/mail/log\nsif var/log links_count 2\n\
                 cd home/a/mail\nwrite {new} 4\n"
            ),
            format!(
                "ln home/b/old home/b/mail\nunlink home/b/old\ncd home/b/mail\n\
                 write {new} 5\n"
            ),
            format!("rm etc/up\nrm var/x\ncd var\nwrite {more} back\n"),
        ] {
            let requests = folder.path().join("script");
            fs::write(&requests, script).expect("written");
            run(program("debugfs")
                .arg("-w")
                .arg("-f")
                .arg(&requests)
                .arg(&image));
            let after = Image(fs::read(&image).expect("read"));
            let before = states.last().expect("there is one");
            steps.push(Step::between(before, &after, folder.path()));
            fs::write(&image, &after.0).expect("written");
            states.push(after);
        }
        Self { states, steps }
    }

    fn get() -> &'static Self {
        static STORY: OnceLock<Story> = OnceLock::new();
        STORY.get_or_init(Self::make)
    }
}

/// The ranges of the disk that a replica of these paths should have, and those with the content of
/// other files.
fn wanted(image: &Image, paths: &str) -> (Vec<Range<usize>>, Vec<Range<usize>>) {
    let view = image.view().expect("a file system");
    let config = "volume = 'a'\n[[filter]]\nkind = 'replicate'\n\
                  [[filter.replica]]\nname = 'r'\nuri = 'nbd://10.0.0.1/x'\n";
    let policy = Policy::parse(&format!("{config}{paths}")).expect("a policy");
    let FilterKind::Replicate(config) = &policy.filters[0].kind else {
        panic!("{policy:?}");
    };
    let globs = config.replicas[0].paths.as_ref().expect("it has some");
    let (mut wanted, mut others) = (Vec::new(), Vec::new());
    for block in 0..view.superblock().blocks {
        let begin = block as usize * FS_BLOCK;
        let range = begin..begin + FS_BLOCK;
        let Some(inode) = is_content(&view, block) else {
            if view.owner(block) != Owner::Unowned {
                wanted.push(range);
            }
            continue;
        };
        let paths: Vec<Vec<u8>> = view.paths(inode).collect();
        assert!(!paths.is_empty());
        let is_match = |path: &Vec<u8>| globs.iter().any(|glob| glob.is_match(path));
        match paths.iter().any(is_match) {
            true => wanted.push(range),
            false => others.push(range),
        }
    }
    (wanted, others)
}

impl Rig {
    fn has_what_is_wanted(&self, replica: usize, wanted: &[Range<usize>]) -> bool {
        let (volume, replica) = (lock(&self.servers[0]), lock(&self.servers[replica]));
        let mut wanted = wanted.iter();
        wanted.all(|range| volume.live[range.clone()] == replica.live[range.clone()])
    }

    /// Polls until a replica has everything that it should have of the volume's content. Returns
    /// the ranges that it should not have.
    fn until_it_has_what_is_wanted(&mut self, replica: usize) -> Vec<Range<usize>> {
        let image = Image(lock(&self.servers[0]).live.clone());
        let (wanted, others) = wanted(&image, &self.more[replica - 1]);
        for _ in 0..50_000 {
            self.wait();
            assert_eq!(self.poll(), [], "no request is pending");
            if self.has_what_is_wanted(replica, &wanted) {
                return others;
            }
        }
        let mut wanted = wanted.iter();
        let (volume, replica) = (lock(&self.servers[0]), lock(&self.servers[replica]));
        let first =
            wanted.find(|range| volume.live[(*range).clone()] != replica.live[(*range).clone()]);
        let block = first.map_or(0, |range| range.start / FS_BLOCK) as u64;
        let view = image.view().expect("a file system");
        let notes = self.notes.messages();
        panic!("block {block} of {:?}: {notes:?}", view.owner(block));
    }

    /// Overwrites some blocks of files in place.
    fn overwrite_some_files(&mut self) {
        let image = Image(lock(&self.servers[0]).live.clone());
        let view = image.view().expect("a file system");
        let blocks = view.superblock().blocks;
        for _ in 0..20 {
            let block = self.random.below(blocks);
            if is_content(&view, block).is_some() {
                let content = vec![self.random.next() as u8 | 1; FS_BLOCK];
                self.write(block as usize * FS_BLOCK, &content);
            }
        }
    }

    /// Fails the power of everything. A replica in sync must be mountable then.
    fn crash_all(&mut self, what: &str) {
        let was_excluded = {
            let server = lock(&self.servers[1]);
            !server.is_up || server.hangs
        };
        let notes = self.notes.messages().pop().unwrap_or_default();
        let is_in_sync = !was_excluded && notes.contains("in sync");
        {
            let mut server = lock(&self.servers[1]);
            server.crash();
            (server.is_up, server.hangs) = (true, false);
        }
        if is_in_sync {
            let replica = lock(&self.servers[1]).live.clone();
            check(&replica, what);
        }
        self.crash().expect("the volume is available");
    }

    fn write_blocks(&mut self, blocks: &[(u64, Vec<u8>)]) {
        // Adjacent blocks are one write, as in a guest's cache.
        let mut at = 0;
        while at < blocks.len() {
            let mut data = blocks[at].1.clone();
            let begin = blocks[at].0;
            at += 1;
            while at < blocks.len()
                && blocks[at].0 == begin + (data.len() / FS_BLOCK) as u64
                && data.len() < 64 << 10
            {
                data.extend(&blocks[at].1);
                at += 1;
            }
            self.write(begin as usize * FS_BLOCK, &data);
        }
    }
}

/// Checks with e2fsck a disk whose power failed; its journal is replayed.
fn check(image: &[u8], what: &str) {
    let folder = TempDir::new().expect("a folder");
    let path = folder.path().join("image");
    fs::write(&path, image).expect("written");
    let mut e2fsck: Command = program("e2fsck");
    let checked = e2fsck.args(["-f", "-p"]).arg(&path).output();
    let checked = checked.expect("it can be run");
    let said = String::from_utf8_lossy(&checked.stdout).into_owned();
    assert!(
        matches!(checked.status.code(), Some(0 | 1)),
        "{what}: {said}"
    );
}

#[test]
fn a_new_partial_replica_gets_what_is_wanted_and_nothing_else() {
    let story = Story::get();
    let before = &story.states[0];
    let mut rig = Rig::with(1, before.0.clone(), &[PATHS]);
    rig.open().expect("it opens");
    let others = rig.until_it_has_what_is_wanted(1);
    assert!(others.len() > 4000, "{}", others.len());
    let replica = lock(&rig.servers[1]).live.clone();
    let there = others.iter().filter(|range| {
        let content = &replica[(*range).clone()];
        content.iter().any(|byte| *byte != 0)
    });
    // Blocks at the ends of files share a granule with other files.
    assert!(there.count() < 20);
    check(&replica, "the replica");
    for _ in 0..2000 {
        rig.poll();
    }
    let notes = rig.notes.messages().join("\n");
    assert!(notes.contains("r1 gets the content of 3 files"), "{notes}");
    assert!(notes.contains("of 16777216 bytes were copied"), "{notes}");
}

/// Files are made, deleted, and moved in and out; replicas die, hang and return; the power of
/// everything fails. In the end the replica has what is wanted, and a replica in sync mounts after
/// any crash.
#[test]
fn a_partial_replica_follows_transactions_and_mounts_after_any_crash() {
    let story = Story::get();
    for seed in 0..8 {
        let first = Image(story.states[0].0.clone());
        let mut rig = Rig::with(seed * 7, first.0, &[PATHS]);
        rig.open().expect("it opens");
        rig.until_it_has_what_is_wanted(1);
        let mut at = 0;
        while at < story.steps.len() {
            let step = &story.steps[at];
            let crash_in = match rig.random.below(3) {
                0 => Some(rig.random.below(7)),
                _ => None,
            };
            let mut is_committed = true;
            for (number, phase) in (0..).zip(&step.phases) {
                if crash_in == Some(number) {
                    let part = rig.random.index(phase.len() + 1);
                    rig.write_blocks(&phase[..part]);
                    is_committed = number > 3 || number == 3 && part == phase.len();
                    break;
                }
                rig.write_blocks(phase);
                rig.flush();
                match rig.random.below(12) {
                    0 => lock(&rig.servers[1]).hangs = true,
                    1 => {
                        let mut server = lock(&rig.servers[1]);
                        server.is_up = false;
                        server.crash();
                    }
                    2 | 3 => {
                        let mut server = lock(&rig.servers[1]);
                        (server.is_up, server.hangs) = (true, false);
                    }
                    4 => rig.overwrite_some_files(),
                    5..8 => {
                        for _ in 0..rig.random.below(500) {
                            rig.poll();
                        }
                    }
                    _ => {}
                }
            }
            if crash_in.is_some() {
                rig.crash_all(&format!("seed {seed}, step {at}: the replica"));
                let live = Image(lock(&rig.servers[0]).live.clone());
                // Only the disk shows whether the commit was lost.
                let is_there = |(block, content): &(u64, Vec<u8>)| {
                    let begin = *block as usize * FS_BLOCK;
                    live.0[begin..begin + FS_BLOCK] == **content
                };
                is_committed &= step.phases[3].iter().all(is_there);
                match is_committed {
                    true => {
                        for phase in &step.phases[4..] {
                            rig.write_blocks(phase);
                            rig.flush();
                        }
                    }
                    false => rig.write_blocks(&step.undo),
                }
                rig.flush();
                if !is_committed {
                    continue;
                }
            }
            at += 1;
            if rig.random.below(2) == 0 {
                {
                    let mut server = lock(&rig.servers[1]);
                    (server.is_up, server.hangs) = (true, false);
                }
                rig.until_it_has_what_is_wanted(1);
            }
        }
        {
            let mut server = lock(&rig.servers[1]);
            (server.is_up, server.hangs) = (true, false);
        }
        rig.until_it_has_what_is_wanted(1);
        let volume = lock(&rig.servers[0]).live.clone();
        check(&volume, &format!("seed {seed}: the volume"));
        let replica = Image(lock(&rig.servers[1]).live.clone());
        check(&replica.0, &format!("seed {seed}: the replica"));
        let view = replica.view().expect("it is a file system");
        assert_eq!(view.damaged(), 0, "seed {seed}");
    }
}

/// A file system that is not mounted is changed block by block, in any order. A block of a
/// directory or map may be written before it is known to be one.
#[test]
fn a_partial_replica_follows_changes_without_a_journal() {
    let story = Story::get();
    for seed in 0..5 {
        let mut rig = Rig::with(seed * 5, story.states[0].0.clone(), &[PATHS]);
        rig.open().expect("it opens");
        for states in story.states.windows(2) {
            let mut blocks = owned(&states[0].written(&states[1], FS_BLOCK));
            rig.random.shuffle(&mut blocks);
            if rig.random.below(3) == 0 {
                rig.write_blocks(&blocks[..rig.random.index(blocks.len())]);
                lock(&rig.servers[1]).crash();
                rig.crash().expect("the volume is available");
            }
            rig.write_blocks(&blocks);
            rig.flush();
            if rig.random.below(2) == 0 {
                rig.until_it_has_what_is_wanted(1);
            }
        }
        rig.until_it_has_what_is_wanted(1);
        let replica = lock(&rig.servers[1]).live.clone();
        check(&replica, &format!("seed {seed}: the replica"));
    }
}

/// A transaction that moves a file to a matching path waits until the filter's file says that its
/// regions are missing. Otherwise a crash would leave the replica without its content, unnoticed.
#[test]
fn a_file_is_missing_in_the_map_before_the_disk_makes_it_wanted() {
    let story = Story::get();
    let step = &story.steps[1];
    let mut rig = Rig::with(2, story.states[1].0.clone(), &[PATHS]);
    rig.open().expect("it opens");
    rig.until_it_has_what_is_wanted(1);
    for _ in 0..1000 {
        rig.poll();
    }
    for phase in &step.phases[..3] {
        rig.write_blocks(phase);
        rig.flush();
    }
    let (block, content) = &step.phases[3][0];
    let token = rig.next();
    let mut is_begun = false;
    for _ in 0..500 {
        if !is_begun {
            let offset = block * FS_BLOCK as u64;
            let write =
                rig.chain
                    .start(Request::write(token, offset, content, Durability::Volatile));
            is_begun = write == Started::Pending;
        }
        // The job that writes the filter's file does not run.
        rig.chain.poll(&mut Vec::new());
        rig.chain.end_batch().expect("nothing stops it");
    }
    assert!(is_begun);
    lock(&rig.servers[0]).flush();
    lock(&rig.servers[1]).crash();
    rig.crash().expect("the volume is available");
    let begin = *block as usize * FS_BLOCK;
    let is_there = lock(&rig.servers[0]).live[begin..begin + FS_BLOCK] == **content;
    assert!(!is_there, "the write waits");
    rig.write_blocks(&step.undo);
    rig.flush();
    for phase in &step.phases {
        rig.write_blocks(phase);
        rig.flush();
    }
    rig.until_it_has_what_is_wanted(1);
}

/// With other paths a replica starts over, and without paths it is not taken for a complete one.
#[test]
fn other_paths_or_none_are_another_replica() {
    let story = Story::get();
    let mut rig = Rig::with(9, story.states[0].0.clone(), &[PATHS]);
    rig.open().expect("it opens");
    rig.until_it_has_what_is_wanted(1);
    for _ in 0..1000 {
        rig.poll();
    }
    rig.more[0] = "paths = ['/var/**']".to_owned();
    rig.crash().expect("the volume is available");
    rig.until_it_has_what_is_wanted(1);
    for _ in 0..1000 {
        rig.poll();
    }
    rig.more[0].clear();
    lock(&rig.servers[0]).reads = 0;
    rig.crash().expect("the volume is available");
    assert_eq!(rig.read(0, FS_BLOCK), story.states[0].0[..FS_BLOCK]);
    rig.until_equal();
}

/// Only a partial replica has the last write.
#[test]
fn a_partial_replica_is_never_a_read_source() {
    let story = Story::get();
    let mut rig = Rig::with(3, story.states[0].0.clone(), &[PATHS]);
    rig.open().expect("it opens");
    rig.until_it_has_what_is_wanted(1);
    for _ in 0..1000 {
        rig.poll();
    }
    let reads = lock(&rig.servers[1]).reads;
    assert_eq!(reads, 0);
    lock(&rig.servers[0]).hangs = true;
    let token = rig.next();
    let mut result = None;
    for _ in 0..5000 {
        if result.is_none() {
            match rig.chain.start(Request::write(
                token,
                1024,
                &[1; FS_BLOCK],
                Durability::Volatile,
            )) {
                Started::Failed(error) => result = Some(Err(error)),
                Started::Done => result = Some(Ok(Outcome::Done)),
                Started::Busy => {}
                Started::Pending => break,
            }
        }
        rig.poll();
    }
    for _ in 0..5000 {
        let ended = rig.poll().into_iter();
        result = ended.map(|one| one.result).next().or(result);
    }
    assert_eq!(result, None, "a write that only it has is not acknowledged");
    lock(&rig.servers[0]).hangs = false;
    while result.is_none() {
        let ended = rig.poll().into_iter();
        result = ended.map(|one| one.result).next();
    }
    assert_eq!(result, Some(Ok(Outcome::Done)), "the volume is waited for");
}

#[test]
fn a_disk_without_a_file_system_is_replicated_as_a_whole() {
    let mut rig = Rig::with(5, vec![7; 4 << 20], &[PATHS]);
    rig.open().expect("it opens");
    rig.until_equal();
    rig.write(1 << 20, &[9; BLOCK]);
    rig.until_equal();
    let notes = rig.notes.messages().join("\n");
    assert!(notes.contains("r1 gets the whole disk"), "{notes}");
    // It is still partial, so it is never the source.
    lock(&rig.servers[0]).hangs = true;
    for _ in 0..3000 {
        rig.poll();
    }
    assert_eq!(lock(&rig.servers[1]).reads, 0);
}
