//! [`estimate`]: the mean leakage of a list of files (HVSTO equations 1 to 3).

use super::files::Class;
use super::shares::Shares;

/// The mean leakage over all choices of compromised units and placements. Encrypted blocks leak
/// nothing.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Estimate {
    /// Files that are completely readable.
    pub files: f64,
    /// Sum of their lengths in bytes: the paper's P.
    pub bytes: f64,
    /// Files with at least one readable block.
    pub files_in_part: f64,
    /// Readable bytes of all files.
    pub bytes_in_part: f64,
    /// Number of all files.
    pub files_all: u64,
    /// Sum of the lengths of all files, in bytes.
    pub bytes_all: u128,
}

impl Estimate {
    /// Part of all bytes that is in completely readable files, from 0 to 1: the paper's leakage
    /// ratio. 0 without files.
    #[must_use]
    pub fn ratio(&self) -> f64 {
        match self.bytes_all {
            0 => 0.0,
            all => self.bytes / all as f64,
        }
    }
}

/// The mean leakage of files, by the readable shares of their blocks.
#[must_use]
pub fn estimate(classes: &[Class], shares: &Shares) -> Estimate {
    let mut found = Estimate::default();
    let of_block = shares.leaks(1);
    for class in classes {
        let (files, bytes) = (class.files as f64, class.bytes as f64);
        let leaks = shares.leaks(class.blocks);
        found.files += leaks * files;
        found.bytes += leaks * bytes;
        found.files_in_part += shares.leaks_some(class.blocks) * files;
        found.bytes_in_part += of_block * bytes;
        found.files_all += class.files;
        found.bytes_all += class.bytes;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::super::{FileList, Placement, Redundancy, Sets, Striping};
    use super::*;

    /// Counts all placements of all blocks, with one compromised set, which stands for any by
    /// symmetry.
    #[test]
    fn estimates_equal_the_count_of_all_cases() {
        let files: FileList = [100, 4096, 5000, 9000].into_iter().collect();
        let (units, compromised) = (4_u32, 3_u32);
        let placement = Placement {
            units,
            redundancy: Redundancy::Copies(1),
            sets: Sets::Any,
            striping: Striping::default(),
        };
        let shares = placement.shares(compromised).expect("a valid placement");
        let found = estimate(&files.classes(4096), &shares);
        // 1, 1, 2 and 3 blocks.
        let (mut whole, mut bytes, mut part, mut read) = (0, 0, 0, 0);
        let cases = units.pow(7);
        for case in 0..cases {
            let mut places = (0..7).map(|block| case / units.pow(block) % units < compromised);
            for length in files.lengths() {
                let blocks: Vec<bool> = places
                    .by_ref()
                    .take(length.div_ceil(4096) as usize)
                    .collect();
                whole += u64::from(blocks.iter().all(|is_read| *is_read));
                part += u64::from(blocks.iter().any(|is_read| *is_read));
                bytes += u64::from(blocks.iter().all(|is_read| *is_read)) * length;
                for (index, _) in (0..).zip(&blocks).filter(|(_, is_read)| **is_read) {
                    read += (length - index * 4096).min(4096);
                }
            }
        }
        let mean = |sum: u64| sum as f64 / f64::from(cases);
        for (found, counted) in [
            (found.files, whole),
            (found.bytes, bytes),
            (found.files_in_part, part),
            (found.bytes_in_part, read),
        ] {
            assert!(
                (found - mean(counted)).abs() < 1e-9 * found,
                "{found} {}",
                mean(counted)
            );
        }
        assert_eq!((found.files_all, found.bytes_all), (4, 18_196));
        assert!((found.ratio() - found.bytes / 18_196.0).abs() < 1e-12);
        assert_eq!(estimate(&[], &shares).ratio(), 0.0);
    }
}
