//! A monitor in a chain, over file systems made by e2fsprogs.

mod denial;
mod trims;

use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver};
use std::time::Duration;

use base::{
    BlockDevice, Completion, Durability, IoError, Outcome, Request, Started, Token, ZeroMode,
};
use chain_policy::Policy;
use parking_lot::Mutex;
use serde_json::Value;
use tempfile::TempDir;
use testkit::memory_device::{MemoryDevice, Misbehavior};
use world::simulated::{SimulatedClock, Simulation};
use world::{Clock, Millis, Wake};

use crate::testing::EventRecorder;
use crate::{
    AttachmentContext, Chain, FilterContext, HostContext, HotSwap, SizeRule, build_filters,
};
use extfs::Live;
use extfs::testing::changed;
use extfs::testing::{Image, KINDS, journaled, make};

/// The longest wait for another thread.
const WITHIN: Duration = Duration::from_secs(60);

/// The faults and limits of a test.
struct RigOptions {
    /// The range of the disk that cannot be read, in bytes.
    damaged: Range<u64>,
    memory_max: u64,
}

struct Rig {
    chain: Chain<MemoryDevice>,
    clock: Arc<SimulatedClock>,
    events: Arc<EventRecorder>,
    wakes: Receiver<()>,
    token: u64,
}

impl Rig {
    /// A monitor over a disk with this content.
    fn new(content: &[u8], size: usize, monitor: &str) -> Self {
        let options = RigOptions {
            damaged: 0..0,
            memory_max: 1 << 30,
        };
        Self::with(content, size, monitor, options)
    }

    /// A monitor on a host that limits its memory.
    fn within(memory_max: u64, content: &[u8], monitor: &str) -> Self {
        let options = RigOptions {
            damaged: 0..0,
            memory_max,
        };
        Self::with(content, content.len(), monitor, options)
    }

    fn with(content: &[u8], size: usize, monitor: &str, options: RigOptions) -> Self {
        let RigOptions {
            damaged,
            memory_max,
        } = options;
        let clock = Arc::new(SimulatedClock::new(Millis(0)));
        let (waker, wakes) = mpsc::channel();
        let waker = Mutex::new(waker);
        let wake = Wake::new(move || {
            // The receiver may have been dropped.
            let _ = waker.lock().send(());
        });
        let mut device = MemoryDevice::new(size);
        let written = device.start(Request::write(1, 0, content, Durability::Volatile));
        assert_eq!(written, Started::Done);
        let misbehavior = Misbehavior {
            pending_one_in: 3,
            damaged,
            seed: 1,
            ..Misbehavior::default()
        };
        let device = device.with(misbehavior, Wake::noop());
        let events = Arc::<EventRecorder>::default();
        let simulated = FilterContext::simulated(Simulation::new(1).world());
        let context = FilterContext {
            host: HostContext {
                clock: Arc::clone(&clock) as Arc<dyn Clock>,
                ..simulated.host
            },
            attachment: AttachmentContext {
                wake,
                events: Arc::clone(&events) as _,
                memory_max,
                ..simulated.attachment
            },
        };
        let text = format!("volume = 'disk'\n[[filter]]\nkind = 'monitor'\n{monitor}");
        let policy = Policy::parse(&text).expect("a policy");
        let mut rig = Self {
            chain: Chain::new(device, Arc::clone(&clock) as Arc<dyn Clock>, Wake::noop()),
            clock,
            events,
            wakes,
            token: 0,
        };
        let (sender, result) = mpsc::channel();
        rig.chain.hot_swap(HotSwap {
            filters: build_filters(&policy, &context),
            rule: SizeRule::Keep,
            on_swapped: Box::new(move |ended| sender.send(ended).expect("a receiver")),
        });
        rig.until(|_| result.try_recv().ok())
            .expect("the monitor opens");
        rig
    }

    /// Polls at each wake until `find` finds something.
    fn until<T>(&mut self, mut find: impl FnMut(&mut Self) -> Option<T>) -> T {
        loop {
            assert_eq!(self.poll(), []);
            if let Some(found) = find(self) {
                return found;
            }
            // The memory device completes with the next poll, without a wake.
            if self.chain.bottom().unanswered() == 0 {
                self.wakes.recv_timeout(WITHIN).expect("a wake");
            }
        }
    }

    fn poll(&mut self) -> Vec<Completion> {
        let mut completions = Vec::new();
        self.chain.poll(&mut completions);
        self.chain.end_batch().expect("the batch ends");
        completions
    }

