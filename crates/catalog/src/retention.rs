//! Retention: which automatic versions to drop. Decided purely, carried out elsewhere.

use world::Millis;

use crate::VersionKey;

/// How many automatic versions are kept, and how long. A version expires as soon
/// as it exceeds either limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retention {
    /// The number of newest versions that are kept, not counting the head.
    pub count_max: usize,
    /// The age, in milliseconds, above which a version expires.
    pub age_max_ms: i64,
}

impl Default for Retention {
    /// Sixteen versions, for a day: what a busy VM overwrote in the last 800 MiB can be
    /// undone, and no more space than that is held.
    fn default() -> Self {
        Self {
            count_max: 16,
            age_max_ms: 24 * 60 * 60 * 1000,
        }
    }
}

/// The attributes of a kept version that retention depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VersionInfo {
    /// The version's key.
    pub key: VersionKey,
    /// When it was committed.
    pub created: Millis,
    /// A head or a snapshot needs it.
    pub needed: bool,
}

/// The versions of one volume that have expired, oldest first.
#[must_use]
pub fn expired(now: Millis, versions: &[VersionInfo], retention: &Retention) -> Vec<VersionKey> {
    let mut automatic: Vec<&VersionInfo> =
        versions.iter().filter(|version| !version.needed).collect();
    automatic.sort_unstable_by_key(|version| std::cmp::Reverse(version.key.number));
    let mut expired: Vec<VersionKey> = automatic
        .iter()
        .enumerate()
        .filter(|(rank, version)| {
            let age_ms = now.0.saturating_sub(version.created.0);
            *rank >= retention.count_max || age_ms > retention.age_max_ms
        })
        .map(|(_, version)| version.key)
        .collect();
    expired.reverse();
    expired
}

#[cfg(test)]
mod tests {
    use base::VolumeId;

    use super::*;

    fn version(number: u64, created: i64, needed: bool) -> VersionInfo {
        let key = VersionKey {
            volume: VolumeId::from_u128(1),
            number,
        };
        VersionInfo {
            key,
            created: Millis(created),
            needed,
        }
    }

    #[test]
    fn excess_and_old_versions_expire_and_needed_ones_stay() {
        let versions: Vec<_> = (1..=6)
            .map(|number| {
                version(
                    number,
                    number.cast_signed() * 100,
                    number == 2 || number == 6,
                )
            })
            .collect();
        let numbers = |now, count_max, age_max_ms| -> Vec<u64> {
            let retention = Retention {
                count_max,
                age_max_ms,
            };
            let expired = expired(Millis(now), &versions, &retention);
            expired.into_iter().map(|key| key.number).collect()
        };
        assert_eq!(numbers(600, 10, 1000), [0; 0]);
        assert_eq!(numbers(600, 2, 1000), [1, 3]);
        assert_eq!(numbers(600, 10, 250), [1, 3]);
        assert_eq!(numbers(600, 0, 1000), [1, 3, 4, 5]);
        assert_eq!(
            numbers(-5, 10, 1000),
            [0; 0],
            "a clock that went back drops nothing"
        );
    }
}
