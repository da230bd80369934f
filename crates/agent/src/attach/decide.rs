//! [`decide`]: the next action of a worker. It is a pure function of what is desired and what is
//! observed, so that each case can be tested, and run by a simulator.
//!
//! ```text
//!   desired     open                      not open
//!   attached    maintain                  open it
//!   detached    wait until the volume     settle its journal, if it was ever leased; report.
//!               has all writes of its     If its VM may still have it, or its filters have
//!               filters; unplug; close    content, open it first: only a disk that answers
//!                                         can be unplugged
//!   removed     abandon it                end
//!   shutdown    close it                  end; a VM that has it waits for the next process
//! ```
//!
//! What has to be asked of a volume, a VM or a disk before a decision is an action as well: it
//! leaves its answer in [`Findings`].

use api::host::{Access, Assignment};

/// What is desired of a worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Desired {
    /// The attachment, as the controllers desire it.
    Assigned(Box<Assignment>),
    /// It is not this host's any more.
    Removed,
    /// The agent ends.
    Shutdown,
}

/// What a worker has observed.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct Observed {
    /// The open volume, if it is open.
    pub open: Option<ObservedVolume>,
    /// The VM does not have the disk any more.
    pub is_unplugged: bool,
    /// The generation whose end a controller has heard of.
    pub detached_generation: Option<u64>,
    pub findings: Findings,
}

/// An open volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ObservedVolume {
    /// The generation for which it was opened.
    pub opened_for: u64,
    /// Its engine has stopped.
    pub has_stopped: bool,
}

/// Answers that hold for one step: they are dropped when the worker waits.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct Findings {
    /// Whether the open volume is missing writes of its filters.
    pub missing_writes: Option<MissingWrites>,
    /// The VM may still have the disk.
    pub may_be_plugged: bool,
    /// The disk could not be unplugged.
    pub has_unplug_failed: bool,
    /// Whether filters have content that the volume, which is not open, is missing.
    pub have_filters_content: Option<bool>,
}

/// Whether an open volume is missing writes of its filters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum MissingWrites {
    None,
    /// It is; the text says which.
    Some(String),
}

/// The next action of a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Action {
    /// Open and serve the volume.
    Open,
    /// Drop the volume, which has stopped, to open it again.
    Reopen,
    /// Keep the open volume, its filters and its VM as desired.
    Maintain,
    /// Ask the open volume whether it is missing writes of its filters.
    FindMissingWrites,
    /// Serve the volume until it has all writes of its filters.
    WaitForFilters,
    /// Take the disk out of its VM.
    Unplug,
    /// Close the open volume.
    Close,
    /// Ask the VM whether it still has the disk.
    FindPlug,
    /// Look whether filters have content that the volume is missing.
    FindFilterContent,
    /// Destage the journal of the volume, which is not open, and detach.
    Settle,
    /// Report that it is detached: there is nothing to settle.
    Detach,
    /// Wait for something else to be desired.
    Wait,
    /// Drop the volume, which another host may have, and end.
    Abandon,
    /// Close the volume, and end.
    CloseAndEnd,
    /// End.
    End,
}

/// Decides what a worker does next.
pub(super) fn decide(desired: &Desired, observed: &Observed) -> Action {
    match (desired, &observed.open) {
        (Desired::Removed, Some(_)) => Action::Abandon,
        (Desired::Shutdown, Some(_)) => Action::CloseAndEnd,
        (Desired::Removed | Desired::Shutdown, None) => Action::End,
        (Desired::Assigned(assignment), Some(open)) => match assignment.attached {
            // An operator has looked at it, and desires it once more.
            true if open.has_stopped && open.opened_for != assignment.generation => Action::Reopen,
            true => Action::Maintain,
            false => decide_to_close(assignment, observed),
        },
        (Desired::Assigned(assignment), None) => match assignment.attached {
            true => Action::Open,
            false => decide_to_settle(assignment, observed),
        },
    }
}

/// Of an open volume that is to be detached.
fn decide_to_close(assignment: &Assignment, observed: &Observed) -> Action {
    let findings = &observed.findings;
    match findings.missing_writes {
        None => return Action::FindMissingWrites,
        Some(MissingWrites::Some(_)) if !assignment.forced => return Action::WaitForFilters,
        Some(_) => {}
    }
    let is_forced_out = assignment.forced && findings.has_unplug_failed;
    match assignment.vm.is_none() || observed.is_unplugged || is_forced_out {
        true => Action::Close,
        false => Action::Unplug,
    }
}

/// Of a volume that is not open and is to be detached.
fn decide_to_settle(assignment: &Assignment, observed: &Observed) -> Action {
    if observed.detached_generation == Some(assignment.generation) {
        return Action::Wait;
    }
    let findings = &observed.findings;
    if !assignment.forced {
        if assignment.vm.is_some() && !observed.is_unplugged {
            return match findings.may_be_plugged {
                true => Action::Open,
                false => Action::FindPlug,
            };
        }
        match findings.have_filters_content {
            None => return Action::FindFilterContent,
            Some(true) => return Action::Open,
            Some(false) => {}
        }
    }
    match is_settled(assignment) {
        true => Action::Detach,
        false => Action::Settle,
    }
}

