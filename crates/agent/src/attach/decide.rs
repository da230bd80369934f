//! [`decide`]: the next action of a worker. It is a pure function of what is desired and what is
//! observed, so that each case is a unit test.
//!
//! ```text
//!   desired     open                      not open
//!   attached    maintain                  open it
//!   detached    wait until the volume     destage its journal, if it was ever leased; report.
//!               has all writes of its     If its VM may still have it, or its filters have
//!               filters; unplug; close    content, open it first: only a disk that answers
//!                                         can be unplugged
//!   removed     abandon it                end
//!   shutdown    close it                  end; a VM that has it waits for the next process
//! ```
//!
//! A question to a volume, a VM or a disk that a decision needs is an action as well; its answer is
//! in [`Findings`].

use api::host::{Access, Assignment};

/// What is desired of a worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Desired {
    /// The attachment, in its desired state.
    Assigned(Box<Assignment>),
    /// The attachment does not belong to this host any more.
    Removed,
    /// The agent is shutting down.
    Shutdown,
}

/// What a worker has observed.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct Observed {
    /// The open volume, if it is open.
    pub open: Option<ObservedVolume>,
    /// The VM does not have the disk any more.
    pub is_unplugged: bool,
    /// The generation for which a controller has acknowledged the state `detached`.
    pub detached_generation: Option<u64>,
    pub findings: Findings,
}

/// An open volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ObservedVolume {
    /// The generation of the assignment for which it was opened.
    pub opened_for: u64,
    /// Its engine has stopped.
    pub has_stopped: bool,
}

/// Findings that are valid for one decision: they are dropped when the worker waits.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct Findings {
    /// Whether the open volume is missing writes that its filters have acknowledged; `None` if
    /// unknown.
    pub missing_writes: Option<MissingWrites>,
    /// Whether the VM may still have the disk; `None` if it has not been asked.
    pub may_be_plugged: Option<bool>,
    /// The disk could not be unplugged.
    pub has_unplug_failed: bool,
    /// Whether filters of the closed volume have content that it is missing; `None` if unknown.
    pub have_filters_content: Option<bool>,
}

/// Writes that filters have acknowledged and the open volume is missing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum MissingWrites {
    /// It is missing none.
    Nothing,
    /// It is missing some; a sentence that names the filters and their writes.
    Named(String),
}

/// The next action of a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AttachAction {
    /// Open and serve the volume.
    Open,
    /// Drop the volume, whose engine has stopped, and open it again.
    Reopen,
    /// Maintain the open volume, its filters and its VM.
    Maintain,
    /// Ask the open volume whether it is missing writes of its filters.
    FindMissingWrites,
    /// Serve the volume until it has all writes that its filters have acknowledged.
    WaitForFilters,
    /// Unplug the disk from its VM.
    Unplug,
    /// Close the open volume.
    Close,
    /// Ask the VM whether it still has the disk.
    FindPlug,
    /// Find out whether filters have content that the volume is missing.
    FindFilterContent,
    /// Destage the journal of the closed volume, and detach.
    DestageJournal,
    /// Report that the volume is detached: it has no journal.
    Detach,
    /// Wait for another desired state.
    Wait,
    /// Drop the volume, which another host may have, and end the worker.
    Abandon,
    /// Close the volume, and end the worker.
    CloseAndEnd,
    /// End the worker.
    End,
}

/// Decides what a worker does next.
pub(super) fn decide(desired: &Desired, observed: &Observed) -> AttachAction {
    match (desired, &observed.open) {
        (Desired::Removed, Some(_)) => AttachAction::Abandon,
        (Desired::Shutdown, Some(_)) => AttachAction::CloseAndEnd,
        (Desired::Removed | Desired::Shutdown, None) => AttachAction::End,
        (Desired::Assigned(assignment), Some(open)) => match assignment.attached {
            // An operator has desired it again since the engine stopped.
            true if open.has_stopped && open.opened_for != assignment.generation => {
                AttachAction::Reopen
            }
            true => AttachAction::Maintain,
            false => decide_when_open(assignment, observed),
        },
        (Desired::Assigned(assignment), None) => match assignment.attached {
            true => AttachAction::Open,
            false => decide_when_closed(assignment, observed),
        },
    }
}

