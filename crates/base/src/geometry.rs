//! The geometry of volumes and units: blocks of a volume, slots of a segment, and the sequence
//! that orders writes.

use std::fmt;
use std::ops::{Add, AddAssign};

use serde::{Deserialize, Serialize};

/// A position in a volume, in blocks from its start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct BlockIndex(pub u64);

impl Add<u64> for BlockIndex {
    type Output = Self;
    fn add(self, blocks: u64) -> Self {
        Self(self.0 + blocks)
    }
}

impl AddAssign<u64> for BlockIndex {
    fn add_assign(&mut self, blocks: u64) {
        self.0 += blocks;
    }
}

/// A volume's block size: a power of two from 4 KiB to 64 KiB.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "u64", into = "u64")]
pub struct BlockSize {
    shift: u8,
}

impl BlockSize {
    /// 4 KiB, the default. It is the page size of guests and the block size of HVSTO (§III-B).
    pub const DEFAULT: Self = Self { shift: 12 };

    /// A block size of `bytes`; `None` unless it is 4, 8, 16, 32 or 64 KiB.
    #[must_use]
    pub const fn new(bytes: u64) -> Option<Self> {
        match bytes {
            4096 => Some(Self { shift: 12 }),
            8192 => Some(Self { shift: 13 }),
            16384 => Some(Self { shift: 14 }),
            32768 => Some(Self { shift: 15 }),
            65536 => Some(Self { shift: 16 }),
            _ => None,
        }
    }

    /// The size in bytes.
    #[must_use]
    pub const fn bytes(self) -> usize {
        1 << self.shift
    }

    /// The block that holds the byte at `offset`.
    #[must_use]
    pub const fn block_at(self, offset: u64) -> BlockIndex {
        BlockIndex(offset >> self.shift)
    }

    /// The position of the byte at `offset` within its block, in bytes.
    #[must_use]
    pub const fn within(self, offset: u64) -> usize {
        (offset & ((1 << self.shift) - 1)) as usize
    }

    /// The offset of the first byte of `block`, in bytes.
    #[must_use]
    pub const fn start_of(self, block: BlockIndex) -> u64 {
        block.0 << self.shift
    }

    /// The number of blocks that hold `bytes` bytes.
    #[must_use]
    pub const fn blocks_in(self, bytes: u64) -> u64 {
        bytes.div_ceil(1 << self.shift)
    }
}

impl From<BlockSize> for u64 {
    fn from(size: BlockSize) -> Self {
        size.bytes() as u64
    }
}

impl TryFrom<u64> for BlockSize {
    type Error = &'static str;

    fn try_from(number: u64) -> Result<Self, Self::Error> {
        Self::new(number).ok_or("a block size is 4, 8, 16, 32 or 64 KiB")
    }
}

/// A copyset, the small set of units that holds one segment: a number of 12 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "u16", into = "u16")]
pub struct CopysetId(u16);

impl CopysetId {
    /// One more than the largest copyset number.
    pub const COUNT_MAX: u16 = 1 << 12;

    /// Copyset `number`; `None` above 4095.
    #[must_use]
    pub const fn new(number: u16) -> Option<Self> {
        if number < Self::COUNT_MAX {
            Some(Self(number))
        } else {
            None
        }
    }

    /// The copyset's number.
    #[must_use]
    pub const fn number(self) -> u16 {
        self.0
    }
}

impl From<CopysetId> for u16 {
    fn from(copyset: CopysetId) -> Self {
        copyset.number()
    }
}

impl TryFrom<u16> for CopysetId {
    type Error = &'static str;

    fn try_from(number: u16) -> Result<Self, Self::Error> {
        Self::new(number).ok_or("a copyset's number is at most 4095")
    }
}

/// A write-once bundle of sealed blocks, named by its copyset and a serial
/// number of 36 bits that is unique in the cluster and never used again.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "u64", into = "u64")]
pub struct SegmentId(u64);

impl SegmentId {
    /// One more than the largest serial number.
    pub const SERIAL_END: u64 = 1 << 36;

    /// Segment `serial` on `copyset`; `None` if the serial needs over 36 bits.
    #[must_use]
    pub const fn new(copyset: CopysetId, serial: u64) -> Option<Self> {
        if serial < Self::SERIAL_END {
            Some(Self((copyset.0 as u64) << 36 | serial))
        } else {
            None
        }
    }

    /// The segment whose 48-bit number is `bits`; `None` above that.
    #[must_use]
    pub const fn from_bits(bits: u64) -> Option<Self> {
        if bits < 1 << 48 {
            Some(Self(bits))
        } else {
            None
        }
    }

    /// Copyset and serial in one number of 48 bits.
    #[must_use]
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// The copyset that holds the segment.
    #[must_use]
    pub const fn copyset(self) -> CopysetId {
        CopysetId((self.0 >> 36) as u16)
    }