/// Whether a volume that is not open has nothing in its journal that is to be destaged.
pub(super) fn is_settled(assignment: &Assignment) -> bool {
    !assignment.leased || assignment.access == Access::ReadOnly
}

#[cfg(test)]
mod tests {
    use api::host::Encryption;
    use base::{AttachmentId, BlockSize, Lineage, VolumeId};

    use super::*;

    /// A leased attachment that may be written, desired for the seventh time.
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

    fn decided(assignment: Assignment, observed: &Observed) -> Action {
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
        MissingWrites::Some("filter a has 7 writes".to_owned())
    }

    #[test]
    fn a_desired_volume_is_opened_and_maintained() {
        assert_eq!(
            decided(assignment(true), &Observed::default()),
            Action::Open
        );
        assert_eq!(decided(assignment(true), &open(1, false)), Action::Maintain);
    }

    #[test]
    fn a_stopped_volume_is_opened_again_only_for_a_newer_generation() {
        assert_eq!(decided(assignment(true), &open(7, true)), Action::Maintain);
        assert_eq!(decided(assignment(true), &open(6, true)), Action::Reopen);
    }

    #[test]
    fn a_volume_is_not_closed_while_it_is_missing_writes_of_its_filters() {
        let asked = decided(assignment(false), &open(1, false));
        assert_eq!(asked, Action::FindMissingWrites);
        let waiting = decided(assignment(false), &open_with(lost()));
        assert_eq!(waiting, Action::WaitForFilters);
        let complete = open_with(MissingWrites::None);
        assert_eq!(decided(assignment(false), &complete), Action::Close);
        let by_force = decided(forced(assignment(false)), &open_with(lost()));
        assert_eq!(by_force, Action::Close);
    }

    #[test]
    fn a_volume_is_unplugged_before_it_is_closed() {
        let mut observed = open_with(MissingWrites::None);
        assert_eq!(decided(in_vm(false), &observed), Action::Unplug);
        observed.findings.has_unplug_failed = true;
        assert_eq!(decided(in_vm(false), &observed), Action::Unplug);
        assert_eq!(decided(forced(in_vm(false)), &observed), Action::Close);
        observed.findings.has_unplug_failed = false;
        observed.is_unplugged = true;
        assert_eq!(decided(in_vm(false), &observed), Action::Close);
    }

    #[test]
    fn a_disk_that_a_vm_may_have_is_opened_before_it_is_unplugged() {
        let mut observed = Observed::default();
        assert_eq!(decided(in_vm(false), &observed), Action::FindPlug);
        observed.findings.may_be_plugged = true;
        assert_eq!(decided(in_vm(false), &observed), Action::Open);
        assert_eq!(decided(forced(in_vm(false)), &observed), Action::Settle);
        observed.findings.may_be_plugged = false;
        observed.is_unplugged = true;
        let next = decided(in_vm(false), &observed);
        assert_eq!(next, Action::FindFilterContent);
    }

    #[test]
    fn a_volume_is_opened_for_the_content_of_its_filters_before_it_is_settled() {
        let mut observed = Observed::default();
        let asked = decided(assignment(false), &observed);
        assert_eq!(asked, Action::FindFilterContent);
        observed.findings.have_filters_content = Some(true);
        assert_eq!(decided(assignment(false), &observed), Action::Open);
        observed.findings.have_filters_content = Some(false);
        assert_eq!(decided(assignment(false), &observed), Action::Settle);
        let forced = decided(forced(assignment(false)), &Observed::default());
        assert_eq!(forced, Action::Settle);
    }

    #[test]
    fn a_volume_without_a_lease_has_nothing_to_settle() {
        let mut observed = Observed::default();
        observed.findings.have_filters_content = Some(false);
        let unleased = Assignment {
            leased: false,
            ..assignment(false)
        };
        assert_eq!(decided(unleased, &observed), Action::Detach);
        let read_only = Assignment {
            access: Access::ReadOnly,
            ..assignment(false)
        };
        assert_eq!(decided(read_only, &observed), Action::Detach);
    }

    #[test]
    fn a_detached_volume_is_left_alone_until_its_generation_changes() {
        let mut observed = Observed {
            detached_generation: Some(7),
            ..Observed::default()
        };
        assert_eq!(decided(assignment(false), &observed), Action::Wait);
        observed.detached_generation = Some(6);
        let next = decided(assignment(false), &observed);
        assert_eq!(next, Action::FindFilterContent);
    }

    #[test]
    fn a_removed_volume_is_abandoned_and_an_ending_agent_closes_it() {
        let closed = Observed::default();
        assert_eq!(decide(&Desired::Removed, &open(1, false)), Action::Abandon);
        assert_eq!(decide(&Desired::Removed, &closed), Action::End);
        let closing = decide(&Desired::Shutdown, &open(1, false));
        assert_eq!(closing, Action::CloseAndEnd);
        assert_eq!(decide(&Desired::Shutdown, &closed), Action::End);
    }
}
