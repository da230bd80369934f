//! Which requests are recorded, and which are lost.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use ::trace::{OpKind, Outcome, Trace as Recorded};
use base::{BlockDevice as _, Completion, Durability, IoError, Request, Started, ZeroMode};
use chain_policy::TraceConfig;
use testkit::memory_device::{MemoryDevice, Misbehavior};
use world::simulated::Simulation;
use world::{OpenMode, Wake};

use super::{BATCH_RECORDS, QUEUE_MAX, Trace};
use crate::testing;
use crate::{AttachmentContext, DiskLimits, Filter as _, FilterContext, Opening, StateFolder};

struct Rig {
    simulation: Simulation,
    below: MemoryDevice,
    trace: Option<Trace>,
}

impl Rig {
    fn new(pending_one_in: u64) -> Self {
        let misbehavior = Misbehavior {
            pending_one_in,
            seed: 1,
            ..Misbehavior::default()
        };
        let simulation = Simulation::new(3);
        let disk = simulation.world().disk;
        disk.create_directory(Path::new("/state")).expect("made");
        let mut rig = Self {
            simulation,
            below: MemoryDevice::new(1 << 20).with(misbehavior, Wake::noop()),
            trace: None,
        };
        rig.begin(8 << 20);
        rig
    }

    fn begin(&mut self, trace_bytes: u64) {
        self.trace = None;
        let world = self.simulation.world();
        let state = StateFolder {
            disk: Arc::clone(&world.disk),
            path: "/state".into(),
        };
        let simulated = FilterContext::simulated(world);
        let context = FilterContext {
            host: simulated.host,
            attachment: AttachmentContext {
                disk_limits: DiskLimits {
                    trace_bytes,
                    ..DiskLimits::UNLIMITED
                },
                ..simulated.attachment
            },
        };
        let config = TraceConfig { bytes_max: 1 << 20 };
        self.trace = Some(Trace::new("t", &config, context, state));
    }

    fn parts(&mut self) -> (&mut Trace, &mut MemoryDevice) {
        (self.trace.as_mut().expect("a filter"), &mut self.below)
    }

    fn poll(&mut self) -> Vec<Completion> {
        self.simulation.clock.advance(Duration::from_millis(1));
        let (trace, below) = self.parts();
        trace.end_batch(below).expect("memory works");
        let mut completions = Vec::new();
        trace.poll(below, &mut completions);
        completions
    }

    fn write(&mut self, token: u64) -> Started {
        let (trace, below) = self.parts();
        trace.start(
            below,
            Request::write(token, 4096, &[1; 512], Durability::Durable),
        )
    }

    fn files(&self) -> Vec<Vec<u8>> {
        let disk = self.simulation.world().disk;
        let names = disk.list(Path::new("/state")).expect("listed").into_iter();
        let read = |name: String| {
            let file = disk.open(&Path::new("/state").join(name), OpenMode::Read);
            let file = file.expect("there");
            let mut bytes = vec![0; file.length().expect("known") as usize];
            file.read_at(&mut bytes, 0).expect("read");
            bytes
        };
        names.map(|entry| read(entry.name)).collect()
    }

    fn recorded(&self) -> Vec<Recorded> {
        self.simulation.pool.run_all(&self.simulation.random);
        let files = self.files();
        let (traces, broken) = Recorded::read(files.iter().map(Vec::as_slice));
        assert!(broken.is_empty(), "{broken:?}");
        traces
    }
}

