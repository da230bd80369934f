//! [`Slab`]: a table whose keys are never reused. A key consists of an index and a generation, so
//! the key of a removed value finds nothing.

/// The key of a value, in 56 bits; never 2^56 - 1.
pub type Key = u64;

/// Values by key. Adding and removing take constant time.
#[derive(Debug)]
pub struct Slab<T> {
    entries: Vec<Entry<T>>,
    free: Vec<u32>,
    count: usize,
}

#[derive(Debug)]
struct Entry<T> {
    /// The number of values that were removed from this entry.
    generation: u32,
    value: Option<T>,
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Self {
            entries: Vec::new(),
            free: Vec::new(),
            count: 0,
        }
    }
}

/// The number of bits of a key that hold the index; the other 32 hold the generation.
const INDEX_BITS: u32 = 24;

/// The maximal number of entries. The last index is not used.
const ENTRIES_MAX: usize = (1 << INDEX_BITS) - 1;

fn key(generation: u32, index: usize) -> Key {
    u64::from(generation) << INDEX_BITS | index as u64
}

impl<T> Slab<T> {
    /// The key that the next [`Slab::insert`] will return.
    pub fn next_key(&self) -> Key {
        match self.free.last() {
            Some(&index) => key(self.entries[index as usize].generation, index as usize),
            None => key(0, self.entries.len()),
        }
    }

    /// Adds `value`.
    pub fn insert(&mut self, value: T) -> Key {
        let next = self.next_key();
        assert!(self.entries.len() < ENTRIES_MAX, "requests are bounded");
        match self.free.pop() {
            Some(index) => self.entries[index as usize].value = Some(value),
            None => self.entries.push(Entry {
                generation: 0,
                value: Some(value),
            }),
        }
        self.count += 1;
        next
    }

    fn entry(&self, wanted: Key) -> Option<usize> {
        let index = (wanted & ((1 << INDEX_BITS) - 1)) as usize;
        let entry = self.entries.get(index)?;
        (key(entry.generation, index) == wanted).then_some(index)
    }

    /// The value under `wanted`.
    pub fn get(&self, wanted: Key) -> Option<&T> {
        self.entry(wanted)
            .and_then(|index| self.entries[index].value.as_ref())
    }

    /// The value under `wanted`.
    pub fn get_mut(&mut self, wanted: Key) -> Option<&mut T> {
        self.entry(wanted)
            .and_then(|index| self.entries[index].value.as_mut())
    }

    /// Removes the value under `wanted`.
    pub fn remove(&mut self, wanted: Key) -> Option<T> {
        let index = self.entry(wanted)?;
        let entry = &mut self.entries[index];
        let value = entry.value.take()?;
        entry.generation = entry.generation.wrapping_add(1);
        self.free.push(index as u32);
        self.count -= 1;
        Some(value)
    }

    /// The keys of all values.
    pub fn keys(&self) -> impl Iterator<Item = Key> + '_ {
        let taken = |(index, entry): (usize, &Entry<T>)| {
            entry.value.as_ref().map(|_| key(entry.generation, index))
        };
        self.entries.iter().enumerate().filter_map(taken)
    }

    /// All values.
    pub fn values(&self) -> impl Iterator<Item = &T> + '_ {
        self.entries.iter().filter_map(|entry| entry.value.as_ref())
    }

    /// The number of values.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether there are no values.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_key_of_a_removed_value_finds_nothing() {
        let mut slab = Slab::default();
        let expected = slab.next_key();
        let first = slab.insert('a');
        assert_eq!(first, expected);
        assert_eq!(slab.remove(first), Some('a'));
        let expected = slab.next_key();
        let second = slab.insert('b');
        assert_eq!(second, expected);
        assert_ne!(first, second, "the index is reused with another generation");
        assert_eq!(slab.get(first), None);
        assert_eq!(slab.remove(first), None);
        assert_eq!(slab.get(second), Some(&'b'));
        assert_eq!(slab.keys().collect::<Vec<_>>(), [second]);
        assert_eq!(slab.len(), 1);
    }
}
