//! Encoding and decoding requests. A count must not announce more than the body contains.

use base::codec::{Reader, Writer};
use base::{ClusterId, LineageTag, SegmentId, Slot};
use unit::{NOTE_BYTES, Put, ReplacementPart, SlotRun, Tag};

use super::Request;
use crate::verb::Verb;
use crate::{Malformed, put_frame};

impl<'a> Request<'a> {
    /// Appends the frame.
    ///
    /// # Panics
    /// If the body is longer than [`BODY_BYTES_MAX`](crate::BODY_BYTES_MAX).
    pub fn encode(&self, tag: u64, to: &mut Vec<u8>) {
        put_frame(to, self.verb() as u16, tag, |body| self.put_body(body));
    }

    fn put_body(&self, body: &mut Vec<u8>) {
        match self {
            Self::Hello { version, cluster } => {
                body.put_u16(*version);
                body.put_u16(0);
                body.put_u32(0);
                body.put_u128(cluster.as_u128());
            }
            Self::Present(bytes) => body.put_bytes(bytes),
            Self::WriteNote(note) => body.put_bytes(*note),
            Self::Put(put) => encode_put(put, body),
            Self::Sync {
                incarnation,
                segments,
            } => {
                body.put_u64(*incarnation);
                segments.iter().for_each(|id| body.put_u64(id.bits()));
            }
            Self::Read { run, slot_bytes } => {
                body.put_u64(run.segment.bits());
                body.put_u32(*slot_bytes);
                body.put_u16(run.first.0);
                body.put_u16(run.count);
            }
            Self::Free {
                segment,
                closed,
                slots,
            } => {
                body.put_u64(segment.bits());
                body.put_u8((*closed).into());
                body.put_u8(0);
                body.put_u16(0);
                body.put_u32(slots.len() as u32);
                slots.iter().for_each(|slot| body.put_u16(slot.0));
            }
            Self::Delete(segment) | Self::Stat(segment) | Self::Scrub(segment) => {
                body.put_u64(segment.bits());
            }
            Self::List {
                serials,
                after,
                limit,
            } => {
                body.put_u64(serials.start);
                body.put_u64(serials.end);
                body.put_u64(*after);
                body.put_u32(*limit);
                body.put_u32(0);
            }
            Self::Replace { part, tags, data } => {
                encode_part(part, tags.len() as u32, body);
                body.put_bytes(tags.as_flattened());
                body.put_bytes(data);
            }
            Self::UnitStat | Self::Probe | Self::ReadNote => {}
        }
    }

