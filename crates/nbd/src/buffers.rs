//! The memory of a connection: [`Input`], one buffer for received bytes, and [`Output`], a queue of
//! buffers for bytes to send.
//!
//! All buffers have the same size and come from the thread's pool. A connection without partial
//! messages holds none. The pool returns the buffer that was released last, so a busy thread uses
//! few buffers, which stay in its CPU's cache.

use std::collections::VecDeque;
use std::io::IoSlice;

/// The maximal length of a piece of a request to the device, in bytes.
pub const PIECE_BYTES: usize = 256 << 10;

/// The alignment of data where it can be chosen, in bytes. On most CPUs a copy between addresses
/// that differ slightly within a page is slow.
const DATA_ALIGNMENT: usize = 4096;

/// The length of a buffer, in bytes: a piece, the header before it, its alignment, and space for
/// the requests after it.
pub const BUFFER_BYTES: usize = PIECE_BYTES + 2 * DATA_ALIGNMENT;

/// The maximal number of unused buffers of a thread: 4 MiB, enough for a few busy connections.
const POOL_BUFFERS_MAX: usize = 16;

/// The maximal number of buffers in one send.
const SEND_SLICES_MAX: usize = 16;

/// The unused buffers of a thread.
#[derive(Debug, Default)]
pub struct BufferPool {
    free: Vec<Box<[u8]>>,
}

impl BufferPool {
    /// A buffer of [`BUFFER_BYTES`] with any content.
    fn take(&mut self) -> Box<[u8]> {
        self.free
            .pop()
            .unwrap_or_else(|| vec![0; BUFFER_BYTES].into_boxed_slice())
    }

    fn give(&mut self, buffer: Box<[u8]>) {
        if self.free.len() < POOL_BUFFERS_MAX {
            self.free.push(buffer);
        }
    }
}

/// Received bytes that were not consumed. They are contiguous.
#[derive(Debug, Default)]
pub struct Input {
    buffer: Option<Box<[u8]>>,
    start: usize,
    end: usize,
}

impl Input {
    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        self.buffer
            .as_ref()
            .map_or(&[], |buffer| &buffer[self.start..self.end])
    }

    /// The number of bytes.
    pub fn len(&self) -> usize {
        self.end - self.start
    }

    /// Space to receive into. [`Input::received`] records how much was used.
    pub fn space(&mut self, pool: &mut BufferPool) -> &mut [u8] {
        let buffer = self.buffer.get_or_insert_with(|| pool.take());
        // The rest is the beginning of a request, so the copy is short.
        if self.start > 0 {
            buffer.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        &mut buffer[self.end..]
    }

    /// Records that `count` bytes were received into the space.
    pub fn received(&mut self, count: usize) {
        self.end += count;
        assert!(self.end <= BUFFER_BYTES, "more was received than fits");
    }

    /// Removes the first `count` bytes.
    pub fn consume(&mut self, count: usize) {
        self.start += count;
        assert!(self.start <= self.end, "more is consumed than was received");
    }

    /// Returns the buffer to the pool if it is empty.
    pub fn release(&mut self, pool: &mut BufferPool) {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
            if let Some(buffer) = self.buffer.take() {
                pool.give(buffer);
            }
        }
    }
}

/// The offset at which a header of `head` bytes must begin so that the data after it are aligned.
fn before_alignment(buffer: &[u8], head: usize) -> usize {
    let data = (buffer.as_ptr().addr() + head).next_multiple_of(DATA_ALIGNMENT);
    data - head - buffer.as_ptr().addr()
}

#[derive(Debug)]
struct Chunk {
    buffer: Box<[u8]>,
    start: usize,
    end: usize,
}

/// Bytes to send, in order.
#[derive(Debug, Default)]
pub struct Output {
    chunks: VecDeque<Chunk>,
    bytes: usize,
}

impl Output {
    /// The number of bytes.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Their memory, in bytes: less than twice their length, and one buffer.
    pub fn memory(&self) -> usize {
        self.chunks.len() * BUFFER_BYTES
    }

    /// Space for a header of `head` bytes and `data` bytes, contiguous and after the staged bytes.
    /// [`Output::staged`] records how much was used.
    pub fn space(
        &mut self,
        head: usize,
        data: usize,
        pool: &mut BufferPool,
    ) -> (&mut [u8], &mut [u8]) {
        let fits = |chunk: &Chunk| BUFFER_BYTES - chunk.end >= head + data;
        if !self.chunks.back().is_some_and(fits) {
            let buffer = pool.take();
            let start = before_alignment(&buffer, head);
            self.chunks.push_back(Chunk {
                buffer,
                start,
                end: start,
            });
        }
        let chunk = self.chunks.back_mut().expect("a chunk was added");
        chunk.buffer[chunk.end..chunk.end + head + data].split_at_mut(head)
    }

    /// Records that `count` bytes were staged in the space.
    pub fn staged(&mut self, count: usize) {
        let chunk = self.chunks.back_mut().expect("the space was requested");
        chunk.end += count;
        self.bytes += count;
    }

    /// Stages a copy of bytes, at most [`PIECE_BYTES`].
    pub fn put(&mut self, bytes: &[u8], pool: &mut BufferPool) {
        self.space(0, bytes.len(), pool).1.copy_from_slice(bytes);
        self.staged(bytes.len());
    }

    /// The next bytes to send, and the number of slices in use.
    pub fn slices(&self) -> ([IoSlice<'_>; SEND_SLICES_MAX], usize) {
        let mut slices = [IoSlice::new(&[]); SEND_SLICES_MAX];
        let mut count = 0;
        for (slice, chunk) in slices.iter_mut().zip(&self.chunks) {
            *slice = IoSlice::new(&chunk.buffer[chunk.start..chunk.end]);
            count += 1;
        }
        (slices, count)
    }

    /// Records that the first `count` bytes were sent.
    pub fn sent(&mut self, mut count: usize, pool: &mut BufferPool) {
        self.bytes -= count;
        while let Some(chunk) = self.chunks.front_mut() {
            let here = (chunk.end - chunk.start).min(count);
            chunk.start += here;
            count -= here;
            if chunk.start < chunk.end {
                break;
            }
            let chunk = self.chunks.pop_front().expect("the loop has found it");
            pool.give(chunk.buffer);
        }
        assert!(count == 0, "more was sent than was staged");
    }

    /// Returns the buffer of a space that was not used to the pool.
    pub fn release(&mut self, pool: &mut BufferPool) {
        if self
            .chunks
            .back()
            .is_some_and(|chunk| chunk.start == chunk.end)
        {
            let chunk = self.chunks.pop_back().expect("it was found at the back");
            pool.give(chunk.buffer);
        }
    }

    /// Drops all bytes and returns their buffers to the pool.
    pub fn clear(&mut self, pool: &mut BufferPool) {
        self.bytes = 0;
        for chunk in self.chunks.drain(..) {
            pool.give(chunk.buffer);
        }
    }
}
