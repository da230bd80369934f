//! Random operations on files by a seed, and a model that knows what a monitor has to report of
//! each step and what is on the disk in the end.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde_json::{Value, json};
use world::simulated::SimulatedRandom;

/// Unit of file content, in bytes; not a block.
const UNIT: u64 = 700;

/// Length of the source of file contents, in units.
pub const SOURCE_BYTES: usize = 1200 * UNIT as usize;

/// Largest length of a file, in units.
const UNITS_MAX: u64 = 400;

/// Modes that no new file has with the usual umask.
const MODES: [u32; 4] = [0o700, 0o640, 0o604, 0o711];

/// The names in the steps, quoted for the shell of the guest.
const WORDS: &str = "\
set -e
put() { dd if=/given/source of=/m$1 bs=700 skip=$2 seek=$3 count=$4 conv=notrunc 2>/dev/null; }
add() { dd if=/given/source bs=700 skip=$2 count=$3 2>/dev/null >>/m$1; }
";

/// An expected report of a step.
#[derive(Clone)]
pub struct Happened {
    pub operation: &'static str,
    /// Any one of these paths.
    pub paths: BTreeSet<String>,
    pub to: Option<String>,
    /// The written block of a file, counted from its beginning.
    pub block: Option<u64>,
    /// The new state: a mode, an owner, or a size before and now.
    pub now: Value,
}

/// The operations between two `sync`.
#[derive(Debug, Default)]
pub struct Step {
    pub commands: Vec<String>,
    pub required: Vec<Happened>,
    /// Blocks that the file system may write in addition, where a file ends in one.
    pub optional: Vec<Happened>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Content {
    File(Vec<u8>),
    Directory,
    Symlink(String),
}

#[derive(Debug)]
struct Node {
    content: Content,
    mode: u32,
    names: BTreeSet<String>,
    /// The blocks of a file that are not holes.
    blocks: BTreeSet<u64>,
}

pub struct Workload {
    random: SimulatedRandom,
    block_bytes: u64,
    source: Vec<u8>,
    nodes: Vec<Node>,
    names: BTreeMap<String, usize>,
    next: u32,
    step: Step,
    /// Paths that the step has changed already.
    touched: BTreeSet<usize>,
}

impl fmt::Debug for Happened {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} {:?}", self.operation, self.paths)?;
        if let Some(to) = &self.to {
            write!(out, " {to:?}")?;
        }
        if let Some(block) = self.block {
            write!(out, " block {block}")?;
        }
        match &self.now {
            Value::Null => Ok(()),
            now => write!(out, " {now}"),
        }
    }
}

impl Happened {
    fn named(operation: &'static str, path: &str) -> Self {
        Self {
            operation,
            paths: [path.to_owned()].into(),
            to: None,
            block: None,
            now: Value::Null,
        }
    }
}

impl Workload {
    /// A model of a file system with these files, and directories, which end in `/`.
    pub fn new(seed: u64, block_bytes: u64, tree: &[(String, Vec<u8>)]) -> Self {
        let random = SimulatedRandom::new(seed);
        let source = (0..SOURCE_BYTES).map(|_| random.below(256) as u8).collect();
        let mut workload = Self {
            random,
            block_bytes,
            source,
            nodes: Vec::new(),
            names: BTreeMap::new(),
            next: 0,
            step: Step::default(),
            touched: BTreeSet::new(),
        };
        workload.add_node("", Content::Directory);
        for (path, content) in tree {
            match path.strip_suffix('/') {
                Some(path) => workload.add_node(path, Content::Directory),
                None => workload.add_node(path, Content::File(content.clone())),
            }
        }
        workload
    }

    /// The content of `/given/source`.
    pub fn source(&self) -> &[u8] {
        &self.source
    }

    /// All existing entries, by path.
    pub fn files(&self) -> BTreeMap<&str, &Content> {
        let files = self.names.iter().filter(|(path, _)| !path.is_empty());
        files
            .map(|(path, node)| (path.as_str(), &self.nodes[*node].content))
            .collect()
    }

    /// Steps of this many operations each.
    pub fn steps(&mut self, count: usize, operations: usize) -> Vec<Step> {
        let mut steps = Vec::new();
        while steps.len() < count {
            for _ in 0..operations {
                while !self.operation(operations == 1) {}
            }
            self.touched.clear();
            steps.push(std::mem::take(&mut self.step));
        }
        steps
    }

    /// The steps as a shell script for the guest.
    pub fn script(steps: &[Step]) -> String {
        let mut script = WORDS.to_owned();
        for step in steps {
            for command in &step.commands {
                script += command;
                script.push('\n');
            }
            script += "sync\n";
        }
        script
    }

    fn add_node(&mut self, path: &str, content: Content) {
        let node = self.nodes.len();
        let blocks = match &content {
            Content::File(content) => (content.len() as u64).div_ceil(self.block_bytes),
            _ => 0,
        };
        self.nodes.push(Node {
            content,
            mode: 0,
            names: [path.to_owned()].into(),
            blocks: (0..blocks).collect(),
        });
        self.names.insert(path.to_owned(), node);
        self.touched.insert(node);
    }

