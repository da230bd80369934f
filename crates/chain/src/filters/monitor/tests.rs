//! A monitor in a chain, over file systems that e2fsprogs has made.

use std::ops::Range;
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use base::{
    BlockDevice, Completion, Durability, IoError, Outcome, Request, Started, Token, ZeroMode,
};
use chain_policy::Policy;
use nbd::memory::{MemoryDevice, Misbehavior};
use serde_json::Value;
use tempfile::TempDir;
use world::simulated::{SimulatedClock, Simulation};
use world::{Clock, Millis, Wake};

use super::Event;
use crate::{Chain, EventSink, Exchange, SizeRule, Surroundings, build};
use extfs::testing::changed;
use extfs::testing::{Image, KINDS, journalled, make};
use extfs::{Live, Owner};

/// What is to happen in another thread happens within so long.
const WITHIN: Duration = Duration::from_secs(60);

#[derive(Default)]
struct Heard(Mutex<Vec<Event>>);

impl EventSink for Heard {
    fn tell(&self, events: Vec<Event>) {
        self.0.lock().expect("not poisoned").extend(events);
    }
}

struct Rig {
    chain: Chain<MemoryDevice>,
    clock: Arc<SimulatedClock>,
    heard: Arc<Heard>,
    rung: Receiver<()>,
    token: u64,
}

impl Rig {
    /// A disk with this content, behind a monitor.
    fn new(content: &[u8], size: usize, monitor: &str) -> Self {
        Self::with(content, size, monitor, (0..0, 1 << 30))
    }

    /// On a host that gives a filter so much memory.
    fn within(memory_max: u64, content: &[u8], monitor: &str) -> Self {
        Self::with(content, content.len(), monitor, (0..0, memory_max))
    }

