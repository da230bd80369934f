//! What is fuzzed: each function takes any bytes and must return. It panics
//! only if something that holds of all bytes does not hold of these.
//!
//! Formats with a checksum or a seal are read twice: as they come, and with the
//! checksum put right, so that what lies behind it is reached as well.

use std::path::Path;
use std::sync::Arc;

use ::trace::{Batch, BatchHead, Batches, OpKind, RECORD_BYTES, Trace};
use base::checksum::{crc32c, crc32c_append};
use base::{
    BlockIndex, BlockSize, ClusterId, DatabaseId, Location, SegmentId, Sequence, UnitId, VolumeId,
};
use unit_folder::format;
use volume::catalog::FreePlan;
use volume::catalog::VersionKey;
use volume::fixture::keyring;
use volume::journal::{self, Claim, Journal, JournalError, JournalSpec, ReplayedWrite};
use volume::map::{Entry, Overlay, PAGE_BYTES, PAGE_ENTRIES, Page, Root};
use volume::seal::Address;
use volume::version::{Record, decode_tail_page, encode_tail};
use world::simulated::{SimulatedClock, SimulatedDisk, SimulatedPool, SimulatedRandom};
use world::{OpenMode, World};

mod disks;
mod filters;
pub mod images;
mod units;

pub use disks::{ext_live, ext_view, partition_table};
pub use filters::{luks_header, policy, relay_journal};
pub use nbd::client::fuzz::{fuzz_greeting as nbd_greeting, fuzz_replies as nbd_replies};
pub use nbd::fuzz::fuzz_handshake as nbd_handshake;
pub use nbd::fuzz::fuzz_option as nbd_option;
pub use nbd::fuzz::fuzz_transmission as nbd_transmission;
pub use unit::fuzz::fuzz_marker as unit_marker;
pub use units::{capability, daemon_answer, daemon_session};

/// A target and what to start from.
pub struct Target {
    /// Its name, also of its program under `fuzz_targets/`.
    pub name: &'static str,
    /// The target.
    pub run: fn(&[u8]),
    /// Inputs that get far.
    pub seeds: fn() -> Vec<Vec<u8>>,
}

/// All targets.
pub const TARGETS: &[Target] = &[
    Target {
        name: "segment",
        run: segment,
        seeds: segment_seeds,
    },
    Target {
        name: "unit_marker",
        run: unit_marker,
        seeds: unit_marker_seeds,
    },
    Target {
        name: "capability",
        run: capability,
        seeds: units::capability_seeds,
    },
    Target {
        name: "daemon_session",
        run: daemon_session,
        seeds: units::daemon_session_seeds,
    },
    Target {
        name: "daemon_answer",
        run: daemon_answer,
        seeds: units::daemon_answer_seeds,
    },
    Target {
        name: "trace",
        run: trace,
        seeds: trace_seeds,
    },
    Target {
        name: "foreign_trace",
        run: foreign_trace,
        seeds: foreign_trace_seeds,
    },
    Target {
        name: "journal_page",
        run: journal_page,
        seeds: journal_page_seeds,
    },
    Target {
        name: "journal_record",
        run: journal_record,
        seeds: journal_record_seeds,
    },
    Target {
        name: "journal_replay",
        run: journal_replay,
        seeds: journal_replay_seeds,
    },
    Target {
        name: "map_page",
        run: map_page,
        seeds: map_page_seeds,
    },
    Target {
        name: "version_record",
        run: version_record,
        seeds: version_record_seeds,
    },
    Target {
        name: "tail_page",
        run: tail_page,
        seeds: tail_page_seeds,
    },
    Target {
        name: "free_plan",
        run: free_plan,
        seeds: free_plan_seeds,
    },
    Target {
        name: "nbd_option",
        run: nbd_option,
        seeds: nbd_option_seeds,
    },
    Target {
        name: "nbd_handshake",
        run: nbd_handshake,
        seeds: nbd_handshake_seeds,
    },
    Target {
        name: "nbd_transmission",
        run: nbd_transmission,
        seeds: nbd_transmission_seeds,
    },
    Target {
        name: "nbd_greeting",
        run: nbd_greeting,
        seeds: nbd_greeting_seeds,
    },
    Target {
        name: "nbd_replies",
        run: nbd_replies,
        seeds: nbd_replies_seeds,
    },
    Target {
        name: "ext_view",
        run: ext_view,
        seeds: disks::ext_view_seeds,
    },
    Target {
        name: "ext_live",
        run: ext_live,
        seeds: disks::ext_live_seeds,
    },
    Target {
        name: "partition_table",
        run: partition_table,
        seeds: disks::partition_table_seeds,
    },
    Target {
        name: "luks_header",
        run: luks_header,
        seeds: filters::luks_header_seeds,
    },
    Target {
        name: "relay_journal",
        run: relay_journal,
        seeds: filters::relay_journal_seeds,
    },
    Target {
        name: "policy",
        run: policy,
        seeds: filters::policy_seeds,
    },
];

