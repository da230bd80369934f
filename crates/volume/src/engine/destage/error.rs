//! Why a destage failed, and what follows from that: whether it is retried, and what error
//! the client gets.

use base::{IoError, with_causes};
use catalog::CatalogError;
use unit::UnitError;

use crate::scatter::{AssignError, PlaceError};

/// Why a destage did not end in a version.
#[derive(Debug, thiserror::Error)]
pub enum DestageError {
    /// The blocks could not be placed.
    #[error(transparent)]
    Place(#[from] PlaceError),
    /// The version could not be committed.
    #[error(transparent)]
    Catalog(#[from] CatalogError),
    /// The lease's sequences are used up.
    #[error(transparent)]
    Sequence(#[from] crate::seal::SequenceExhausted),
}

impl DestageError {
    /// Whether the lease was lost. Reserving segment serials may find that first,
    /// before anything is committed.
    pub(super) fn is_fenced(&self) -> bool {
        match self {
            Self::Catalog(error) => error.is_fenced(),
            Self::Place(error) => error.is_fenced(),
            Self::Sequence(_) => false,
        }
    }

    /// Whether the blocks have to be placed again, on the current members.
    pub(super) fn have_members_changed(&self) -> bool {
        matches!(self, Self::Catalog(CatalogError::MembersChanged { .. }))
    }

    /// Whether a retry may succeed without an operator who makes room or repairs anything:
    /// unavailable units or controllers may return, and this host will learn of
    /// changed members.
    pub(super) fn is_transient(&self) -> bool {
        match self {
            Self::Catalog(error) | Self::Place(PlaceError::Assign(AssignError::Catalog(error))) => {
                matches!(
                    error,
                    CatalogError::Unavailable { .. } | CatalogError::MembersChanged { .. }
                )
            }
            Self::Place(PlaceError::Assign(AssignError::NoUnit { is_transient })) => *is_transient,
            Self::Place(PlaceError::Units(error)) => error.is_transient(),
            Self::Place(PlaceError::Source(_) | PlaceError::Stopped(_)) | Self::Sequence(_) => {
                false
            }
        }
    }

    pub(super) fn to_io_error(&self) -> IoError {
        let text = with_causes(self);
        match self {
            Self::Place(PlaceError::Units(UnitError::Full { .. })) => IoError::NoSpace(text),
            Self::Sequence(_) => IoError::Stopped(text),
            Self::Place(PlaceError::Assign(AssignError::NoUnit {
                is_transient: false,
            })) => IoError::NoSpace(text),
            _ => IoError::Unavailable(text),
        }
    }
}

#[cfg(test)]
mod tests {
    use base::VolumeId;

    use super::*;

    /// A controller, or the units, were restarted while a journal was full, and the
    /// guest got I/O errors.
    #[test]
    fn a_full_journal_waits_for_unavailable_units_but_not_for_full_ones() {
        let unavailable = || CatalogError::Unavailable {
            reason: "connection refused".to_owned(),
        };
        let lost = || CatalogError::Fenced {
            volume: VolumeId::from_u128(1),
            reason: "another host has it".to_owned(),
        };
        let url = || "scree://u1:9".to_owned();
        let assigned = |error| DestageError::Place(PlaceError::Assign(error));
        let put = |error| DestageError::Place(PlaceError::Units(error));
        let missing = UnitError::Missing {
            url: url(),
            reason: "connection refused".to_owned(),
        };
        let read_only = UnitError::ReadOnly {
            url: url(),
            reason: "read-only file system".to_owned(),
        };
        for (error, waits, is_full) in [
            (DestageError::Catalog(unavailable()), true, false),
            (assigned(AssignError::Catalog(unavailable())), true, false),
            (DestageError::Catalog(lost()), false, false),
            (assigned(AssignError::Catalog(lost())), false, false),
            (
                assigned(AssignError::NoUnit { is_transient: true }),
                true,
                false,
            ),
            (
                assigned(AssignError::NoUnit {
                    is_transient: false,
                }),
                false,
                true,
            ),
            (put(missing), true, false),
            (put(UnitError::Restarted { url: url() }), true, false),
            (put(UnitError::Full { url: url() }), false, true),
            (put(read_only), false, false),
        ] {
            assert_eq!(error.is_transient(), waits, "{error}");
            let io_error = error.to_io_error();
            assert_eq!(matches!(io_error, IoError::NoSpace(_)), is_full, "{error}");
        }
    }
}
