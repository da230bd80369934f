//! Writing rows: each slot to its data member, their parity to the others.

use std::ops::Range;
use std::sync::Arc;

use base::{Slot, UnitId};
use catalog::Erasure;
use unit::{Tag, Unit as _, UnitError};
use world::{Pool, parallel};

use super::code::encode;
use crate::scatter::Member;
use crate::scatter::write::{ShareError, SharePut, Source};

/// Bytes of data written at once, over all members.
const PUT_BYTES_MAX: usize = 1 << 20;

/// Slots of one member.
#[derive(Clone, Default)]
struct Column {
    tags: Vec<Tag>,
    data: Vec<u8>,
}

/// What became of rows that were written.
pub struct WrittenRows {
    /// The units that have them.
    pub units: Vec<UnitId>,
    /// The segment is whole: nothing can be appended to it.
    pub is_whole: bool,
}

/// Writes a share to the members of a copyset with `erasure`, as far as they take
/// writes, and syncs it there. As many of them may fail as there is parity.
///
/// Slots that are missing in the last row are written as zeroes, and freed before
/// this returns, so that the segment ends with its last slot that counts.
///
/// A unit that cannot append is sent all of it at once, and the segment ends; the
/// others are sent parts.
pub fn put_rows(
    pool: &dyn Pool,
    members: &[Member],
    erasure: Erasure,
    put: &SharePut,
) -> Result<WrittenRows, ShareError> {
    let mut writers = Writers::new(members, erasure);
    writers.check()?;
    let (share, k) = (&put.share, usize::from(erasure.data()));
    let padded = share.items.len() % k;
    if padded > 0 {
        writers.padded = padded..k;
    }
    let length = put.slot_bytes as usize;
    let is_one_put = !members.iter().all(|member| member.unit.can_append());
    let rows_max = match is_one_put {
        true => usize::MAX / k,
        false => (PUT_BYTES_MAX / (length * k)).max(1),
    };
    let mut row = share.first as usize / k;
    for items in share.items.chunks(rows_max * k) {
        let checked = put.progress.check().map_err(ShareError::Stopped);
        checked.map_err(|other| writers.take_most_severe(other))?;
        let columns = columns(erasure, items, length, &put.source).map_err(ShareError::Source);
        let columns = columns.map_err(|other| writers.take_most_severe(other))?;
        writers.write_columns(pool, put, row, Arc::new(columns))?;
        put.progress.add(items.len());
        row += items.len().div_ceil(k);
    }
    writers.sync(pool, put, row - 1)?;
    let written = writers.members.iter().flatten();
    Ok(WrittenRows {
        units: written.map(|member| member.id).collect(),
        is_whole: is_one_put,
    })
}

/// The slots of each member: the data of the rows that `items` fill, the last one
/// padded with zeroes, and their parity.
fn columns(
    erasure: Erasure,
    items: &[usize],
    length: usize,
    source: &Source,
) -> std::io::Result<Vec<Column>> {
    let k = usize::from(erasure.data());
    let rows = items.len().div_ceil(k);
    let empty = Column {
        tags: vec![[0; 16]; rows],
        data: vec![0; rows * length],
    };
    let mut columns = vec![empty; usize::from(erasure.members())];
    let slot = |row: usize| -> Range<usize> { row * length..(row + 1) * length };
    for (at, item) in items.iter().enumerate() {
        let Column { tags, data } = &mut columns[at % k];
        tags[at / k] = source(*item, &mut data[slot(at / k)])?;
    }
    let (of_data, of_parity) = columns.split_at_mut(k);
    for row in 0..rows {
        for (parity, column) in of_parity.iter_mut().enumerate() {
            let contents = of_data.iter().map(|column| Some(&column.data[slot(row)]));
            encode(parity, contents, &mut column.data[slot(row)]);
            let tags = of_data.iter().map(|column| Some(&column.tags[row][..]));
            encode(parity, tags, &mut column.tags[row]);
        }
    }
    Ok(columns)
}

type Work = Box<dyn FnOnce() -> Result<(), ShareError> + Send>;

/// The members that a share is written to, until they fail.
struct Writers {
    /// By their place; `None` for those that take no writes or have failed.
    members: Vec<Option<Member>>,
    parity: usize,
    /// The places that get padding. None of them may fail: it might keep the
    /// padding for ever, for no version names it.
    padded: Range<usize>,
    failure: Option<UnitError>,
}

impl Writers {
    fn new(members: &[Member], erasure: Erasure) -> Self {
        let mut writers = Self {
            members: vec![None; usize::from(erasure.members())],
            parity: usize::from(erasure.parity()),
            padded: 0..0,
            failure: None,
        };
        for member in members {
            if member.unit.can_write() {
                writers.members[usize::from(member.place)] = Some(member.clone());
            }
        }
        writers
    }

