//! [`PageBuffer`]: memory that a device can read from directly.

use std::ops::{Deref, DerefMut};

/// The size and alignment of a page of memory, in bytes.
const PAGE_BYTES: usize = 4096;

#[derive(Clone, Copy)]
#[repr(C, align(4096))]
struct MemoryPage([u8; PAGE_BYTES]);

/// A buffer that begins on a page boundary, for [`crate::File::write_bulk`].
#[derive(Default)]
pub struct PageBuffer {
    pages: Vec<MemoryPage>,
    length: usize,
}

impl PageBuffer {
    /// Sets the length, in bytes. Existing bytes are kept. New bytes are zero, or what the buffer
    /// held there before it was made shorter.
    pub fn resize(&mut self, length: usize) {
        let pages = length.div_ceil(PAGE_BYTES);
        if pages > self.pages.len() {
            self.pages.resize(pages, MemoryPage([0; PAGE_BYTES]));
        }
        self.length = length;
    }
}

impl Deref for PageBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the pages are `repr(C)` arrays of bytes without padding, contiguous in one
        // allocation, and at least `length` bytes long in total.
        unsafe { std::slice::from_raw_parts(self.pages.as_ptr().cast(), self.length) }
    }
}

impl DerefMut for PageBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and `self` is borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.pages.as_mut_ptr().cast(), self.length) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_buffer_begins_on_a_page_and_keeps_its_bytes() {
        let mut buffer = PageBuffer::default();
        assert!(buffer.is_empty());
        buffer.resize(10);
        buffer.fill(7);
        buffer.resize(5000);
        assert_eq!(buffer.len(), 5000);
        assert!(buffer.as_ptr().addr().is_multiple_of(PAGE_BYTES));
        assert_eq!((buffer[9], buffer[10], buffer[4999]), (7, 0, 0));
    }
}