/// Decides for an open volume whose desired state is `detached`.
fn decide_when_open(assignment: &Assignment, observed: &Observed) -> AttachAction {
    let findings = &observed.findings;
    match findings.missing_writes {
        None => return AttachAction::FindMissingWrites,
        Some(MissingWrites::Named(_)) if !assignment.forced => return AttachAction::WaitForFilters,
        Some(_) => {}
    }
    let is_forced_out = assignment.forced && findings.has_unplug_failed;
    match assignment.vm.is_none() || observed.is_unplugged || is_forced_out {
        true => AttachAction::Close,
        false => AttachAction::Unplug,
    }
}

/// Decides for a closed volume whose desired state is `detached`.
fn decide_when_closed(assignment: &Assignment, observed: &Observed) -> AttachAction {
    if observed.detached_generation == Some(assignment.generation) {
        return AttachAction::Wait;
    }
    let findings = &observed.findings;
    if !assignment.forced {
        if assignment.vm.is_some() && !observed.is_unplugged {
            return match findings.may_be_plugged {
                Some(true) => AttachAction::Open,
                Some(false) | None => AttachAction::FindPlug,
            };
        }
        match findings.have_filters_content {
            None => return AttachAction::FindFilterContent,
            Some(true) => return AttachAction::Open,
            Some(false) => {}
        }
    }
    match may_have_journal(assignment) {
        true => AttachAction::DestageJournal,
        false => AttachAction::Detach,
    }
}

/// Whether a closed volume may have a journal that needs destaging.
pub(super) fn may_have_journal(assignment: &Assignment) -> bool {
    assignment.leased && assignment.access == Access::ReadWrite
}

#[cfg(test)]
mod tests {
    use api::host::Encryption;
    use base::{AttachmentId, BlockSize, Lineage, VolumeId};

    use super::*;

    /// A writable, leased attachment of generation 7.
    fn assignment(is_attached: bool) -> Assignment {
        Assignment {
            id: AttachmentId::from_u128(1),
            generation: 7,
            attached: is_attached,
            fenced: None,
            leased: true,
            volume: VolumeId::from_u128(1),
            name: "disk".to_owned(),
            vm: None,
            forced: false,
            access: Access::ReadWrite,
            size_bytes: 1 << 20,
            block_size: BlockSize::DEFAULT,
            encryption: Encryption::Aes256Gcm,
            lineage: Lineage::from_u128(1),
            version: None,
            snapshots: Vec::new(),
            chain: None,
            image: None,
            journal_bytes: None,
            cache_max_bytes: None,
        }
    }

    fn in_vm(is_attached: bool) -> Assignment {
        Assignment {
            vm: Some("qmp:/run/vm.sock".to_owned()),
            ..assignment(is_attached)
        }
    }

    fn forced(assignment: Assignment) -> Assignment {
        Assignment {
            forced: true,
            ..assignment
        }
    }

    fn decided(assignment: Assignment, observed: &Observed) -> AttachAction {
        decide(&Desired::Assigned(Box::new(assignment)), observed)
    }

    fn open(opened_for: u64, has_stopped: bool) -> Observed {
        Observed {
            open: Some(ObservedVolume {
                opened_for,
                has_stopped,
            }),
            ..Observed::default()
        }
    }

    fn open_with(missing_writes: MissingWrites) -> Observed {
        let mut observed = open(1, false);
        observed.findings.missing_writes = Some(missing_writes);
        observed
    }

    fn lost() -> MissingWrites {
        MissingWrites::Named("filter a has 7 writes".to_owned())
    }

    #[test]
    fn a_desired_volume_is_opened_and_maintained() {
        assert_eq!(
            decided(assignment(true), &Observed::default()),
            AttachAction::Open
        );
        assert_eq!(
            decided(assignment(true), &open(1, false)),
            AttachAction::Maintain
        );
    }

    #[test]
    fn a_stopped_volume_is_opened_again_only_for_a_newer_generation() {
        assert_eq!(
            decided(assignment(true), &open(7, true)),
            AttachAction::Maintain
        );
        assert_eq!(
            decided(assignment(true), &open(6, true)),
            AttachAction::Reopen
        );
    }