    /// An entry that the step has not changed yet.
    fn pick(&mut self, is_wanted: impl Fn(&Content) -> bool) -> Option<(String, usize)> {
        let of = |(path, node): (&String, &usize)| {
            let is_one = !path.is_empty()
                && !self.touched.contains(node)
                && is_wanted(&self.nodes[*node].content);
            is_one.then(|| (path.clone(), *node))
        };
        let found: Vec<(String, usize)> = self.names.iter().filter_map(of).collect();
        let (path, node) = found.get(self.random.index(found.len().max(1)))?.clone();
        self.touched.insert(node);
        Some((path, node))
    }

    fn pick_file(&mut self) -> Option<(String, usize)> {
        self.pick(|content| matches!(content, Content::File(_)))
    }

    fn new_name(&mut self) -> String {
        let is_directory = |node: &usize| self.nodes[*node].content == Content::Directory;
        let all = self.names.iter().filter(|(_, node)| is_directory(node));
        let directories: Vec<&String> = all.map(|(path, _)| path).collect();
        let directory = directories[self.random.index(directories.len())];
        self.next += 1;
        let long = "-".repeat(self.random.index(40));
        format!("{directory}/n{}{long}", self.next)
    }

    fn does(&mut self, command: String) {
        self.step.commands.push(command);
    }

    fn tells(&mut self, happened: Happened) {
        self.step.required.push(happened);
    }

    /// Removes a name of a file.
    fn lose(&mut self, path: &str) {
        let node = self.names.remove(path).expect("it exists");
        self.nodes[node].names.remove(path);
        let operation = match self.nodes[node].names.is_empty() {
            true => "delete",
            false => "unlink",
        };
        self.tells(Happened::named(operation, path));
    }

    fn of(&self, operation: &'static str, node: usize) -> Happened {
        Happened {
            paths: self.nodes[node].names.clone(),
            ..Happened::named(operation, "")
        }
    }

    fn block_written(&self, node: usize, block: u64) -> Happened {
        Happened {
            block: Some(block),
            ..self.of("write", node)
        }
    }

    /// If a file ends in the middle of a block, the rest may be written as zeroes.
    fn may_write_end(&mut self, node: usize, bytes: u64) {
        if !bytes.is_multiple_of(self.block_bytes) {
            let block = self.block_written(node, bytes / self.block_bytes);
            self.step.optional.push(block);
        }
    }

    fn content(&mut self, node: usize) -> &mut Vec<u8> {
        match &mut self.nodes[node].content {
            Content::File(content) => content,
            other => panic!("{other:?} is no file"),
        }
    }

    /// Writes units of the source from `skip` on to the file from `offset` on.
    fn write(&mut self, node: usize, skip: u64, offset: u64, units: u64) {
        let new = self.source[(skip * UNIT) as usize..][..(units * UNIT) as usize].to_vec();
        let end = offset + new.len() as u64;
        let content = self.content(node);
        let before = content.len() as u64;
        content.resize(content.len().max(end as usize), 0);
        content[offset as usize..end as usize].copy_from_slice(&new);
        if end > before {
            self.may_write_end(node, before);
        }
        for block in offset / self.block_bytes..end.div_ceil(self.block_bytes) {
            let written = self.block_written(node, block);
            self.tells(written);
            self.nodes[node].blocks.insert(block);
        }
    }

    fn put(&mut self, path: &str, node: usize, seek: u64) {
        let units = 1 + self.random.below(30);
        let skip = self.random.below(SOURCE_BYTES as u64 / UNIT - units);
        self.does(format!("put {path} {skip} {seek} {units}"));
        self.write(node, skip, seek * UNIT, units);
    }

    fn create(&mut self, path: &str) -> usize {
        let node = self.nodes.len();
        self.add_node(path, Content::File(Vec::new()));
        self.tells(Happened::named("create", path));
        node
    }

    /// Adds one random operation; false if there is nothing to apply it to.
    fn operation(&mut self, is_alone: bool) -> bool {
        self.choose(is_alone).is_some()
    }

