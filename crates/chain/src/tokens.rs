//! [`Tokens`]: the tokens of a filter's requests below, with the purpose of each request.
//!
//! ```text
//!  55               24 23                    0
//!  │ generation       │ index of the slot     │
//! ```
//!
//! A slot is used again under the next generation, so a late completion finds nothing.

use base::Token;

/// The number of bits of a token's slot index, of 56.
const INDEX_BITS: u32 = 24;

/// The purpose of each pending request below.
#[derive(Debug)]
pub(crate) struct Tokens<T> {
    slots: Vec<Slot<T>>,
    free: Vec<u32>,
}

#[derive(Debug)]
struct Slot<T> {
    generation: u32,
    purpose: Option<T>,
}

impl<T> Default for Tokens<T> {
    fn default() -> Self {
        Self {
            slots: Vec::new(),
            free: Vec::new(),
        }
    }
}

impl<T> Tokens<T> {
    /// The token that the next [`Tokens::insert`] will use.
    pub fn next(&mut self) -> Token {
        let index = match self.free.last() {
            Some(index) => *index,
            None => {
                let index = self.slots.len() as u32;
                assert!(
                    index < 1 << INDEX_BITS,
                    "servers bound the number of pending requests"
                );
                self.slots.push(Slot {
                    generation: 0,
                    purpose: None,
                });
                self.free.push(index);
                index
            }
        };
        let generation = self.slots[index as usize].generation;
        u64::from(generation) << INDEX_BITS | u64::from(index)
    }

    /// Records a request that was started with the token of [`Tokens::next`].
    pub fn insert(&mut self, purpose: T) {
        let index = self.free.pop().expect("next() was called before");
        self.slots[index as usize].purpose = Some(purpose);
    }

    /// Records a request that is about to start, and returns its token.
    pub fn add(&mut self, purpose: T) -> Token {
        let token = self.next();
        self.insert(purpose);
        token
    }

    /// Removes a request that has completed; `None` if none has this token.
    pub fn take(&mut self, token: Token) -> Option<T> {
        let index = (token & ((1 << INDEX_BITS) - 1)) as u32;
        let found = self.slots.get_mut(index as usize)?;
        if u64::from(found.generation) != token >> INDEX_BITS {
            return None;
        }
        let purpose = found.purpose.take()?;
        found.generation = found.generation.wrapping_add(1);
        self.free.push(index);
        Some(purpose)
    }

    /// The purpose of a pending request.
    pub fn get_mut(&mut self, token: Token) -> Option<&mut T> {
        let index = (token & ((1 << INDEX_BITS) - 1)) as usize;
        let found = self.slots.get_mut(index)?;
        let is_current = u64::from(found.generation) == token >> INDEX_BITS;
        found.purpose.as_mut().filter(|_| is_current)
    }

    /// Whether no request is pending.
    pub fn is_empty(&self) -> bool {
        self.slots.len() == self.free.len()
    }

    /// The purposes of all pending requests.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.slots.iter().filter_map(|slot| slot.purpose.as_ref())
    }

    /// The purposes of all pending requests, mutable.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.slots
            .iter_mut()
            .filter_map(|slot| slot.purpose.as_mut())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_belongs_to_one_request_only() {
        let mut tokens = Tokens::default();
        let first = tokens.next();
        assert_eq!(tokens.next(), first, "no request was started with it");
        tokens.insert("a");
        let second = tokens.next();
        tokens.insert("b");
        assert_eq!(tokens.take(first), Some("a"));
        assert_eq!(tokens.take(first), None, "once");
        let third = tokens.next();
        assert!(third != first && third != second);
        tokens.insert("c");
        assert_eq!(tokens.iter_mut().count(), 2);
        assert_eq!(
            (tokens.take(third), tokens.take(second)),
            (Some("c"), Some("b"))
        );
        assert_eq!(tokens.take(99), None);
    }
}
