//! How it is told that something was not done.

use std::io;
use std::sync::Arc;

use base::codec::{Reader, Writer};
use base::{SegmentId, Slot, with_causes};
use unit::UnitError;

use super::{Malformed, VERSION, put_frame};

/// The longest text, in bytes.
const TEXT_BYTES_MAX: usize = 1024;

/// How a request has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u16)]
pub enum Status {
    /// It was done.
    Done = 0,
    /// The daemon's folder is not there.
    Missing = 1,
    /// It is another cluster's, or another database has it.
    Foreign = 2,
    /// No room.
    Full = 3,
    /// It takes no writes.
    ReadOnly = 4,
    /// There is no such segment.
    NoSegment = 5,
    /// There is no such slot.
    NoSlot = 6,
    /// The put does not continue its segment.
    Misplaced = 7,
    /// What lies there is damaged.
    Damaged = 8,
    /// The operating system has failed.
    Failed = 9,
    /// No capability that was shown allows it.
    NotAllowed = 10,
    /// The capability's time is over, or a newer lease was shown.
    Ended = 11,
    /// What was put in an earlier life of the daemon may be lost.
    Restarted = 12,
    /// It cannot be read, or makes no sense.
    Malformed = 13,
    /// The daemon speaks an older version.
    Version = 14,
    /// The segment is of another generation.
    Replaced = 15,
}

impl Status {
    /// All of them, in order.
    pub const ALL: [Self; 16] = [
        Self::Done,
        Self::Missing,
        Self::Foreign,
        Self::Full,
        Self::ReadOnly,
        Self::NoSegment,
        Self::NoSlot,
        Self::Misplaced,
        Self::Damaged,
        Self::Failed,
        Self::NotAllowed,
        Self::Ended,
        Self::Restarted,
        Self::Malformed,
        Self::Version,
        Self::Replaced,
    ];

    /// What it is called, in small letters: `not-allowed`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Missing => "missing",
            Self::Foreign => "foreign",
            Self::Full => "full",
            Self::ReadOnly => "read-only",
            Self::NoSegment => "no-segment",
            Self::NoSlot => "no-slot",
            Self::Misplaced => "misplaced",
            Self::Damaged => "damaged",
            Self::Failed => "failed",
            Self::NotAllowed => "not-allowed",
            Self::Ended => "ended",
            Self::Restarted => "restarted",
            Self::Malformed => "malformed",
            Self::Version => "version",
            Self::Replaced => "replaced",
        }
    }

    /// The status of an answer's frame.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn of(code: u16) -> Result<Self, Malformed> {
        let found = Self::ALL.get(usize::from(code)).copied();
        found.ok_or(Malformed("there is no such status"))
    }
}

/// Why something was not done, as it is sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// What kind of reason it is; not [`Status::Done`].
    pub status: Status,
    /// Which slot is not there.
    slot: Slot,
    /// What the segment of a misplaced put looks like: slot size in bytes, and
    /// slots.
    shape: (u32, u32),
    /// Which generation a segment has.
    generation: u16,
    /// For people.
    pub text: String,
}

impl Refusal {
    /// A refusal of any kind but those that say more than a text.
    #[must_use]
    pub fn new(status: Status, text: impl Into<String>) -> Self {
        Self {
            status,
            slot: Slot(0),
            shape: (0, 0),
            generation: 0,
            text: text.into(),
        }
    }

    /// Appends it as the answer to the request with this tag.
    pub fn encode(&self, tag: u64, to: &mut Vec<u8>) {
        put_frame(to, self.status as u16, tag, |body| {
            match self.status {
                Status::NoSlot => {
                    body.put_u16(self.slot.0);
                    body.put_u16(0);
                    body.put_u32(0);
                }
                Status::Misplaced => {
                    body.put_u32(self.shape.0);
                    body.put_u32(self.shape.1);
                }
                Status::Replaced => {
                    body.put_u16(self.generation);
                    body.put_u16(0);
                    body.put_u32(0);
                }
                Status::Version => body.put_u16(VERSION),
                _ => {}
            }
            let end = self.text.floor_char_boundary(TEXT_BYTES_MAX);
            body.put_bytes(&self.text.as_bytes()[..end]);
        });
    }

