//! A capability as bytes (docs/internals/unit-protocol.md).

use base::codec::{OutOfBytes, Reader, Writer};
use base::{ClusterId, CopysetId, LineageTag, SegmentId, UnitId};
use world::Millis;

use crate::capability::{Capability, Fence, Scope};

const FORMAT: u16 = 1;

/// The largest number of items in each list of a capability.
pub const ITEMS_MAX: usize = 1024;

const LEASE: u16 = 1;
const READ: u16 = 2;
const FREE: u16 = 3;
const REPAIR: u16 = 4;
const COUNT: u16 = 5;

/// Why bytes are not a valid capability.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BadCapability {
    /// The length is wrong.
    #[error("the capability has an invalid length: {0} bytes")]
    Length(usize),
    /// A newer controller signed it.
    #[error("the capability has format {0}; this program knows format 1")]
    Format(u16),
    /// The kind is unknown, and may be newer than this program.
    #[error("the capability has the unknown kind {0}")]
    Kind(u16),
    /// A list is too long, or an item is invalid.
    #[error("the capability has invalid items")]
    Items,
    /// It is not signed by the expected key.
    #[error("the capability is not signed by this cluster's controllers")]
    Signature,
}

impl Capability {
    /// Encodes the capability, without a signature.
    ///
    /// # Panics
    /// If a list has more than [`ITEMS_MAX`] items.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut items = Vec::new();
        let none = (LineageTag::NONE, Fence(0), 0);
        let (kind, count, (lineage_tag, fence, epoch)) = match &self.scope {
            Scope::Lease {
                lineage_tag,
                fence,
                epoch,
                serials,
            } => {
                for range in serials {
                    items.put_u64(range.start);
                    items.put_u64(range.end.saturating_sub(range.start));
                }
                (LEASE, serials.len(), (*lineage_tag, *fence, *epoch))
            }
            Scope::Read { lineage_tags } => {
                lineage_tags
                    .iter()
                    .for_each(|lineage_tag| items.put_u64(lineage_tag.0));
                (READ, lineage_tags.len(), none)
            }
            Scope::Free { segments } => {
                segments.iter().for_each(|id| items.put_u64(id.bits()));
                (FREE, segments.len(), none)
            }
            Scope::Repair { copysets, units } => {
                for copyset in copysets {
                    items.put_u64(copyset.number().into());
                }
                assert!(units.len() <= ITEMS_MAX, "{} units", units.len());
                items.put_u64(units.len() as u64);
                units.iter().for_each(|unit| items.put_u128(unit.as_u128()));
                (REPAIR, copysets.len(), none)
            }
            Scope::Count { leases } => {
                items.put_u64(*leases);
                (COUNT, 1, none)
            }
        };
        assert!(count <= ITEMS_MAX, "a capability names {count} things");
        bytes.put_u16(FORMAT);
        bytes.put_u16(kind);
        bytes.put_u32(count as u32);
        bytes.put_u128(self.cluster.as_u128());
        bytes.put_bytes(&self.holder);
        // Two's complement.
        bytes.put_u64(self.made.0 as u64);
        bytes.put_u64(self.ends.0 as u64);
        bytes.put_u64(lineage_tag.0);
        bytes.put_u64(fence.0);
        bytes.put_u32(epoch);
        bytes.put_u32(self.generation);
        bytes.extend(items);
        bytes
    }

    /// Decodes a capability without verifying its signature.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, BadCapability> {
        let mut reader = Reader::new(bytes);
        let capability = Self::read(&mut reader)
            .map_err(|error| error.unwrap_or(BadCapability::Length(bytes.len())))?;
        match reader.remaining() {
            0 => Ok(capability),
            _ => Err(BadCapability::Length(bytes.len())),
        }
    }

    /// Fails with `None` where the bytes end.
    fn read(reader: &mut Reader<'_>) -> Result<Self, Option<BadCapability>> {
        let format = reader.u16().or_end()?;
        if format != FORMAT {
            return Err(Some(BadCapability::Format(format)));
        }
        let kind = reader.u16().or_end()?;
        let count = reader.u32().or_end()? as usize;
        if count > ITEMS_MAX {
            return Err(Some(BadCapability::Items));
        }
        let cluster = ClusterId::from_u128(reader.u128().or_end()?);
        let holder = reader.array().or_end()?;
        let made = Millis(reader.u64().or_end()? as i64);
        let ends = Millis(reader.u64().or_end()? as i64);
        let lease = LeaseFields {
            lineage_tag: LineageTag(reader.u64().or_end()?),
            fence: Fence(reader.u64().or_end()?),
            epoch: reader.u32().or_end()?,
        };
        let generation = reader.u32().or_end()?;
        let scope = read_scope(reader, kind, count, lease)?;
        Ok(Self {
            cluster,
            holder,
            made,
            ends,
            generation,
            scope,
        })
    }
}

/// The fields that only the scope of a lease has. They are 0 in the other kinds.
struct LeaseFields {
    lineage_tag: LineageTag,
    fence: Fence,
    epoch: u32,
}

/// Reads the `count` items of a capability of this kind. Fails with `None` where the bytes end.
fn read_scope(
    reader: &mut Reader<'_>,
    kind: u16,
    count: usize,
    lease: LeaseFields,
) -> Result<Scope, Option<BadCapability>> {
    let items = |reader: &mut Reader<'_>| -> Result<Vec<u64>, Option<BadCapability>> {
        (0..count).map(|_| reader.u64().or_end()).collect()
    };
    Ok(match kind {
        LEASE => {
            let mut serials = Vec::with_capacity(count);
            for _ in 0..count {
                let (first, length) = (reader.u64().or_end()?, reader.u64().or_end()?);
                let end = first.checked_add(length).filter(|end| *end > first);
                serials.push(first..end.ok_or(BadCapability::Items)?);
            }
            Scope::Lease {
                lineage_tag: lease.lineage_tag,
                fence: lease.fence,
                epoch: lease.epoch,
                serials,
            }
        }
        READ => {
            let lineage_tags = items(reader)?.into_iter().map(LineageTag).collect();
            Scope::Read { lineage_tags }
        }
        FREE => {
            let ids = items(reader)?.into_iter().map(SegmentId::from_bits);
            let segments: Vec<SegmentId> =
                ids.collect::<Option<_>>().ok_or(BadCapability::Items)?;
            if !segments.is_sorted() {
                return Err(Some(BadCapability::Items));
            }
            Scope::Free { segments }
        }
        REPAIR => {
            let numbers = items(reader)?.into_iter();
            let ids = numbers.map(|number| CopysetId::new(number.try_into().ok()?));
            let copysets = ids.collect::<Option<_>>().ok_or(BadCapability::Items)?;
            let count = reader.u64().or_end()?;
            if count > ITEMS_MAX as u64 {
                return Err(Some(BadCapability::Items));
            }
            let mut units = Vec::new();
            for _ in 0..count {
                units.push(UnitId::from_u128(reader.u128().or_end()?));
            }
            Scope::Repair { copysets, units }
        }
        COUNT => match items(reader)?[..] {
            [leases] => Scope::Count { leases },
            _ => return Err(Some(BadCapability::Items)),
        },
        other => return Err(Some(BadCapability::Kind(other))),
    })
}

trait OrEnd<T> {
    fn or_end(self) -> Result<T, Option<BadCapability>>;
}

impl<T> OrEnd<T> for Result<T, OutOfBytes> {
    fn or_end(self) -> Result<T, Option<BadCapability>> {
        self.map_err(|_| None)
    }
}
