//! [`Arc`]: adaptive replacement (Megiddo and Modha, FAST 2003, Fig. 4). One list has the keys
//! that were requested once, the other those requested more often. Each has ghosts: a request for a
//! ghost moves the border between the two.

use cache::policy::links::{Arena, List};
use cache::policy::{Key, Map, Policy};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// T1 of the paper.
    Once,
    /// T2.
    Often,
    /// B1.
    OnceGhost,
    /// B2.
    OftenGhost,
}

#[derive(Debug, Clone, Copy)]
struct Node<K> {
    key: K,
    place: Place,
}

/// A cache with adaptive replacement.
#[derive(Debug)]
pub struct Arc<K> {
    capacity: usize,
    /// Target number of resident keys that were requested once: p of the paper.
    once_target: usize,
    keys: Map<K, u32>,
    nodes: Arena<Node<K>, 1>,
    once: List<0>,
    often: List<0>,
    once_ghosts: List<0>,
    often_ghosts: List<0>,
}

impl<K: Key> Arc<K> {
    /// Creates an empty cache of `capacity` keys, at least 1.
    #[must_use]
    pub fn new(capacity: usize) -> Self {
        Self {
            capacity: capacity.max(1),
            once_target: 0,
            keys: Map::default(),
            nodes: Arena::new(),
            once: List::new(),
            often: List::new(),
            once_ghosts: List::new(),
            often_ghosts: List::new(),
        }
    }

    fn list(&mut self, place: Place) -> (&mut List<0>, &mut Arena<Node<K>, 1>) {
        let list = match place {
            Place::Once => &mut self.once,
            Place::Often => &mut self.often,
            Place::OnceGhost => &mut self.once_ghosts,
            Place::OftenGhost => &mut self.often_ghosts,
        };
        (list, &mut self.nodes)
    }

    fn put(&mut self, id: u32, place: Place) {
        self.nodes.get_mut(id).place = place;
        let (list, nodes) = self.list(place);
        list.push(nodes, id);
    }

    fn take_out(&mut self, id: u32) {
        let place = self.nodes.get(id).place;
        let (list, nodes) = self.list(place);
        list.remove(nodes, id);
    }

    fn forget_oldest(&mut self, place: Place) {
        let (list, nodes) = self.list(place);
        if let Some(id) = list.pop(nodes) {
            let node = self.nodes.release(id);
            self.keys.remove(&node.key);
        }
    }

    /// REPLACE of the paper: one resident key is evicted, and becomes a ghost.
    fn replace(&mut self, comes_from_often: bool, evicted: &mut Vec<K>) {
        let once = self.once.len();
        let is_over = once > self.once_target || comes_from_often && once == self.once_target;
        let is_once = once > 0 && (is_over || self.often.is_empty());
        let (from, to) = match is_once {
            true => (Place::Once, Place::OnceGhost),
            false => (Place::Often, Place::OftenGhost),
        };
        let (list, nodes) = self.list(from);
        let Some(id) = list.pop(nodes) else { return };
        evicted.push(self.nodes.get(id).key);
        self.put(id, to);
    }
}

impl<K: Key> Policy<K> for Arc<K> {
    fn get(&mut self, key: K) -> bool {
        let Some(&id) = self.keys.get(&key) else {
            return false;
        };
        let is_resident = matches!(self.nodes.get(id).place, Place::Once | Place::Often);
        if is_resident {
            self.take_out(id);
            self.put(id, Place::Often);
        }
        is_resident
    }

    fn insert(&mut self, key: K, evicted: &mut Vec<K>) {
        let found = self.keys.get(&key).copied();
        let (once_ghosts, often_ghosts) = (self.once_ghosts.len(), self.often_ghosts.len());
        match found.map(|id| (id, self.nodes.get(id).place)) {
            Some((_, Place::Once | Place::Often)) => {}
            Some((id, place)) => {
                let is_often = place == Place::OftenGhost;
                self.once_target = match is_often {
                    false => {
                        let step = (often_ghosts / once_ghosts.max(1)).max(1);
                        (self.once_target + step).min(self.capacity)
                    }
                    true => {
                        let step = (once_ghosts / often_ghosts.max(1)).max(1);
                        self.once_target.saturating_sub(step)
                    }
                };
                if self.len() >= self.capacity {
                    self.replace(is_often, evicted);
                }
                self.take_out(id);
                self.put(id, Place::Often);
            }
            None => {
                let recent = self.once.len() + once_ghosts;
                let all = self.len() + once_ghosts + often_ghosts;
                if recent >= self.capacity && once_ghosts > 0 {
                    self.forget_oldest(Place::OnceGhost);
                } else if recent < self.capacity && all >= 2 * self.capacity {
                    self.forget_oldest(Place::OftenGhost);
                }
                if self.len() >= self.capacity {
                    self.replace(false, evicted);
                }
                if self.once.len() + self.once_ghosts.len() >= self.capacity {
                    // All keys were resident: the evicted one leaves no ghost.
                    self.forget_oldest(Place::OnceGhost);
                }
                let id = self.nodes.add(Node {
                    key,
                    place: Place::Once,
                });
                self.keys.insert(key, id);
                self.put(id, Place::Once);
            }
        }
    }

    fn remove(&mut self, key: K) -> bool {
        let Some(id) = self.keys.remove(&key) else {
            return false;
        };
        self.take_out(id);
        let node = self.nodes.release(id);
        matches!(node.place, Place::Once | Place::Often)
    }

    fn contains(&self, key: K) -> bool {
        let id = self.keys.get(&key);
        id.is_some_and(|id| matches!(self.nodes.get(*id).place, Place::Once | Place::Often))
    }

    fn len(&self) -> usize {
        self.once.len() + self.often.len()
    }

    fn capacity(&self) -> usize {
        self.capacity
    }

    fn resize(&mut self, capacity: usize, evicted: &mut Vec<K>) {
        self.capacity = capacity.max(1);
        self.once_target = self.once_target.min(self.capacity);
        while self.len() > self.capacity {
            self.replace(false, evicted);
        }
        while self.once.len() + self.once_ghosts.len() > self.capacity
            && !self.once_ghosts.is_empty()
        {
            self.forget_oldest(Place::OnceGhost);
        }
        while self.keys.len() > 2 * self.capacity && !self.often_ghosts.is_empty() {
            self.forget_oldest(Place::OftenGhost);
        }
    }
}
