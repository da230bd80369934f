//! LIRS as its paper describes it, with lists that are searched completely. [`Lirs`](super::Lirs)
//! is compared with it.

/// A key's entry in the stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Lir,
    HirResident,
    HirNonResident,
}

#[derive(Debug)]
pub struct Reference {
    pub capacity: usize,
    /// The top first.
    stack: Vec<(u64, State)>,
    /// The front first, which is evicted next.
    queue: Vec<u64>,
    /// Keys of the stack that are not resident, in the order of their eviction.
    went: Vec<u64>,
}

impl Reference {
    pub fn new(capacity: usize) -> Self {
        Self {
            capacity,
            stack: Vec::new(),
            queue: Vec::new(),
            went: Vec::new(),
        }
    }

    fn lir_max(&self) -> usize {
        self.capacity - (self.capacity / 100).max(1)
    }

    fn lir_count(&self) -> usize {
        let mut count = 0;
        for (_, state) in &self.stack {
            count += usize::from(*state == State::Lir);
        }
        count
    }

    fn state(&self, key: u64) -> Option<State> {
        let found = self.stack.iter().find(|(other, _)| *other == key);
        found.map(|(_, state)| *state)
    }

    pub fn resident(&self) -> Vec<u64> {
        let lir = self.stack.iter().filter(|(_, state)| *state == State::Lir);
        let mut keys: Vec<u64> = lir.map(|(key, _)| *key).collect();
        keys.extend(&self.queue);
        keys.sort_unstable();
        keys
    }

    /// "Stack pruning": the HIR blocks at its bottom are removed.
    fn prune(&mut self) {
        while let Some((key, state)) = self.stack.last().copied() {
            if state == State::Lir {
                break;
            }
            self.stack.pop();
            self.went.retain(|other| *other != key);
        }
    }

    fn put_on_top(&mut self, key: u64, state: State) {
        self.stack.retain(|(other, _)| *other != key);
        self.stack.insert(0, (key, state));
    }

    /// The LIR block at the bottom becomes HIR, at the end of the queue.
    fn make_room_for_lir(&mut self) {
        if self.lir_count() > self.lir_max() {
            self.prune();
            if let Some((key, _)) = self.stack.pop() {
                self.queue.push(key);
            }
        }
        self.prune();
    }

    pub fn get(&mut self, key: u64) -> bool {
        let in_queue = self.queue.contains(&key);
        match self.state(key) {
            Some(State::Lir) => {
                self.put_on_top(key, State::Lir);
                self.prune();
            }
            Some(State::HirResident) => {
                self.queue.retain(|other| *other != key);
                self.put_on_top(key, State::Lir);
                self.make_room_for_lir();
            }
            Some(State::HirNonResident) => return false,
            None if in_queue => {
                self.put_on_top(key, State::HirResident);
                self.queue.retain(|other| *other != key);
                self.queue.push(key);
                self.prune();
            }
            None => return false,
        }
        true
    }

    pub fn insert(&mut self, key: u64) -> Vec<u64> {
        let mut evicted = Vec::new();
        if self.resident().contains(&key) {
            return evicted;
        }
        if self.resident().len() == self.capacity {
            evicted.push(self.evict());
        }
        let is_warming = self.lir_count() < self.lir_max();
        if self.state(key) == Some(State::HirNonResident) {
            self.went.retain(|other| *other != key);
            self.put_on_top(key, State::Lir);
            self.make_room_for_lir();
        } else if is_warming {
            self.put_on_top(key, State::Lir);
            self.make_room_for_lir();
        } else {
            self.put_on_top(key, State::HirResident);
            self.queue.push(key);
            self.prune();
        }
        evicted
    }

    fn evict(&mut self) -> u64 {
        let key = self.queue.remove(0);
        for (other, state) in &mut self.stack {
            if *other == key {
                *state = State::HirNonResident;
                self.went.push(key);
            }
        }
        self.bound();
        key
    }

    fn bound(&mut self) {
        while self.went.len() > self.capacity {
            let key = self.went.remove(0);
            self.stack.retain(|(other, _)| *other != key);
        }
    }

    pub fn remove(&mut self, key: u64) -> bool {
        let was_resident = self.resident().contains(&key);
        self.stack.retain(|(other, _)| *other != key);
        self.queue.retain(|other| *other != key);
        self.went.retain(|other| *other != key);
        self.prune();
        was_resident
    }

    pub fn resize(&mut self, capacity: usize) -> Vec<u64> {
        self.capacity = capacity;
        while self.lir_count() > self.lir_max() {
            self.make_room_for_lir();
        }
        let mut evicted = Vec::new();
        while self.resident().len() > self.capacity {
            evicted.push(self.evict());
        }
        self.bound();
        evicted
    }
}
