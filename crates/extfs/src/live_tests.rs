//! Follows what debugfs writes, with and without a journal.
#![expect(
    clippy::disallowed_methods,
    reason = "e2fsprogs makes files, and reads them"
)]

use std::collections::BTreeMap;
use std::fs;

use tempfile::TempDir;
use world::simulated::SimulatedRandom;

use super::testing::{Image, KINDS, changed, changed_by, journaled, make, program, run};
use super::{Event, FileKind, Live, Owner, View};

/// Compares two views completely.
pub(super) fn assert_alike(name: &str, found: &View, expected: &View) {
    for block in 0..expected.superblock().blocks {
        assert_eq!(
            found.owner(block),
            expected.owner(block),
            "{name}: block {block}"
        );
    }
    let files = |view: &View| -> BTreeMap<u32, (u64, u16)> {
        let file = |inode| {
            let file = view.inode(inode).expect("in use");
            (inode, (file.size, file.permissions))
        };
        view.inodes().map(file).collect()
    };
    assert_eq!(files(found), files(expected), "{name}");
    for inode in expected.inodes() {
        let path = |view: &View| {
            view.path(inode)
                .map(|path| String::from_utf8_lossy(&path).into_owned())
        };
        let has_names = |view: &View| path(view).is_some();
        assert_eq!(
            has_names(found),
            has_names(expected),
            "{name}: inode {inode}"
        );
        let links = expected.inode(inode).map_or(0, |inode| inode.links);
        if links == 1 {
            assert_eq!(path(found), path(expected), "{name}: inode {inode}");
        }
    }
}

fn check_told(name: &str, view: &View, events: &[Event]) {
    let path = |text: &str| text.as_bytes().to_vec();
    let of = |wanted: &str| {
        let mut inodes = view.inodes();
        let inode = inodes.find(|inode| view.path(*inode) == Some(path(wanted)));
        inode.unwrap_or_else(|| panic!("{name}: no {wanted}"))
    };
    let told = |what: &dyn Fn(&Event) -> bool, text: &str| {
        let count = events.iter().filter(|event| what(event)).count();
        assert_eq!(count, 1, "{name}: {text}: {events:?}");
    };
    let trojan = of("/bin/trojan");
    told(
        &|event| {
            matches!(event, Event::Created { inode, kind: FileKind::File, path: at }
                if *inode == trojan && *at == path("/bin/trojan"))
        },
        "the trojan is there",
    );
    told(
        &|event| {
            matches!(event, Event::Created { kind: FileKind::Directory, path: at, .. }
                if *at == path("/etc/new"))
        },
        "a directory is made",
    );
    told(
        &|event| matches!(event, Event::Linked { path: at, .. } if *at == path("/etc/new/alias")),
        "a file gets a name",
    );
    told(
        &|event| matches!(event, Event::Removed { path: at, .. } if *at == path("/bin/large")),
        "a file is removed",
    );
    told(
        &|event| matches!(event, Event::Permissions { to: 0o600, .. }),
        "permissions change",
    );
    told(
        &|event| matches!(event, Event::Ownership { to: (1000, _), .. }),
        "a file is given away",
    );
    told(
        &|event| {
            matches!(
                event,
                Event::Truncated {
                    from: 3_000_000,
                    to: 100,
                    ..
                }
            )
        },
        "a file is cut",
    );
}

