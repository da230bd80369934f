//! A daemon on a real socket, fed by hosts that say anything.

use std::io::{Read as _, Write as _};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use auth::{Fence, Scope};
use base::{LineageTag, Slot};
use unit::{NOTE_BYTES, Put, ReplacementPart, SlotRun};
use unit_wire::Request;
use world::simulated::SimulatedRandom;
use world::{Endpoint, Random as _};

use crate::inside::{capability, key};
use crate::site::{Party, Site, connect, greet, put, read, segment, unit_called, until};

/// How long it is fed, in seconds, if the environment's `SCREE_FUZZ_SECONDS` does not
/// say.
const SECONDS: u64 = 3;

/// How many feed it at a time: as many as one host may have connections.
const FEEDERS: usize = 4;

/// What it may have grown between the first quarter of the time and the end: what its
/// connections may have in their buffers, and what the allocator keeps.
const GROWTH_MAX: u64 = 96 << 20;

/// Resident memory of this process, in bytes.
#[expect(clippy::disallowed_methods, reason = "no world has it")]
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.split_whitespace().next());
    kib.and_then(|kib| kib.parse::<u64>().ok()).expect("a size") << 10
}

/// On serials of which there are few, so that the disk does not fill.
fn lease() -> Scope {
    Scope::Lease {
        lineage_tag: LineageTag(7),
        fence: Fence(9),
        epoch: 1,
        serials: std::iter::once(0..64).collect(),
    }
}

struct Chances(SimulatedRandom);

impl Chances {
    fn below(&self, bound: usize) -> usize {
        (self.0.u64() % bound.max(1) as u64) as usize
    }

    /// Requests as a host sends them.
    fn requests(&self, signed: &[u8]) -> Vec<u8> {
        let (tags, data) = ([[6; 16]; 2], [7; 1024]);
        let mut bytes = Vec::new();
        for tag in 2..3 + self.below(12) as u64 {
            let segment = segment(1 + self.below(60) as u64);
            let first = Slot(self.below(8) as u16);
            let run = SlotRun {
                segment,
                first,
                count: 1 + self.below(8) as u16,
            };
            let part = ReplacementPart {
                segment,
                lineage_tag: LineageTag::NONE,
                draft: self.below(3) as u64,
                slot_bytes: 512,
                expected: None,
                generation: self.below(3) as u16,
                slots: 2,
                first: 0,
            };
            let request = match self.below(14) {
                0..3 => Request::Put(Put {
                    segment,
                    lineage_tag: LineageTag::NONE,
                    slot_bytes: 512,
                    first,
                    tags: &tags,
                    data: &data,
                }),
                3 => Request::Present(signed),
                4 => Request::Sync {
                    incarnation: self.below(2) as u64,
                    segments: vec![segment],
                },
                5 => Request::Free {
                    segment,
                    closed: self.below(2) == 0,
                    slots: vec![Slot(0), first],
                },
                6 => Request::Delete(segment),
                7 => Request::List {
                    serials: 0..64,
                    after: 0,
                    limit: 9,
                },
                8 => Request::Stat(segment),
                9 => Request::UnitStat,
                10 => Request::Scrub(segment),
                11 => Request::WriteNote(&[5; NOTE_BYTES]),
                12 => Request::Replace {
                    part,
                    tags: &tags,
                    data: &data,
                },
                _ => Request::Read {
                    run,
                    slot_bytes: 512,
                },
            };
            request.encode(tag, &mut bytes);
        }
        bytes
    }

    /// Changes some bytes, or how many there are.
    fn mutate(&self, bytes: &mut Vec<u8>) {
        const ODD: [u32; 6] = [0, 1, 0x7fff_ffff, 0xffff_ffff, 0xffff, 2 << 20];
        for _ in 0..self.below(4) {
            let at = self.below(bytes.len());
            match self.below(5) {
                0 | 1 => bytes[at] ^= 1 << self.below(8),
                2 => {
                    let odd = ODD[self.below(ODD.len())].to_le_bytes();
                    let to = bytes.iter_mut().skip(at);
                    to.zip(odd).for_each(|(to, from)| *to = from);
                }
                3 => bytes.truncate(at.max(1)),
                _ => {
                    let mut more = vec![0; self.below(200)];
                    self.0.fill(&mut more);
                    bytes.splice(at..at, more);
                }
            }
        }
    }
}

