//! Errors of [`Control`](crate::Control), each with a stable code for programs and a sentence that
//! says what to do.

use std::borrow::Cow;

use api::words::ProblemCode;

use crate::database::{DatabaseError, ObjectKind, why_gone};

/// Why a request was not carried out, or not to completion. A refusal ([`Invalid`](Self::Invalid),
/// [`NotFound`](Self::NotFound), [`Exists`](Self::Exists), [`Conflict`](Self::Conflict)) has
/// changed nothing; after the other errors the request may have been carried out in part, and
/// repeating it is safe.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// A field of the request is invalid.
    #[error("{reason}")]
    Invalid {
        /// The field.
        field: &'static str,
        /// What is wrong with it, and what would be right.
        reason: String,
    },
    /// The object does not exist, or the caller may not see it.
    #[error("{what} does not exist; {hint}")]
    NotFound {
        /// The requested object.
        what: String,
        /// The command that lists such objects.
        hint: Cow<'static, str>,
    },
    /// The name is taken.
    #[error("{what} already exists; {remedy}")]
    Exists {
        /// The kind of object and the name.
        what: String,
        /// What to do.
        remedy: &'static str,
    },
    /// The object's state does not allow the request.
    #[error("{reason}")]
    Conflict {
        /// Why, and what to do first.
        reason: String,
    },
    /// The caller is not authenticated.
    #[error("{reason}")]
    Unauthenticated {
        /// Why, and what to do.
        reason: String,
    },
    /// The caller does not have the right.
    #[error("{reason}")]
    Forbidden {
        /// Who has the right, or what to do.
        reason: String,
    },
    /// A limit of a project, a user or a volume is reached.
    #[error("{reason}")]
    QuotaExceeded {
        /// Which limit was reached, and what to do.
        reason: String,
    },
    /// The units do not have enough free space.
    #[error("{reason}")]
    NoCapacity {
        /// How much free space there is, and what to do.
        reason: String,
    },
    /// An idempotency key was used for another request.
    #[error("{reason}")]
    IdempotencyConflict {
        /// Which key, and what to do.
        reason: String,
    },
    /// A needed component does not answer; trying again may help.
    #[error("{reason}")]
    Unavailable {
        /// Which component, and what is known of the request.
        reason: String,
    },
    /// A bug in Scree, or damage that it cannot repair.
    #[error("{reason}")]
    Internal {
        /// What was found.
        reason: String,
    },
}

impl ControlError {
    /// The stable code for programs.
    #[must_use]
    pub const fn code(&self) -> ProblemCode {
        match self {
            Self::Invalid { .. } => ProblemCode::InvalidArgument,
            Self::NotFound { .. } => ProblemCode::NotFound,
            Self::Exists { .. } => ProblemCode::AlreadyExists,
            Self::Conflict { .. } => ProblemCode::Conflict,
            Self::Unauthenticated { .. } => ProblemCode::Unauthenticated,
            Self::Forbidden { .. } => ProblemCode::Forbidden,
            Self::QuotaExceeded { .. } => ProblemCode::QuotaExceeded,
            Self::NoCapacity { .. } => ProblemCode::NoCapacity,
            Self::IdempotencyConflict { .. } => ProblemCode::IdempotencyConflict,
            Self::Unavailable { .. } => ProblemCode::Unavailable,
            Self::Internal { .. } => ProblemCode::Internal,
        }
    }

    /// A conflict with this reason.
    pub(crate) fn conflict(reason: impl Into<String>) -> Self {
        Self::Conflict {
            reason: reason.into(),
        }
    }

    /// An invalid field.
    pub(crate) fn invalid(field: &'static str, reason: impl Into<String>) -> Self {
        Self::Invalid {
            field,
            reason: reason.into(),
        }
    }
}

impl From<DatabaseError> for ControlError {
    fn from(error: DatabaseError) -> Self {
        match error {
            DatabaseError::NotFound { thing, name } => Self::NotFound {
                what: format!("{thing} {name}"),
                hint: where_to_look(thing).into(),
            },
            DatabaseError::Taken { what, remedy } => Self::Exists { what, remedy },
            DatabaseError::Refused { reason } => Self::Conflict { reason },
            DatabaseError::Forbidden { reason } => Self::Forbidden { reason },
            DatabaseError::Quota { reason } => Self::QuotaExceeded { reason },
            DatabaseError::OtherRequest { .. } => Self::IdempotencyConflict {
                reason: error.to_string(),
            },
            DatabaseError::Fenced { .. }
            | DatabaseError::JournalUnavailable { .. }
            | DatabaseError::MembersChanged { .. } => Self::Conflict {
                reason: error.to_string(),
            },
            DatabaseError::Away(_)
            | DatabaseError::Busy(_)
            | DatabaseError::ReadOnly(_)
            | DatabaseError::Full(_)
            | DatabaseError::Sql(_) => Self::Unavailable {
                reason: error.to_string(),
            },
            DatabaseError::Damaged { .. } | DatabaseError::Newer { .. } => Self::Internal {
                reason: error.to_string(),
            },
        }
    }
}

/// The command that lists the objects of this kind.
const fn where_to_look(thing: ObjectKind) -> &'static str {
    match thing {
        ObjectKind::Volume => "`scree volume list` lists the volumes",
        ObjectKind::Snapshot => "`scree snapshot list` lists the snapshots",
        ObjectKind::Attachment => "`scree attachment list` lists the attachments",
        ObjectKind::Chain => "`scree chain list` lists the chains",
        ObjectKind::Version => "`scree volume versions VOLUME` lists the versions that are kept",
        ObjectKind::WrappingKey => "`scree key list` lists the wrapping keys",
        ObjectKind::Project => "`scree project list` lists the projects",
        ObjectKind::Grant => "`scree grant list` lists the grants",
        ObjectKind::User => "an administrator can list them: `scree user list`",
        ObjectKind::Host => "an administrator can list them: `scree host list`",
        ObjectKind::Audit => {
            "results are kept for a day; `scree privacy audits VOLUME` lists the audits"
        }
        ObjectKind::Unit => "`scree unit list` lists the units and their daemons",
        ObjectKind::LineageKey | ObjectKind::Controller | ObjectKind::Job | ObjectKind::Plan => {
            "`scree status` shows what there is"
        }
    }
}

/// The error for a repeated request whose object was deleted since.
pub(crate) fn gone_since(error: ControlError) -> ControlError {
    match error {
        ControlError::NotFound { what, .. } => ControlError::conflict(why_gone(&what)),
        other => other,
    }
}