    /// Reads it.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn decode(status: Status, body: &[u8]) -> Result<Self, Malformed> {
        let mut reader = Reader::new(body);
        let mut refusal = Self::new(status, "");
        match status {
            Status::Done => return Err(Malformed("it was done")),
            Status::NoSlot => {
                refusal.slot = Slot(reader.u16()?);
                reader.u16()?;
                reader.u32()?;
            }
            Status::Misplaced => refusal.shape = (reader.u32()?, reader.u32()?),
            Status::Replaced => {
                refusal.generation = reader.u16()?;
                reader.u16()?;
                reader.u32()?;
            }
            Status::Version => {
                reader.u16()?;
            }
            _ => {}
        }
        let text = reader.bytes(reader.remaining().min(TEXT_BYTES_MAX))?;
        refusal.text = String::from_utf8_lossy(text).into_owned();
        Ok(refusal)
    }

    /// As the error of the unit at `url` when it was asked something about
    /// `segment`.
    #[must_use]
    pub fn into_error(self, url: &str, segment: Option<SegmentId>) -> UnitError {
        let url = url.to_owned();
        let reason = self.text;
        let failed = |url, reason: String| UnitError::Io {
            url,
            doing: "do what it was asked".to_owned(),
            source: Arc::new(io::Error::other(reason)),
        };
        match (self.status, segment) {
            (Status::Missing, _) => UnitError::Missing { url, reason },
            (Status::Foreign, _) => UnitError::Foreign { url, reason },
            (Status::Full, _) => UnitError::Full { url },
            (Status::ReadOnly, _) => UnitError::ReadOnly { url },
            (Status::NoSegment, Some(segment)) => UnitError::NoSegment { url, segment },
            (Status::NoSlot, Some(segment)) => UnitError::NoSlot {
                url,
                segment,
                slot: self.slot,
            },
            (Status::Misplaced, Some(segment)) => UnitError::Misplaced {
                segment,
                slot_bytes: self.shape.0,
                slots: self.shape.1,
            },
            (Status::Replaced, Some(segment)) => UnitError::Replaced {
                url,
                segment,
                generation: self.generation,
            },
            (Status::Damaged, Some(segment)) => UnitError::Damaged {
                url,
                segment,
                reason,
            },
            (Status::NotAllowed | Status::Ended, _) => UnitError::NotAllowed { url, reason },
            (Status::Restarted, _) => UnitError::Restarted { url },
            // The rest is the daemon's trouble, or its lie.
            _ => failed(url, reason),
        }
    }
}

/// As a daemon tells what its folder says. Its paths are the daemon's own
/// affair: hosts hear what is wrong, not where.
impl From<&UnitError> for Refusal {
    fn from(error: &UnitError) -> Self {
        let status = match error {
            UnitError::Missing { .. } | UnitError::Unavailable { .. } => Status::Missing,
            UnitError::Foreign { .. } | UnitError::Held { .. } | UnitError::Newer { .. } => {
                Status::Foreign
            }
            UnitError::Full { .. } => Status::Full,
            UnitError::ReadOnly { .. } => Status::ReadOnly,
            UnitError::NoSegment { .. } => Status::NoSegment,
            UnitError::NoSlot { .. } => Status::NoSlot,
            UnitError::Misplaced { .. } => Status::Misplaced,
            UnitError::Replaced { .. } => Status::Replaced,
            UnitError::Damaged { .. } => Status::Damaged,
            UnitError::NotAllowed { .. } => Status::NotAllowed,
            UnitError::Restarted { .. } => Status::Restarted,
            UnitError::Tampered { .. } | UnitError::Io { .. } => Status::Failed,
        };
        let text = match error {
            UnitError::Missing { reason, .. }
            | UnitError::Foreign { reason, .. }
            | UnitError::Damaged { reason, .. }
            | UnitError::NotAllowed { reason, .. } => reason.clone(),
            UnitError::Unavailable { source, .. } | UnitError::Io { source, .. } => {
                with_causes(source)
            }
            UnitError::Held { holder, .. } => format!("the Scree at {holder} has it"),
            UnitError::Tampered { .. } => "something lies where a segment should".to_owned(),
            _ => String::new(),
        };
        let mut refusal = Self::new(status, text);
        match error {
            UnitError::NoSlot { slot, .. } => refusal.slot = *slot,
            UnitError::Misplaced {
                slots, slot_bytes, ..
            } => refusal.shape = (*slot_bytes, *slots),
            UnitError::Replaced { generation, .. } => refusal.generation = *generation,
            _ => {}
        }
        refusal
    }
}

