//! What a log does when its connection is lost: requests wait for the next one or are given up,
//! and unflushed changes are replayed.

use std::collections::VecDeque;
use std::time::Duration;

use super::RequestLog;
use crate::client::entry::{Entry, EntryState, RequestResult};

/// The maximal number of changes that are replayed at once.
const REPLAYS_MAX: usize = 64;

/// The replay of unflushed changes over a new connection.
#[derive(Debug, Default)]
pub(super) struct Replay {
    /// Changes that have not begun.
    pub(super) waiting: VecDeque<u64>,
    /// Changes without a reply.
    pub(super) outstanding: Vec<u64>,
    /// When the replay last made progress.
    pub(super) progress_at: Duration,
    /// Whether the replay has ended and new requests may be sent.
    pub(super) is_done: bool,
}

/// The requests that were sent over a connection that is given up.
pub struct OrphanedRequests {
    /// The requests without a reply.
    pub log: RequestLog,
    /// Whether the last change was sent only in part.
    pub is_cut: bool,
}

impl RequestLog {
    /// Prepares for the next connection, since this one is lost: requests without a result wait,
    /// and unflushed changes wait for their replay.
    pub fn interrupt(&mut self) {
        self.outgoing.clear();
        self.sent_bytes = 0;
        self.replay = Replay {
            progress_at: self.replay.progress_at,
            ..Replay::default()
        };
        self.oldest.set(self.base);
        for (cookie, entry) in (self.base..).zip(&mut self.entries) {
            match (entry.state, entry.requester) {
                // The requester has not got the result.
                (EntryState::Sent | EntryState::Waiting | EntryState::Answered, Some(_)) => {
                    entry.state = EntryState::Waiting;
                    entry.discard_reply();
                }
                (EntryState::Removed, _) => {}
                _ => {
                    entry.discard_reply();
                    entry.state = EntryState::Unflushed(self.flushes);
                    self.replay.waiting.push_back(cookie);
                }
            }
        }
    }

    /// Splits off what is needed to check the replies to the requests that have been sent, for a
    /// connection that is given up. Returns `None` if no change is among the requests.
    pub fn split_off_sent(&mut self) -> Option<OrphanedRequests> {
        let front = self.outgoing.front();
        let front = front.map(|cookie| self.entry(*cookie));
        let is_cut = self.sent_bytes > 0 && front.is_some_and(Entry::is_change);
        if !is_cut && !self.has_sent_changes() {
            return None;
        }
        let mut log = Self {
            entries: self
                .entries
                .iter_mut()
                .map(Entry::split_off_reply)
                .collect(),
            base: self.base,
            ..Self::default()
        };
        log.trim();
        Some(OrphanedRequests { log, is_cut })
    }

    /// Whether a change was sent and has no reply.
    pub fn has_sent_changes(&self) -> bool {
        let is_sent = |entry: &Entry| entry.state == EntryState::Sent && entry.is_change();
        self.entries.iter().any(is_sent)
    }

    /// Removes a request whose reply has arrived and has no requester.
    pub fn discard(&mut self, cookie: u64) {
        if let Some(index) = self.index_of(cookie) {
            let entry = &mut self.entries[index];
            (entry.state, entry.data) = (EntryState::Removed, Vec::new());
        }
        self.trim();
    }

    /// Begins to replay unflushed changes over a new connection. Other requests follow.
    pub fn resume(&mut self, now: Duration) {
        self.continue_replay(now);
    }

    pub(super) fn continue_replay(&mut self, now: Duration) {
        self.replay.progress_at = now;
        while self.replay.outstanding.len() < REPLAYS_MAX
            && let Some(&cookie) = self.replay.waiting.front()
        {
            let entry = self.entry(cookie);
            let overlaps = |other: &u64| entry.overlaps(self.entry(*other));
            if self.replay.outstanding.iter().any(overlaps) {
                return;
            }
            self.replay.waiting.pop_front();
            self.replay.outstanding.push(cookie);
            self.outgoing.push_back(cookie);
            self.entry_mut(cookie).state = EntryState::Waiting;
        }
        let has_ended = self.replay.outstanding.is_empty() && self.replay.waiting.is_empty();
        if !self.replay.is_done && has_ended {
            self.replay.is_done = true;
            let is_waiting = |entry: &Entry| entry.state == EntryState::Waiting;
            let entries = (self.base..).zip(&mut self.entries);
            for (cookie, entry) in entries.filter(|(_, entry)| is_waiting(entry)) {
                entry.progress_at = now;
                self.outgoing.push_back(cookie);
            }
        }
    }

    /// Gives up the requests without a result, and returns their results. Unflushed changes stay
    /// for the next connection.
    pub fn give_up_unanswered(&mut self) -> Vec<RequestResult> {
        self.interrupt();
        let mut given_up = Vec::new();
        for entry in &mut self.entries {
            // Unflushed changes have no requester any more.
            if let Some(requester) = entry.requester.take() {
                entry.state = EntryState::Removed;
                entry.data = Vec::new();
                let command = entry.header.command;
                given_up.push(RequestResult::without_reply(Some(requester), command));
            }
        }
        (self.unanswered, self.unanswered_bytes) = (0, 0);
        self.trim();
        given_up
    }

    /// Gives up all requests and unflushed changes, and returns the results of those without one.
    pub fn give_up(&mut self) -> Vec<RequestResult> {
        self.interrupt();
        let entries = std::mem::take(&mut self.entries);
        self.base += entries.len() as u64;
        self.replay.waiting.clear();
        (self.unanswered, self.unanswered_bytes) = (0, 0);
        (self.unflushed, self.unflushed_bytes) = (0, 0);
        let unanswered = entries
            .into_iter()
            .filter(|entry| entry.requester.is_some());
        unanswered
            .map(|entry| RequestResult::without_reply(entry.requester, entry.header.command))
            .collect()
    }
}
