//! The superblock: how a file system is laid out.

use std::ops::Range;

use super::fields::{le16, le32, split64};
use super::groups::descriptors_at;
use super::owners::INODES_MAX;

/// Where it lies, in bytes from the beginning, whatever the block size.
pub(super) const OFFSET: u64 = 1024;
/// How long it is.
pub(super) const BYTES: usize = 1024;

const MAGIC: u16 = 0xEF53;

// Features without which a file system cannot be read rightly (s_feature_incompat).
const INCOMPAT_FILETYPE: u32 = 0x2;
const INCOMPAT_RECOVER: u32 = 0x4;
const INCOMPAT_JOURNAL_DEV: u32 = 0x8;
const INCOMPAT_META_BG: u32 = 0x10;
const INCOMPAT_EXTENTS: u32 = 0x40;
const INCOMPAT_64BIT: u32 = 0x80;
const INCOMPAT_MMP: u32 = 0x100;
const INCOMPAT_FLEX_BG: u32 = 0x200;
const INCOMPAT_EA_INODE: u32 = 0x400;
const INCOMPAT_CSUM_SEED: u32 = 0x2000;
const INCOMPAT_LARGEDIR: u32 = 0x4000;
const INCOMPAT_INLINE_DATA: u32 = 0x8000;
const INCOMPAT_ENCRYPT: u32 = 0x10000;
const INCOMPAT_CASEFOLD: u32 = 0x20000;
const INCOMPAT_KNOWN: u32 = INCOMPAT_FILETYPE
    | INCOMPAT_RECOVER
    | INCOMPAT_META_BG
    | INCOMPAT_EXTENTS
    | INCOMPAT_64BIT
    | INCOMPAT_MMP
    | INCOMPAT_FLEX_BG
    | INCOMPAT_EA_INODE
    | INCOMPAT_CSUM_SEED
    | INCOMPAT_LARGEDIR
    | INCOMPAT_INLINE_DATA
    // Names and content are ciphertext then, and blocks lie as always.
    | INCOMPAT_ENCRYPT
    | INCOMPAT_CASEFOLD;

const COMPAT_HAS_JOURNAL: u32 = 0x4;
const RO_COMPAT_SPARSE_SUPER: u32 = 0x1;
const COMPAT_SPARSE_SUPER2: u32 = 0x200;
const COMPAT_FAST_COMMIT: u32 = 0x400;
const RO_COMPAT_GDT_CSUM: u32 = 0x10;
const RO_COMPAT_BIGALLOC: u32 = 0x200;
const RO_COMPAT_METADATA_CSUM: u32 = 0x400;

/// Why something is no file system that is understood.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FormatError {
    /// There is none.
    #[error("there is no ext2, ext3 or ext4 file system")]
    Magic,
    /// It has a feature that changes what lies where, and is not known here.
    #[error("it has features that are not known here: {0:#x}")]
    Features(u32),
    /// It is the journal of another file system, not one itself.
    #[error("it is a journal, for a file system elsewhere")]
    Journal,
    /// A number in it makes no sense.
    #[error("its superblock makes no sense: {0}")]
    Nonsense(&'static str),
}

/// The superblock in what lies at byte `at` of a file system, if all of it is there.
pub(super) fn bytes_in(at: u64, content: &[u8]) -> Option<&[u8; BYTES]> {
    let begin = usize::try_from(OFFSET.checked_sub(at)?).ok()?;
    content.get(begin..)?.first_chunk()
}

/// What of a superblock matters for finding things. All numbers fit together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Superblock {
    /// How long a block is, in bytes: 1024 to 65,536, a power of two.
    pub block_bytes: u32,
    /// How many there are.
    pub blocks: u64,
    /// The first one that belongs to a group: 1 if blocks have 1024 bytes, else 0. With
    /// clusters of several blocks it is 0.
    pub first_block: u64,
    /// Blocks of a group.
    pub blocks_per_group: u32,
    /// As many as its bitmap has bits for.
    group_blocks_max: u32,
    /// Blocks are given to files by several.
    is_clustered: bool,
    /// Whether descriptors say which inodes were never used.
    pub(super) has_group_checksums: bool,
    /// Whether directories may be longer than 2 GiB.
    pub(super) has_large_directories: bool,
    /// How many inodes there are.
    pub inodes: u32,
    /// Inodes of a group.
    pub inodes_per_group: u32,
    /// How long an inode is in its table, in bytes: 128 or more, a power of two.
    pub inode_bytes: u32,
    /// How long a group's descriptor is, in bytes.
    pub descriptor_bytes: u32,
    /// From which block of descriptors on they lie in their own groups; none if all lie
    /// together.
    pub first_meta_group: Option<u32>,
    /// The inode that is the journal, if it has one inside.
    pub journal_inode: Option<u32>,
    /// Some changes are in the journal in a shorter form, which is not read here: they are
    /// known with the next commit of the usual one.
    pub has_fast_commits: bool,
    /// The journal may have what does not lie where it belongs yet.
    pub needs_recovery: bool,
    /// The block in which who has it mounted says so, if there is one.
    pub(super) mount_block: Option<u64>,
    /// How copies of superblock and descriptors are spread over groups.
    sparse: Sparse,
    /// Its 128-bit id.
    pub uuid: [u8; 16],
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Sparse {
    Everywhere,
    PowersOf357,
    Two([u32; 2]),
}

