//! Doubly linked lists through the nodes of an arena. A node may be in one list of every set.
//! Links are numbers of 4 bytes, so that a key costs little.

/// The number of no node.
const NONE: u32 = u32::MAX;

/// A node's neighbors in a list of one set.
#[derive(Debug, Clone, Copy)]
struct Link {
    newer: u32,
    older: u32,
}

#[derive(Debug)]
struct Node<T, const SETS: usize> {
    value: T,
    links: [Link; SETS],
}

/// The nodes of several lists.
#[derive(Debug)]
pub struct Arena<T, const SETS: usize> {
    nodes: Vec<Node<T, SETS>>,
    free: Vec<u32>,
}

impl<T: Copy, const SETS: usize> Default for Arena<T, SETS> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T: Copy, const SETS: usize> Arena<T, SETS> {
    /// An arena without nodes.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            nodes: Vec::new(),
            free: Vec::new(),
        }
    }

    /// Adds a node, which is in no list.
    pub fn add(&mut self, value: T) -> u32 {
        let links = [Link {
            newer: NONE,
            older: NONE,
        }; SETS];
        let node = Node { value, links };
        if let Some(id) = self.free.pop() {
            self.nodes[id as usize] = node;
            return id;
        }
        let id = u32::try_from(self.nodes.len())
            .ok()
            .filter(|id| *id != NONE);
        self.nodes.push(node);
        id.expect("a cache has less than 2^32 keys")
    }

    /// Frees a node that is in no list.
    pub fn release(&mut self, id: u32) -> T {
        self.free.push(id);
        self.nodes[id as usize].value
    }

    /// The value of a node.
    #[must_use]
    pub fn get(&self, id: u32) -> T {
        self.nodes[id as usize].value
    }

    /// The value of a node, to be changed.
    pub fn get_mut(&mut self, id: u32) -> &mut T {
        &mut self.nodes[id as usize].value
    }
}

/// A list of the set `SET`, from its newest node to its oldest.
#[derive(Debug)]
pub struct List<const SET: usize> {
    newest: u32,
    oldest: u32,
    len: usize,
}

impl<const SET: usize> Default for List<SET> {
    fn default() -> Self {
        Self::new()
    }
}

impl<const SET: usize> List<SET> {
    /// An empty list.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            newest: NONE,
            oldest: NONE,
            len: 0,
        }
    }

    /// The number of nodes in the list.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// True if no node is in the list.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The node that was pushed or renewed the longest time ago.
    #[must_use]
    pub fn oldest(&self) -> Option<u32> {
        (self.oldest != NONE).then_some(self.oldest)
    }

    /// Adds a node, which is in no list of this set, as the newest.
    pub fn push<T: Copy, const SETS: usize>(&mut self, arena: &mut Arena<T, SETS>, id: u32) {
        arena.nodes[id as usize].links[SET] = Link {
            newer: NONE,
            older: self.newest,
        };
        match self.newest {
            NONE => self.oldest = id,
            newest => arena.nodes[newest as usize].links[SET].newer = id,
        }
        self.newest = id;
        self.len += 1;
    }

    /// Removes a node of this list.
    pub fn remove<T: Copy, const SETS: usize>(&mut self, arena: &mut Arena<T, SETS>, id: u32) {
        let Link { newer, older } = arena.nodes[id as usize].links[SET];
        match newer {
            NONE => self.newest = older,
            newer => arena.nodes[newer as usize].links[SET].older = older,
        }
        match older {
            NONE => self.oldest = newer,
            older => arena.nodes[older as usize].links[SET].newer = newer,
        }
        self.len -= 1;
    }

    /// Makes a node of this list the newest.
    pub fn renew<T: Copy, const SETS: usize>(&mut self, arena: &mut Arena<T, SETS>, id: u32) {
        if self.newest != id {
            self.remove(arena, id);
            self.push(arena, id);
        }
    }

    /// Removes the oldest node.
    pub fn pop<T: Copy, const SETS: usize>(&mut self, arena: &mut Arena<T, SETS>) -> Option<u32> {
        let oldest = self.oldest()?;
        self.remove(arena, oldest);
        Some(oldest)
    }
}