#[test]
fn each_request_is_recorded_once_when_it_has_completed() {
    let mut rig = Rig::new(2);
    for token in 1..=40 {
        rig.simulation.clock.advance(Duration::from_millis(1));
        let (trace, below) = rig.parts();
        let mut out = [0; 512];
        let zeroes = ZeroMode {
            durability: Durability::Volatile,
            may_punch: true,
            fast_only: false,
        };
        let started = match token % 5 {
            0 => trace.start(below, Request::read(token, token * 512, &mut out)),
            1 => trace.start(
                below,
                Request::write(token, token * 512, &out, Durability::Durable),
            ),
            2 => trace.start(
                below,
                Request::write_zeroes(token, token * 512, 1024, zeroes),
            ),
            3 => trace.start(below, Request::flush(token)),
            _ => trace.start(below, Request::read(token, 1 << 30, &mut out)),
        };
        if started == Started::Pending {
            while !rig.poll().iter().any(|one| one.token == token) {}
        } else if token % 5 == 4 {
            assert!(matches!(
                started,
                Started::Failed(IoError::OutOfRange { .. })
            ));
        }
        rig.poll();
    }
    assert_eq!(rig.recorded(), [], "a second has not passed");
    rig.simulation.clock.advance(Duration::from_secs(1));
    rig.poll();
    let traces = rig.recorded();
    assert_eq!((traces.len(), traces[0].lost, traces[0].removed), (1, 0, 0));
    let records = &traces[0].records;
    assert_eq!(records.len(), 40);
    assert!(records.is_sorted_by_key(|record| record.time_ns));
    let kinds = [
        OpKind::Write,
        OpKind::WriteZeroes,
        OpKind::Flush,
        OpKind::Read,
        OpKind::Read,
    ];
    for (token, record) in (1..).zip(records) {
        assert_eq!(record.kind, kinds[(token as usize - 1) % 5]);
        assert!(record.latency_ns >= 1_000_000, "{record:?}");
        assert_eq!(record.is_fua, token % 5 == 1);
        assert_eq!(record.may_punch, token % 5 == 2);
        let is_failed = record.outcome == Outcome::Failed;
        assert_eq!(is_failed, token % 5 == 4);
        match token % 5 {
            3 => assert_eq!((record.offset, record.length), (0, 0)),
            4 => assert_eq!(record.offset, 1 << 30),
            _ => assert_eq!(record.offset, token * 512),
        }
    }
}

#[test]
fn requests_do_not_wait_for_the_trace_and_lost_records_are_counted() {
    let mut rig = Rig::new(0);
    // No job runs.
    let more = 5;
    for _ in 0..QUEUE_MAX + more {
        for token in 0..BATCH_RECORDS as u64 {
            assert_eq!(rig.write(token), Started::Done);
        }
        rig.poll();
    }
    rig.simulation.pool.run_all(&rig.simulation.random);
    rig.write(1);
    rig.poll();
    let (trace, _) = rig.parts();
    assert!(trace.quiesce());
    let traces = rig.recorded();
    assert_eq!(traces[0].lost, (more * BATCH_RECORDS) as u64);
    let recorded = (QUEUE_MAX * BATCH_RECORDS) as u64 + 1;
    assert_eq!(traces[0].records.len() as u64 + traces[0].removed, recorded);
    assert!(traces[0].removed > 0, "the oldest files are gone");
    let bytes: usize = rig.files().iter().map(Vec::len).sum();
    assert!(bytes <= 1 << 20, "{bytes} bytes are stored");
}

#[test]
fn each_filter_writes_a_trace_of_its_own_to_the_end() {
    let mut rig = Rig::new(0);
    for count in 1..=3 {
        for token in 0..count {
            assert_eq!(rig.write(token), Started::Done);
        }
        rig.poll();
        rig.begin(8 << 20);
        rig.simulation.clock.advance(Duration::from_secs(1));
    }
    let traces = rig.recorded();
    let counts: Vec<usize> = traces.iter().map(|trace| trace.records.len()).collect();
    assert_eq!(counts, [1, 2, 3]);
    assert_eq!(traces[2].disk_bytes, 0, "the filter was not opened");
    rig.begin(0);
    let (trace, below) = rig.parts();
    let refused = trace.open(below);
    assert!(matches!(refused, Opening::Failed(why) if why.reason().contains("--filter-trace")));
    assert_eq!(below.geometry().size_bytes, 1 << 20);
}

#[test]
fn a_host_that_limits_a_trace_says_so() {
    for (trace_bytes, expected) in [
        (4 << 20, Some("limited to 4 MiB instead of 8 MiB")),
        (8 << 20, None),
    ] {
        let device = MemoryDevice::new(1 << 20);
        let opened = testing::Rig::open("kind = 'trace'\nbytes_max = '8M'\n", device, |given| {
            given.disk_limits.trace_bytes = trace_bytes;
        });
        let events = opened.expect("it opens").events.events();
        assert_eq!(events.len(), usize::from(expected.is_some()), "{events:?}");
        for event in events {
            assert_eq!(&*event.filter, "trace");
            let message = format!("{:?}", event.kind);
            assert!(message.contains(expected.unwrap_or_default()), "{message}");
        }
    }
}
