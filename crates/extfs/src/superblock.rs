//! [`Superblock`]: the layout of a file system.

use std::ops::Range;

use super::fields::{le16, le32, split64};
use super::groups::descriptors_at;
use super::owners::INODES_MAX;

/// The offset of the superblock in the file system, in bytes, for every block size.
pub(super) const OFFSET: u64 = 1024;
/// The length of the superblock, in bytes.
pub(super) const BYTES: usize = 1024;

const MAGIC: u16 = 0xEF53;

// The incompatible features: a file system with an unknown one cannot be read (s_feature_incompat).
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
    // With encryption, names and content are ciphertext; the layout is the same.
    | INCOMPAT_ENCRYPT
    | INCOMPAT_CASEFOLD;

const COMPAT_HAS_JOURNAL: u32 = 0x4;
const RO_COMPAT_SPARSE_SUPER: u32 = 0x1;
const COMPAT_SPARSE_SUPER2: u32 = 0x200;
const COMPAT_FAST_COMMIT: u32 = 0x400;
const RO_COMPAT_GDT_CSUM: u32 = 0x10;
const RO_COMPAT_BIGALLOC: u32 = 0x200;
const RO_COMPAT_METADATA_CSUM: u32 = 0x400;

/// Why there is no supported file system.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FormatError {
    /// There is no file system.
    #[error("there is no ext2, ext3 or ext4 file system")]
    Magic,
    /// The file system has incompatible features that are not supported.
    #[error("the file system has unsupported features: {0:#x}")]
    Features(u32),
    /// The disk is the external journal of another file system.
    #[error("the disk is the journal of another file system")]
    Journal,
    /// A field is invalid.
    #[error("the file system is invalid: {0}")]
    Invalid(&'static str),
}

/// The bytes of the superblock in content at offset `at` of a file system, if all of them are
/// there.
pub(super) fn bytes_in(at: u64, content: &[u8]) -> Option<&[u8; BYTES]> {
    let begin = usize::try_from(OFFSET.checked_sub(at)?).ok()?;
    content.get(begin..)?.first_chunk()
}

/// The fields of a superblock that describe the layout. They were checked and are consistent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Superblock {
    /// The length of a block, in bytes: a power of two from 1024 to 65,536.
    pub block_bytes: u32,
    /// The number of blocks.
    pub blocks: u64,
    /// The first block that belongs to a group: 1 for blocks of 1024 bytes without clusters,
    /// otherwise 0.
    pub first_block: u64,
    /// The number of blocks in a group.
    pub blocks_per_group: u32,
    /// The number of clusters in a group, one for each bit of its bitmap.
    group_blocks_max: u32,
    /// The number of blocks in a cluster, the unit of allocation.
    is_clustered: bool,
    /// Whether group descriptors have checksums and count the inodes that were never used.
    pub(super) has_group_checksums: bool,
    /// Whether directories may have more than 2 GiB.
    pub(super) has_large_directories: bool,
    /// The number of inodes.
    pub inodes: u32,
    /// The number of inodes in a group.
    pub inodes_per_group: u32,
    /// The length of an inode in its table, in bytes: a power of two from 128.
    pub inode_bytes: u32,
    /// The length of a group descriptor, in bytes.
    pub descriptor_bytes: u32,
    /// The first block of descriptors that is in its own group; `None` if all blocks of
    /// descriptors are together.
    pub first_meta_group: Option<u32>,
    /// The inode of the internal journal, if there is one.
    pub journal_inode: Option<u32>,
    /// Whether the journal has fast commits. These are not read: their changes are known after the
    /// next full commit.
    pub has_fast_commits: bool,
    /// Whether the journal may have to be replayed.
    pub needs_recovery: bool,
    /// The block of multiple-mount protection, if there is one.
    pub(super) mount_block: Option<u64>,
    /// The groups that have copies of superblock and descriptors.
    sparse: Sparse,
    /// The UUID of the file system.
    pub uuid: [u8; 16],
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Sparse {
    Everywhere,
    PowersOf357,
    Two([u32; 2]),
}