#[test]
fn changes_without_a_journal_are_followed() {
    let folder = TempDir::new().expect("a folder");
    for (number, (name, options)) in KINDS.iter().enumerate() {
        let (path, before, after) = changed(name, options, &folder);
        fs::remove_file(path).expect("removed");
        let mut live = before.live();
        let block_bytes = live.view().superblock().block_bytes as usize;
        let mut written = before.written(&after, block_bytes);
        // A cache writes blocks in any order. Needed blocks that had no owner when they were
        // written are read.
        SimulatedRandom::new(number as u64).shuffle(&mut written);
        let mut events = Vec::new();
        for (block, content) in written {
            live.was_written(block * block_bytes as u64, content, &mut events);
        }
        loop {
            let wanted = live.take_wanted();
            if wanted.is_empty() {
                break;
            }
            let found = wanted.into_iter().map(|block| {
                let begin = block as usize * block_bytes;
                (block, after.0[begin..begin + block_bytes].to_vec())
            });
            live.were_found(found.collect(), &mut events);
        }
        assert_alike(name, live.view(), &after.view().expect(name));
        assert!(live.is_within_bounds());
        // The kind of event for each name depends on the order, but all names are reported.
        let is_told = events
            .iter()
            .any(|event| matches!(event, Event::Created { path, .. } if path == b"/bin/trojan"));
        assert!(is_told, "{name}: {events:?}");
    }
}

/// When the first file lost the block, it once had no owner although other files still shared it.
#[test]
fn a_shared_block_of_attributes_has_an_owner_until_the_last_file_loses_it() {
    let folder = TempDir::new().expect("a folder");
    let (path, _) = make("ext4", KINDS[2].1, &folder);
    let change = |requests: String| {
        let script = folder.path().join("requests");
        fs::write(&script, requests).expect("written");
        run(program("debugfs")
            .arg("-w")
            .arg("-f")
            .arg(&script)
            .arg(&path));
        Image(fs::read(&path).expect("read"))
    };
    let large = "x".repeat(2000);
    let one = change(format!("ea_set etc/passwd user.a {large}\n"));
    let view = one.view().expect("a file system");
    let mut inodes = view.inodes();
    let attributes = inodes.find_map(|inode| view.inode(inode)?.attributes);
    let block = attributes.expect("they do not fit the inode");
    // The file gets the block of another file.
    let mut live = one.live();
    let before = change(format!("sif again file_acl {block}\n"));
    let tables = |live: &Live, from: &Image, to: &Image| -> Vec<(u64, Vec<u8>)> {
        let written = from.written(to, 4096).into_iter();
        let is_table = |block| matches!(live.view().owner(block), Owner::InodeTable(_));
        let written = written.filter(|(block, _)| is_table(*block));
        written
            .map(|(block, content)| (block, content.to_vec()))
            .collect()
    };
    for (block, content) in tables(&live, &one, &before) {
        live.was_written(block * 4096, &content, &mut Vec::new());
    }
    for name in ["etc/passwd", "again"] {
        assert!(
            matches!(live.view().owner(block), Owner::Map { .. }),
            "{name}"
        );
        let after = change(format!("sif {name} file_acl 0\n"));
        let mut events = Vec::new();
        let view = before.view().expect("a file system");
        let is_table =
            |(block, _): &(u64, &[u8])| matches!(view.owner(*block), Owner::InodeTable(_));
        let written = before.written(&after, 4096).into_iter();
        for (block, content) in written.filter(is_table) {
            live.was_written(block * 4096, content, &mut events);
        }
    }
    assert_eq!(live.view().owner(block), Owner::Unowned);
}

#[test]
fn a_commit_is_reported_before_its_blocks_are_at_their_final_position() {
    let folder = TempDir::new().expect("a folder");
    for (name, options) in [KINDS[1], KINDS[2], KINDS[3], KINDS[4], KINDS[8]] {
        let (path, before, after) = changed(name, options, &folder);
        let replayed = journaled(&path, &before, &after, folder.path());
        fs::remove_file(path).expect("removed");
        for seed in 0..6 {
            let mut live = before.live();
            let block_bytes = live.view().superblock().block_bytes as usize;
            let mut written = before.written(&replayed, block_bytes);
            SimulatedRandom::new(seed).shuffle(&mut written);
            let mut events = Vec::new();
            let last = written.pop().expect("something was written");
            for (block, content) in written {
                live.was_written(block * block_bytes as u64, content, &mut events);
            }
            live.was_written(last.0 * block_bytes as u64, last.1, &mut events);
            assert_alike(name, live.view(), &after.view().expect(name));
            check_told(name, live.view(), &events);
            // The later write to the final position is not reported.
            events.clear();
            for (block, content) in replayed.written(&after, block_bytes) {
                live.was_written(block * block_bytes as u64, content, &mut events);
            }
            let is_news = |event: &&Event| !matches!(event, Event::Written { .. });
            assert_eq!(events.iter().find(is_news), None, "{name}");
        }
    }
}

