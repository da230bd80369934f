//! Writing rows: each slot to its data member, their parity to the others.

use std::ops::Range;
use std::sync::Arc;

use base::{LineageTag, Slot, UnitId};
use unit::{Put, Tag, Unit as _, UnitError};
use world::{Pool, parallel};

use super::code::encode;
use crate::catalog::Erasure;
use crate::scatter::Member;
use crate::scatter::placer::Share;
use crate::scatter::progress::Progress;
use crate::scatter::write::{ShareError, Source};

/// Bytes of data put at once, over all members.
const PUT_BYTES_MAX: usize = 1 << 20;

/// Slots of one member.
#[derive(Clone, Default)]
struct Column {
    tags: Vec<Tag>,
    data: Vec<u8>,
}

/// What came of putting rows.
pub struct PutRows {
    /// The units that have them.
    pub has: Vec<UnitId>,
    /// The segment cannot be appended to.
    pub is_whole: bool,
}

/// Puts a share on the members of a copyset with `erasure` that its segment lies on,
/// all that take writes, and syncs it there. Up to as many as there is parity may fail.
///
/// What a row lacks at the end of the share is put as zeroes, and given back before
/// this returns, so that the segment ends with its last slot that counts.
///
/// Where a unit cannot append, all of it is put at once there, and the segment ends;
/// the others take it in parts.
pub fn put_rows(
    pool: &dyn Pool,
    members: &[Member],
    erasure: Erasure,
    share: &Share,
    slot_bytes: u32,
    source: &Source,
    progress: &Arc<Progress>,
) -> Result<PutRows, ShareError> {
    let mut writers = Writers::new(members, erasure);
    writers.check()?;
    let k = usize::from(erasure.data());
    let padded = share.items.len() % k;
    if padded > 0 {
        writers.needed = padded..k;
    }
    let length = slot_bytes as usize;
    let is_one_put = !members.iter().all(|member| member.unit.can_append());
    let rows_max = match is_one_put {
        true => usize::MAX / k,
        false => (PUT_BYTES_MAX / (length * k)).max(1),
    };
    let mut row = share.first as usize / k;
    for items in share.items.chunks(rows_max * k) {
        let checked = progress.check().map_err(ShareError::Stopped);
        checked.map_err(|other| writers.most_of(other))?;
        let rows = items.len().div_ceil(k);
        let columns = columns(erasure, items, length, source).map_err(ShareError::Source);
        let columns = Arc::new(columns.map_err(|other| writers.most_of(other))?);
        let first = row;
        let segment = share.segment;
        writers.each(pool, |place, member| {
            let (columns, progress) = (Arc::clone(&columns), Arc::clone(progress));
            Box::new(move || {
                let Column { tags, data } = &columns[place];
                let part = match member.unit.can_append() {
                    true => (PUT_BYTES_MAX / length).max(1),
                    false => tags.len(),
                };
                let parts = tags.chunks(part).zip(data.chunks(part * length));
                for (first, (tags, data)) in (first..).step_by(part).zip(parts) {
                    let first = Slot(u16::try_from(first).expect("at most 2^16 rows"));
                    progress.check().map_err(ShareError::Stopped)?;
                    let put = member.unit.put(Put {
                        lineage_tag: LineageTag::NONE,
                        segment,
                        slot_bytes,
                        first,
                        tags,
                        data,
                    });
                    put.map_err(ShareError::Unit)?;
                }
                Ok(())
            })
        })?;
        progress.add(items.len());
        row += rows;
    }
    let last = Slot(u16::try_from(row - 1).expect("at most 2^16 rows"));
    let (segment, padding) = (share.segment, writers.needed.clone());
    writers.each(pool, |place, member| {
        let is_padding = padding.contains(&place);
        Box::new(move || {
            let synced = member.unit.sync(&[segment]);
            let done = synced.and_then(|()| match is_padding {
                true => member.unit.free(segment, &[last], false),
                false => Ok(()),
            });
            done.map_err(ShareError::Unit)
        })
    })?;
    Ok(PutRows {
        has: writers
            .members
            .iter()
            .flatten()
            .map(|member| member.id)
            .collect(),
        is_whole: is_one_put,
    })
}

/// What goes to each member: the data of the rows that `items` fill, the last one
/// with zeroes, and their parity.
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

/// The members that a share is put on, until they fail.
struct Writers {
    /// By their place; those that are gone have none.
    members: Vec<Option<Member>>,
    parity: usize,
    /// Those that get padding: if one of them failed, it might keep that for ever,
    /// for nobody names it.
    needed: Range<usize>,
    failure: Option<UnitError>,
}

impl Writers {
    fn new(members: &[Member], erasure: Erasure) -> Self {
        let mut writers = Self {
            members: vec![None; usize::from(erasure.members())],
            parity: usize::from(erasure.parity()),
            needed: 0..0,
            failure: None,
        };
        for member in members {
            if member.unit.can_write() {
                writers.members[usize::from(member.place)] = Some(member.clone());
            }
        }
        writers
    }

    /// Whether as many are left as are needed.
    fn check(&mut self) -> Result<(), ShareError> {
        let lacking = self.members.iter().filter(|member| member.is_none());
        if lacking.count() <= self.parity {
            return Ok(());
        }
        Err(ShareError::Unit(self.failure.take().unwrap_or_else(|| {
            UnitError::Missing {
                url: "a copyset".to_owned(),
                reason: "too few of its units take writes".to_owned(),
            }
        })))
    }

    /// Has every member work, at once.
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
                    tracing::warn!(unit = %member.id, %error, "a unit did not take its part of a row");
                    self.members[place] = None;
                    is_needed |= self.needed.contains(&place);
                    self.note(error);
                }
                Err(other) => stop = Some(other),
            }
        }
        if let Some(other) = stop {
            return Err(self.most_of(other));
        }
        match self.failure.take_if(|_| is_needed) {
            Some(error) => Err(ShareError::Unit(error)),
            None => self.check(),
        }
    }

    /// Why it is not gone on with: a put that failed and may still be carried out is told
    /// before `other`, which is met again.
    fn most_of(&mut self, other: ShareError) -> ShareError {
        match self.failure.take_if(|known| known.is_outcome_unknown()) {
            Some(late) => ShareError::Unit(late),
            None => other,
        }
    }

    /// Keeps the error that says most of what may lie there: of several, one of a put
    /// that may still be carried out.
    fn note(&mut self, error: UnitError) {
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

    /// The segment was not swept by the next lease, and kept what came late for ever.
    #[test]
    fn a_put_that_may_come_late_is_told_whatever_else_is_in_the_way() {
        let rig = Rig::new(2, 1);
        let table = rig.store.table();
        let ended = |late: Option<usize>| {
            let mut writers = Writers::new(table.members(copyset()), rig.erasure);
            let failed = writers.each(&*rig.store.pool, |place, _| {
                Box::new(move || match place {
                    place if Some(place) == late => Err(ShareError::Unit(UnitError::Unavailable {
                        url: "a unit".to_owned(),
                        doing: "put".to_owned(),
                        source: Arc::new(std::io::Error::from(std::io::ErrorKind::TimedOut)),
                    })),
                    1 => Err(ShareError::Stopped(StopReason::Closed)),
                    _ => Ok(()),
                })
            });
            failed.expect_err("one of them did not take it")
        };
        for late in [0, 2] {
            let told = ended(Some(late));
            let is_late = matches!(&told, ShareError::Unit(error) if error.is_outcome_unknown());
            assert!(is_late, "{late}");
        }
        assert!(matches!(
            ended(None),
            ShareError::Stopped(StopReason::Closed)
        ));
    }
}
