//! Attaching a volume and comparing what it contains; closing it; healing.

use std::sync::Arc;
use std::time::Duration;

use base::{BlockDevice, Completion, Outcome, Request, Started};
use catalog::Catalog;
use volume::LeaseTerm;

use super::context::{Context, trace};
use super::volumes::{Expectation, TestVolumes};
use crate::Check;
use crate::client::Client;
use crate::model::{Blocks, content};

/// Jobs and polls after which a volume that should become idle is stuck.
const TURNS_MAX: usize = 20_000;

impl TestVolumes {
    /// Attaches a volume and checks its content. Returns `false` if an active fault
    /// prevents it.
    pub(super) fn attach(&mut self, context: &mut Context, index: usize) -> Check<bool> {
        if self.list[index].client.is_some() {
            return Ok(true);
        }
        let id = self.list[index].id;
        let machine = &context.machine;
        let lease = match machine.catalog.acquire(id, machine.salt(), None) {
            Ok(lease) => lease,
            Err(_) if context.may_fail() => return Ok(false),
            Err(error) => return Err(format!("cannot acquire the lease of {id}: {error}")),
        };
        let keys = lease.keys.clone();
        let (disk, journal) = (&machine.simulation.disk, machine.journal(id));
        context
            .ledger
            .nonces
            .note_journal(&**disk, &journal, &keys)?;
        trace!(context, "{id} attached, epoch {}", lease.epoch);
        let term = LeaseTerm::unlimited();
        let volume = match machine.open_until(lease, term.clone(), journal, false) {
            Ok(volume) => volume,
            Err(_) if context.may_fail() => return Ok(false),
            Err(error) => return Err(format!("cannot open {id}: {error}")),
        };
        let test_volume = &mut self.list[index];
        test_volume.is_fenced = false;
        test_volume.term = term;
        test_volume.client = Some(Client::new(
            volume,
            context.setup.block_size,
            &test_volume.history,
            Arc::clone(&machine.simulation.clock),
        ));
        self.verify(context, index)
    }

    /// Reads everything that was ever written, and finds the boundary whose state the
    /// volume has. Returns `false` if it cannot be read now.
    fn verify(&mut self, context: &mut Context, index: usize) -> Check<bool> {
        let Some(seen) = self.read_all(context, index)? else {
            trace!(context, "not verified");
            self.abandon(context, index);
            return Ok(false);
        };
        let boundaries = self.matching_boundaries(context, index, &seen);
        let volume = &mut self.list[index];
        let (id, timeline) = (volume.id, &mut volume.history.timeline);
        let Some(boundary) = boundaries.last().copied() else {
            return Err(format!(
                "{id} has no state that it ever had: {:?} of {}{}",
                volume.expect,
                timeline.len(),
                timeline.explain(&seen)
            ));
        };
        trace!(
            context,
            "{id} verified: boundary {boundary} of {} ({:?})",
            timeline.len(),
            volume.expect
        );
        timeline.truncate(boundary, &seen);
        let end = timeline.len();
        let is_durable = match volume.expect {
            Expectation::Since { is_durable, .. } => is_durable,
            Expectation::Version(_) => {
                volume.version_floor = end;
                true
            }
        };
        if is_durable {
            volume.history.durable = end;
        }
        volume.history.durable = volume.history.durable.min(end);
        if let Some(client) = &mut volume.client {
            client.in_journal = end;
        }
        volume.is_known = true;
        self.record_commits(context)?;
        Ok(true)
    }

    /// The boundaries that the volume may be at by its [`Expectation`] and whose state is
    /// `seen`. A volume that is expected to be at a version gets the version's timeline.
    fn matching_boundaries(
        &mut self,
        context: &Context,
        index: usize,
        seen: &Blocks,
    ) -> Vec<usize> {
        let volume = &mut self.list[index];
        let timeline = &mut volume.history.timeline;
        match volume.expect {
            Expectation::Since { boundary, torn, .. } => {
                timeline.boundaries(boundary..=timeline.len(), torn, seen)
            }
            Expectation::Version(None) => {
                timeline.truncate(0, &Blocks::new());
                timeline.boundaries(0..=0, false, seen)
            }
            Expectation::Version(Some(key)) => {
                let pinned = &context.ledger.versions[&key];
                *timeline = pinned.timeline.clone();
                timeline.boundaries(pinned.boundaries.clone(), false, seen)
            }
        }
    }

