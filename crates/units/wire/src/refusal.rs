//! Statuses of answers, and refusals with their reasons.

use std::io;
use std::sync::Arc;

use base::codec::{Reader, Writer};
use base::{SegmentId, Slot, with_causes};
use unit::UnitError;

use super::{Malformed, VERSION, put_frame};

/// Maximum length of a text, in bytes.
const TEXT_BYTES_MAX: usize = 1024;

/// The status of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u16)]
pub enum Status {
    /// The request was carried out.
    Done = 0,
    /// The daemon's folder is missing.
    Missing = 1,
    /// The unit belongs to another cluster or another copy of the database.
    Foreign = 2,
    /// The unit is full.
    Full = 3,
    /// The unit accepts no writes.
    ReadOnly = 4,
    /// The segment does not exist.
    NoSegment = 5,
    /// The slot does not exist.
    NoSlot = 6,
    /// The put does not continue its segment.
    Misplaced = 7,
    /// The segment is damaged.
    Damaged = 8,
    /// The operating system returned an error.
    Failed = 9,
    /// No presented capability allows the request.
    NotAllowed = 10,
    /// The capability has expired, or a newer lease was presented.
    Expired = 11,
    /// The daemon was restarted, and puts before that may be lost.
    Restarted = 12,
    /// The request cannot be parsed or is invalid.
    Malformed = 13,
    /// The daemon implements an older version of the protocol.
    Version = 14,
    /// The segment has another generation.
    Replaced = 15,
}

impl Status {
    /// All statuses, in order.
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
        Self::Expired,
        Self::Restarted,
        Self::Malformed,
        Self::Version,
        Self::Replaced,
    ];

    /// The name in metrics: `not-allowed`.
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
            Self::Expired => "expired",
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
        found.ok_or(Malformed("the status is unknown"))
    }
}

/// Why a request was refused, as it is sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// The status; not [`Status::Done`].
    pub status: Status,
    /// The slot that does not exist.
    slot: Slot,
    /// The segment of a misplaced put.
    shape: SegmentShape,
    /// The generation of the segment.
    generation: u16,
    /// For people.
    pub text: String,
}

/// Slot size and number of slots of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct SegmentShape {
    slot_bytes: u32,
    slots: u32,
}

impl Refusal {
    /// A refusal with a text and no other fields.
    #[must_use]
    pub fn new(status: Status, text: impl Into<String>) -> Self {
        Self {
            status,
            slot: Slot(0),
            shape: SegmentShape::default(),
            generation: 0,
            text: text.into(),
        }
    }

    /// Appends the frame that answers the request with this tag.
    pub fn encode(&self, tag: u64, to: &mut Vec<u8>) {
        put_frame(to, self.status as u16, tag, |body| {
            match self.status {
                Status::NoSlot => {
                    body.put_u16(self.slot.0);
                    body.put_u16(0);
                    body.put_u32(0);
                }
                Status::Misplaced => {
                    body.put_u32(self.shape.slot_bytes);
                    body.put_u32(self.shape.slots);
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

    /// Parses the body of an answer with this status.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn decode(status: Status, body: &[u8]) -> Result<Self, Malformed> {
        let mut reader = Reader::new(body);
        let mut refusal = Self::new(status, "");
        match status {
            Status::Done => return Err(Malformed("the status is not a refusal")),
            Status::NoSlot => {
                refusal.slot = Slot(reader.u16()?);
                reader.u16()?;
                reader.u32()?;
            }
            Status::Misplaced => {
                refusal.shape = SegmentShape {
                    slot_bytes: reader.u32()?,
                    slots: reader.u32()?,
                };
            }
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

    /// Converts the answer to a request about `segment` to an error of the unit at `url`.
    #[must_use]
    pub fn into_error(self, url: &str, segment: Option<SegmentId>) -> UnitError {
        let url = url.to_owned();
        let reason = self.text;
        let failed = |url, reason: String| UnitError::Io {
            url,
            doing: "carry out the request".to_owned(),
            source: Arc::new(io::Error::other(reason)),
        };
        match (self.status, segment) {
            (Status::Missing, _) => UnitError::Missing { url, reason },
            (Status::Foreign, _) => UnitError::Foreign { url, reason },
            (Status::Full, _) => UnitError::Full { url },
            (Status::ReadOnly, _) => UnitError::ReadOnly { url, reason },
            (Status::NoSegment, Some(segment)) => UnitError::NoSegment { url, segment },
            (Status::NoSlot, Some(segment)) => UnitError::NoSlot {
                url,
                segment,
                slot: self.slot,
            },
            (Status::Misplaced, Some(segment)) => UnitError::Misplaced {
                segment,
                slot_bytes: self.shape.slot_bytes,
                slots: self.shape.slots,
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
            (Status::NotAllowed | Status::Expired, _) => UnitError::NotAllowed { url, reason },
            (Status::Restarted, _) => UnitError::Restarted { url },
            // The daemon failed, or a status makes no sense for this request.
            _ => failed(url, reason),
        }
    }
}

/// Converts an error of the daemon's folder. Paths are left out: hosts need not know them.
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
            | UnitError::ReadOnly { reason, .. }
            | UnitError::Damaged { reason, .. }
            | UnitError::NotAllowed { reason, .. } => reason.clone(),
            UnitError::Unavailable { source, .. } | UnitError::Io { source, .. } => {
                with_causes(source)
            }
            UnitError::Held { holder, .. } => format!("the unit is used by the Scree at {holder}"),
            UnitError::Tampered { .. } => {
                "something else is in place of a segment's file".to_owned()
            }
            _ => String::new(),
        };
        let mut refusal = Self::new(status, text);
        match error {
            UnitError::NoSlot { slot, .. } => refusal.slot = *slot,
            UnitError::Misplaced {
                slots, slot_bytes, ..
            } => {
                refusal.shape = SegmentShape {
                    slot_bytes: *slot_bytes,
                    slots: *slots,
                };
            }
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
        let frame = frames.pop().expect("a frame").expect("a whole one");
        assert_eq!(frame.tag, 5);
        let status = Status::of(frame.code).expect("a status");
        Refusal::decode(status, frame.body).expect("a refusal")
    }

    #[test]
    fn errors_of_a_unit_round_trip() {
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
            UnitError::ReadOnly {
                url: url(),
                reason: "read-only file system".to_owned(),
            },
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
    fn a_refusal_contains_no_paths_of_the_daemon() {
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
    fn long_and_invalid_texts_are_truncated() {
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
    fn a_missing_segment_is_an_io_error_if_none_was_requested() {
        let refusal = Refusal::new(Status::NoSegment, "");
        let error = refusal.into_error("scree://there", None);
        assert!(matches!(error, UnitError::Io { .. }), "{error}");
    }
}