    /// Whether enough members are left.
    fn check(&mut self) -> Result<(), ShareError> {
        let missing = self.members.iter().filter(|member| member.is_none());
        if missing.count() <= self.parity {
            return Ok(());
        }
        Err(ShareError::Unit(self.failure.take().unwrap_or_else(|| {
            UnitError::Missing {
                url: "a copyset".to_owned(),
                reason: "too few of its units accept writes".to_owned(),
            }
        })))
    }

    /// Writes some rows, from `row` on.
    fn write_columns(
        &mut self,
        pool: &dyn Pool,
        put: &SharePut,
        row: usize,
        columns: Arc<Vec<Column>>,
    ) -> Result<(), ShareError> {
        self.each(pool, |place, member| {
            let (columns, put) = (Arc::clone(&columns), put.clone());
            Box::new(move || {
                let Column { tags, data } = &columns[place];
                let first = u32::try_from(row).expect("at most 2^16 rows");
                put.write_slots(&member, first, tags, data)
            })
        })
    }

    /// Makes all rows durable, and frees the padding of the last one.
    fn sync(&mut self, pool: &dyn Pool, put: &SharePut, last_row: usize) -> Result<(), ShareError> {
        let last = Slot(u16::try_from(last_row).expect("at most 2^16 rows"));
        let (segment, padding) = (put.share.segment, self.padded.clone());
        self.each(pool, |place, member| {
            let is_padding = padding.contains(&place);
            Box::new(move || {
                let synced = member.unit.sync(&[segment]);
                let done = synced.and_then(|()| match is_padding {
                    true => member.unit.free(segment, &[last], false),
                    false => Ok(()),
                });
                done.map_err(ShareError::Unit)
            })
        })
    }

    /// Has all members work in parallel.
    fn each(
        &mut self,
        pool: &dyn Pool,
        work: impl Fn(usize, Member) -> Work,
    ) -> Result<(), ShareError> {
        let there = self.members.iter().enumerate();
        let there = there.filter_map(|(place, member)| Some((place, member.clone()?)));
        let there: Vec<(usize, Member)> = there.collect();
        let works = there
            .iter()
            .map(|(place, member)| work(*place, member.clone()));
        let results = parallel(pool, there.len(), works.collect());
        let (mut is_needed, mut stop) = (false, None);
        for ((place, member), result) in there.into_iter().zip(results) {
            match result {
                Ok(()) => {}
                Err(ShareError::Unit(error)) => {
                    tracing::warn!(unit = %member.id, %error, "unit rejected its part of row");
                    self.members[place] = None;
                    is_needed |= self.padded.contains(&place);
                    self.keep_failure(error);
                }
                Err(other) => stop = Some(other),
            }
        }
        if let Some(other) = stop {
            return Err(self.take_most_severe(other));
        }
        match self.failure.take_if(|_| is_needed) {
            Some(error) => Err(ShareError::Unit(error)),
            None => self.check(),
        }
    }

    /// The error to report: a failed put that may still be carried out comes before
    /// `other`, which will be met again.
    fn take_most_severe(&mut self, other: ShareError) -> ShareError {
        match self.failure.take_if(|known| known.is_outcome_unknown()) {
            Some(unresolved) => ShareError::Unit(unresolved),
            None => other,
        }
    }

    /// Keeps the most severe error: that of a put which may still be carried out.
    fn keep_failure(&mut self, error: UnitError) {
        let is_known = |known: &UnitError| known.is_outcome_unknown();
        if !self.failure.as_ref().is_some_and(is_known) {
            self.failure = Some(error);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::rig::{Rig, copyset};
    use super::*;
    use crate::scatter::progress::StopReason;

    /// The next lease did not sweep the segment, which kept the slots of a put that
    /// was carried out later for ever.
    #[test]
    fn a_put_that_may_still_be_carried_out_is_reported_before_any_other_error() {
        let rig = Rig::new(2, 1);
        let table = rig.store.table();
        let error_of = |unresolved: Option<usize>| {
            let mut writers = Writers::new(table.members(copyset()), rig.erasure);
            let failed = writers.each(&*rig.store.pool, |place, _| {
                Box::new(move || match place {
                    place if Some(place) == unresolved => {
                        Err(ShareError::Unit(UnitError::Unavailable {
                            url: "a unit".to_owned(),
                            doing: "put".to_owned(),
                            source: Arc::new(std::io::Error::from(std::io::ErrorKind::TimedOut)),
                        }))
                    }
                    1 => Err(ShareError::Stopped(StopReason::Closed)),
                    _ => Ok(()),
                })
            });
            failed.expect_err("one of them fails")
        };
        for place in [0, 2] {
            let error = error_of(Some(place));
            let is_reported =
                matches!(&error, ShareError::Unit(error) if error.is_outcome_unknown());
            assert!(is_reported, "{place}");
        }
        assert!(matches!(
            error_of(None),
            ShareError::Stopped(StopReason::Closed)
        ));
    }
}