    /// Reads the blocks that the volume, or one that it was cloned from, ever wrote.
    /// `None` if they cannot be read because of an active fault.
    fn read_all(&mut self, context: &Context, index: usize) -> Check<Option<Blocks>> {
        let volume = &self.list[index];
        let timeline = match volume.expect {
            Expectation::Version(Some(key)) => &context.ledger.versions[&key].timeline,
            _ => &volume.history.timeline,
        };
        let mut blocks: Vec<u64> = timeline.touched_in(0..u64::MAX).collect();
        blocks.extend(volume.history.timeline.touched_in(0..u64::MAX));
        blocks.sort_unstable();
        blocks.dedup();
        let block_bytes = context.setup.block_size.bytes() as u64;
        let size_bytes = volume.history.size_bytes;
        // The volume may have grown after the version was committed.
        blocks.retain(|block| block * block_bytes < size_bytes);
        let mut seen = Blocks::new();
        for block in blocks {
            let offset = block * block_bytes;
            let mut whole = vec![0; block_bytes as usize];
            let length = (size_bytes - offset).min(block_bytes) as usize;
            match self.read_block(context, index, offset, &mut whole[..length]) {
                Ok(true) => drop(seen.insert(block, content(&whole))),
                Ok(false) => return Ok(None),
                Err(error) => return Err(format!("block {block} cannot be read: {error}")),
            }
        }
        Ok(Some(seen))
    }

    /// Reads a block of an attached volume. Returns `false` if an active fault prevents
    /// it.
    fn read_block(
        &mut self,
        context: &Context,
        index: usize,
        offset: u64,
        out: &mut [u8],
    ) -> Check<bool> {
        let Some(client) = &mut self.list[index].client else {
            return Ok(false);
        };
        match client.volume.start(Request::read(0, offset, out)) {
            Started::Done => return Ok(true),
            Started::Failed(_) if context.may_fail() => return Ok(false),
            Started::Pending => {}
            other => return Err(format!("{other:?}")),
        }
        let simulation = &context.machine.simulation;
        let mut completions: Vec<Completion> = Vec::new();
        for _ in 0..TURNS_MAX {
            let is_idle = !simulation.pool.run_one(&context.random);
            client.volume.poll(&mut completions);
            if !completions.is_empty() {
                break;
            }
            if is_idle && client.volume.status().reads_waiting > 0 {
                let timer = client.volume.next_timer().unwrap_or_default();
                // It waits for an unavailable unit, which another step heals.
                if context.may_fail() {
                    return Ok(false);
                }
                simulation.clock.advance(timer);
            }
        }
        match completions.pop().map(|completion| completion.result) {
            Some(Ok(Outcome::Data(data))) => {
                out.copy_from_slice(&data);
                Ok(true)
            }
            Some(Err(_)) if context.may_fail() => Ok(false),
            other => Err(format!("{other:?}")),
        }
    }

    /// Drops an attached volume without closing it. Its content has to be found out
    /// again.
    pub(super) fn abandon(&mut self, context: &Context, index: usize) {
        if !context.is_off() {
            // The process continues, and with it the volume's jobs until they end.
            context.machine.simulation.pool.run_all(&context.random);
        }
        self.list[index].client = None;
    }

    /// Releases all attached volumes that have stopped.
    pub(super) fn release_stopped(&mut self, context: &mut Context) -> Check {
        for index in 0..self.list.len() {
            if self.list[index].is_stopped() {
                self.release(context, index)?;
            }
        }
        Ok(())
    }