    /// Parses the request of a frame.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn decode(code: u16, body: &'a [u8]) -> Result<Self, Malformed> {
        let verb = Verb::of(code).ok_or(Malformed("the verb is unknown"))?;
        let mut reader = Reader::new(body);
        let request = Self::read(verb, &mut reader)?;
        match reader.remaining() {
            0 => Ok(request),
            _ => Err(Malformed("the body is too long")),
        }
    }

    fn read(verb: Verb, reader: &mut Reader<'a>) -> Result<Self, Malformed> {
        Ok(match verb {
            Verb::Hello => {
                let version = reader.u16()?;
                zero(reader.u16()?)?;
                zero(reader.u32()?)?;
                let cluster = ClusterId::from_u128(reader.u128()?);
                Self::Hello { version, cluster }
            }
            Verb::Present => Self::Present(reader.bytes(reader.remaining())?),
            Verb::Put => Self::read_put(reader)?,
            Verb::Sync => {
                let incarnation = reader.u64()?;
                let segments = crate::answer::segments(reader)?;
                if segments.is_empty() {
                    return Err(Malformed("a sync without segments"));
                }
                Self::Sync {
                    incarnation,
                    segments,
                }
            }
            Verb::Read => Self::read_read(reader)?,
            Verb::Free => Self::read_free(reader)?,
            Verb::Delete => Self::Delete(segment(reader)?),
            Verb::List => {
                let serials = reader.u64()?..reader.u64()?;
                let (after, limit) = (reader.u64()?, reader.u32()?);
                zero(reader.u32()?)?;
                Self::List {
                    serials,
                    after,
                    limit,
                }
            }
            Verb::Stat => Self::Stat(segment(reader)?),
            Verb::UnitStat => Self::UnitStat,
            Verb::Scrub => Self::Scrub(segment(reader)?),
            Verb::Probe => Self::Probe,
            Verb::ReadNote => Self::ReadNote,
            Verb::WriteNote => {
                let note = reader.bytes(NOTE_BYTES)?.first_chunk();
                Self::WriteNote(note.ok_or(Malformed("a note has 512 bytes"))?)
            }
            Verb::Replace => Self::read_replace(reader)?,
        })
    }

    fn read_put(reader: &mut Reader<'a>) -> Result<Self, Malformed> {
        let (segment, lineage_tag) = (segment(reader)?, LineageTag(reader.u64()?));
        let (slot_bytes, first) = (reader.u32()?, Slot(reader.u16()?));
        zero(reader.u16()?)?;
        let count = reader.u32()?;
        zero(reader.u32()?)?;
        let (tags, data) = slots_of(reader, count, slot_bytes)?;
        if tags.is_empty() {
            return Err(Malformed("a put without slots"));
        }
        Ok(Self::Put(Put {
            lineage_tag,
            segment,
            slot_bytes,
            first,
            tags,
            data,
        }))
    }

    fn read_read(reader: &mut Reader<'a>) -> Result<Self, Malformed> {
        let (segment, slot_bytes) = (segment(reader)?, reader.u32()?);
        let (first, count) = (Slot(reader.u16()?), reader.u16()?);
        if count == 0 {
            return Err(Malformed("a read without slots"));
        }
        let run = SlotRun {
            segment,
            first,
            count,
        };
        Ok(Self::Read { run, slot_bytes })
    }

    fn read_free(reader: &mut Reader<'a>) -> Result<Self, Malformed> {
        let segment = segment(reader)?;
        let closed = flag(reader)?;
        zero(reader.u8()?)?;
        zero(reader.u16()?)?;
        let count = reader.u32()? as usize;
        if count > reader.remaining() / 2 {
            return Err(TOO_MANY);
        }
        let slots = (0..count).map(|_| Ok(Slot(reader.u16()?)));
        let slots = slots.collect::<Result<_, Malformed>>()?;
        Ok(Self::Free {
            segment,
            closed,
            slots,
        })
    }

    fn read_replace(reader: &mut Reader<'a>) -> Result<Self, Malformed> {
        let (segment, lineage_tag) = (segment(reader)?, LineageTag(reader.u64()?));
        let (draft, slot_bytes) = (reader.u64()?, reader.u32()?);
        let (expected, generation) = (reader.u16()?, reader.u16()?);
        let expected = flag(reader)?.then_some(expected);
        zero(reader.u8()?)?;
        zero(reader.u16()?)?;
        let (slots, first) = (reader.u32()?, reader.u32()?);
        let count = reader.u32()?;
        if count == 0 || first.checked_add(count).is_none_or(|end| end > slots) {
            return Err(Malformed("a part without slots, or beyond the last one"));
        }
        let (tags, data) = slots_of(reader, count, slot_bytes)?;
        let part = ReplacementPart {
            segment,
            lineage_tag,
            draft,
            expected,
            generation,
            slot_bytes,
            slots,
            first,
        };
        Ok(Self::Replace { part, tags, data })
    }
}

const NOT_ZERO: Malformed = Malformed("a reserved field is not zero");
const TOO_MANY: Malformed = Malformed("a count exceeds the body");

fn encode_put(put: &Put<'_>, body: &mut Vec<u8>) {
    body.put_u64(put.segment.bits());
    body.put_u64(put.lineage_tag.0);
    body.put_u32(put.slot_bytes);
    body.put_u16(put.first.0);
    body.put_u16(0);
    body.put_u32(put.tags.len() as u32);
    body.put_u32(0);
    body.put_bytes(put.tags.as_flattened());
    body.put_bytes(put.data);
}

/// Appends the fields of a part before its tags.
fn encode_part(part: &ReplacementPart, tags: u32, body: &mut Vec<u8>) {
    body.put_u64(part.segment.bits());
    body.put_u64(part.lineage_tag.0);
    body.put_u64(part.draft);
    body.put_u32(part.slot_bytes);
    body.put_u16(part.expected.unwrap_or(0));
    body.put_u16(part.generation);
    body.put_u8(part.expected.is_some().into());
    body.put_u8(0);
    body.put_u16(0);
    body.put_u32(part.slots);
    body.put_u32(part.first);
    body.put_u32(tags);
}

/// Reads the tags and contents of `count` slots.
fn slots_of<'a>(
    reader: &mut Reader<'a>,
    count: u32,
    slot_bytes: u32,
) -> Result<(&'a [Tag], &'a [u8]), Malformed> {
    let length = |each: usize| (count as usize).checked_mul(each).ok_or(TOO_MANY);
    let (tags, _) = reader.bytes(length(size_of::<Tag>())?)?.as_chunks();
    let data = reader.bytes(length(slot_bytes as usize)?)?;
    Ok((tags, data))
}

