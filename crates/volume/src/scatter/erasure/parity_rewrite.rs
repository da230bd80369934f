//! [`ParityRewrite`]: replaces a segment's parity by one without its dead slots.

use base::{SegmentId, Slot};
use catalog::Erasure;
use unit::{Read, Replacement, SlotRun, Tag, Unit as _, UnitError};

use super::code::encode;
use super::masks::Masks;
use super::member_segment::stat_of;
use crate::scatter::Member;

/// Rows read at once.
const ROWS_AT_ONCE: u32 = 128;

/// The rewrite of a parity member's part of a segment.
pub(super) struct ParityRewrite<'a> {
    pub(super) of_data: &'a [&'a Member],
    pub(super) member: &'a Member,
    pub(super) erasure: Erasure,
    pub(super) parity: u8,
    pub(super) segment: SegmentId,
    pub(super) slot_bytes: u32,
}

impl ParityRewrite<'_> {
    /// Replaces `generation`, whose masks are `before`. A row whose slots do not
    /// match its present parity keeps that parity, and its mask in `after`: some
    /// member is wrong about it, and a new parity would be wrong, too.
    pub(super) fn replace(
        &self,
        generation: u16,
        before: &Masks,
        after: &mut Masks,
    ) -> Result<(), UnitError> {
        let length = self.slot_bytes as usize;
        let rows = before.rows();
        let mut tags: Vec<Tag> = Vec::with_capacity(rows as usize + 1);
        let mut data = Vec::with_capacity((rows as usize + 1) * length);
        for first in (0..rows).step_by(ROWS_AT_ONCE as usize) {
            let count = ROWS_AT_ONCE.min(rows - first);
            let old = self.read_parity(first, count)?;
            let columns = self.columns(first, count, before)?;
            for (row, found) in (0..count).zip(old) {
                let number = first + row;
                // Unreadable parity is of no use: from now on it is made of no slots.
                let Some(found) = found else {
                    after.set(number, 0);
                    tags.push([0; 16]);
                    data.resize(data.len() + length, 0);
                    continue;
                };
                let masks = RowMasks {
                    before: before.of(number),
                    after: after.of(number),
                };
                let (tag, content) = match self.recompute(&columns, row as usize, masks, &found) {
                    Some(computed) => computed,
                    // Perhaps only the read was wrong.
                    None => match self.recompute_again(number, before, masks, found)? {
                        Ok(computed) => computed,
                        Err(found) => {
                            after.set(number, masks.before);
                            found
                        }
                    },
                };
                tags.push(tag);
                data.extend(content);
            }
        }
        if *after == *before {
            return Ok(());
        }
        tags.push([0; 16]);
        data.extend(after.encode(self.segment, self.erasure, self.parity, self.slot_bytes));
        let by = Replacement {
            expected: Some(generation),
            generation: generation.saturating_add(1),
            lineage_tag: base::LineageTag::NONE,
            slot_bytes: self.slot_bytes,
            tags: &tags,
            data: &data,
        };
        self.member.unit.replace(self.segment, by)
    }

    /// The parity of one row with its new mask; `None` if `found`, the present one,
    /// does not match the row's slots.
    fn recompute(
        &self,
        columns: &[Column],
        row: usize,
        masks: RowMasks,
        found: &Parity,
    ) -> Option<Parity> {
        let RowMasks { before, after } = masks;
        let is_right = before == 0 || self.parity_of(columns, row, before).as_ref() == Some(found);
        match is_right {
            true if before == after => Some(found.clone()),
            true => self.parity_of(columns, row, after),
            false => None,
        }
    }

    /// Reads a row and its parity once more and recomputes it; the inner error is the
    /// parity that does not match the row's slots: `found`, if it cannot be read again.
    fn recompute_again(
        &self,
        row: u32,
        before: &Masks,
        masks: RowMasks,
        found: Parity,
    ) -> Result<Result<Parity, Parity>, UnitError> {
        let columns = self.columns(row, 1, before)?;
        let found = self.read_parity(row, 1)?.pop().flatten().unwrap_or(found);
        let computed = self.recompute(&columns, 0, masks, &found);
        Ok(computed.ok_or(found))
    }

    /// The parity of those slots of a row that are in `mask`.
    fn parity_of(&self, columns: &[Column], row: usize, mask: u16) -> Option<Parity> {
        let is_there = |(place, column): (usize, &Column)| {
            mask >> place & 1 == 0 || column.get(row).is_some_and(Option::is_some)
        };
        if !columns.iter().enumerate().all(is_there) {
            return None;
        }
        let slot = |place: usize, column: &'_ Column| {
            let counts = mask >> place & 1 == 1;
            column
                .get(row)
                .and_then(Option::as_ref)
                .filter(|_| counts)
                .cloned()
        };
        let slots: Vec<Option<(Tag, Vec<u8>)>> = columns
            .iter()
            .enumerate()
            .map(|(place, column)| slot(place, column))
            .collect();
        let (mut tag, mut content) = ([0; 16], vec![0; self.slot_bytes as usize]);
        let parity = usize::from(self.parity);
        let tags = slots
            .iter()
            .map(|slot| slot.as_ref().map(|(tag, _)| &tag[..]));
        encode(parity, tags, &mut tag);
        let contents = slots
            .iter()
            .map(|slot| slot.as_ref().map(|(_, content)| &content[..]));
        encode(parity, contents, &mut content);
        Some((tag, content))
    }

    /// The slots of each data member in some rows, as far as they are in the masks.
    fn columns(&self, first: u32, count: u32, masks: &Masks) -> Result<Vec<Column>, UnitError> {
        let mut columns = Vec::new();
        for (place, member) in self.of_data.iter().enumerate() {
            let mut column: Column = vec![None; count as usize];
            let mut row = 0;
            while row < count {
                let counts = |row: u32| masks.of(first + row) >> place & 1 == 1;
                if !counts(row) {
                    row += 1;
                    continue;
                }
                let end = (row..count).find(|row| !counts(*row)).unwrap_or(count);
                let slots = match self.read(member, first + row, end - row) {
                    Ok((tags, data)) => self.column_of(tags, &data),
                    // Padding, which is zeroes, or a slot that was freed too early.
                    Err(
                        UnitError::NoSlot { .. }
                        | UnitError::NoSegment { .. }
                        | UnitError::Damaged { .. },
                    ) => self.one_by_one(member, first + row, end - row)?,
                    Err(error) => return Err(error),
                };
                column.splice(row as usize..end as usize, slots);
                row = end;
            }
            columns.push(column);
        }
        Ok(columns)
    }

    /// The present parity of some rows. Rows that were written and never committed
    /// were freed, and stay freed.
    fn read_parity(&self, first: u32, count: u32) -> Result<Column, UnitError> {
        match self.read(self.member, first, count) {
            Ok((tags, data)) => Ok(self.column_of(tags, &data)),
            Err(UnitError::NoSlot { .. } | UnitError::Damaged { .. }) => {
                self.one_by_one(self.member, first, count)
            }
            Err(error) => Err(error),
        }
    }

    fn column_of(&self, tags: Vec<Tag>, data: &[u8]) -> Column {
        let contents = data.chunks_exact(self.slot_bytes as usize);
        tags.into_iter()
            .zip(contents.map(<[u8]>::to_vec))
            .map(Some)
            .collect()
    }

    /// Reads slots one by one: zeroes for missing ones, `None` for unreadable ones,
    /// as a put leaves them that a crash interrupted.
    fn one_by_one(&self, member: &Member, first: u32, count: u32) -> Result<Column, UnitError> {
        let zero = || Some(([0; 16], vec![0; self.slot_bytes as usize]));
        let mut slots = Vec::new();
        for row in first..first + count {
            slots.push(match self.read(member, row, 1) {
                Ok((tags, data)) => Some((tags[0], data)),
                Err(UnitError::NoSlot { .. } | UnitError::NoSegment { .. }) => zero(),
                Err(UnitError::Damaged { .. }) => None,
                Err(error) => return Err(error),
            });
        }
        Ok(slots)
    }

    fn read(
        &self,
        member: &Member,
        first: u32,
        count: u32,
    ) -> Result<(Vec<Tag>, Vec<u8>), UnitError> {
        let run = SlotRun {
            segment: self.segment,
            first: Slot(u16::try_from(first).expect("at most 2^16 rows")),
            count: u16::try_from(count).expect("few"),
        };
        let mut tags = vec![[0; 16]; count as usize];
        let mut data = vec![0; count as usize * self.slot_bytes as usize];
        let read = member.unit.read(Read {
            run,
            slot_bytes: self.slot_bytes,
            tags: &mut tags,
            data: &mut data,
        });
        match read {
            Ok(()) => Ok((tags, data)),
            Err(UnitError::Damaged { url, segment, .. }) if stat_of(member, segment)?.is_none() => {
                Err(UnitError::NoSegment { url, segment })
            }
            Err(error) => Err(error),
        }
    }
}

/// The tag and content of one row's parity.
type Parity = (Tag, Vec<u8>);

/// The slots of one member, by row.
type Column = Vec<Option<(Tag, Vec<u8>)>>;

/// The slots that a row's parity is made of, as masks.
#[derive(Clone, Copy)]
struct RowMasks {
    before: u16,
    after: u16,
}
