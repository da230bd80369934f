//! [`Random`]: random bytes.

/// A source of random bytes, unpredictable in the real world and determined by the seed in the
/// simulator.
pub trait Random: Send + Sync {
    /// Fills `bytes`. If the real source fails, the process aborts rather than use weak bytes.
    fn fill(&self, bytes: &mut [u8]);

    /// A random number of 64 bits.
    fn u64(&self) -> u64 {
        let mut bytes = [0; 8];
        self.fill(&mut bytes);
        u64::from_le_bytes(bytes)
    }

    /// A random number of 128 bits.
    fn u128(&self) -> u128 {
        let mut bytes = [0; 16];
        self.fill(&mut bytes);
        u128::from_le_bytes(bytes)
    }
}