/// The beginning of a segment file: header and table.
pub fn segment(data: &[u8]) {
    let check = |bytes: &[u8]| {
        if let Ok((header, entries)) = format::parse(bytes) {
            assert_eq!(format::Header::parse(&header.encode()), Ok(header));
            assert!(entries.len() <= header.capacity as usize);
        }
    };
    check(data);
    let mut repaired = data.to_vec();
    if repaired.len() >= format::HEADER_BYTES {
        let (content, crc) =
            repaired[..format::HEADER_BYTES].split_at_mut(format::HEADER_BYTES - 4);
        crc.copy_from_slice(&crc32c(content).to_le_bytes());
        check(&repaired);
    }
}

fn segment_seeds() -> Vec<Vec<u8>> {
    let segment = SegmentId::from_bits(0x0001_2345_6789).expect("not 0");
    [(4096, 8 << 20), (512, 1 << 20), (65536, 4 << 20)]
        .map(|(slot_bytes, data_bytes)| {
            let header =
                format::Header::new(segment, ClusterId::from_u128(7), slot_bytes, data_bytes)
                    .expect("a size that is allowed");
            let mut bytes = header.encode();
            bytes.resize(4096, 0);
            // A table of 20 entries in whatever states these bytes say.
            bytes.extend((0..20 * 24).map(|byte| byte as u8));
            bytes
        })
        .into()
}

fn unit_marker_seeds() -> Vec<Vec<u8>> {
    let cluster = ClusterId::from_u128(1);
    let unit = UnitId::from_u128(2);
    let database = DatabaseId::from_u128(3);
    let owner = format!("[owner]\ndatabase = \"{database}\"\ngeneration = 4294967295\n");
    [
        format!(
            "format = 1\ncluster = \"{cluster}\"\nunit = \"{unit}\"\n\n{owner}place = \"/srv/\\\"a b\\\" on vm1\"\n"
        ),
        format!("# A unit.\nformat = 1\ncluster = \"{cluster}\"\nunit = \"{unit}\"\n"),
        format!("format = 0\nunit = '{unit}'\ncluster = '{cluster}'\n[more]\nfields = [1]"),
        "format = 2\nclan = 1\n".to_owned(),
    ]
    .map(String::into_bytes)
    .into()
}

/// Where a journal's first page has its volume and its CRC-32C; see
/// docs/internals/formats.md.
const PAGE_VOLUME: std::ops::Range<usize> = 24..40;
const PAGE_CRC: std::ops::Range<usize> = 48..52;

/// Where the checksum of a trace's batch lies.
const TRACE_CRC: std::ops::Range<usize> = 60..64;

