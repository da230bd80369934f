//! The memory of a connection: one buffer for what was received, and a queue
//! of buffers for what is to be sent.
//!
//! All buffers have one size and come from the thread's pool; a connection
//! that has nothing half done holds none. The pool hands out the buffer that
//! came back last, so a busy thread works in a few that stay in its CPU's
//! cache.

use std::collections::VecDeque;
use std::io::IoSlice;

/// The longest piece in which a payload goes to the device.
pub const PIECE_BYTES: usize = 256 << 10;

/// Data begin at such an address where that can be chosen: a copy between
/// addresses that differ a little within a page is slow on most CPUs.
const DATA_ALIGNMENT: usize = 4096;

/// A piece, the header before it, what aligns it, and room for the requests
/// behind it.
pub const BUFFER_BYTES: usize = PIECE_BYTES + 2 * DATA_ALIGNMENT;

/// How many unused buffers a thread keeps: 4 MiB, enough for a few busy
/// connections.
const POOL_BUFFERS_MAX: usize = 16;

/// How many buffers one send covers.
const SEND_SLICES_MAX: usize = 16;

/// Buffers not in use.
#[derive(Debug, Default)]
pub struct BufferPool {
    free: Vec<Box<[u8]>>,
}

impl BufferPool {
    /// A buffer of [`BUFFER_BYTES`]. Its content is of no meaning.
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

/// Bytes received and not consumed yet, always contiguous.
#[derive(Debug, Default)]
pub struct Input {
    buffer: Option<Box<[u8]>>,
    start: usize,
    end: usize,
}

impl Input {
    /// The bytes there are.
    pub fn bytes(&self) -> &[u8] {
        self.buffer
            .as_ref()
            .map_or(&[], |buffer| &buffer[self.start..self.end])
    }

    /// How many bytes there are.
    pub fn len(&self) -> usize {
        self.end - self.start
    }

    /// Room to receive into; tell [`Input::received`] how much was used.
    pub fn space(&mut self, pool: &mut BufferPool) -> &mut [u8] {
        let buffer = self.buffer.get_or_insert_with(|| pool.take());
        // What is left over is the beginning of a request, so little is moved.
        if self.start > 0 {
            buffer.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        &mut buffer[self.end..]
    }

    /// `count` more bytes are in the space.
    pub fn received(&mut self, count: usize) {
        self.end += count;
        assert!(
            self.end <= BUFFER_BYTES,
            "more was received than there was room"
        );
    }

    /// Forgets the first `count` bytes.
    pub fn consume(&mut self, count: usize) {
        self.start += count;
        assert!(self.start <= self.end, "more is consumed than there is");
    }

    /// Gives an empty buffer back.
    pub fn release(&mut self, pool: &mut BufferPool) {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
            if let Some(buffer) = self.buffer.take() {
                pool.give(buffer);
            }
        }
    }
}

/// Where a header of `head` bytes must begin for what follows to be aligned.
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

/// Bytes to be sent, in order.
#[derive(Debug, Default)]
pub struct Output {
    chunks: VecDeque<Chunk>,
    bytes: usize,
}

impl Output {
    /// How many bytes wait.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Whether none waits.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// How much memory they take: less than twice their length, and a buffer.
    pub fn memory(&self) -> usize {
        self.chunks.len() * BUFFER_BYTES
    }

    /// Room for a header of `head` bytes and for `data` bytes, contiguous and
    /// behind those that wait. They count once [`Output::staged`] is told of
    /// them.
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
        let chunk = self.chunks.back_mut().expect("there is one now");
        chunk.buffer[chunk.end..chunk.end + head + data].split_at_mut(head)
    }

    /// The first `count` bytes of the space are to be sent.
    pub fn staged(&mut self, count: usize) {
        let chunk = self.chunks.back_mut().expect("a space was asked for");
        chunk.end += count;
        self.bytes += count;
    }

    /// Adds bytes, at most [`PIECE_BYTES`].
    pub fn put(&mut self, bytes: &[u8], pool: &mut BufferPool) {
        self.space(0, bytes.len(), pool).1.copy_from_slice(bytes);
        self.staged(bytes.len());
    }

    /// The bytes at the front, as far as one send takes them, in the first
    /// so many slices.
    pub fn slices(&self) -> ([IoSlice<'_>; SEND_SLICES_MAX], usize) {
        let mut slices = [IoSlice::new(&[]); SEND_SLICES_MAX];
        let mut count = 0;
        for (slice, chunk) in slices.iter_mut().zip(&self.chunks) {
            *slice = IoSlice::new(&chunk.buffer[chunk.start..chunk.end]);
            count += 1;
        }
        (slices, count)
    }

    /// The first `count` bytes were sent.
    pub fn sent(&mut self, mut count: usize, pool: &mut BufferPool) {
        self.bytes -= count;
        while let Some(chunk) = self.chunks.front_mut() {
            let here = (chunk.end - chunk.start).min(count);
            chunk.start += here;
            count -= here;
            if chunk.start < chunk.end {
                break;
            }
            let chunk = self.chunks.pop_front().expect("it was in front");
            pool.give(chunk.buffer);
        }
        assert!(count == 0, "more was sent than there was");
    }

    /// Gives back the buffer of a space that was not used.
    pub fn release(&mut self, pool: &mut BufferPool) {
        if self
            .chunks
            .back()
            .is_some_and(|chunk| chunk.start == chunk.end)
        {
            let chunk = self.chunks.pop_back().expect("it was at the back");
            pool.give(chunk.buffer);
        }
    }

    /// Gives all buffers back, sent or not.
    pub fn clear(&mut self, pool: &mut BufferPool) {
        self.bytes = 0;
        for chunk in self.chunks.drain(..) {
            pool.give(chunk.buffer);
        }
    }
}