    #[test]
    fn a_volume_is_not_closed_while_it_is_missing_writes_of_its_filters() {
        let finding = decided(assignment(false), &open(1, false));
        assert_eq!(finding, AttachAction::FindMissingWrites);
        let waiting = decided(assignment(false), &open_with(lost()));
        assert_eq!(waiting, AttachAction::WaitForFilters);
        let complete = open_with(MissingWrites::Nothing);
        assert_eq!(decided(assignment(false), &complete), AttachAction::Close);
        let by_force = decided(forced(assignment(false)), &open_with(lost()));
        assert_eq!(by_force, AttachAction::Close);
    }

    #[test]
    fn a_volume_is_unplugged_before_it_is_closed() {
        let mut observed = open_with(MissingWrites::Nothing);
        assert_eq!(decided(in_vm(false), &observed), AttachAction::Unplug);
        observed.findings.has_unplug_failed = true;
        assert_eq!(decided(in_vm(false), &observed), AttachAction::Unplug);
        assert_eq!(
            decided(forced(in_vm(false)), &observed),
            AttachAction::Close
        );
        observed.findings.has_unplug_failed = false;
        observed.is_unplugged = true;
        assert_eq!(decided(in_vm(false), &observed), AttachAction::Close);
    }

    #[test]
    fn a_disk_that_a_vm_may_have_is_opened_before_it_is_unplugged() {
        let mut observed = Observed::default();
        assert_eq!(decided(in_vm(false), &observed), AttachAction::FindPlug);
        observed.findings.may_be_plugged = Some(true);
        assert_eq!(decided(in_vm(false), &observed), AttachAction::Open);
        assert_eq!(
            decided(forced(in_vm(false)), &observed),
            AttachAction::DestageJournal
        );
        observed.findings.may_be_plugged = Some(false);
        observed.is_unplugged = true;
        let next = decided(in_vm(false), &observed);
        assert_eq!(next, AttachAction::FindFilterContent);
    }

    #[test]
    fn a_volume_is_opened_for_the_content_of_its_filters_before_its_journal_is_destaged() {
        let mut observed = Observed::default();
        let finding = decided(assignment(false), &observed);
        assert_eq!(finding, AttachAction::FindFilterContent);
        observed.findings.have_filters_content = Some(true);
        assert_eq!(decided(assignment(false), &observed), AttachAction::Open);
        observed.findings.have_filters_content = Some(false);
        assert_eq!(
            decided(assignment(false), &observed),
            AttachAction::DestageJournal
        );
        let forced = decided(forced(assignment(false)), &Observed::default());
        assert_eq!(forced, AttachAction::DestageJournal);
    }

    #[test]
    fn a_volume_without_a_lease_has_no_journal_to_destage() {
        let mut observed = Observed::default();
        observed.findings.have_filters_content = Some(false);
        let unleased = Assignment {
            leased: false,
            ..assignment(false)
        };
        assert_eq!(decided(unleased, &observed), AttachAction::Detach);
        let read_only = Assignment {
            access: Access::ReadOnly,
            ..assignment(false)
        };
        assert_eq!(decided(read_only, &observed), AttachAction::Detach);
    }

    #[test]
    fn a_detached_volume_is_not_touched_until_its_generation_changes() {
        let mut observed = Observed {
            detached_generation: Some(7),
            ..Observed::default()
        };
        assert_eq!(decided(assignment(false), &observed), AttachAction::Wait);
        observed.detached_generation = Some(6);
        let next = decided(assignment(false), &observed);
        assert_eq!(next, AttachAction::FindFilterContent);
    }

    #[test]
    fn a_removed_volume_is_abandoned_and_a_shutdown_closes_it() {
        let closed = Observed::default();
        assert_eq!(
            decide(&Desired::Removed, &open(1, false)),
            AttachAction::Abandon
        );
        assert_eq!(decide(&Desired::Removed, &closed), AttachAction::End);
        let closing = decide(&Desired::Shutdown, &open(1, false));
        assert_eq!(closing, AttachAction::CloseAndEnd);
        assert_eq!(decide(&Desired::Shutdown, &closed), AttachAction::End);
    }
}