/// A file of a trace. What is read of it is what was written.
pub fn trace(data: &[u8]) {
    let check = |bytes: &[u8]| {
        let mut again = Vec::new();
        for batch in Batches::new(bytes) {
            match batch {
                Ok(batch) => again.extend(batch.encode()),
                Err(error) => assert!(!error.to_string().is_empty()),
            }
        }
        assert!(bytes.starts_with(&again), "a batch was read as another one");
        let (traces, broken) = Trace::read([bytes, bytes]);
        assert!(broken.len() <= 2);
        let records: usize = traces.iter().map(|one| one.records.len()).sum();
        assert!(records * RECORD_BYTES <= bytes.len());
    };
    check(data);
    if data.len() >= TRACE_CRC.end {
        let mut repaired = data.to_vec();
        let crc = crc32c_append(crc32c(&data[..TRACE_CRC.start]), &data[TRACE_CRC.end..]);
        repaired[TRACE_CRC].copy_from_slice(&crc.to_le_bytes());
        check(&repaired);
    }
}

fn trace_seeds() -> Vec<Vec<u8>> {
    let record = |number: u64| ::trace::Record {
        time_ns: number * 1000,
        latency_ns: 500,
        offset: number * 4096,
        length: 4096,
        kind: [OpKind::Read, OpKind::Write, OpKind::Flush][number as usize % 3],
        is_fua: number.is_multiple_of(2),
        may_punch: false,
        outcome: ::trace::Outcome::Done,
    };
    let batch = |sequence: u64, count: u64| Batch {
        head: BatchHead {
            began_us: 1,
            trace: 2,
            sequence,
            before: sequence * 3,
            lost: 0,
            disk_bytes: 1 << 30,
        },
        records: (0..count).map(record).collect(),
    };
    let several = [batch(0, 3).encode(), batch(1, 5).encode()].concat();
    vec![batch(0, 1).encode(), batch(0, 0).encode(), several]
}

