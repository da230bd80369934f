//! Creates, reads, appends to and deletes many small files, as a mail server does. For measurements
//! in a guest; the operations and sizes are those of PostMark (Katcher 1997).
//!
//! ```text
//! small_files --at FOLDER --files N --transactions N --seed N
//! ```
//!
//! 1. create the files, 500 to 10,000 bytes each, in 100 folders
//! 2. in each transaction read a file or append to one, and then create or delete one
//! 3. delete all files
//!
//! Each phase ends with a `sync`, whose time counts: PostMark leaves that to the kernel and so may
//! measure memory alone. Prints a JSON object with the number of operations of each kind and the
//! duration of each phase in seconds.
#![expect(
    clippy::disallowed_methods,
    reason = "a benchmark measures the real machine"
)]

use std::collections::BTreeMap;
use std::error::Error;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::time::Instant;

/// The smallest and largest file of PostMark, in bytes.
const SIZES: (u64, u64) = (500, 10_000);
const PIECE_BYTES: usize = 512;
const FOLDERS: u64 = 100;

fn main() -> Result<(), Box<dyn Error>> {
    let (mut at, mut files, mut transactions, mut seed) = (None, 500, 500, 42);
    let mut arguments = std::env::args().skip(1);
    while let Some(name) = arguments.next() {
        let value = arguments.next().ok_or(format!("{name} needs a value"))?;
        match name.as_str() {
            "--at" => at = Some(PathBuf::from(value)),
            "--files" => files = value.parse()?,
            "--transactions" => transactions = value.parse()?,
            "--seed" => seed = value.parse()?,
            _ => return Err(format!("unknown argument {name}").into()),
        }
    }
    let mut work = Work::new(at.ok_or("--at is missing")?, seed)?;
    work.phase(|work| (0..files).try_for_each(|_| work.create()))?;
    let alone = work.take("create alone");
    work.phase(|work| (0..transactions).try_for_each(|_| work.transaction()))?;
    let mixed = work.take("with transactions");
    work.phase(|work| {
        while !work.files.is_empty() {
            work.delete()?;
        }
        Ok(())
    })?;
    let last = work.take("delete alone");
    println!("{{{alone}, {mixed}, {last}}}");
    Ok(())
}

struct Work {
    folder: PathBuf,
    random: u64,
    files: Vec<u64>,
    next: u64,
    content: Vec<u8>,
    done: BTreeMap<&'static str, u64>,
    seconds: f64,
}

impl Work {
    fn new(folder: PathBuf, seed: u64) -> io::Result<Self> {
        for number in 0..FOLDERS {
            fs::create_dir_all(folder.join(number.to_string()))?;
        }
        let mut work = Self {
            folder,
            random: seed,
            files: Vec::new(),
            next: 0,
            content: Vec::new(),
            done: BTreeMap::new(),
            seconds: 0.0,
        };
        work.content = (0..SIZES.1).map(|_| work.below(256) as u8).collect();
        Ok(work)
    }

    /// A number below `limit` (splitmix64).
    fn below(&mut self, limit: u64) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.random;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % limit
    }

    fn phase(&mut self, work: impl FnOnce(&mut Self) -> io::Result<()>) -> io::Result<()> {
        let begun = Instant::now();
        work(self)?;
        rustix::fs::syncfs(File::open(&self.folder)?)?;
        self.seconds = begun.elapsed().as_secs_f64();
        Ok(())
    }

    /// The results of the last phase, as a member of a JSON object.
    fn take(&mut self, name: &str) -> String {
        let done = std::mem::take(&mut self.done);
        let counts: String = done
            .iter()
            .map(|(name, count)| format!("\"{name}\": {count}, "))
            .collect();
        format!("\"{name}\": {{{counts}\"seconds\": {:.6}}}", self.seconds)
    }

    fn count(&mut self, operation: &'static str) {
        *self.done.entry(operation).or_default() += 1;
    }

    fn path(&self, file: u64) -> PathBuf {
        let folder = Path::new(&self.folder).join((file % FOLDERS).to_string());
        folder.join(file.to_string())
    }

    fn transaction(&mut self) -> io::Result<()> {
        if !self.files.is_empty() {
            match self.below(2) {
                0 => self.read()?,
                _ => self.append()?,
            }
        }
        match self.below(2) {
            1 if !self.files.is_empty() => self.delete(),
            _ => self.create(),
        }
    }

    fn write(&mut self, mut file: &File, length: u64) -> io::Result<()> {
        let content = &self.content[..length as usize];
        for piece in content.chunks(PIECE_BYTES) {
            file.write_all(piece)?;
        }
        Ok(())
    }

    fn create(&mut self) -> io::Result<()> {
        let file = self.next;
        self.next += 1;
        self.files.push(file);
        let length = SIZES.0 + self.below(SIZES.1 - SIZES.0 + 1);
        let made = File::create_new(self.path(file))?;
        self.write(&made, length)?;
        self.count("create");
        Ok(())
    }

    fn any(&mut self) -> usize {
        self.below(self.files.len() as u64) as usize
    }

    fn read(&mut self) -> io::Result<()> {
        let any = self.any();
        let mut file = File::open(self.path(self.files[any]))?;
        let mut piece = [0; PIECE_BYTES];
        while file.read(&mut piece)? > 0 {}
        self.count("read");
        Ok(())
    }

    fn append(&mut self) -> io::Result<()> {
        let any = self.any();
        let path = self.path(self.files[any]);
        let file = OpenOptions::new().append(true).open(path)?;
        let room = SIZES.1.saturating_sub(file.metadata()?.len());
        if room > 0 {
            let length = self.below(room) + 1;
            self.write(&file, length)?;
        }
        self.count("append");
        Ok(())
    }

    fn delete(&mut self) -> io::Result<()> {
        let any = self.any();
        let file = self.files.swap_remove(any);
        fs::remove_file(self.path(file))?;
        self.count("delete");
        Ok(())
    }
}
