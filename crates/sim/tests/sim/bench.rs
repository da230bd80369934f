//! [`Bench`]: a machine and operations on its volumes, for tests of single scenarios.

use std::collections::BTreeSet;

use base::{
    BlockDevice, Completion, Durability, IoError, Lineage, Outcome, Request, Started, VolumeId,
};
use catalog::{Catalog, NewVolume, VersionKey};
use sim::audit::{self, Nonces, WalkedVersion};
use sim::machine::Machine;
use sim::setup::Setup;
use std::time::Duration;
use volume::Volume;
use world::Millis;
use world::simulated::SimulatedRandom;

/// A machine under test.
pub struct Bench {
    pub machine: Machine,
    pub setup: Setup,
    random: SimulatedRandom,
    next: u128,
}

impl Bench {
    pub fn new(units: usize, replicas: u8) -> Self {
        Self::with(Setup::quiet(units, replicas))
    }

    pub fn with(setup: Setup) -> Self {
        Self {
            machine: Machine::new(7, &setup),
            setup,
            random: SimulatedRandom::new(7),
            next: 0,
        }
    }

    /// The random numbers that decide the order of jobs.
    pub fn random(&self) -> &SimulatedRandom {
        &self.random
    }

    /// Creates a volume, or a clone of a version.
    pub fn create(&mut self, from: Option<VersionKey>) -> VolumeId {
        self.next += 1;
        let (volume, lineage) = (
            VolumeId::from_u128(self.next),
            Lineage::from_u128(self.next),
        );
        let is_sealed = self.setup.is_sealed;
        let key = self.machine.new_key(lineage, is_sealed, &self.random);
        let new = NewVolume {
            volume,
            size_bytes: self.setup.size_bytes,
            block_size: self.setup.block_size,
            replicas: self.setup.replicas,
            erasure: self.setup.erasure,
            key,
            from,
        };
        self.machine
            .catalog
            .memory
            .create_volume(new)
            .expect("the version is kept");
        volume
    }

    pub fn attach(&self, id: VolumeId) -> Volume {
        let lease = self.machine.acquire(id);
        self.machine.open(lease).expect("it opens")
    }

    /// Runs a job, or advances the clock if there is none, `turns` times.
    pub fn turn(&self, volume: &mut Volume, turns: usize) -> Vec<Completion> {
        let mut completions = Vec::new();
        for _ in 0..turns {
            volume.poll(&mut completions);
            if !self.machine.simulation.pool.run_one(&self.random) {
                self.machine
                    .simulation
                    .clock
                    .advance(Duration::from_millis(250));
                self.machine.probe(false);
            }
        }
        volume.poll(&mut completions);
        completions
    }

    /// Fills `blocks` with `byte`. Runs no jobs.
    pub fn write(&self, volume: &mut Volume, blocks: std::ops::Range<u64>, byte: u8) {
        for block in blocks {
            let done = volume.start(Request::write(
                1,
                block * 4096,
                &[byte; 4096],
                Durability::Volatile,
            ));
            assert_eq!(done, Started::Done, "block {block}");
        }
        volume.end_batch().expect("the journal works");
    }

    /// Flushes the volume.
    pub fn flush(&self, volume: &mut Volume) -> Result<(), IoError> {
        match volume.start(Request::flush(2)) {
            Started::Done => return Ok(()),
            Started::Failed(error) => return Err(error),
            _ => volume.end_batch()?,
        }
        let answers = self.turn(volume, 20);
        let answer = answers
            .into_iter()
            .find(|answer| answer.token == 2)
            .expect("an answer");
        answer.result.map(|_| ())
    }

    /// Reads a block, and returns its byte: all are the same.
    pub fn read(&self, volume: &mut Volume, block: u64) -> Result<u8, IoError> {
        let mut bytes = vec![0xee; 4096];
        match volume.start(Request::read(3, block * 4096, &mut bytes)) {
            Started::Done => {}
            Started::Failed(error) => return Err(error),
            _ => {
                let answers = self.turn(volume, 20);
                let answer = answers.into_iter().find(|answer| answer.token == 3);
                match answer.expect("an answer").result? {
                    Outcome::Data(data) => bytes = data,
                    other => panic!("{other:?}"),
                }
            }
        }
        assert!(
            bytes.iter().all(|byte| *byte == bytes[0]),
            "block {block} is a mixture"
        );
        Ok(bytes[0])
    }

    /// Closes a volume: its head has everything then.
    pub fn close(&self, mut volume: Volume) {
        volume.begin_close();
        for _ in 0..200 {
            self.turn(&mut volume, 5);
            if let Some(closed) = volume.close_state() {
                closed.expect("closed cleanly");
                return;
            }
        }
        panic!("it does not close: {:?}", volume.status());
    }

    /// Removes a version unless it is needed, and carries out the free plans that are due.
    pub fn remove(&self, key: VersionKey) -> volume::clean::Removal {
        let cleaner = self.machine.cleaner();
        let removal = cleaner.remove_version(key, Millis(0)).expect("removed");
        let due = self.machine.catalog.due_frees(Millis(1), 0, u32::MAX);
        for due in due.expect("listed") {
            self.machine.carry_out(&due).expect("freed");
        }
        removal
    }

    pub fn head(&self, id: VolumeId) -> VersionKey {
        self.machine
            .catalog
            .memory
            .head(id)
            .expect("it has a version")
    }

    /// Checks that every kept version can be read, and that units have exactly its slots.
    pub fn audit(&self) {
        let versions = self.machine.catalog.memory.versions();
        let walk = |stored| {
            let walked = audit::walk(&self.machine, stored).expect("it can be walked");
            audit::read_version(&self.machine, &walked).expect("it can be read");
            walked
        };
        let walked: Vec<WalkedVersion> = versions.iter().map(walk).collect();
        audit::check_slots(
            &self.machine,
            &walked,
            &mut Nonces::default(),
            &BTreeSet::new(),
        )
        .expect("exact");
    }
}