/// What other programs have recorded. What is read of it lies on a disk that there can be, and
/// is as much as there are lines.
pub fn foreign_trace(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    match lab::traces::read_foreign(&text) {
        Ok(read) => {
            let records = read.records;
            assert!(!records.is_empty() && records.len() <= text.lines().count());
            assert!(records.is_sorted_by_key(|record| record.time_ns));
            for record in records {
                assert!(record.offset.checked_add(record.length).is_some());
                assert!(record.time_ns.checked_add(record.latency_ns).is_some());
            }
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

fn foreign_trace_seeds() -> Vec<Vec<u8>> {
    let second = "fio version 2 iolog\nx add\nx open\nx write 0 4096\nx wait 20 0\nx sync\n";
    let third = "fio version 3 iolog\n0 x add\n7 x trim 512 512\n9 x read 0 1048576\n";
    let blkparse = "8,0 3 4 0.500002135 697 Q W 223490 + 8 [a]\n8,0 3 7 1.2 697 Q FN [b]\n";
    let merged = "8,0 3 4 0.5 7 Q W 0 + 8 [a]\n8,0 3 5 0.6 7 Q W 8 + 8 [a]\n\
                  8,0 3 6 0.7 0 C W 0 + 16 [0]\n8,0 3 7 0.8 7 Q R 64 + 16 [a]\n\
                  8,0 3 8 0.9 0 C R 72 + 8 [5]\n8,0 3 9 1.0 0 C R 64 + 8 [0]\n";
    let issued =
        "8,0 3 4 0.5 7 D W 0 + 8 [a]\n8,0 3 5 0.6 0 C W 0 + 8 [0]\n8,0 3 6 0.7 0 C WS 0 [0]\n";
    [second, third, blkparse, merged, issued]
        .map(|text| text.as_bytes().to_vec())
        .into()
}

/// The beginning of a journal's file. What is no journal of the volume is left
/// as it is.
pub fn journal_page(data: &[u8]) {
    let check = |bytes: &[u8]| {
        let world = world();
        let path = Path::new("/journal");
        let written = world.disk.open(path, OpenMode::CreateNew);
        let file = written.expect("a disk without faults");
        file.write_at(bytes, 0).expect("a disk without faults");
        file.set_length(bytes.len().max(256 << 10) as u64)
            .expect("a disk without faults");
        let volume = VolumeId::from_u128(5);
        match Journal::open(
            &world,
            path,
            JournalSpec::new(volume, BlockSize::DEFAULT, 0),
        ) {
            Ok(opened) => {
                let mut journal = opened.expect("there is a file");
                let file_bytes = journal.file().length().expect("a disk without faults");
                assert!(journal.ring_bytes() + 4096 <= file_bytes);
                assert!(journal.ring_bytes().is_multiple_of(4096));
                let replayed = journal::replay(&mut journal, &keyring(1), Sequence::ZERO, |_| {});
                assert!(matches!(
                    replayed,
                    Ok(_) | Err(JournalError::Damaged { .. })
                ));
            }
            Err(error) => {
                assert!(matches!(error, JournalError::Foreign { .. }), "{error}");
                let mut after = vec![0; bytes.len()];
                file.read_at(&mut after, 0).expect("a disk without faults");
                assert_eq!(after, bytes);
            }
        }
    };
    check(data);
    let mut repaired = data.to_vec();
    if repaired.len() >= PAGE_CRC.end {
        repaired[PAGE_VOLUME].copy_from_slice(&5_u128.to_le_bytes());
        let crc = crc32c(&repaired[..PAGE_CRC.start]);
        repaired[PAGE_CRC].copy_from_slice(&crc.to_le_bytes());
        check(&repaired);
    }
}

fn journal_page_seeds() -> Vec<Vec<u8>> {
    [4096, 64 << 10, 252 << 10]
        .map(|ring_bytes| {
            let (world, path) = (world(), Path::new("/journal"));
            let volume = VolumeId::from_u128(5);
            let mut journal = Journal::create(
                &world,
                path,
                JournalSpec::new(volume, BlockSize::DEFAULT, 0),
                ring_bytes,
                &Claim::sole(),
            )
            .expect("a disk without faults");
            if journal.has_room(1) {
                let _ = journal.append_zero(BlockIndex(1), 3, Sequence::new(1, 1).expect("small"));
                journal.commit().expect("a disk without faults");
            }
            let mut bytes = vec![0; 8192];
            let file = journal.file();
            file.read_at(&mut bytes, 0).expect("a disk without faults");
            bytes
        })
        .into()
}

/// Where a record header has its CRC-32C; see docs/internals/formats.md.
const RECORD_CRC: std::ops::Range<usize> = 60..64;

/// The header page of a journal record.
pub fn journal_record(data: &[u8]) {
    let mut page = [0; journal::HEADER_BYTES];
    let length = data.len().min(page.len());
    page[..length].copy_from_slice(&data[..length]);
    for _ in 0..2 {
        if let Ok(header) = journal::Header::decode(&page) {
            assert!(header.entries.len() <= journal::ENTRIES_MAX);
            let mut again = [0; journal::HEADER_BYTES];
            header.encode(&mut again);
            assert_eq!(journal::Header::decode(&again), Ok(header));
        }
        page[RECORD_CRC].fill(0);
        let crc = crc32c(&page);
        page[RECORD_CRC].copy_from_slice(&crc.to_le_bytes());
    }
}

fn journal_record_seeds() -> Vec<Vec<u8>> {
    let data = |block| journal::Entry::Data {
        block: BlockIndex(block),
        tag: [7; 16],
    };
    let zero = |block, count| journal::Entry::Zero {
        block: BlockIndex(block),
        count,
    };
    [
        vec![data(1)],
        vec![data(5), zero(9, 100), data(6)],
        (0..126).map(data).collect(),
    ]
    .map(|entries| {
        let mut page = [0; journal::HEADER_BYTES];
        let header = journal::Header {
            position: 1 << 20,
            durable: 1 << 19,
            journal: 99,
            first: Sequence::new(3, 17).expect("small"),
            block_bytes: 4096,
            entries,
        };
        header.encode(&mut page);
        page.to_vec()
    })
    .into()
}

/// A whole journal with changed bytes: what recovery finds must be the first
/// writes of those that were made, each as it was made.
///
/// `data`: how many blocks to write, then pairs of (place u16, byte).
pub fn journal_replay(data: &[u8]) {
    let Some((&count, changes)) = data.split_first() else {
        return;
    };
    let (world, keyring) = (world(), keyring(1));
    let (path, volume) = (Path::new("/journal"), VolumeId::from_u128(5));
    let block_size = BlockSize::DEFAULT;
    let mut journal = Journal::create(
        &world,
        path,
        JournalSpec::new(volume, block_size, 0),
        256 << 10,
        &Claim::sole(),
    )
    .expect("a disk without faults");
    let sequence = |number: u64| Sequence::new(1, number).expect("small");
    let mut written = Vec::new();
    for number in 1..=u64::from(count % 40) {
        if number % 5 == 0 {
            let _ = journal.append_zero(BlockIndex(number), 3, sequence(number));
            written.push(ReplayedWrite::Zero {
                block: BlockIndex(number),
                count: 3,
                sequence: sequence(number),
            });
        } else {
            let plain = vec![number as u8; block_size.bytes()];
            let block = BlockIndex(number % 7);
            let placed = journal
                .append(keyring.own(), block, sequence(number), &plain)
                .expect("there is room");
            written.push(ReplayedWrite::Data { block, placed });
        }
        if number % 3 == 0 {
            journal.commit().expect("a disk without faults");
        }
        if number % 6 == 0 {
            // As after a sync: what is lost of that may not go unnoticed.
            let head = journal.head();
            journal.synced(head);
        }
    }
    journal.commit().expect("a disk without faults");
    let file = Arc::clone(journal.file());
    for change in changes.chunks_exact(3) {
        // Pages and their first bytes are where it hurts.
        let place = u64::from(change[0]) % 65 * 4096 + u64::from(change[1]) * 2;
        file.write_at(&change[2..], place)
            .expect("a disk without faults");
    }
    if let Ok(Some(mut journal)) =
        Journal::open(&world, path, JournalSpec::new(volume, block_size, 0))
    {
        let mut found = Vec::new();
        let replayed = journal::replay(&mut journal, &keyring, sequence(0), |write| {
            found.push(write)
        });
        assert!(matches!(
            replayed,
            Ok(_) | Err(JournalError::Damaged { .. })
        ));
        assert!(found.len() <= written.len());
        assert_eq!(found, written[..found.len()]);
    }
}

fn journal_replay_seeds() -> Vec<Vec<u8>> {
    vec![
        vec![39],
        vec![12, 0, 9, 1],
        vec![39, 3, 0, 1, 9, 30, 255],
        vec![20, 1, 30, 0, 200, 2, 3],
    ]
}

/// A page of the map.
pub fn map_page(data: &[u8]) {
    let mut bytes = Box::new([0; PAGE_BYTES]);
    let length = data.len().min(PAGE_BYTES);
    bytes[..length].copy_from_slice(&data[..length]);
    let page = Page::from_bytes(bytes);
    let mut again = Page::default();
    for index in 0..PAGE_ENTRIES {
        again.set(index, page.get(index));
        assert_eq!(again.get(index), page.get(index));
    }
    assert_eq!(page.entries().count(), again.entries().count());
}

fn map_page_seeds() -> Vec<Vec<u8>> {
    let mut page = Page::default();
    for index in [0, 1, 17, 255] {
        page.set(index, Some(entry(index as u64 + 1)));
    }
    vec![page.bytes().to_vec()]
}

/// A version record: as it comes, and as what is under a seal that holds.
pub fn version_record(data: &[u8]) {
    let keyring = keyring(1);
    let key = VersionKey {
        volume: VolumeId::from_u128(5),
        number: 3,
    };
    let open = |sealed: &[u8]| {
        if let Ok(record) = Record::open(key, sealed, &keyring) {
            let again = record.seal(keyring.own(), Sequence::new(1, 77).expect("small"));
            assert_eq!(Record::open(key, &again, &keyring), Ok(record));
        }
    };
    open(data);
    let sequence = Sequence::new(1, 1).expect("small");
    let mut plain = data.to_vec();
    let tag = keyring.own().seal(Address::VERSION, sequence, &mut plain);
    let sealed = [&sequence.bits().to_le_bytes()[..], &tag, &plain].concat();
    open(&sealed);
}

fn version_record_seeds() -> Vec<Vec<u8>> {
    let record = Record {
        key: VersionKey {
            volume: VolumeId::from_u128(5),
            number: 3,
        },
        block_size: BlockSize::DEFAULT,
        size_bytes: 1 << 30,
        last_sequence: Sequence::new(1, 9).expect("small"),
        root: Root::new(vec![None, Some(entry(8))]),
        tail: vec![entry(9), entry(10)],
    };
    let keyring = keyring(1);
    let sequence = Sequence::new(1, 100).expect("small");
    let sealed = record.seal(keyring.own(), sequence);
    let tag = sealed[8..24].try_into().expect("16 bytes");
    let mut plain = vec![0; sealed.len() - 24];
    keyring
        .own()
        .open(Address::VERSION, sequence, &tag, &sealed[24..], &mut plain)
        .expect("it was just sealed");
    vec![sealed, plain]
}

/// A page of a version's tail.
pub fn tail_page(data: &[u8]) {
    let mut overlay = Overlay::default();
    if decode_tail_page(data, &mut overlay).is_ok() {
        let mut again = Overlay::default();
        for page in encode_tail(&overlay, BlockSize::DEFAULT) {
            decode_tail_page(&page, &mut again).expect("it was just encoded");
        }
        for (block, _) in overlay.blocks() {
            assert_eq!(overlay.get(block), again.get(block));
        }
        for zero in overlay.zeroes() {
            assert_eq!(overlay.get(zero.start), again.get(zero.start));
        }
    }
}

fn tail_page_seeds() -> Vec<Vec<u8>> {
    let mut overlay = Overlay::default();
    overlay.zero(4..900);
    for block in [1, 5, 6, 1000] {
        overlay.insert(block, entry(block + 1));
    }
    encode_tail(&overlay, BlockSize::DEFAULT)
}

/// The slots that a removed version gives back.
pub fn free_plan(data: &[u8]) {
    if let Ok(plan) = FreePlan::decode(data) {
        assert_eq!(FreePlan::decode(&plan.encode()), Ok(plan));
    }
}

fn free_plan_seeds() -> Vec<Vec<u8>> {
    let mut plan = FreePlan::default();
    for bits in [70_000, 70_001, 1 << 40] {
        plan.add(Location::from_bits(bits));
    }
    vec![plan.encode()]
}

/// An option's bytes as a client sends them.
fn option(number: u32, body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(body.len()).expect("short");
    [
        b"IHAVEOPT",
        &number.to_be_bytes()[..],
        &length.to_be_bytes(),
        body,
    ]
    .concat()
}

const GO: u32 = 7;

fn go() -> Vec<u8> {
    [&3_u32.to_be_bytes()[..], b"one", &[0, 1, 0, 3]].concat()
}

fn nbd_option_seeds() -> Vec<Vec<u8>> {
    let contexts = [
        &3_u32.to_be_bytes()[..],
        b"one",
        &[0, 0, 0, 1, 0, 0, 0, 15],
        b"base:allocation",
    ];
    vec![
        [&GO.to_be_bytes()[..], &go()].concat(),
        [&10_u32.to_be_bytes()[..], &contexts.concat()].concat(),
        [&1_u32.to_be_bytes()[..], b"one"].concat(),
        8_u32.to_be_bytes().to_vec(),
    ]
}

fn nbd_handshake_seeds() -> Vec<Vec<u8>> {
    // First a byte that says what the server offers, then the client's flags.
    let begin = [8, 0, 0, 0, 3];
    vec![
        [&begin[..], &option(8, b""), &option(GO, &go())].concat(),
        [
            &begin[..],
            &option(3, b""),
            &option(6, &go()),
            &option(2, b""),
        ]
        .concat(),
        [&[4, 0, 0, 0, 3][..], &option(5, b""), &option(GO, &go())].concat(),
    ]
}

/// What a server says in the handshake, after a byte that says whether TLS is wanted.
fn nbd_greeting_seeds() -> Vec<Vec<u8>> {
    let reply = |option: u32, kind: u32, data: &[u8]| {
        let words = [option, kind, data.len() as u32].map(u32::to_be_bytes);
        [
            &0x0003_e889_0455_65a9_u64.to_be_bytes(),
            &words.concat()[..],
            data,
        ]
        .concat()
    };
    let greeting = b"NBDMAGICIHAVEOPT\0\x03";
    let export = [&[0, 0][..], &(1_u64 << 20).to_be_bytes(), &[4, 0xff]].concat();
    let blocks = [0_u16, 3, 0, 512, 0, 4096, 512, 0].map(u16::to_be_bytes);
    let new = [
        reply(8, 1, &[]),
        reply(10, 4, b"\0\0\0\x07base:allocation"),
        reply(10, 1, &[]),
        reply(7, 3, &export),
        reply(7, 3, &blocks.concat()[2..]),
        reply(7, 1, &[]),
    ]
    .concat();
    let none = |option| reply(option, 1 << 31 | 1, b"no");
    let old = [&none(8)[..], &none(7), &export[2..], &[0; 124]].concat();
    vec![
        [&[0][..], greeting, &new].concat(),
        [&[0][..], greeting, &old].concat(),
        [&[1][..], greeting, &reply(5, 1, &[])].concat(),
    ]
}

/// Answers to a read, a block status and a flush.
fn nbd_replies_seeds() -> Vec<Vec<u8>> {
    let chunk = |flags: u8, kind: u16, cookie: u8, body: &[u8]| {
        [
            &[0x66, 0x8e, 0x33, 0xef, 0, flags][..],
            &kind.to_be_bytes(),
            &[0, 0, 0, 0, 0, 0, 0, cookie],
            &(body.len() as u32).to_be_bytes(),
            body,
        ]
        .concat()
    };
    let simple = |cookie| [&[0x67, 0x44, 0x66, 0x98][..], &[0; 11], &[cookie]].concat();
    let extents = [7, 256, 0, 1 << 20, 3].map(u32::to_be_bytes).concat();
    let structured = [
        chunk(0, 1, 0, &[&[0; 8][..], &[5; 256]].concat()),
        chunk(0, 2, 0, &[0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1, 0]),
        chunk(1, 5, 1, &extents),
        chunk(1, 0, 0, &[]),
        chunk(1, 0x8001, 3, &[0, 0, 0, 5, 0, 1, b'x']),
        simple(2),
    ]
    .concat();
    let plain = [&simple(2)[..], &simple(0), &[9; 512]].concat();
    vec![
        [&[1][..], &structured].concat(),
        [&[41][..], &structured].concat(),
        [&[6][..], &plain].concat(),
    ]
}

fn nbd_transmission_seeds() -> Vec<Vec<u8>> {
    let request = |command: u16, flags: u16, offset: u64, length: u32| {
        [
            &0x2560_9513_u32.to_be_bytes()[..],
            &flags.to_be_bytes(),
            &command.to_be_bytes(),
            &offset.to_be_bytes(),
            &offset.to_be_bytes(),
            &length.to_be_bytes(),
        ]
        .concat()
    };
    let write = [request(1, 1, 8192, 4096), vec![5; 4096]].concat();
    let all = [
        write.clone(),
        request(0, 0, 8192, 4096),
        request(3, 0, 0, 0),
        request(4, 0, 4096, 8192),
        request(6, 2, 0, 65536),
        request(7, 0, 0, 65536),
        request(5, 0, 0, 4096),
        request(2, 0, 0, 0),
    ]
    .concat();
    [0, 3, 4, 0b0010_1011]
        .map(|first| [&[first, 1][..], &all].concat())
        .into()
}

fn entry(number: u64) -> Entry {
    Entry {
        location: Location::from_bits(number),
        sequence: Sequence::new(1, number).expect("small"),
    }
}

fn world() -> World {
    let pool = SimulatedPool::new();
    World {
        disk: Arc::new(SimulatedDisk::new(1)),
        clock: Arc::new(SimulatedClock::new(world::Millis(0))),
        random: Arc::new(SimulatedRandom::new(1)),
        pool: Arc::new(pool),
    }
}