/// Commits these changes to an ext4 and an ext3 file system.
fn committed(changes: &str) -> Vec<(Live, Vec<Event>)> {
    let folder = TempDir::new().expect("a folder");
    let follow = |(name, options): (&str, &[&str])| {
        let (path, before, after) = changed_by(changes, name, options, &folder);
        let replayed = journaled(&path, &before, &after, folder.path());
        fs::remove_file(path).expect("removed");
        let mut live = before.live();
        let block_bytes = live.view().superblock().block_bytes as usize;
        let mut events = Vec::new();
        for (block, content) in before.written(&replayed, block_bytes) {
            live.was_written(block * block_bytes as u64, content, &mut events);
        }
        assert_alike(name, live.view(), &after.view().expect(name));
        (live, events)
    };
    [KINDS[1], KINDS[2]].map(follow).into()
}

/// `rm f; make f` in one transaction leaves the directory with the same name and number. Neither
/// the removal nor the creation was once reported.
#[test]
fn a_file_that_replaces_another_with_its_name_and_number_is_reported() {
    const FILE: &[u8] = b"/etc/deep/er/and/deeper/file";
    let changes = "mkdir etc/deep/er/and/deeper/new\n\
        sif etc/deep/er/and/deeper/file generation 77\n";
    for (live, events) in committed(changes) {
        let mut inodes = live.view().inodes();
        let inode = inodes.find(|inode| live.view().path(*inode).as_deref() == Some(FILE));
        let (inode, path) = (inode.expect("it has its name"), FILE.to_vec());
        let kind = FileKind::File;
        let told = [
            Event::Removed {
                inode,
                kind: Some(kind),
                path: path.clone(),
            },
            Event::Created { inode, kind, path },
        ];
        let found: Vec<&Event> = events.iter().filter(|event| told.contains(event)).collect();
        assert_eq!(found, told.iter().collect::<Vec<_>>(), "{events:?}");
    }
}

/// `truncate -s +N` writes nothing to the file, and was once not reported.
#[test]
fn a_file_that_grows_without_a_write_is_reported() {
    let changes =
        "mkdir later/new\nsif again size 3000200\nsif bin/large size 9000000\nsif sparse size 7\n";
    for (live, events) in committed(changes) {
        let mut told = Vec::new();
        for event in &events {
            if let Event::Truncated { inode, from, to } = event {
                let path = live.view().path(*inode).expect("it has a name");
                told.push((String::from_utf8(path).expect("UTF-8"), *from, *to));
            }
        }
        told.sort();
        // A new end in the same block may have been written before.
        let expected = [
            ("/bin/large".to_owned(), 3_000_000, 9_000_000),
            ("/sparse".to_owned(), (40 << 20) + 5000, 7),
        ];
        assert_eq!(told, expected, "{events:?}");
    }
}

#[test]
fn reads_and_writes_are_reported_by_file() {
    let folder = TempDir::new().expect("a folder");
    let (_, image) = make("ext4", KINDS[2].1, &folder);
    let mut live = image.live();
    let view = live.view();
    let mut inodes = view.inodes();
    let inode = inodes.find(|inode| view.path(*inode).as_deref() == Some(b"/again"));
    let inode = inode.expect("it is there");
    let runs = view.runs(inode).iter();
    let run = *runs.max_by_key(|run| run.length).expect("it has some");
    let (begin, length) = (run.block * 4096, u64::from(run.length) * 4096);
    let offset = u64::from(run.place) * 4096;
    let size = view.inode(inode).expect("in use").size;
    drop(inodes);
    let mut events = Vec::new();
    live.was_read(begin, length, &mut events);
    let length = length.min(size - offset);
    let read = Event::Read {
        inode,
        offset,
        length,
    };
    assert_eq!(events, [read]);
    events.clear();
    live.was_written(begin + 4096, &[1; 8192], &mut events);
    let written = Event::Written {
        inode,
        offset: offset + 4096,
        length: 8192,
    };
    assert_eq!(events, [written]);
    // Metadata belongs to no file.
    events.clear();
    live.was_read(0, 1 << 16, &mut events);
    live.was_written(0, &[0; 4096], &mut events);
    assert_eq!(events, []);
}

