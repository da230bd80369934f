//! [`FileList`]: lengths of files, and their distribution by number of blocks.

/// The files with one number of blocks.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Class {
    /// Number of blocks of each file, at least 1.
    pub blocks: u64,
    /// Number of files.
    pub files: u64,
    /// Sum of their lengths, in bytes.
    pub bytes: u128,
}

/// Sorted lengths of files. Empty files reveal nothing and are left out.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FileList {
    lengths: Vec<u64>,
}

impl FromIterator<u64> for FileList {
    /// Creates a list from lengths in bytes.
    fn from_iter<I: IntoIterator<Item = u64>>(lengths: I) -> Self {
        let mut lengths: Vec<u64> = lengths.into_iter().filter(|length| *length > 0).collect();
        lengths.sort_unstable();
        Self { lengths }
    }
}

impl FileList {
    /// The lengths in bytes, ascending and above 0.
    #[must_use]
    pub fn lengths(&self) -> &[u64] {
        &self.lengths
    }

    /// Sum of all lengths, in bytes.
    #[must_use]
    pub fn bytes(&self) -> u128 {
        self.lengths.iter().map(|length| u128::from(*length)).sum()
    }

    /// The files by number of blocks of `block_bytes` (at least 1), ascending. A file begins at the
    /// start of a block, and does not share its last block.
    #[must_use]
    pub fn classes(&self, block_bytes: u64) -> Vec<Class> {
        let block_bytes = block_bytes.max(1);
        let of_one_class =
            |one: &u64, next: &u64| one.div_ceil(block_bytes) == next.div_ceil(block_bytes);
        let class = |lengths: &[u64]| Class {
            blocks: lengths[0].div_ceil(block_bytes),
            files: lengths.len() as u64,
            bytes: lengths.iter().map(|length| u128::from(*length)).sum(),
        };
        self.lengths.chunk_by(of_one_class).map(class).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_counted_by_their_number_of_blocks() {
        let files: FileList = [5000, 0, 4096, 1, 4097, 1 << 40, 8192]
            .into_iter()
            .collect();
        assert_eq!(files.lengths(), [1, 4096, 4097, 5000, 8192, 1 << 40]);
        let class = |blocks, files, bytes| Class {
            blocks,
            files,
            bytes,
        };
        let expected = [
            class(1, 2, 4097),
            class(2, 3, 4097 + 5000 + 8192),
            class(1 << 28, 1, 1 << 40),
        ];
        assert_eq!(files.classes(4096), expected);
        let bytes: u128 = files.classes(8192).iter().map(|class| class.bytes).sum();
        assert_eq!(bytes, files.bytes());
        assert_eq!(FileList::default().classes(4096), []);
    }
}