    /// The segment's serial number.
    #[must_use]
    pub const fn serial(self) -> u64 {
        self.0 & (Self::SERIAL_END - 1)
    }
}

impl From<SegmentId> for u64 {
    fn from(segment: SegmentId) -> Self {
        segment.bits()
    }
}

impl TryFrom<u64> for SegmentId {
    type Error = &'static str;

    fn try_from(number: u64) -> Result<Self, Self::Error> {
        Self::from_bits(number).ok_or("a segment's number has at most 48 bits")
    }
}

impl fmt::Display for SegmentId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:03x}-{:09x}", self.copyset().0, self.serial())
    }
}

impl fmt::Debug for SegmentId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, formatter)
    }
}

/// A position in a segment, in sealed blocks from its start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slot(pub u16);

/// The location of a sealed block: a segment and a slot, in one number of 64 bits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Location(u64);

impl Location {
    /// The location of `slot` in `segment`.
    #[must_use]
    pub const fn new(segment: SegmentId, slot: Slot) -> Self {
        Self(segment.0 << 16 | slot.0 as u64)
    }

    /// The location whose number is `bits`.
    #[must_use]
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// Copyset (12 bits), segment serial (36) and slot (16), high to low.
    #[must_use]
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// The segment.
    #[must_use]
    pub const fn segment(self) -> SegmentId {
        SegmentId(self.0 >> 16)
    }

    /// The slot in the segment.
    #[must_use]
    pub const fn slot(self) -> Slot {
        Slot(self.0 as u16)
    }
}

impl fmt::Debug for Location {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}/{}", self.segment(), self.slot().0)
    }
}

/// The position of a write in the order of all writes of a volume: the lease's epoch, then a
/// counter that only grows. It is also the nonce of the block's seal, so it is never used twice.
///
/// `epoch < EPOCH_END`, `counter < COUNTER_END`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Sequence(u64);

impl Sequence {
    /// The sequence before the first write.
    pub const ZERO: Self = Self(0);
    /// One more than the largest epoch: a lease a second for half a year.
    pub const EPOCH_END: u32 = 1 << 24;
    /// One more than the largest counter: 4 PiB of 4 KiB blocks in one lease.
    pub const COUNTER_END: u64 = 1 << 40;

    /// Write number `counter` of lease `epoch`; `None` if either is too large.
    #[must_use]
    pub const fn new(epoch: u32, counter: u64) -> Option<Self> {
        if epoch < Self::EPOCH_END && counter < Self::COUNTER_END {
            Some(Self((epoch as u64) << 40 | counter))
        } else {
            None
        }
    }

    /// The sequence whose number is `bits`.
    #[must_use]
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// Epoch (24 bits) and counter (40), high to low.
    #[must_use]
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// The lease's epoch.
    #[must_use]
    pub const fn epoch(self) -> u32 {
        (self.0 >> 40) as u32
    }

    /// The counter within the lease.
    #[must_use]
    pub const fn counter(self) -> u64 {
        self.0 & (Self::COUNTER_END - 1)
    }
}

impl fmt::Debug for Sequence {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}.{}", self.epoch(), self.counter())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_location_keeps_its_three_parts_apart() {
        let copyset = CopysetId::new(4095).expect("12 bits");
        let segment = SegmentId::new(copyset, SegmentId::SERIAL_END - 1).expect("36 bits");
        let location = Location::new(segment, Slot(u16::MAX));
        assert_eq!(location.bits(), u64::MAX);
        assert_eq!(location.segment().copyset().number(), 4095);
        assert_eq!(location.segment().serial(), SegmentId::SERIAL_END - 1);
        assert_eq!(Location::from_bits(location.bits()), location);
        assert_eq!(SegmentId::new(copyset, SegmentId::SERIAL_END), None);
        assert_eq!(CopysetId::new(4096), None);
    }

    #[test]
    fn sequences_order_by_epoch_first() {
        let late = Sequence::new(2, 0).expect("fits");
        let early = Sequence::new(1, Sequence::COUNTER_END - 1).expect("fits");
        assert!(early < late);
        assert_eq!(Sequence::new(1, Sequence::COUNTER_END), None);
        assert_eq!(Sequence::new(Sequence::EPOCH_END, 0), None);
    }

    #[test]
    fn block_arithmetic() {
        let size = BlockSize::new(8192).expect("a power of two");
        assert_eq!(size.block_at(8191), BlockIndex(0));
        assert_eq!(size.block_at(8192), BlockIndex(1));
        assert_eq!(size.within(8193), 1);
        assert_eq!(size.blocks_in(8193), 2);
        assert_eq!(BlockSize::new(2048), None);
        assert_eq!(BlockSize::new(131_072), None);
    }
}