/// Says things until it is hung up on, or has had enough of this connection. Whether it
/// was let in.
fn feed(site: &Site, host: &Party, at: &Endpoint, chances: &Chances) -> bool {
    if chances.below(16) == 0 {
        // No TLS at all, or the way to another daemon.
        let mut stream = connect(at);
        let mut bytes = vec![0; chances.below(400)];
        chances.0.fill(&mut bytes);
        if chances.below(2) == 0 {
            bytes.splice(0..0, *b"scree\xc2\xbb1");
        }
        // It may be closed already.
        let _ = stream.write_all(&bytes);
        return false;
    }
    let mut stream = site.begin_by_hand(host, unit_called(1), at);
    // With one connection more than it may have, a host's oldest is closed.
    if greet(&mut stream).is_err() {
        return false;
    }
    let timeout = Some(Duration::from_millis(20));
    stream.sock.set_read_timeout(timeout).expect("set");
    stream.sock.set_write_timeout(timeout).expect("set");
    let signed = key().sign(&capability(host.fingerprint.0, lease())).0;
    let mut present = Vec::new();
    Request::Present(&signed).encode(1, &mut present);
    let is_sent = stream.write_all(&present).is_ok();
    let mut answers = vec![0; 1 << 16];
    for _ in 0..chances.below(40) {
        let mut bytes = chances.requests(&signed);
        chances.mutate(&mut bytes);
        // A client whose connection was closed, or is not read from, connects again.
        if !is_sent || stream.write_all(&bytes).is_err() {
            return true;
        }
        if chances.below(3) > 0 && matches!(stream.read(&mut answers), Ok(0)) {
            return true;
        }
    }
    true
}

#[test]
fn whatever_hosts_say_a_daemon_goes_on_and_does_not_grow() {
    let seconds = std::env::var("SCREE_FUZZ_SECONDS").map(|text| text.parse().expect("a number"));
    let time = Duration::from_secs(seconds.unwrap_or(SECONDS));
    let site = Site::new();
    let seed = site.world.random.u64();
    println!("seed {seed}");
    let host = site.host("h1");
    let server = site.server(unit_called(1));
    let at = server.endpoint().clone();
    let (fed, ends) = (AtomicU64::new(0), AtomicBool::new(false));
    let early = std::thread::scope(|scope| {
        for feeder in 0..FEEDERS as u64 {
            let (site, host, at, fed, ends) = (&site, &host, &at, &fed, &ends);
            scope.spawn(move || {
                let chances = Chances(SimulatedRandom::new(seed.wrapping_add(feeder)));
                while !ends.load(Ordering::Relaxed) {
                    let was_heard = feed(site, host, at, &chances);
                    fed.fetch_add(u64::from(was_heard), Ordering::Relaxed);
                }
            });
        }
        // No client sends anything, so it lasts as long as the timeout.
        let (_kept, never) = mpsc::channel::<()>();
        let feed_for = |time| assert!(never.recv_timeout(time).is_err());
        feed_for(time / 4);
        let early = resident();
        feed_for(time - time / 4);
        ends.store(true, Ordering::Relaxed);
        early
    });
    let grown = resident().saturating_sub(early);
    let connections = fed.load(Ordering::Relaxed);
    println!("{connections} connections; it has grown by {grown} bytes");
    assert!(connections > 10, "{connections}");
    assert!(grown < GROWTH_MAX, "it has grown by {grown} bytes");
    until("all have gone", || server.connections() == 0);
    until("it holds nothing for them", || server.held_bytes() == 0);
    let other = site.host("h2");
    let lease = Scope::Lease {
        lineage_tag: LineageTag(8),
        fence: Fence(10),
        epoch: 1,
        serials: std::iter::once(100..200).collect(),
    };
    let unit = site.unit(&other, unit_called(1), &[at], &[lease]);
    put(&unit, 101, 0).expect("it continues");
    assert_eq!(read(&unit, 101).expect("put"), [101; 512]);
}
