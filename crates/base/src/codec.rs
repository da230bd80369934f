//! A little-endian codec for structures on disks and wires.
//!
//! [`Reader`] never panics: an input that is too short gives an [`OutOfBytes`] error.

/// The input ends before the end of the requested field.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the structure ends at byte {length}, inside a field that begins at {position}")]
pub struct OutOfBytes {
    /// Where the field begins, in bytes from the start of the input.
    pub position: usize,
    /// Length of the whole input, in bytes.
    pub length: usize,
}

/// Reads fields from the front of a byte slice.
#[derive(Debug, Clone)]
pub struct Reader<'a> {
    bytes: &'a [u8],
    position: usize,
}

impl<'a> Reader<'a> {
    /// A reader at the first byte of `bytes`.
    #[must_use]
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, position: 0 }
    }

    /// The next `count` bytes.
    ///
    /// # Errors
    /// [`OutOfBytes`] if fewer are left.
    pub fn bytes(&mut self, count: usize) -> Result<&'a [u8], OutOfBytes> {
        let field = self
            .bytes
            .get(self.position..)
            .and_then(|rest| rest.get(..count))
            .ok_or(OutOfBytes {
                position: self.position,
                length: self.bytes.len(),
            })?;
        self.position += count;
        Ok(field)
    }

    /// The next `N` bytes as an array.
    ///
    /// # Errors
    /// [`OutOfBytes`] if fewer are left.
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], OutOfBytes> {
        let mut array = [0; N];
        array.copy_from_slice(self.bytes(N)?);
        Ok(array)
    }

    /// An unsigned byte.
    ///
    /// # Errors
    /// [`OutOfBytes`] at the end of the input.
    pub fn u8(&mut self) -> Result<u8, OutOfBytes> {
        Ok(u8::from_le_bytes(self.array()?))
    }

    /// A 16-bit little-endian number.
    ///
    /// # Errors
    /// [`OutOfBytes`] at the end of the input.
    pub fn u16(&mut self) -> Result<u16, OutOfBytes> {
        Ok(u16::from_le_bytes(self.array()?))
    }

    /// A 32-bit little-endian number.
    ///
    /// # Errors
    /// [`OutOfBytes`] at the end of the input.
    pub fn u32(&mut self) -> Result<u32, OutOfBytes> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    /// A 64-bit little-endian number.
    ///
    /// # Errors
    /// [`OutOfBytes`] at the end of the input.
    pub fn u64(&mut self) -> Result<u64, OutOfBytes> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    /// A 128-bit little-endian number.
    ///
    /// # Errors
    /// [`OutOfBytes`] at the end of the input.
    pub fn u128(&mut self) -> Result<u128, OutOfBytes> {
        Ok(u128::from_le_bytes(self.array()?))
    }

    /// The number of bytes that have not been read yet.
    #[must_use]
    pub fn remaining(&self) -> usize {
        self.bytes.len() - self.position
    }
}

/// Appends fields to a byte vector, in the order and width [`Reader`] reads.
pub trait Writer {
    /// Appends raw bytes.
    fn put_bytes(&mut self, bytes: &[u8]);

    /// Appends one byte.
    fn put_u8(&mut self, value: u8) {
        self.put_bytes(&value.to_le_bytes());
    }
    /// Appends a 16-bit number.
    fn put_u16(&mut self, value: u16) {
        self.put_bytes(&value.to_le_bytes());
    }
    /// Appends a 32-bit number.
    fn put_u32(&mut self, value: u32) {
        self.put_bytes(&value.to_le_bytes());
    }
    /// Appends a 64-bit number.
    fn put_u64(&mut self, value: u64) {
        self.put_bytes(&value.to_le_bytes());
    }
    /// Appends a 128-bit number.
    fn put_u128(&mut self, value: u128) {
        self.put_bytes(&value.to_le_bytes());
    }
}

impl Writer for Vec<u8> {
    fn put_bytes(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_read_back_as_they_were_written() {
        let mut bytes = Vec::new();
        bytes.put_u8(1);
        bytes.put_u16(2);
        bytes.put_u32(3);
        bytes.put_u64(4);
        bytes.put_u128(5);
        bytes.put_bytes(b"end");
        let mut reader = Reader::new(&bytes);
        assert_eq!(reader.u8(), Ok(1));
        assert_eq!(reader.u16(), Ok(2));
        assert_eq!(reader.u32(), Ok(3));
        assert_eq!(reader.u64(), Ok(4));
        assert_eq!(reader.u128(), Ok(5));
        assert_eq!(reader.bytes(3), Ok(&b"end"[..]));
        assert_eq!(reader.remaining(), 0);
    }

    #[test]
    fn an_input_that_is_too_short_gives_an_error_with_the_position_of_the_field() {
        let mut reader = Reader::new(&[1, 2, 3, 4, 5]);
        assert_eq!(reader.u32(), Ok(0x0403_0201));
        assert_eq!(
            reader.u16(),
            Err(OutOfBytes {
                position: 4,
                length: 5
            })
        );
        assert_eq!(
            reader.bytes(usize::MAX),
            Err(OutOfBytes {
                position: 4,
                length: 5
            })
        );
        assert_eq!(reader.u8(), Ok(5), "a failed read consumes nothing");
    }
}