/// Following arbitrary writes never panics, and its memory is bounded.
#[test]
fn the_valid_part_of_arbitrary_writes_is_followed() {
    let folder = TempDir::new().expect("a folder");
    for (number, (name, options)) in KINDS.iter().enumerate().take(9) {
        let (path, before, after) = changed(name, options, &folder);
        let replayed = match number {
            1 | 2 | 3 | 4 | 8 => journaled(&path, &before, &after, folder.path()),
            _ => after,
        };
        fs::remove_file(path).expect("removed");
        let random = SimulatedRandom::new(number as u64);
        for _ in 0..20 {
            let mut live = before.live();
            let block_bytes = live.view().superblock().block_bytes as usize;
            let written = before.written(&replayed, block_bytes);
            let mut events = Vec::new();
            for (block, content) in &written {
                let mut content = content.to_vec();
                for _ in 0..random.below(4) {
                    let at = random.index(content.len().min(200));
                    content[at] ^= 1 << random.below(8);
                }
                let block = match random.below(6) {
                    0 => written[random.index(written.len())].0,
                    _ => *block,
                };
                live.was_written(block * block_bytes as u64, &content, &mut events);
            }
            let view = live.view();
            view.inodes().for_each(|inode| drop(view.path(inode)));
        }
    }
}

/// Found by the fuzzer: `rm f; touch f` writes the inode twice and the unchanged directory not at
/// all. The file once had no name afterwards.
#[test]
fn a_new_file_with_a_reused_number_keeps_the_unchanged_name() {
    let folder = TempDir::new().expect("a folder");
    let (_, image) = make("ext2", KINDS[0].1, &folder);
    let mut live = image.live();
    const PATH: &[u8] = b"/etc/deep/er/and/deeper/file";
    let view = live.view();
    let mut inodes = view.inodes();
    let inode = inodes.find(|inode| view.path(*inode).as_deref() == Some(PATH));
    let inode = inode.expect("it is there");
    drop(inodes);
    let superblock = view.superblock().clone();
    let in_block = superblock.inodes_per_block();
    let table = Owner::InodeTable((inode - 1) / in_block);
    let mut blocks = 0..superblock.blocks;
    let block = blocks.find(|block| view.owner(*block) == table);
    let offset = block.expect("it has a table") * u64::from(superblock.block_bytes);
    let content = &image.0[offset as usize..][..superblock.block_bytes as usize];
    let mut without = content.to_vec();
    let bytes = superblock.inode_bytes as usize;
    without[((inode - 1) % in_block) as usize * bytes..][..bytes].fill(0);
    let mut events = Vec::new();
    live.was_written(offset, &without, &mut events);
    assert_eq!(live.view().path(inode), None);
    live.was_written(offset, content, &mut events);
    assert_eq!(live.view().path(inode).as_deref(), Some(PATH));
    let kind = FileKind::File;
    let path = PATH.to_vec();
    assert!(events.contains(&Event::Created { inode, kind, path }));
    assert!(live.unborn.is_empty());
}

