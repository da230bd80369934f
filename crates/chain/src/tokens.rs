//! [`Tokens`]: what a filter asks below with, and what each of its requests is for.

use base::Token;

/// Of a token's 56 bits so many are the place; the others tell those apart that had it.
const PLACE_BITS: u32 = 24;

/// What each request below is for.
#[derive(Debug)]
pub(crate) struct Tokens<T> {
    places: Vec<Place<T>>,
    free: Vec<u32>,
}

#[derive(Debug)]
struct Place<T> {
    generation: u32,
    what: Option<T>,
}

impl<T> Default for Tokens<T> {
    fn default() -> Self {
        Self {
            places: Vec::new(),
            free: Vec::new(),
        }
    }
}

impl<T> Tokens<T> {
    /// The token that [`Tokens::insert`] gives next.
    pub fn next(&mut self) -> Token {
        let place = match self.free.last() {
            Some(place) => *place,
            None => {
                let place = self.places.len() as u32;
                assert!(place < 1 << PLACE_BITS, "frontends bound what is under way");
                self.places.push(Place {
                    generation: 0,
                    what: None,
                });
                self.free.push(place);
                place
            }
        };
        let generation = self.places[place as usize].generation;
        u64::from(generation) << PLACE_BITS | u64::from(place)
    }

    /// A request is under way, with the token that was the next one.
    pub fn insert(&mut self, what: T) {
        let place = self.free.pop().expect("its token was asked for");
        self.places[place as usize].what = Some(what);
    }

    /// A request is about to begin, with the token that is returned.
    pub fn add(&mut self, what: T) -> Token {
        let token = self.next();
        self.insert(what);
        token
    }

    /// It has ended; `None` if there is none with this token.
    pub fn take(&mut self, token: Token) -> Option<T> {
        let place = (token & ((1 << PLACE_BITS) - 1)) as u32;
        let found = self.places.get_mut(place as usize)?;
        if u64::from(found.generation) != token >> PLACE_BITS {
            return None;
        }
        let what = found.what.take()?;
        found.generation = found.generation.wrapping_add(1);
        self.free.push(place);
        Some(what)
    }

    /// What a request that is under way is for.
    pub fn get_mut(&mut self, token: Token) -> Option<&mut T> {
        let place = (token & ((1 << PLACE_BITS) - 1)) as usize;
        let found = self.places.get_mut(place)?;
        let is_it = u64::from(found.generation) == token >> PLACE_BITS;
        found.what.as_mut().filter(|_| is_it)
    }

    /// Whether none is under way.
    pub fn is_empty(&self) -> bool {
        self.places.len() == self.free.len()
    }

    /// Those that are under way.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.places.iter().filter_map(|place| place.what.as_ref())
    }

    /// The same, to be changed.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.places
            .iter_mut()
            .filter_map(|place| place.what.as_mut())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_one_requests_only() {
        let mut tokens = Tokens::default();
        let first = tokens.next();
        assert_eq!(tokens.next(), first, "nothing was begun with it");
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
