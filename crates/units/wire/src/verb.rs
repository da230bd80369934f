//! [`Verb`]: the code of a request.

/// The code of a request in its frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u16)]
#[expect(
    missing_docs,
    reason = "each is documented at the request of the same name"
)]
pub enum Verb {
    Hello = 1,
    Present = 2,
    Put = 3,
    Sync = 4,
    Read = 5,
    Free = 6,
    Delete = 7,
    List = 8,
    Stat = 9,
    UnitStat = 10,
    Scrub = 11,
    Probe = 12,
    ReadNote = 13,
    WriteNote = 14,
    Replace = 15,
}

impl Verb {
    /// All verbs, in order.
    pub const ALL: [Self; 15] = [
        Self::Hello,
        Self::Present,
        Self::Put,
        Self::Sync,
        Self::Read,
        Self::Free,
        Self::Delete,
        Self::List,
        Self::Stat,
        Self::UnitStat,
        Self::Scrub,
        Self::Probe,
        Self::ReadNote,
        Self::WriteNote,
        Self::Replace,
    ];

    /// The name in metrics: `write-note`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Hello => "hello",
            Self::Present => "present",
            Self::Put => "put",
            Self::Sync => "sync",
            Self::Read => "read",
            Self::Free => "free",
            Self::Delete => "delete",
            Self::List => "list",
            Self::Stat => "stat",
            Self::UnitStat => "unit-stat",
            Self::Scrub => "scrub",
            Self::Probe => "probe",
            Self::ReadNote => "read-note",
            Self::WriteNote => "write-note",
            Self::Replace => "replace",
        }
    }

    pub(crate) fn of(code: u16) -> Option<Self> {
        let at = usize::from(code).checked_sub(1)?;
        Self::ALL.get(at).copied()
    }
}
