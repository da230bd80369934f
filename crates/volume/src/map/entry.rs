//! [`Entry`]: where a sealed piece is and when it was written.

use base::codec::{OutOfBytes, Reader, Writer};
use base::{Location, Sequence};

/// Where a block or page is, and the sequence that its seal must have.
///
/// ```text
///  0│ location: copyset 12 bits │ segment 36 │ slot 16 │
///  8│ sequence: epoch 24 bits   │ counter 40           │
/// ```
///
/// A hole is sixteen zero bytes; segment serials begin at 1, so no entry is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Entry {
    /// Where it is.
    pub location: Location,
    /// The sequence of its write: the nonce of its seal.
    pub sequence: Sequence,
}

/// Size of an entry in bytes.
pub const ENTRY_BYTES: usize = 16;

impl Entry {
    /// Reads an entry, or a hole.
    ///
    /// # Errors
    /// [`OutOfBytes`].
    pub fn read(reader: &mut Reader<'_>) -> Result<Option<Self>, OutOfBytes> {
        let location = reader.u64()?;
        let sequence = Sequence::from_bits(reader.u64()?);
        Ok((location != 0).then(|| Self {
            location: Location::from_bits(location),
            sequence,
        }))
    }

    /// Writes an entry, or a hole.
    pub fn write(entry: Option<Self>, bytes: &mut impl Writer) {
        let (location, sequence) = entry.map_or((0, 0), |entry| {
            (entry.location.bits(), entry.sequence.bits())
        });
        bytes.put_u64(location);
        bytes.put_u64(sequence);
    }
}