/// The features of a file system that can be read. The old revision has none.
struct Features {
    compat: u32,
    incompat: u32,
    ro_compat: u32,
    /// Whether the revision is not the old one.
    is_dynamic: bool,
}

impl Features {
    fn parse(bytes: &[u8; BYTES]) -> Result<Self, FormatError> {
        // The old revision has no features, so these fields are ignored.
        let is_dynamic = le32(bytes, 76) > 0;
        let field = |at| match is_dynamic {
            true => le32(bytes, at),
            false => 0,
        };
        let features = Self {
            compat: field(92),
            incompat: field(96),
            ro_compat: field(100),
            is_dynamic,
        };
        if features.incompat & INCOMPAT_JOURNAL_DEV != 0 {
            return Err(FormatError::Journal);
        }
        match features.incompat & !INCOMPAT_KNOWN {
            0 => Ok(features),
            unknown => Err(FormatError::Features(unknown)),
        }
    }

    /// The groups that have copies of superblock and descriptors.
    fn sparse(&self, bytes: &[u8; BYTES]) -> Sparse {
        match () {
            () if self.compat & COMPAT_SPARSE_SUPER2 != 0 => {
                Sparse::Two([le32(bytes, 588), le32(bytes, 592)])
            }
            () if self.ro_compat & RO_COMPAT_SPARSE_SUPER != 0 => Sparse::PowersOf357,
            () => Sparse::Everywhere,
        }
    }
}

impl Superblock {
    /// Parses the bytes at offset 1024.
    ///
    /// # Errors
    /// [`FormatError`].
    pub fn parse(bytes: &[u8; BYTES]) -> Result<Self, FormatError> {
        if le16(bytes, 56) != MAGIC {
            return Err(FormatError::Magic);
        }
        let features = Features::parse(bytes)?;
        let is_64bit = features.incompat & INCOMPAT_64BIT != 0;
        let is_clustered = features.ro_compat & RO_COMPAT_BIGALLOC != 0;
        let block_shift = le32(bytes, 24);
        if block_shift > 6 {
            return Err(FormatError::Invalid("the block size"));
        }
        let cluster_shift = le32(bytes, 28);
        if is_clustered && !(block_shift..=30).contains(&cluster_shift) {
            return Err(FormatError::Invalid("the cluster size"));
        }
        let parsed = Self {
            block_bytes: 1024 << block_shift,
            blocks: match is_64bit {
                true => split64(bytes, 4, 336),
                false => le32(bytes, 4).into(),
            },
            first_block: le32(bytes, 20).into(),
            group_blocks_max: match is_clustered {
                // The bitmap has one bit for each cluster.
                true => {
                    ((8 * 1024) << block_shift).min(1 << 18)
                        << (cluster_shift - block_shift).min(10)
                }
                false => (8 * 1024) << block_shift,
            },
            is_clustered,
            has_group_checksums: features.ro_compat
                & (RO_COMPAT_GDT_CSUM | RO_COMPAT_METADATA_CSUM)
                != 0,
            has_large_directories: features.incompat & INCOMPAT_LARGEDIR != 0,
            blocks_per_group: le32(bytes, 32),
            inodes: le32(bytes, 0),
            inodes_per_group: le32(bytes, 40),
            inode_bytes: match features.is_dynamic {
                true => le16(bytes, 88).into(),
                false => 128,
            },
            descriptor_bytes: match is_64bit {
                true => le16(bytes, 254).into(),
                false => 32,
            },
            first_meta_group: (features.incompat & INCOMPAT_META_BG != 0).then(|| le32(bytes, 260)),
            journal_inode: (features.compat & COMPAT_HAS_JOURNAL != 0)
                .then(|| le32(bytes, 224))
                .filter(|inode| *inode != 0),
            has_fast_commits: features.compat & COMPAT_FAST_COMMIT != 0,
            needs_recovery: features.incompat & INCOMPAT_RECOVER != 0,
            mount_block: (features.incompat & INCOMPAT_MMP != 0).then(|| split64(bytes, 360, 364)),
            sparse: features.sparse(bytes),
            uuid: bytes[104..120].try_into().expect("16 bytes"),
        };
        parsed.check()?;
        Ok(parsed)
    }