    fn choose(&mut self, is_alone: bool) -> Option<()> {
        match self.random.below(17) {
            0 => {
                let path = self.new_name();
                self.does(format!(": >/m{path}"));
                self.create(&path);
            }
            1 | 2 => {
                let path = self.new_name();
                let node = self.create(&path);
                let seek = self.random.below(3) * self.random.below(100);
                self.put(&path, node, seek);
            }
            3 => {
                let path = self.new_name();
                self.does(format!("mkdir /m{path}"));
                self.add_node(&path, Content::Directory);
                self.tells(Happened::named("mkdir", &path));
            }
            4 | 5 => {
                let (path, node) = self.pick_file()?;
                let seek = self.random.below(UNITS_MAX);
                self.put(&path, node, seek);
            }
            6 => self.append()?,
            7 | 8 => self.truncate()?,
            9 => self.rename(is_alone)?,
            10 => self.replace_by_rename()?,
            11 => {
                let (from, node) = self.pick_file()?;
                let path = self.new_name();
                self.does(format!("ln /m{from} /m{path}"));
                self.names.insert(path.clone(), node);
                self.nodes[node].names.insert(path.clone());
                self.tells(Happened::named("link", &path));
            }
            12 => {
                let path = self.new_name();
                let target = "far/".repeat(self.random.index(40)) + "away";
                self.does(format!("ln -s {target} /m{path}"));
                self.add_node(&path, Content::Symlink(target));
                self.tells(Happened::named("create", &path));
            }
            13 => {
                let (path, node) = self.pick(|content| !matches!(content, Content::Symlink(_)))?;
                let modes = MODES.iter().filter(|mode| **mode != self.nodes[node].mode);
                let modes: Vec<u32> = modes.copied().collect();
                let mode = modes[self.random.index(modes.len())];
                self.nodes[node].mode = mode;
                self.does(format!("chmod {mode:o} /m{path}"));
                let now = json!(format!("{mode:04o}"));
                let happened = self.of("chmod", node);
                self.tells(Happened { now, ..happened });
            }
            14 => {
                let (path, node) = self.pick(|content| !matches!(content, Content::Symlink(_)))?;
                self.next += 1;
                let owner = 100_000 + self.next;
                self.does(format!("chown {owner}:{} /m{path}", owner + 1));
                let now = json!([owner, owner + 1]);
                let happened = self.of("chown", node);
                self.tells(Happened { now, ..happened });
            }
            15 => {
                let is_directory = self.random.one_in(3);
                let (path, _) =
                    self.pick(|content| (*content == Content::Directory) == is_directory)?;
                let below = format!("{path}/");
                if self.names.keys().any(|path| path.starts_with(&below)) {
                    return None;
                }
                let command = if is_directory { "rmdir" } else { "rm" };
                self.does(format!("{command} /m{path}"));
                self.lose(&path);
            }
            _ => {
                let (path, _) = self.pick_file()?;
                self.does(format!("rm /m{path}"));
                self.lose(&path);
                let node = self.create(&path);
                self.put(&path, node, 0);
            }
        }
        Some(())
    }

    fn append(&mut self) -> Option<()> {
        let (path, node) = self.pick_file()?;
        let units = 1 + self.random.below(20);
        let skip = self.random.below(SOURCE_BYTES as u64 / UNIT - units);
        let end = self.content(node).len() as u64;
        self.does(format!("add {path} {skip} {units}"));
        self.write(node, skip, end, units);
        Some(())
    }

    fn truncate(&mut self) -> Option<()> {
        let (path, node) = self.pick_file()?;
        let before = self.content(node).len() as u64;
        let now = match self.random.below(4) {
            0 => 0,
            1 => before + self.random.below(100_000),
            _ => self.random.below(before.max(1)),
        };
        self.content(node).resize(now as usize, 0);
        self.does(format!("truncate -s {now} /m{path}"));
        self.may_write_end(node, before.min(now));
        let kept = now.div_ceil(self.block_bytes);
        let blocks = &mut self.nodes[node].blocks;
        blocks.retain(|block| *block < kept);
        // A growing file is distinguishable from a written one if it ends in a hole.
        let is_longer = now > before && !blocks.contains(&(kept - 1));
        if now < before || is_longer {
            let now = json!([before, now]);
            let happened = self.of("truncate", node);
            self.tells(Happened { now, ..happened });
        }
        Some(())
    }

    fn rename(&mut self, is_alone: bool) -> Option<()> {
        let (from, node) = self.pick(|content| is_alone || *content != Content::Directory)?;
        let to = self.new_name();
        if to.starts_with(&format!("{from}/")) {
            return None;
        }
        self.does(format!("mv -f /m{from} /m{to}"));
        let reported_to = Some(to.clone());
        let named = Happened::named("rename", &from);
        self.tells(Happened {
            to: reported_to,
            ..named
        });
        self.move_names(&from, &to);
        debug_assert!(self.nodes[node].names.contains(&to), "{to}");
        Some(())
    }

    /// Moves an entry with everything below it to another path.
    fn move_names(&mut self, from: &str, to: &str) {
        let below = format!("{from}/");
        let moved = self.names.keys();
        let moved = moved.filter(|path| **path == from || path.starts_with(&below));
        for path in moved.cloned().collect::<Vec<String>>() {
            let new = format!("{to}{}", &path[from.len()..]);
            let node = self.names.remove(&path).expect("it exists");
            self.names.insert(new.clone(), node);
            let names = &mut self.nodes[node].names;
            names.remove(&path);
            names.insert(new);
        }
    }

    fn replace_by_rename(&mut self) -> Option<()> {
        let (from, _) = self.pick_file()?;
        let (to, _) = self.pick_file()?;
        self.does(format!("mv -f /m{from} /m{to}"));
        self.lose(&to);
        let reported_to = Some(to.clone());
        let named = Happened::named("rename", &from);
        self.tells(Happened {
            to: reported_to,
            ..named
        });
        self.move_names(&from, &to);
        Some(())
    }
}