    /// One of which a part cannot be read.
    fn with(
        content: &[u8],
        size: usize,
        monitor: &str,
        (damaged, memory_max): (Range<u64>, u64),
    ) -> Self {
        let clock = Arc::new(SimulatedClock::new(Millis(0)));
        let (ring, rung) = mpsc::channel();
        let ring = Mutex::new(ring);
        let wake = Wake::new(move || {
            // Nobody may listen any more.
            let _ = ring.lock().expect("not poisoned").send(());
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
        let heard = Arc::<Heard>::default();
        let surroundings = Surroundings {
            clock: Arc::clone(&clock) as Arc<dyn Clock>,
            wake,
            events: Arc::clone(&heard) as Arc<dyn EventSink>,
            memory_max,
            ..Surroundings::simulated(Simulation::new(1).world())
        };
        let text = format!("volume = 'disk'\n[[filter]]\nkind = 'monitor'\n{monitor}");
        let policy = Policy::parse(&text).expect("a policy");
        let mut rig = Self {
            chain: Chain::new(device, Arc::clone(&clock) as Arc<dyn Clock>, Wake::noop()),
            clock,
            heard,
            rung,
            token: 0,
        };
        let (tell, told) = mpsc::channel();
        rig.chain.exchange(Exchange {
            filters: build(&policy, &surroundings),
            rule: SizeRule::Keep,
            told: Box::new(move |ended| tell.send(ended).expect("somebody waits")),
        });
        rig.until(|_| told.try_recv().ok())
            .expect("the monitor begins");
        rig
    }

    /// Polls whenever that is asked for, until `find` finds something.
    fn until<T>(&mut self, mut find: impl FnMut(&mut Self) -> Option<T>) -> T {
        loop {
            assert_eq!(self.poll(), []);
            if let Some(found) = find(self) {
                return found;
            }
            // A device of memory answers by the next poll, and rings nobody.
            if self.chain.bottom().unanswered() == 0 {
                self.rung.recv_timeout(WITHIN).expect("it goes on");
            }
        }
    }

    fn poll(&mut self) -> Vec<Completion> {
        let mut completions = Vec::new();
        self.chain.poll(&mut completions);
        self.chain.commit().expect("committed");
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
        ask: impl FnOnce(&mut Chain<MemoryDevice>, Token) -> Started,
    ) -> Result<(), IoError> {
        self.token += 1;
        let token = self.token;
        match ask(&mut self.chain, token) {
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

    /// Until the disk was read anew; what was told meanwhile.
    fn until_read_anew(&mut self) -> Vec<Value> {
        let mut told = Vec::new();
        self.clock.advance(Duration::from_secs(1));
        self.until(|rig| {
            told.extend(rig.told());
            let is_found = |event: &Value| {
                let note = event["note"].as_str();
                note.is_some_and(|note| note.contains("is followed") || note.contains("by block"))
            };
            told.iter().any(is_found).then_some(())
        });
        told
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

    /// What was told since this was asked last, as JSON.
    fn told(&mut self) -> Vec<Value> {
        self.clock.advance(Duration::from_millis(5));
        assert_eq!(self.poll(), []);
        let events = std::mem::take(&mut *self.heard.0.lock().expect("not poisoned"));
        let json = events.iter().map(serde_json::to_value);
        json.collect::<Result<_, _>>().expect("written")
    }
}

/// Those of an operation, by path.
fn paths<'a>(told: &'a [Value], operation: &str) -> Vec<&'a str> {
    let of = told.iter().filter(|event| event["operation"] == operation);
    of.filter_map(|event| event["path"].as_str()).collect()
}

/// An ext4 file system, what it is with a trojan in its journal, and with that in its place.
fn trojan() -> (Image, Image, Image) {
    let folder = TempDir::new().expect("a folder");
    let (name, options) = KINDS[2];
    let (path, before, after) = changed(name, options, &folder);
    let replayed = journalled(&path, &before, &after, folder.path());
    (before, replayed, after)
}

#[test]
fn each_step_of_a_trojan_is_named_as_it_commits() {
    let (before, replayed, _) = trojan();
    let rule = "[[filter.rule]]\nname = 'binaries'\npaths = ['/bin/**']\n\
                operations = ['create', 'delete']\naction = 'alert'\n";
    let mut rig = Rig::new(&before.0, before.0.len(), rule);
    let told = rig.told();
    assert!(
        told[0]["note"]
            .as_str()
            .expect("text")
            .contains("is followed"),
        "{told:?}"
    );
    for (block, content) in before.written(&replayed, 4096) {
        rig.write(block * 4096, content).expect("written");
    }
    let told = rig.told();
    assert!(paths(&told, "create").contains(&"/bin/trojan"), "{told:?}");
    assert_eq!(paths(&told, "mkdir"), ["/etc/new"]);
    assert_eq!(paths(&told, "delete"), ["/bin/large"]);
    let alerts = told.iter().filter(|event| event["rule"] == "binaries");
    let alerts: Vec<_> = alerts.map(|event| event["path"].as_str()).collect();
    assert!(alerts.contains(&Some("/bin/trojan")) && alerts.contains(&Some("/bin/large")));
    let chmod = told.iter().find(|event| event["operation"] == "chmod");
    let chmod = chmod.expect("it is told");
    assert_eq!(
        (&chmod["mode"], &chmod["tenant"]),
        (&"0600".into(), &"alice".into())
    );
}

/// In simulated time, by whoever polls when it is asked to: writes go on meanwhile, a
/// millisecond apart, and put nothing off.
#[test]
fn a_commit_is_told_within_five_milliseconds_of_its_last_block() {
    const WITHIN: Duration = Duration::from_millis(5);
    const COMMIT: [u8; 8] = [0xC0, 0x3B, 0x39, 0x98, 0, 0, 0, 2];
    let (before, replayed, _) = trojan();
    let mut rig = Rig::new(&before.0, before.0.len(), "");
    rig.told();
    let has_heard = |rig: &Rig| {
        let heard = rig.heard.0.lock().expect("not poisoned");
        let json = heard
            .iter()
            .map(|event| serde_json::to_value(event).expect("written"));
        paths(&json.collect::<Vec<_>>(), "create").contains(&"/bin/trojan")
    };
    let mut committed = None;
    for (block, content) in before.written(&replayed, 4096) {
        rig.write(block * 4096, content).expect("written");
        if content.starts_with(&COMMIT) {
            committed = Some(rig.clock.monotonic());
            assert!(!has_heard(&rig), "it is not gathered");
        } else if committed.is_none() {
            rig.clock.advance(Duration::from_millis(1));
            assert_eq!(rig.poll(), []);
            assert!(!has_heard(&rig), "it has not happened");
        }
    }
    let committed = committed.expect("there is a commit block");
    let view = before.view().expect("a file system");
    let mut inodes = view.inodes();
    let inode = inodes.find(|inode| view.path(*inode).as_deref() == Some(b"/again"));
    let run = view.runs(inode.expect("it is there"))[0];
    while !has_heard(&rig) {
        rig.write(run.block * 4096, &[1; 4096]).expect("written");
        let timer = rig.chain.next_timer().expect("it is to be told");
        rig.clock.advance(timer.min(Duration::from_millis(1)));
        assert_eq!(rig.poll(), []);
        let passed = rig.clock.monotonic().saturating_sub(committed);
        assert!(passed <= WITHIN, "{passed:?}");
    }
}

#[test]
fn what_a_rule_denies_does_not_reach_the_disk() {
    let (before, replayed, after) = trojan();
    let rules = "[[filter.rule]]\nname = 'sealed'\npaths = ['/bin/**']\n\
                 operations = ['create']\naction = 'deny'\n\
                 [[filter.rule]]\nname = 'secret'\npaths = ['/again']\n\
                 operations = ['read', 'write']\naction = 'deny'\n";
    let mut rig = Rig::new(&before.0, before.0.len(), rules);
    rig.told();
    let mut denied = Vec::new();
    for (block, content) in before.written(&replayed, 4096) {
        if let Err(error) = rig.write(block * 4096, content) {
            denied.push((block, error.to_string()));
        }
    }
    let [(block, why)] = &denied[..] else {
        panic!("one write completes the transaction: {denied:?}");
    };
    assert!(why.contains("\"sealed\""), "{why}");
    let on_disk = rig.chain.bottom().bytes();
    let at = (block * 4096) as usize..(block * 4096 + 4096) as usize;
    assert_eq!(on_disk[at.clone()], before.0[at]);
    let told = rig.told();
    let event = told.iter().find(|event| event["rule"] == "sealed");
    let event = event.expect("it is told");
    assert_eq!(
        (&event["action"], &event["path"]),
        (&"deny".into(), &"/bin/trojan".into())
    );
    drop((replayed, after));

    // The disk is read anew, since what was followed did not come to pass.
    rig.until(|rig| {
        let told = rig.told();
        told.iter()
            .any(|event| event["note"].is_string())
            .then_some(())
    });
    let view = before.view().expect("a file system");
    let mut inodes = view.inodes();
    let inode = inodes.find(|inode| view.path(*inode).as_deref() == Some(b"/again"));
    let run = view.runs(inode.expect("it is there"))[0];
    let refused = rig.read(run.block * 4096, 4096).expect_err("denied");
    assert!(refused.to_string().contains("\"secret\""), "{refused}");
    let refused = rig.write(run.block * 4096, &[9; 4096]).expect_err("denied");
    assert!(refused.to_string().contains("\"secret\""), "{refused}");
    // What is beside it is not.
    rig.read(0, 4096).expect("read");
}

/// With a rule that denies something each read was judged twice: before it began, and when
/// it was told. What was for the first time was so only before, and told nobody.
#[test]
fn a_read_is_judged_once() {
    let (before, ..) = trojan();
    let rules = "[[filter.rule]]\nname = 'first'\npaths = ['/again']\n\
                 operations = ['read']\nfirst_time = true\naction = 'alert'\n\
                 [[filter.rule]]\nname = 'often'\npaths = ['/again']\n\
                 operations = ['read']\nmore_than_a_minute = 2\naction = 'deny'\n";
    let mut rig = Rig::new(&before.0, before.0.len(), rules);
    rig.told();
    let view = before.view().expect("a file system");
    let mut inodes = view.inodes();
    let inode = inodes.find(|inode| view.path(*inode).as_deref() == Some(b"/again"));
    let run = view.runs(inode.expect("it is there"))[0];
    for number in 0..4 {
        let read = rig.read(run.block * 4096, 4096);
        assert_eq!(read.is_err(), number >= 2, "{number}: {read:?}");
        let told = rig.told();
        let reads = told.iter().filter(|event| event["operation"] == "read");
        let rules: Vec<&Value> = reads.map(|event| &event["rule"]).collect();
        let expected = [
            Value::from("first"),
            Value::Null,
            "often".into(),
            "often".into(),
        ];
        assert_eq!(rules, [&expected[number]], "{number}: {told:?}");
    }
}

/// A frontend has another token when it offers a request again, and the same token for
/// another request meanwhile: each write is told and counted once, and each is judged.
#[test]
fn a_write_that_is_offered_again_is_the_same_one_and_another_one_is_not() {
    let (before, ..) = trojan();
    let rules = "[[filter.rule]]\nname = 'often'\npaths = ['/again']\n\
                 operations = ['write']\nmore_than_a_minute = 2\naction = 'deny'\n";
    let mut rig = Rig::new(&before.0, before.0.len(), rules);
    rig.told();
    let view = before.view().expect("a file system");
    let mut inodes = view.inodes();
    let inode = inodes.find(|inode| view.path(*inode).as_deref() == Some(b"/again"));
    let run = view.runs(inode.expect("it is there"))[0];
    let offer = |rig: &mut Rig, token: u64, data: &[u8], busy: u64| {
        rig.chain.bottom().misbehavior.pending_one_in = 0;
        rig.chain.bottom().misbehavior.busy_one_in = busy;
        let at = run.block * 4096;
        let started = rig
            .chain
            .start(Request::write(token, at, data, Durability::Volatile));
        rig.chain.bottom().misbehavior.busy_one_in = 0;
        started
    };
    let writes = |told: &[Value]| paths(told, "write").len();
    for token in 100..110 {
        assert_eq!(offer(&mut rig, token, &[1; 4096], 1), Started::Busy);
    }
    assert_eq!(offer(&mut rig, 110, &[1; 4096], 0), Started::Done);
    assert_eq!(writes(&rig.told()), 1);
    assert_eq!(offer(&mut rig, 111, &[2; 4096], 1), Started::Busy);
    // Whoever asked that is gone. What comes to the same place is another write.
    let denied = offer(&mut rig, 111, &[3; 4096], 0);
    assert!(matches!(denied, Started::Failed(_)), "{denied:?}");
    let told = rig.told();
    assert!(
        told.iter().any(|event| event["action"] == "deny"),
        "{told:?}"
    );
}

/// Where the content of a file begins, in bytes.
fn place_of(image: &Image, path: &[u8]) -> u64 {
    let view = image.view().expect("a file system");
    let mut inodes = view.inodes();
    let inode = inodes.find(|inode| view.path(*inode).as_deref() == Some(path));
    view.runs(inode.expect("it is there"))[0].block * 4096
}

type Ask<'a> = dyn Fn(&mut Rig) -> Result<(), IoError> + 'a;

/// Trims passed a monitor unseen: whoever may not write a file could empty it, and nobody
/// was told.
#[test]
fn a_trim_of_a_file_is_judged_and_told_as_a_write() {
    let (before, ..) = trojan();
    let rule = "[[filter.rule]]\nname = 'sealed'\npaths = ['/again']\n\
                operations = ['write']\naction = 'deny'\n";
    let at = place_of(&before, b"/again");
    let length = before.0.len() as u64;
    let mut rig = Rig::new(&before.0, before.0.len(), rule);
    rig.told();
    let asks: [(&str, &Ask<'_>); 4] = [
        ("the block", &|rig| rig.trim(at, 4096)),
        ("a part of it", &|rig| rig.trim(at + 512, 512)),
        ("all of the disk", &|rig| rig.trim(0, length)),
        ("as zeroes", &|rig| rig.write_zeroes(0, length)),
    ];
    for (name, ask) in asks {
        let refused = ask(&mut rig).expect_err(name);
        assert!(
            refused.to_string().contains("\"sealed\""),
            "{name}: {refused}"
        );
        assert!(rig.chain.bottom().bytes() == &before.0[..], "{name}");
        let told = rig.told();
        let denied = told.iter().find(|event| event["action"] == "deny");
        let denied = denied.unwrap_or_else(|| panic!("{name}: {told:?}"));
        assert_eq!(
            (&denied["operation"], &denied["path"]),
            (&"write".into(), &"/again".into())
        );
    }
    // With nothing to deny it is told.
    let mut rig = Rig::new(&before.0, before.0.len(), "");
    rig.told();
    rig.trim(at, 4096).expect("trimmed");
    assert_eq!(paths(&rig.told(), "write"), ["/again"]);
    assert!(rig.chain.next_timer().is_none(), "all is known of the disk");
}

/// With a rule that denies something a write is followed before it is passed on. Of one that
/// failed at once it stayed so, and whoever made it fail was judged by names that are not there.
#[test]
fn what_was_followed_and_fails_at_once_did_not_happen() {
    let (before, ..) = trojan();
    let rule = "[[filter.rule]]\nname = 'secret'\npaths = ['/bin/**']\n\
                operations = ['read']\naction = 'deny'\n";
    let mut rig = Rig::new(&before.0, before.0.len(), rule);
    rig.told();
    let names = place_of(&before, b"/bin");
    rig.chain.bottom().misbehavior.pending_one_in = 0;
    rig.chain.bottom().misbehavior.damaged = names..names + 4096;
    rig.write(names, &[0; 4096]).expect_err("it is damaged");
    rig.chain.bottom().misbehavior.damaged = 0..0;
    rig.told();
    assert!(rig.chain.next_timer().is_some(), "the disk is to be read");
    rig.until_read_anew();
    let refused = rig.read(place_of(&before, b"/bin/large"), 4096);
    let refused = refused.expect_err("denied");
    assert!(refused.to_string().contains("\"secret\""), "{refused}");
}

/// Such trims follow the deletion of files, and are by far the most.
#[test]
fn a_trim_of_what_is_nobodys_is_no_news() {
    let (before, ..) = trojan();
    let mut rig = Rig::new(&before.0, before.0.len(), "");
    rig.told();
    let view = before.view().expect("a file system");
    let mut free = Vec::new();
    let blocks = 0..before.0.len() as u64 / 4096;
    view.owners(blocks, |run, owner| {
        if owner == Owner::Nobody {
            free.push(run);
        }
    });
    assert!(!free.is_empty());
    for run in free {
        let length = (run.end - run.start) * 4096;
        rig.trim(run.start * 4096, length).expect("trimmed");
    }
    assert_eq!(rig.told(), Vec::<Value>::new());
    assert!(rig.chain.next_timer().is_none(), "all is known of the disk");
}

/// What a trim leaves is the disk's choice: so it is read, and not guessed.
#[test]
fn after_a_trim_of_what_is_the_file_systems_own_the_disk_is_read_anew() {
    let (before, ..) = trojan();
    let mut rig = Rig::new(&before.0, before.0.len(), "");
    rig.told();
    let at = place_of(&before, b"/bin");
    rig.trim(at, 4096).expect("trimmed");
    rig.until_read_anew();
    // Whose it is has no path any more.
    let large = place_of(&before, b"/bin/large");
    rig.write(large, &[1; 4096]).expect("written");
    let told = rig.told();
    let write = told.iter().find(|event| event["operation"] == "write");
    let write = write.expect("it is told");
    assert_eq!(write["path"], Value::Null, "{write}");
}

/// Three partitions: the first has a file system whose last descriptors would lie behind
/// its end, the second cannot be read, the third is as it should be.
#[test]
fn a_partition_that_cannot_be_read_hides_no_other_one() {
    let folder = TempDir::new().expect("a folder");
    let (_, image) = make(KINDS[4].0, KINDS[4].1, &folder);
    let mut odd = image.0;
    // The last group, of which a block of descriptors is, has one block; and a copy of the
    // superblock is said to be everywhere.
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
    let mut rig = Rig::with(&disk, disk.len(), "", (places[1].clone(), 1 << 30));
    let told = rig.told();
    let notes: Vec<&str> = told.iter().filter_map(|one| one["note"].as_str()).collect();
    let [first, second, third] = notes[..] else {
        panic!("{told:?}");
    };
    assert!(first.contains("beyond the end of its partition"), "{first}");
    assert!(second.contains("cannot be read"), "{second}");
    assert!(third.contains("is followed"), "{third}");
    for (block, content) in before.written(&replayed, 4096) {
        let offset = places[2].start + block * 4096;
        rig.write(offset, content).expect("written");
    }
    assert!(paths(&rig.told(), "create").contains(&"/bin/trojan"));
}

/// Partitions cost a tenant nothing, and each was given as much memory as the policy said.
#[test]
fn all_partitions_together_have_the_memory_of_one() {
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
    let told = rig.told();
    let notes: Vec<&str> = told.iter().filter_map(|one| one["note"].as_str()).collect();
    let [less, first, second, third] = notes[..] else {
        panic!("{told:?}");
    };
    assert!(less.contains("not the 67108864 of its policy"), "{less}");
    assert!(first.contains("is followed"), "{first}");
    assert!(second.contains("is followed"), "{second}");
    assert!(third.contains("more files than fit"), "{third}");
}

#[test]
fn a_disk_that_gets_a_file_system_is_told_by_block_until_then() {
    let (before, replayed, _) = trojan();
    let mut rig = Rig::new(&[], before.0.len(), "");
    let told = rig.told();
    assert!(
        told[0]["note"].as_str().expect("text").contains("by block"),
        "{told:?}"
    );
    rig.write(8192, &[1; 512]).expect("written");
    let told = rig.told();
    assert_eq!(
        told[0]["disk"],
        serde_json::json!([[8192, 512]]),
        "{told:?}"
    );
    for (at, piece) in before.0.chunks(1 << 20).enumerate() {
        rig.write((at << 20) as u64, piece).expect("written");
    }
    rig.told();
    rig.clock.advance(Duration::from_secs(1));
    rig.until(|rig| {
        let told = rig.told();
        let notes = told.iter().filter_map(|event| event["note"].as_str());
        notes
            .into_iter()
            .any(|note| note.contains("is followed"))
            .then_some(())
    });
    for (block, content) in before.written(&replayed, 4096) {
        rig.write(block * 4096, content).expect("written");
    }
    assert!(paths(&rig.told(), "create").contains(&"/bin/trojan"));
}

/// What is written while the disk is read anew is not lost.
#[test]
fn what_passes_while_the_disk_is_read_is_told_afterwards() {
    let (before, replayed, _) = trojan();
    let mut rig = Rig::new(&before.0, before.0.len(), "");
    rig.told();
    // As another file system would: its beginning, in part.
    rig.write(1024, &before.0[1024..1536]).expect("written");
    rig.clock.advance(Duration::from_secs(1));
    rig.poll();
    for (block, content) in before.written(&replayed, 4096) {
        rig.write(block * 4096, content).expect("written");
    }
    let mut told = Vec::new();
    rig.until(|rig| {
        told.extend(rig.told());
        let is_over = told.iter().any(|event| event["note"].is_string());
        is_over.then_some(())
    });
    told.extend(rig.told());
    let has_seen = paths(&told, "create").contains(&"/bin/trojan");
    let is_known = rig.chain.bottom().bytes() == &replayed.0[..];
    assert!(has_seen && is_known, "{told:?}");
}