    fn check(&self) -> Result<(), FormatError> {
        let is = |holds: bool, what| match holds {
            true => Ok(()),
            false => Err(FormatError::Invalid(what)),
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

    /// The block that holds the superblock.
    fn own_block(&self) -> u64 {
        u64::from(self.block_bytes == 1024)
    }

    /// The first block of a group that is available. In the first group this is the block of the
    /// superblock.
    pub(super) fn group_begin(&self, group: u64) -> u64 {
        match group {
            0 => self.own_block(),
            _ => self.first_block + group * u64::from(self.blocks_per_group),
        }
    }

    /// The number of groups.
    #[must_use]
    pub fn groups(&self) -> u64 {
        let blocks = self.blocks - self.first_block;
        blocks.div_ceil(self.blocks_per_group.into())
    }

    /// The number of blocks in a group's inode table.
    #[must_use]
    pub fn table_blocks(&self) -> u32 {
        self.inodes_per_group / self.inodes_per_block()
    }

    /// The number of inodes in a block of a table.
    #[must_use]
    pub fn inodes_per_block(&self) -> u32 {
        self.block_bytes / self.inode_bytes
    }

    /// Whether `other` is the same file system with the same layout.
    #[must_use]
    pub fn is_laid_out_as(&self, other: &Self) -> bool {
        let now = Self {
            needs_recovery: other.needs_recovery,
            ..self.clone()
        };
        now == *other
    }

    /// Whether the file system fits on a disk of `disk_bytes`, and its inode numbers are supported.
    pub(super) fn fits(&self, disk_bytes: u64) -> bool {
        self.blocks <= disk_bytes / u64::from(self.block_bytes) && self.inodes < INODES_MAX
    }

    /// Whether this is the file system `before` after growth: existing structures have the same
    /// positions, and more groups may follow.
    pub(super) fn has_grown_from(&self, before: &Self) -> bool {
        let may_lie_apart = before.first_meta_group.is_none();
        let now = Self {
            blocks: before.blocks,
            inodes: before.inodes,
            // Descriptors without reserved blocks are in their own groups from here on.
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

    /// The number of group descriptors in a block.
    pub(super) fn descriptors_in_block(&self) -> u64 {
        u64::from(self.block_bytes / self.descriptor_bytes)
    }

    /// The number of blocks of descriptors that are together behind the superblock.
    pub(super) fn descriptors_together(&self) -> u64 {
        let own = self.groups().div_ceil(self.descriptors_in_block());
        match self.first_meta_group {
            Some(first) => own.min(first.into()),
            None => own,
        }
    }

    /// The blocks of the superblock, the descriptors, their copies and multiple-mount protection.
    /// Ranges may overlap and may extend beyond the file system.
    pub(super) fn layout(&self) -> Vec<Range<u64>> {
        let in_block = self.descriptors_in_block();
        let own = self.groups().div_ceil(in_block);
        let together = self.descriptors_together();
        let mut layout = Vec::new();
        for group in 0..self.groups() {
            let first = self.group_begin(group);
            if self.has_copy(group) {
                // Groups with descriptors of their own have no copies of the others.
                let copied = match self.first_meta_group {
                    Some(first) if group / in_block >= u64::from(first) => 0,
                    _ => together,
                };
                let end = first + (1 + copied).min(self.blocks_per_group.into());
                layout.push(first..end);
            }
        }
        // A block of descriptors that is in its own group has two copies: it is in the first,
        // the second and the last of its groups.
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