/// Found by the fuzzer: the files that the directory named once kept their paths.
#[test]
fn a_directory_that_becomes_a_file_with_its_blocks_has_no_names() {
    let folder = TempDir::new().expect("a folder");
    let (_, image) = make("ext2", KINDS[0].1, &folder);
    let mut live = image.live();
    const DIRECTORY: &[u8] = b"/etc/deep/er/and/deeper";
    let view = live.view();
    let of = |wanted: &[u8]| {
        let mut inodes = view.inodes();
        inodes.find(|inode| view.path(*inode).as_deref() == Some(wanted))
    };
    let directory = of(DIRECTORY).expect("it is there");
    let file = of(b"/etc/deep/er/and/deeper/file").expect("it is there");
    let superblock = view.superblock().clone();
    let in_block = superblock.inodes_per_block();
    let table = Owner::InodeTable((directory - 1) / in_block);
    let block = (0..superblock.blocks).find(|block| view.owner(*block) == table);
    let offset = block.expect("it has a table") * u64::from(superblock.block_bytes);
    let mut content = image.0[offset as usize..][..superblock.block_bytes as usize].to_vec();
    let at = ((directory - 1) % in_block) as usize * superblock.inode_bytes as usize;
    // The upper half of the mode.
    content[at + 1] = 0x81;
    live.was_written(offset, &content, &mut Vec::new());
    assert_eq!(live.view().path(file), None);
    assert_eq!(live.view().path(directory).as_deref(), Some(DIRECTORY));
}

/// Found by the fuzzer: a directory that has lost its name keeps the names in it. When one of them
/// was the first name of a file with a second one, the file once had no path.
#[test]
fn a_file_has_the_path_of_any_name_that_leads_to_the_root() {
    let folder = TempDir::new().expect("a folder");
    let (_, mut image) = make("ext2", KINDS[0].1, &folder);
    let mut live = image.live();
    let view = live.view();
    let of = |wanted: &[u8]| {
        let mut inodes = view.inodes();
        let inode = inodes.find(|inode| view.path(*inode).as_deref() == Some(wanted));
        inode.expect("it is there")
    };
    let file = of(b"/etc/deep/er/and/deeper/file");
    let [from, to] = [&b"/etc/deep/er/and/deeper"[..], b"/etc/deep/er/and"].map(|wanted| {
        let runs = view.runs(of(wanted));
        runs[0].block as usize * 1024
    });
    // The directory's names also belong to its parent, which does not name the directory any more.
    image.0.copy_within(from..from + 1024, to);
    let content = &image.0[to..to + 1024];
    live.was_written(to as u64, content, &mut Vec::new());
    let path = live.view().path(file);
    assert_eq!(path.as_deref(), Some(&b"/etc/deep/er/and/file"[..]));
    assert!(live.view().paths(file).eq(path), "it has one");
    assert_alike("ext2", live.view(), &image.view().expect("ext2"));
}

/// Older content that was read for a wanted block once replaced newer names.
#[test]
fn a_write_during_a_read_of_the_same_block_counts() {
    let folder = TempDir::new().expect("a folder");
    let (_, before, after) = changed(KINDS[0].0, KINDS[0].1, &folder);
    let mut live = before.live();
    let mut events = Vec::new();
    let (tables, others): (Vec<_>, Vec<_>) = before
        .written(&after, 1024)
        .into_iter()
        .partition(|(block, _)| matches!(live.view().owner(*block), Owner::InodeTable(_)));
    for (block, content) in tables {
        live.was_written(block * 1024, content, &mut events);
    }
    let wanted = live.take_wanted();
    assert!(!wanted.is_empty(), "a directory was made");
    for (block, content) in others {
        live.was_written(block * 1024, content, &mut events);
    }
    let old = |block: u64| before.0[block as usize * 1024..][..1024].to_vec();
    let found = wanted.into_iter().map(|block| (block, old(block)));
    live.were_found(found.collect(), &mut events);
    assert_alike("ext2", live.view(), &after.view().expect("ext2"));
}