impl Superblock {
    /// Reads it from what lies at byte 1024.
    ///
    /// # Errors
    /// [`FormatError`].
    pub fn parse(bytes: &[u8; BYTES]) -> Result<Self, FormatError> {
        if le16(bytes, 56) != MAGIC {
            return Err(FormatError::Magic);
        }
        let (compat, incompat) = (le32(bytes, 92), le32(bytes, 96));
        let ro_compat = le32(bytes, 100);
        // An old revision has no features; what lies there is not looked at.
        let is_dynamic = le32(bytes, 76) > 0;
        let (compat, incompat, ro_compat) = match is_dynamic {
            true => (compat, incompat, ro_compat),
            false => (0, 0, 0),
        };
        if incompat & INCOMPAT_JOURNAL_DEV != 0 {
            return Err(FormatError::Journal);
        }
        let unknown = incompat & !INCOMPAT_KNOWN;
        if unknown != 0 {
            return Err(FormatError::Features(unknown));
        }
        let is_64bit = incompat & INCOMPAT_64BIT != 0;
        let block_shift = le32(bytes, 24);
        if block_shift > 6 {
            return Err(FormatError::Nonsense("the block size"));
        }
        let cluster_shift = le32(bytes, 28);
        let is_clustered = ro_compat & RO_COMPAT_BIGALLOC != 0;
        if is_clustered && !(block_shift..=30).contains(&cluster_shift) {
            return Err(FormatError::Nonsense("the cluster size"));
        }
        let parsed = Self {
            block_bytes: 1024 << block_shift,
            blocks: match is_64bit {
                true => split64(bytes, 4, 336),
                false => le32(bytes, 4).into(),
            },
            first_block: le32(bytes, 20).into(),
            group_blocks_max: match is_clustered {
                // A bit for each cluster of so many blocks.
                true => {
                    ((8 * 1024) << block_shift).min(1 << 18)
                        << (cluster_shift - block_shift).min(10)
                }
                false => (8 * 1024) << block_shift,
            },
            is_clustered,
            has_group_checksums: ro_compat & (RO_COMPAT_GDT_CSUM | RO_COMPAT_METADATA_CSUM) != 0,
            has_large_directories: incompat & INCOMPAT_LARGEDIR != 0,
            blocks_per_group: le32(bytes, 32),
            inodes: le32(bytes, 0),
            inodes_per_group: le32(bytes, 40),
            inode_bytes: match is_dynamic {
                true => le16(bytes, 88).into(),
                false => 128,
            },
            descriptor_bytes: match is_64bit {
                true => le16(bytes, 254).into(),
                false => 32,
            },
            first_meta_group: (incompat & INCOMPAT_META_BG != 0).then(|| le32(bytes, 260)),
            journal_inode: (compat & COMPAT_HAS_JOURNAL != 0)
                .then(|| le32(bytes, 224))
                .filter(|inode| *inode != 0),
            has_fast_commits: compat & COMPAT_FAST_COMMIT != 0,
            needs_recovery: incompat & INCOMPAT_RECOVER != 0,
            mount_block: (incompat & INCOMPAT_MMP != 0).then(|| split64(bytes, 360, 364)),
            sparse: match () {
                () if compat & COMPAT_SPARSE_SUPER2 != 0 => {
                    Sparse::Two([le32(bytes, 588), le32(bytes, 592)])
                }
                () if ro_compat & RO_COMPAT_SPARSE_SUPER != 0 => Sparse::PowersOf357,
                () => Sparse::Everywhere,
            },
            uuid: bytes[104..120].try_into().expect("16 bytes"),
        };
        parsed.check()?;
        Ok(parsed)
    }

    fn check(&self) -> Result<(), FormatError> {
        let is = |holds: bool, what| match holds {
            true => Ok(()),
            false => Err(FormatError::Nonsense(what)),
        };
        let block = self.block_bytes;
        let is_first = self.first_block == self.own_block();
        is(
            is_first || self.is_clustered && self.first_block == 0,
            "the first block",
        )?;
        is(self.blocks > self.first_block, "the number of blocks")?;
        // Offsets in bytes fit 64 bits.
        is(self.blocks <= 1 << 48, "the number of blocks")?;
        is(
            self.blocks_per_group >= 8 && self.blocks_per_group <= self.group_blocks_max,
            "the blocks of a group",
        )?;
        let inode = self.inode_bytes;
        is(
            inode.is_power_of_two() && (128..=block).contains(&inode),
            "the size of an inode",
        )?;
        is(
            self.inodes_per_group > 0
                && u64::from(self.inodes_per_group) <= u64::from(block) * 8
                && self.inodes_per_group.is_multiple_of(block / inode),
            "the inodes of a group",
        )?;
        let descriptor = self.descriptor_bytes;
        is(
            descriptor.is_power_of_two()
                && (32..=1024).contains(&descriptor)
                && descriptor <= block,
            "the size of a descriptor",
        )?;
        let all = u64::from(self.inodes_per_group) * self.groups();
        is(
            self.inodes > 10 && u64::from(self.inodes) == all,
            "the number of inodes",
        )?;
        is(
            self.journal_inode.is_none_or(|inode| inode <= self.inodes),
            "the journal's inode",
        )
    }