    fn ended(&mut self, token: u64) -> Result<Outcome, IoError> {
        loop {
            let mut completions = self.poll();
            if let Some(ended) = completions.pop() {
                assert_eq!((ended.token, completions), (token, Vec::new()));
                return ended.result;
            }
        }
    }

    fn change(
        &mut self,
        start: impl FnOnce(&mut Chain<MemoryDevice>, Token) -> Started,
    ) -> Result<(), IoError> {
        self.token += 1;
        let token = self.token;
        match start(&mut self.chain, token) {
            Started::Done => Ok(()),
            Started::Pending => self.ended(token).map(|_| ()),
            Started::Failed(error) => Err(error),
            Started::Busy => panic!("there is room"),
        }
    }

    fn write(&mut self, offset: u64, data: &[u8]) -> Result<(), IoError> {
        self.change(|chain, token| {
            chain.start(Request::write(token, offset, data, Durability::Volatile))
        })
    }

    fn trim(&mut self, offset: u64, length: u64) -> Result<(), IoError> {
        self.change(|chain, token| {
            chain.start(Request::trim(token, offset, length, Durability::Volatile))
        })
    }

    fn write_zeroes(&mut self, offset: u64, length: u64) -> Result<(), IoError> {
        let mode = ZeroMode {
            durability: Durability::Volatile,
            may_punch: true,
            fast_only: false,
        };
        self.change(|chain, token| chain.start(Request::write_zeroes(token, offset, length, mode)))
    }

    /// Waits until the disk was read again. Returns the events until then.
    fn until_reread(&mut self) -> Vec<Value> {
        let mut events = Vec::new();
        self.clock.advance(Duration::from_secs(1));
        self.until(|rig| {
            events.extend(rig.events());
            let is_found = |event: &Value| {
                let message = event["message"].as_str();
                message
                    .is_some_and(|text| text.contains("is followed") || text.contains("by block"))
            };
            events.iter().any(is_found).then_some(())
        });
        events
    }

    fn read(&mut self, offset: u64, length: usize) -> Result<Vec<u8>, IoError> {
        self.token += 1;
        let token = self.token;
        let mut content = vec![0; length];
        match self.chain.start(Request::read(token, offset, &mut content)) {
            Started::Done => Ok(content),
            Started::Pending => match self.ended(token)? {
                Outcome::Data(content) => Ok(content),
                other => panic!("{other:?}"),
            },
            Started::Failed(error) => Err(error),
            Started::Busy => panic!("there is room"),
        }
    }

    /// The events since the last call, as JSON.
    fn events(&mut self) -> Vec<Value> {
        self.clock.advance(Duration::from_millis(5));
        assert_eq!(self.poll(), []);
        let events = self.events.take();
        let json = events.iter().map(serde_json::to_value);
        json.collect::<Result<_, _>>().expect("written")
    }
}

/// The paths of the events with this operation.
fn paths<'a>(events: &'a [Value], operation: &str) -> Vec<&'a str> {
    let of = events
        .iter()
        .filter(|event| event["operation"] == operation);
    of.filter_map(|event| event["path"].as_str()).collect()
}

/// An ext4 file system; the same with a trojan in its journal; and with the journal replayed.
fn trojan() -> (Image, Image, Image) {
    let folder = TempDir::new().expect("a folder");
    let (name, options) = KINDS[2];
    let (path, before, after) = changed(name, options, &folder);
    let replayed = journaled(&path, &before, &after, folder.path());
    (before, replayed, after)
}

#[test]
fn each_change_of_a_trojan_is_reported_when_it_commits() {
    let (before, replayed, _) = trojan();
    let rule = "[[filter.rule]]\nname = 'binaries'\npaths = ['/bin/**']\n\
                operations = ['create', 'delete']\naction = 'alert'\n";
    let mut rig = Rig::new(&before.0, before.0.len(), rule);
    let events = rig.events();
    assert!(
        events[0]["message"]
            .as_str()
            .expect("text")
            .contains("is followed"),
        "{events:?}"
    );
    for (block, content) in before.written(&replayed, 4096) {
        rig.write(block * 4096, content).expect("written");
    }
    let events = rig.events();
    assert!(
        paths(&events, "create").contains(&"/bin/trojan"),
        "{events:?}"
    );
    assert_eq!(paths(&events, "mkdir"), ["/etc/new"]);
    assert_eq!(paths(&events, "delete"), ["/bin/large"]);
    let alerts = events.iter().filter(|event| event["rule"] == "binaries");
    let alerts: Vec<_> = alerts.map(|event| event["path"].as_str()).collect();
    assert!(alerts.contains(&Some("/bin/trojan")) && alerts.contains(&Some("/bin/large")));
    let chmod = events.iter().find(|event| event["operation"] == "chmod");
    let chmod = chmod.expect("reported");
    assert_eq!(
        (&chmod["mode"], &chmod["tenant"]),
        (&"0600".into(), &"alice".into())
    );
}

