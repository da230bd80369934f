//! The requests of clients.

use std::rc::Rc;

use base::{ByteRange, Durability};
use world::simulated::SimulatedRandom;

use super::context::{Context, trace};
use super::volumes::TestVolumes;
use crate::Check;
use crate::model::Edit;

impl TestVolumes {
    /// Starts a few requests on some volume, in one batch.
    pub(super) fn request(&mut self, context: &mut Context) -> Check {
        let Some(index) = self.any_attached(context)? else {
            return Ok(());
        };
        for _ in 0..1 + context.random.below(4) {
            self.start_request(context, index)?;
        }
        let volume = &mut self.list[index];
        if let Some(client) = &mut volume.client {
            client.end_batch(&volume.history);
        }
        Ok(())
    }

    fn start_request(&mut self, context: &mut Context, index: usize) -> Check {
        let may_fail = context.may_fail();
        let volume = &mut self.list[index];
        let size_bytes = volume.history.size_bytes;
        let range = choose_range(context, size_bytes);
        let ByteRange { offset, length } = range;
        let durability = match context.random.below(5) {
            0 => Durability::Durable,
            _ => Durability::Volatile,
        };
        let kind = context.random.below(20);
        trace!(
            context,
            "{} request {kind} at {offset}+{length} {durability:?}", volume.id
        );
        let Some(client) = &mut volume.client else {
            return Ok(());
        };
        let history = &mut volume.history;
        let block_bytes = context.setup.block_size.bytes() as u64;
        let at_most = |length: u64| length.min(size_bytes - offset);
        let edit = match kind {
            0..=8 => {
                let data = unique_bytes(context.next_number() as u64, length as usize);
                Edit::Write { offset, data }
            }
            9 | 10 => Edit::Zero(range),
            11 => Edit::Trim(range),
            12 => {
                // A large range: whole leaves, or everything.
                let length = match context.random.below(3) {
                    0 => 300 * block_bytes,
                    1 => 70_000 * block_bytes,
                    _ => size_bytes,
                };
                Edit::Trim(ByteRange::new(offset, at_most(length)))
            }
            13..=15 => return client.read(history, range, may_fail),
            16 => {
                let range = ByteRange::new(offset, at_most(64 * block_bytes));
                return client.read(history, range, may_fail);
            }
            17 => return client.flush(history),
            18 => {
                let range = ByteRange::new(offset, at_most(400 * block_bytes));
                return client.extents(history, range, may_fail);
            }
            _ => return client.prefetch(range, may_fail),
        };
        client
            .change(history, &edit, durability, may_fail)
            .map(drop)
    }
}

/// A range within the volume, two times of three of whole blocks.
fn choose_range(context: &Context, size_bytes: u64) -> ByteRange {
    let random = &context.random;
    let block_bytes = context.setup.block_size.bytes() as u64;
    let first = context.setup.hot_block(random, size_bytes) * block_bytes;
    let is_aligned = random.below(3) > 0;
    let (offset, length) = if is_aligned {
        (first, block_bytes * (1 + random.below(6)))
    } else {
        let within = random.below(block_bytes);
        (first + within, 1 + random.below(3 * block_bytes))
    };
    let offset = offset.min(size_bytes - 1);
    ByteRange::new(offset, length.min(size_bytes - offset))
}

/// Bytes that no other number gives.
fn unique_bytes(number: u64, length: usize) -> Rc<[u8]> {
    let random = SimulatedRandom::new(number);
    let mut bytes = vec![0; length];
    world::Random::fill(&random, &mut bytes);
    bytes.into()
}