fn flag(reader: &mut Reader<'_>) -> Result<bool, Malformed> {
    match reader.u8()? {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(NOT_ZERO),
    }
}

fn zero(field: impl Into<u64>) -> Result<(), Malformed> {
    match field.into() {
        0 => Ok(()),
        _ => Err(NOT_ZERO),
    }
}

pub(crate) fn segment(reader: &mut Reader<'_>) -> Result<SegmentId, Malformed> {
    SegmentId::from_bits(reader.u64()?).ok_or(Malformed("the id of a segment has over 48 bits"))
}

#[cfg(test)]
mod tests {
    use base::CopysetId;

    use super::*;
    use crate::Frames;

    fn all() -> Vec<Request<'static>> {
        let segment = SegmentId::new(CopysetId::new(3).expect("one"), 77).expect("one");
        vec![
            Request::Hello {
                version: 1,
                cluster: ClusterId::from_u128(0x0123_4567_89ab_cdef_0123_4567_89ab_cdef),
            },
            Request::Present(b"anything"),
            Request::Put(Put {
                segment,
                lineage_tag: LineageTag(5),
                slot_bytes: 3,
                first: Slot(9),
                tags: &[[1; 16], [2; 16]],
                data: b"abcdef",
            }),
            Request::Sync {
                incarnation: 6,
                segments: vec![segment],
            },
            Request::Read {
                run: SlotRun {
                    segment,
                    first: Slot(1),
                    count: 4,
                },
                slot_bytes: 4096,
            },
            Request::Free {
                segment,
                closed: true,
                slots: vec![Slot(5), Slot(2)],
            },
            Request::Delete(segment),
            Request::List {
                serials: 5..9,
                after: segment.bits(),
                limit: 100,
            },
            Request::Stat(segment),
            Request::UnitStat,
            Request::Scrub(segment),
            Request::Probe,
            Request::ReadNote,
            Request::WriteNote(&[5; NOTE_BYTES]),
            Request::Replace {
                part: ReplacementPart {
                    segment,
                    lineage_tag: LineageTag(5),
                    draft: 6,
                    expected: Some(1),
                    generation: 2,
                    slot_bytes: 3,
                    slots: 9,
                    first: 7,
                },
                tags: &[[1; 16], [2; 16]],
                data: b"abcdef",
            },
        ]
    }

    #[test]
    fn requests_round_trip() {
        let mut bytes = Vec::new();
        let mut verbs = Vec::new();
        for (request, tag) in all().iter().zip(1..) {
            request.encode(tag, &mut bytes);
            verbs.push(request.verb());
        }
        assert_eq!(verbs, Verb::ALL, "there is one of each");
        let mut frames = Frames::new(1 << 10);
        frames.extend(&bytes);
        for (request, tag) in all().into_iter().zip(1..) {
            let frame = frames.pop().expect("frames").expect("another");
            assert_eq!(frame.tag, tag);
            assert_eq!(Request::decode(frame.code, frame.body), Ok(request));
        }
    }

    #[test]
    fn a_request_of_another_length_is_refused() {
        for request in all() {
            let mut body = Vec::new();
            request.put_body(&mut body);
            let decode = |body: &[u8]| Request::decode(request.verb() as u16, body).is_ok();
            // A capability may have any length here.
            let is_open = matches!(request, Request::Present(_));
            for length in 0..body.len() {
                assert_eq!(decode(&body[..length]), is_open, "{request:?} {length}");
            }
            body.push(0);
            assert_eq!(decode(&body), is_open, "{request:?}");
        }
    }

    #[test]
    fn invalid_requests_are_refused() {
        let refused = |code, body: &[u8]| Request::decode(code, body).is_err();
        assert!(refused(0, &[]) && refused(16, &[]) && refused(u16::MAX, &[]));
        assert!(
            refused(Verb::Delete as u16, &[0xff; 8]),
            "no segment's number"
        );
        assert!(refused(Verb::Sync as u16, &[0; 8]), "of nothing");
        assert!(refused(Verb::Read as u16, &[0; 16]), "of nothing");
        assert!(refused(Verb::Put as u16, &[0; 32]), "of nothing");
        // More slots than there are bytes, and slots without end.
        let mut put = vec![0; 32];
        put[16..20].fill(0xff);
        put[24..28].fill(0xff);
        assert!(refused(Verb::Put as u16, &put));
        let mut free = vec![0; 16];
        free[12..16].fill(0xff);
        assert!(refused(Verb::Free as u16, &free));
    }
}