/// `fallocate` assigns blocks to the file without content.
#[test]
fn a_file_that_ends_in_reserved_blocks_is_reported_as_longer() {
    let folder = TempDir::new().expect("a folder");
    let changes = "mkdir later/new\nfallocate etc/passwd 1 9\nsif etc/passwd size 40000\n\
        fallocate again 800 900\n";
    let (name, options) = KINDS[2];
    let (path, before, after) = changed_by(changes, name, options, &folder);
    let replayed = journaled(&path, &before, &after, folder.path());
    let written = before.written(&replayed, 4096);
    let view = after.view().expect(name);
    let mut inodes = view.inodes();
    let is_it = |inode: &u32| view.paths(*inode).any(|path| path == b"/etc/passwd");
    let inode = inodes.find(is_it).expect("it is there");
    let last = view.runs(inode).last().expect("it has some");
    assert!(last.is_unwritten, "{last:?}");
    let is_longer = Event::Truncated {
        inode,
        from: 1500,
        to: 40_000,
    };
    // The blocks may have been written while they still count as reserved.
    for is_written in [false, true] {
        let mut live = before.live();
        let mut events = Vec::new();
        if is_written {
            let end = (last.block + u64::from(last.length) - 1) * 4096;
            live.was_written(end, &[1; 4096], &mut events);
        }
        for (block, content) in &written {
            live.was_written(block * 4096, content, &mut events);
        }
        let told = events.iter();
        let told = told.filter(|event| matches!(event, Event::Truncated { .. }));
        let expected: &[&Event] = if is_written { &[] } else { &[&is_longer] };
        assert_eq!(told.collect::<Vec<_>>(), expected);
    }
}

/// The rest of the block in which the file ended was once not reported.
#[test]
fn an_append_is_reported_from_the_old_end_of_the_file() {
    let folder = TempDir::new().expect("a folder");
    let (name, options) = KINDS[1];
    let (_, image) = make(name, options, &folder);
    let view = image.view().expect(name);
    let free = (80_000..).find(|block| view.owner(*block) == Owner::Unowned);
    let free = free.expect("there is room");
    assert_eq!(view.owner(free + 1), Owner::Unowned);
    let changes = format!(
        "mkdir later/new\nsif etc/passwd block[2] {free}\nsif etc/passwd block[3] {}\n\
         sif etc/passwd size 3500\nsif bin/large size 3000010\n",
        free + 1
    );
    let (path, before, after) = changed_by(&changes, name, options, &folder);
    let replayed = journaled(&path, &before, &after, folder.path());
    let mut live = before.live();
    let of = |wanted: &str| {
        let mut inodes = view.inodes();
        let is_it = |inode: &u32| view.paths(*inode).any(|path| path == wanted.as_bytes());
        inodes.find(is_it).expect("it is there")
    };
    let (passwd, large) = (of("/etc/passwd"), of("/bin/large"));
    let last_of = |inode| {
        let last = view.runs(inode).last().expect("it has some");
        (last.block + u64::from(last.length) - 1) * 1024
    };
    let mut events = Vec::new();
    // A mount is visible in the journal first.
    let journal = view.superblock().journal_inode.expect("it has one");
    let journal = view.runs(journal)[0].block;
    let begin = &replayed.0[journal as usize * 1024..][..1024];
    live.was_written(journal * 1024, begin, &mut events);
    live.was_written(last_of(passwd), &[1; 1024], &mut events);
    live.was_written(last_of(large), &[1; 1024], &mut events);
    live.was_written(free * 1024, &[1; 2048], &mut events);
    let written = |inode, offset, length| Event::Written {
        inode,
        offset,
        length,
    };
    let end = 3_000_000 / 1024 * 1024;
    let told = [
        written(passwd, 1024, 476),
        written(large, end, 3_000_000 - end),
    ];
    assert_eq!(events, told);
    events.clear();
    for (block, content) in before.written(&replayed, 1024) {
        if block != journal {
            live.was_written(block * 1024, content, &mut events);
        }
    }
    events.retain(|event| matches!(event, Event::Written { .. }));
    let told = [written(passwd, 1500, 2000), written(large, 3_000_000, 10)];
    assert_eq!(events, told);
    assert_eq!(live.ends.len(), 0);
}
