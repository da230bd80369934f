//! Crashes of the host and the servers at any moment, in random lives.

use std::collections::BTreeSet;

use base::{BlockDevice, Durability, Request, Started};

use super::{BLOCK, Rig, SIZE, lock};

/// The values that each block may have after a crash.
struct Model {
    blocks: Vec<BTreeSet<u8>>,
}

impl Model {
    fn wrote(&mut self, block: usize, value: u8) {
        self.blocks[block].insert(value);
    }

    fn allows(&self, block: usize, value: u8) -> bool {
        self.blocks[block].contains(&value)
    }
}

/// Replicas and hosts die and return at random: flushed writes are there, and in the end all
/// members are equal.
#[test]
fn flushed_writes_survive_any_sequence_of_crashes() {
    for seed in 0..40 {
        let mut rig = Rig::new(seed * 10, 2);
        rig.open().expect("it opens");
        let blocks = SIZE / BLOCK;
        let mut now = vec![0_u8; blocks];
        let mut model = Model {
            blocks: vec![BTreeSet::from([0]); blocks],
        };
        for step in 0..150 {
            match rig.random.below(20) {
                0..10 => {
                    let block = rig.random.below(blocks as u64 / 8) as usize * 8;
                    let value = (step % 250) as u8 + 1;
                    rig.write(block * BLOCK, &[value; BLOCK]);
                    now[block] = value;
                    model.wrote(block, value);
                }
                10..14 => {
                    let block = rig.random.below(blocks as u64 / 8) as usize * 8;
                    let read = rig.read(block * BLOCK, BLOCK);
                    assert_eq!(read, vec![now[block]; BLOCK], "seed {seed}, step {step}");
                }
                14..16 => {
                    rig.flush();
                    for (values, value) in model.blocks.iter_mut().zip(&now) {
                        *values = BTreeSet::from([*value]);
                    }
                }
                16 => rig.disturb_a_replica(),
                17 => {
                    for _ in 0..rig.random.below(3000) {
                        assert_eq!(rig.poll(), []);
                    }
                }
                _ => {
                    for server in &rig.servers {
                        let mut server = lock(server);
                        (server.is_up, server.hangs) = (true, false);
                    }
                    // Some writes are pending at the crash: each may be there or not.
                    for _ in 0..rig.random.below(6) {
                        let block = rig.random.below(blocks as u64 / 8) as usize * 8;
                        let (token, value) = (rig.next(), (step % 250) as u8 + 1);
                        let (at, data) = ((block * BLOCK) as u64, [value; BLOCK]);
                        model.wrote(block, value);
                        let started =
                            rig.chain
                                .start(Request::write(token, at, &data, Durability::Volatile));
                        assert!(!matches!(started, Started::Failed(_)), "{started:?}");
                        if rig.random.below(2) == 0 {
                            rig.poll();
                        }
                    }
                    rig.crash().expect("all are available");
                    for (block, now) in now.iter_mut().enumerate() {
                        let read = rig.read(block * BLOCK, BLOCK);
                        assert!(
                            read.iter().all(|byte| *byte == read[0])
                                && model.allows(block, read[0]),
                            "seed {seed}, step {step}: block {block} has {}, and may have {:?}",
                            read[0],
                            model.blocks[block]
                        );
                        *now = read[0];
                    }
                    for (values, value) in model.blocks.iter_mut().zip(&now) {
                        values.insert(*value);
                    }
                }
            }
        }
        for server in &rig.servers {
            let mut server = lock(server);
            (server.is_up, server.hangs) = (true, false);
        }
        rig.until_equal();
        let live = lock(&rig.servers[0]).live.clone();
        for (block, value) in now.iter().enumerate() {
            assert_eq!(live[block * BLOCK], *value, "seed {seed}: block {block}");
        }
    }
}
