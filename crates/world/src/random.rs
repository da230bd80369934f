//! Randomness.

/// Bytes that nobody can guess (in the simulator: that only the seed can).
pub trait Random: Send + Sync {
    /// Fills `bytes`. Running out of randomness is not survivable: the real
    /// one aborts the process rather than returning weak bytes.
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