impl From<Malformed> for Refusal {
    fn from(malformed: Malformed) -> Self {
        Self::new(Status::Malformed, malformed.0)
    }
}

impl From<UnitError> for Refusal {
    fn from(error: UnitError) -> Self {
        Self::from(&error)
    }
}

#[cfg(test)]
mod tests {
    use base::CopysetId;

    use super::*;
    use crate::Frames;

    fn sent(refusal: &Refusal) -> Refusal {
        let mut bytes = Vec::new();
        refusal.encode(5, &mut bytes);
        let mut frames = Frames::new(2048);
        frames.extend(&bytes);
        let frame = frames.cut().expect("a frame").expect("a whole one");
        assert_eq!(frame.tag, 5);
        let status = Status::of(frame.code).expect("a status");
        Refusal::decode(status, frame.body).expect("a refusal")
    }

    #[test]
    fn a_units_errors_arrive_as_what_they_are() {
        let segment = SegmentId::new(CopysetId::new(3).expect("one"), 77).expect("one");
        let url = || "scree://there".to_owned();
        let errors = [
            UnitError::Missing {
                url: url(),
                reason: "no marker".to_owned(),
            },
            UnitError::Foreign {
                url: url(),
                reason: "another's".to_owned(),
            },
            UnitError::Full { url: url() },
            UnitError::ReadOnly { url: url() },
            UnitError::NoSegment {
                url: url(),
                segment,
            },
            UnitError::NoSlot {
                url: url(),
                segment,
                slot: Slot(9),
            },
            UnitError::Misplaced {
                segment,
                slots: 5,
                slot_bytes: 4096,
            },
            UnitError::Damaged {
                url: url(),
                segment,
                reason: "rot".to_owned(),
            },
            UnitError::NotAllowed {
                url: url(),
                reason: "no lease".to_owned(),
            },
            UnitError::Restarted { url: url() },
        ];
        for error in errors {
            let arrived = sent(&Refusal::from(&error)).into_error(&url(), Some(segment));
            assert_eq!(format!("{arrived:?}"), format!("{error:?}"));
        }
    }

    #[test]
    fn what_a_daemon_says_of_itself_has_no_paths() {
        let error = UnitError::Io {
            url: "file:///srv/secret".to_owned(),
            doing: "open /srv/secret/x".to_owned(),
            source: Arc::new(io::Error::other("broken disk")),
        };
        let arrived = sent(&Refusal::from(&error)).into_error("scree://there", None);
        let text = with_causes(&arrived);
        assert!(text.contains("broken disk"), "{text}");
        assert!(!text.contains("secret"), "{text}");
    }

    #[test]
    fn long_and_odd_texts_are_cut() {
        let long = Refusal::new(Status::Failed, "»".repeat(2000));
        let arrived = sent(&long);
        assert_eq!(arrived.text, "»".repeat(512));
        let odd = Refusal::decode(Status::Failed, &[0xff; 5000]).expect("text");
        assert!(odd.text.chars().count() <= 1024);
        for (status, short) in [
            (Status::NoSlot, 7),
            (Status::Misplaced, 7),
            (Status::Version, 1),
        ] {
            assert!(Refusal::decode(status, &vec![0; short]).is_err());
        }
        assert!(Refusal::decode(Status::Done, &[]).is_err());
        assert!(Status::of(16).is_err() && Status::of(u16::MAX).is_err());
    }

    #[test]
    fn a_daemon_that_names_no_segment_is_not_believed() {
        let refusal = Refusal::new(Status::NoSegment, "");
        let error = refusal.into_error("scree://there", None);
        assert!(matches!(error, UnitError::Io { .. }), "{error}");
    }
}