    /// The block in which it lies.
    fn own_block(&self) -> u64 {
        u64::from(self.block_bytes == 1024)
    }

    /// The first block of a group that may be somebody's: before the superblock there may be
    /// a block of the first one.
    pub(super) fn group_begin(&self, group: u64) -> u64 {
        match group {
            0 => self.own_block(),
            _ => self.first_block + group * u64::from(self.blocks_per_group),
        }
    }

    /// How many groups there are.
    #[must_use]
    pub fn groups(&self) -> u64 {
        let blocks = self.blocks - self.first_block;
        blocks.div_ceil(self.blocks_per_group.into())
    }

    /// Blocks that a group's inode table takes.
    #[must_use]
    pub fn table_blocks(&self) -> u32 {
        self.inodes_per_group / self.inodes_per_block()
    }

    /// Inodes in a block of a table.
    #[must_use]
    pub fn inodes_per_block(&self) -> u32 {
        self.block_bytes / self.inode_bytes
    }

    /// Whether things lie where they do in `other`, and it is the same file system.
    #[must_use]
    pub fn is_laid_out_as(&self, other: &Self) -> bool {
        let now = Self {
            needs_recovery: other.needs_recovery,
            ..self.clone()
        };
        now == *other
    }

    /// Whether a disk of so many bytes has room for it, and its inodes have numbers.
    pub(super) fn fits(&self, disk_bytes: u64) -> bool {
        self.blocks <= disk_bytes / u64::from(self.block_bytes) && self.inodes < INODES_MAX
    }

    /// Whether it is `before`, grown: what was there lies where it did, and more groups may
    /// follow.
    pub(super) fn has_grown_from(&self, before: &Self) -> bool {
        let may_lie_apart = before.first_meta_group.is_none();
        let now = Self {
            blocks: before.blocks,
            inodes: before.inodes,
            // What no room is kept for beside the others lies apart from then on.
            first_meta_group: match may_lie_apart {
                true => before.first_meta_group,
                false => self.first_meta_group,
            },
            ..self.clone()
        };
        let is_kept = match self.first_meta_group.filter(|_| may_lie_apart) {
            Some(first) => before.descriptors_together() <= u64::from(first),
            None => true,
        };
        self.blocks >= before.blocks && is_kept && now.is_laid_out_as(before)
    }

    /// Descriptors of groups in a block.
    pub(super) fn descriptors_in_block(&self) -> u64 {
        u64::from(self.block_bytes / self.descriptor_bytes)
    }

    /// So many blocks of descriptors lie one after the other behind the superblock.
    pub(super) fn descriptors_together(&self) -> u64 {
        let own = self.groups().div_ceil(self.descriptors_in_block());
        match self.first_meta_group {
            Some(first) => own.min(first.into()),
            None => own,
        }
    }

    /// What holds the superblock, descriptors and their copies, and who has it mounted; ranges
    /// may go beyond its end, and over one another.
    pub(super) fn layout(&self) -> Vec<Range<u64>> {
        let in_block = self.descriptors_in_block();
        let own = self.groups().div_ceil(in_block);
        let together = self.descriptors_together();
        let mut layout = Vec::new();
        for group in 0..self.groups() {
            let first = self.group_begin(group);
            if self.has_copy(group) {
                // Groups whose own descriptors lie apart have no copies of the others.
                let copied = match self.first_meta_group {
                    Some(first) if group / in_block >= u64::from(first) => 0,
                    _ => together,
                };
                let end = first + (1 + copied).min(self.blocks_per_group.into());
                layout.push(first..end);
            }
        }
        // Each descriptor block that lies apart is there three times: in the first, the
        // second and the last group that it is of.
        for number in together..own {
            let at = descriptors_at(self, number, in_block);
            layout.push(at..at + 1);
            for group in [number * in_block + 1, (number + 1) * in_block - 1] {
                let first = self.group_begin(group);
                let at = first + u64::from(self.has_copy(group));
                if group < self.groups() {
                    layout.push(at..at + 1);
                }
            }
        }
        layout.extend(self.mount_block.map(|block| block..block.saturating_add(1)));
        layout
    }

    /// Whether a group begins with a copy of the superblock.
    pub(super) fn has_copy(&self, group: u64) -> bool {
        match &self.sparse {
            Sparse::Everywhere => true,
            Sparse::Two(groups) => group == 0 || groups.iter().any(|one| u64::from(*one) == group),
            Sparse::PowersOf357 => {
                let is_power = |base: u64| {
                    let mut power = base;
                    while power < group {
                        power *= base;
                    }
                    power == group
                };
                group <= 1 || [3, 5, 7].into_iter().any(is_power)
            }
        }
    }
}