/// In simulated time, with polls at each timer. Further writes, a millisecond apart, do not delay
/// the events.
#[test]
fn a_commit_is_reported_within_five_milliseconds_of_its_last_block() {
    const WITHIN: Duration = Duration::from_millis(5);
    const COMMIT: [u8; 8] = [0xC0, 0x3B, 0x39, 0x98, 0, 0, 0, 2];
    let (before, replayed, _) = trojan();
    let mut rig = Rig::new(&before.0, before.0.len(), "");
    rig.events();
    let is_reported = |rig: &Rig| {
        let events = rig.events.events();
        let json = events
            .iter()
            .map(|event| serde_json::to_value(event).expect("written"));
        paths(&json.collect::<Vec<_>>(), "create").contains(&"/bin/trojan")
    };
    let mut committed = None;
    for (block, content) in before.written(&replayed, 4096) {
        rig.write(block * 4096, content).expect("written");
        if content.starts_with(&COMMIT) {
            committed = Some(rig.clock.monotonic());
            assert!(!is_reported(&rig), "events are gathered first");
        } else if committed.is_none() {
            rig.clock.advance(Duration::from_millis(1));
            assert_eq!(rig.poll(), []);
            assert!(!is_reported(&rig), "it is not committed");
        }
    }
    let committed = committed.expect("there is a commit block");
    let view = before.view().expect("a file system");
    let mut inodes = view.inodes();
    let inode = inodes.find(|inode| view.path(*inode).as_deref() == Some(b"/again"));
    let run = view.runs(inode.expect("it is there"))[0];
    while !is_reported(&rig) {
        rig.write(run.block * 4096, &[1; 4096]).expect("written");
        let timer = rig.chain.next_timer().expect("events are gathered");
        rig.clock.advance(timer.min(Duration::from_millis(1)));
        assert_eq!(rig.poll(), []);
        let passed = rig.clock.monotonic().saturating_sub(committed);
        assert!(passed <= WITHIN, "{passed:?}");
    }
}

/// The offset of the content of a file on the disk, in bytes.
fn offset_of(image: &Image, path: &[u8]) -> u64 {
    let view = image.view().expect("a file system");
    let mut inodes = view.inodes();
    let inode = inodes.find(|inode| view.path(*inode).as_deref() == Some(path));
    view.runs(inode.expect("it is there"))[0].block * 4096
}

/// Three partitions: the first has a file system whose last descriptors would be beyond its end,
/// the second cannot be read, and the third is valid.
#[test]
fn a_partition_that_cannot_be_read_does_not_affect_the_others() {
    let folder = TempDir::new().expect("a folder");
    let (_, image) = make(KINDS[4].0, KINDS[4].1, &folder);
    let mut odd = image.0;
    // The last group, which has a block of descriptors, has one block; and every group is said to
    // have a copy of the superblock.
    let (groups, blocks) = (177, 1 + 176 * 512 + 1);
    let at = |at: usize| 1024 + at..1024 + at + 4;
    let number = |bytes: &[u8]| u32::from_le_bytes(bytes.try_into().expect("4 bytes"));
    let inodes = number(&odd[at(40)]) * groups;
    let features = number(&odd[at(100)]) & !1;
    for (place, number) in [(0, inodes), (4, blocks), (100, features)] {
        odd[at(place)].copy_from_slice(&number.to_le_bytes());
    }
    odd.truncate(blocks as usize * 1024);
    let (before, replayed, _) = trojan();
    let mut disk = vec![0; 1 << 20];
    let mut places = Vec::new();
    for (number, content) in [&odd[..], &[0; 1 << 20], &before.0].iter().enumerate() {
        let entry = 446 + number * 16;
        disk[entry + 4] = 0x83;
        let (begin, length) = (disk.len() as u32 / 512, content.len() as u32 / 512);
        disk[entry + 8..entry + 12].copy_from_slice(&begin.to_le_bytes());
        disk[entry + 12..entry + 16].copy_from_slice(&length.to_le_bytes());
        places.push(disk.len() as u64..(disk.len() + content.len()) as u64);
        disk.extend_from_slice(content);
    }
    disk[510..512].copy_from_slice(&[0x55, 0xAA]);
    let mut rig = Rig::with(
        &disk,
        disk.len(),
        "",
        RigOptions {
            damaged: places[1].clone(),
            memory_max: 1 << 30,
        },
    );
    let events = rig.events();
    let messages: Vec<&str> = events
        .iter()
        .filter_map(|event| event["message"].as_str())
        .collect();
    let [first, second, third] = messages[..] else {
        panic!("{events:?}");
    };
    assert!(first.contains("beyond the end of its partition"), "{first}");
    assert!(
        second.contains("cannot read the file system: damaged"),
        "{second}"
    );
    assert!(third.contains("is followed"), "{third}");
    for (block, content) in before.written(&replayed, 4096) {
        let offset = places[2].start + block * 4096;
        rig.write(offset, content).expect("written");
    }
    assert!(paths(&rig.events(), "create").contains(&"/bin/trojan"));
}