    /// Releases an attached volume that has stopped.
    fn release(&mut self, context: &mut Context, index: usize) -> Check {
        let volume = &self.list[index];
        let stopped = volume.status().and_then(|status| status.stopped);
        if !context.faults.is_any && !volume.is_fenced {
            return Err(format!("{} has stopped: {stopped:?}", volume.id));
        }
        trace!(context, "{} released: {stopped:?}", volume.id);
        self.abandon(context, index);
        self.record_commits(context)?;
        let volume = &mut self.list[index];
        let boundary = volume.history.durable.max(volume.version_floor);
        volume.expect = Expectation::Since {
            boundary,
            torn: true,
            is_durable: false,
        };
        volume.is_known = false;
        volume.pending.clear();
        Ok(())
    }

    /// Closes a volume cleanly. Returns `false` if an active fault prevents it.
    pub(super) fn close(&mut self, context: &mut Context, index: usize) -> Check<bool> {
        self.heal(context)?;
        if context.is_off() {
            return Ok(false);
        }
        let Some(client) = &mut self.list[index].client else {
            return Ok(false);
        };
        client.is_closing = true;
        client.volume.begin_close();
        let is_closed = |client: &Client| client.volume.close_state().is_some();
        if !self.drive(context, index, is_closed)? {
            return Ok(false);
        }
        self.record_commits(context)?;
        let volume = &mut self.list[index];
        let Some(client) = volume.client.take() else {
            return Ok(false);
        };
        if let Some(Err(error)) = client.volume.close_state() {
            volume.client = Some(client);
            return match context.faults.is_any || volume.is_fenced || context.is_off() {
                true => Ok(false),
                false => Err(format!("{} cannot be closed: {error}", volume.id)),
            };
        }
        drop(client);
        self.record_close(context, index)
    }

    /// Records that a volume was closed: its head contains everything.
    fn record_close(&mut self, context: &mut Context, index: usize) -> Check<bool> {
        let volume = &mut self.list[index];
        let boundary = volume.history.timeline.len();
        volume.history.durable = boundary;
        volume.expect = Expectation::Since {
            boundary,
            torn: false,
            is_durable: true,
        };
        let head = context.machine.catalog.memory.head(volume.id);
        if let Some(head) = head.filter(|head| head.volume == volume.id)
            && let Some(pinned) = context.ledger.versions.get_mut(&head)
        {
            pinned.timeline = volume.history.timeline.clone();
            pinned.boundaries = boundary..=boundary;
            volume.version_floor = boundary;
        }
        if !volume.pending.is_empty() {
            return Err(format!("{} was closed without its snapshots", volume.id));
        }
        trace!(context, "{} closed", volume.id);
        Ok(true)
    }

    /// Runs jobs and advances the clock until `is_done` of an attached volume. Returns
    /// `false` if the power fails.
    pub(super) fn drive(
        &mut self,
        context: &Context,
        index: usize,
        is_done: impl Fn(&Client) -> bool,
    ) -> Check<bool> {
        let simulation = &context.machine.simulation;
        for turn in 0..TURNS_MAX {
            if context.is_off() {
                return Ok(false);
            }
            self.poll_all(context)?;
            match &self.list[index].client {
                Some(client) if !is_done(client) => {}
                _ => return Ok(true),
            }
            if !simulation.pool.run_one(&context.random) {
                simulation.clock.advance(Duration::from_millis(200));
            }
            if turn % 1000 == 999 {
                context.machine.probe(true);
            }
        }
        let volume = &self.list[index];
        Err(format!(
            "{} does not become idle: {:?}",
            volume.id,
            volume.status()
        ))
    }

    /// Ends all faults, and waits until nothing is in flight that could still fail because
    /// of one.
    pub(super) fn heal(&mut self, context: &mut Context) -> Check {
        if !context.faults.is_any {
            return Ok(());
        }
        trace!(context, "healing");
        context.heal_disks();
        self.notify_fenced(context);
        context.heal_network();
        context.heal_calls();
        for index in 0..self.list.len() {
            // Stopped, or with nothing in flight and nothing to retry.
            let is_done = |client: &Client| {
                let status = client.volume.status();
                client.is_stopped() || (client.in_flight() == 0 && status.destage_error.is_none())
            };
            if !self.drive(context, index, is_done)? {
                return Ok(());
            }
            if self.list[index].is_stopped() {
                self.release(context, index)?;
            }
        }
        context.faults.is_any = false;
        Ok(())
    }
}