/// Each partition once got the memory of the policy, and a tenant can make any number of
/// partitions.
#[test]
fn all_partitions_share_the_memory_limit() {
    let (before, ..) = trojan();
    let alone = Live::read(&before, before.0.len() as u64, 1 << 30).expect("a file system");
    let mut disk = vec![0; 1 << 20];
    for number in 0..3 {
        let entry = 446 + number * 16;
        disk[entry + 4] = 0x83;
        let (begin, length) = (disk.len() as u32 / 512, before.0.len() as u32 / 512);
        disk[entry + 8..entry + 12].copy_from_slice(&begin.to_le_bytes());
        disk[entry + 12..entry + 16].copy_from_slice(&length.to_le_bytes());
        disk.extend_from_slice(&before.0);
    }
    disk[510..512].copy_from_slice(&[0x55, 0xAA]);
    let memory_max = alone.bytes() * 5 / 2;
    assert!(memory_max < 64 << 20);
    let mut rig = Rig::within(memory_max, &disk, "memory_max = '64M'\n");
    let events = rig.events();
    let messages: Vec<&str> = events
        .iter()
        .filter_map(|event| event["message"].as_str())
        .collect();
    let [limit, first, second, third] = messages[..] else {
        panic!("{events:?}");
    };
    assert!(limit.contains("not the 67108864 of the policy"), "{limit}");
    assert!(first.contains("is followed"), "{first}");
    assert!(second.contains("is followed"), "{second}");
    assert!(third.contains("more files than fit"), "{third}");
}

#[test]
fn a_disk_is_reported_by_block_until_it_has_a_file_system() {
    let (before, replayed, _) = trojan();
    let mut rig = Rig::new(&[], before.0.len(), "");
    let events = rig.events();
    assert!(
        events[0]["message"]
            .as_str()
            .expect("text")
            .contains("by block"),
        "{events:?}"
    );
    rig.write(8192, &[1; 512]).expect("written");
    let events = rig.events();
    assert_eq!(
        events[0]["disk"],
        serde_json::json!([[8192, 512]]),
        "{events:?}"
    );
    for (at, piece) in before.0.chunks(1 << 20).enumerate() {
        rig.write((at << 20) as u64, piece).expect("written");
    }
    rig.events();
    rig.clock.advance(Duration::from_secs(1));
    rig.until(|rig| {
        let events = rig.events();
        let messages = events.iter().filter_map(|event| event["message"].as_str());
        messages
            .into_iter()
            .any(|message| message.contains("is followed"))
            .then_some(())
    });
    for (block, content) in before.written(&replayed, 4096) {
        rig.write(block * 4096, content).expect("written");
    }
    assert!(paths(&rig.events(), "create").contains(&"/bin/trojan"));
}

/// Writes while the disk is read again are not lost.
#[test]
fn writes_during_a_read_of_the_disk_are_reported_afterwards() {
    let (before, replayed, _) = trojan();
    let mut rig = Rig::new(&before.0, before.0.len(), "");
    rig.events();
    // A part of the beginning, as a new file system would write it.
    rig.write(1024, &before.0[1024..1536]).expect("written");
    rig.clock.advance(Duration::from_secs(1));
    rig.poll();
    for (block, content) in before.written(&replayed, 4096) {
        rig.write(block * 4096, content).expect("written");
    }
    let mut events = Vec::new();
    rig.until(|rig| {
        events.extend(rig.events());
        let is_over = events.iter().any(|event| event["message"].is_string());
        is_over.then_some(())
    });
    events.extend(rig.events());
    let has_seen = paths(&events, "create").contains(&"/bin/trojan");
    let is_known = rig.chain.bottom().bytes() == &replayed.0[..];
    assert!(has_seen && is_known, "{events:?}");
}
