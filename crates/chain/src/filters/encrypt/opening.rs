//! Opening an encrypted disk: the header is read, and the key derived in another thread.
//!
//! ```text
//!  1. read     the 16 MiB before the data
//!  2. derive   the key, in the threads for that (KeyDerivations): it takes a second and much
//!              memory, and waits while another derivation for this disk runs
//!  3. ready    changes of the header are written once the filter is in use
//! ```

use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError, channel};

use base::{BlockDevice, Completion, IoError, Outcome, Request, Started, Token};

use super::cipher::Cipher;
use crate::key_derivations::DerivationPermit;
use crate::{KeyDerivations, KeySource};
use chain_policy::{EncryptConfig, Format};
use luks::{Argon2Cost, DATA_OFFSET, Header, HeaderError, Saved, Step, Xts};

/// The size of one read, in bytes.
const PIECE_BYTES: usize = 1 << 20;

/// The sector size of a new disk, in bytes. It is the size that guests see, so that a partition
/// table, which counts sectors, is valid wherever the disk is opened.
const SECTOR_BYTES: u32 = 512;

/// The steps before the filter can be used.
pub enum Opening {
    Reading(Reading),
    /// The header was read; another derivation for this disk has not ended.
    Waiting(Vec<u8>),
    Deriving(Receiver<Result<Opened, String>>),
}

/// A disk whose key was derived.
pub struct Opened {
    pub header: Header,
    pub cipher: Cipher,
    /// Changes of the disk, to be carried out in order.
    pub steps: Vec<Step>,
    /// The disk has no header yet: nothing else may be done before the steps.
    pub is_new: bool,
    /// A zone from the journal, which may be re-encrypted in part.
    pub saved: Option<Saved>,
}

/// The first 16 MiB of the disk while they are read.
pub struct Reading {
    image: Vec<u8>,
    /// The offset of the next read.
    next: usize,
    pending: Vec<PendingRead>,
    failed: Option<IoError>,
}

struct PendingRead {
    token: Token,
    offset: usize,
}

impl Reading {
    pub fn new() -> Self {
        Self {
            image: vec![0; DATA_OFFSET as usize],
            next: 0,
            pending: Vec::new(),
            failed: None,
        }
    }

    /// Starts reads until the device is busy. Returns the image once all of it is read.
    pub fn start_reads(
        &mut self,
        below: &mut dyn BlockDevice,
        mut token: impl FnMut() -> Token,
    ) -> Result<Option<Vec<u8>>, IoError> {
        while self.failed.is_none() && self.next < self.image.len() {
            let own = token();
            let piece = &mut self.image[self.next..][..PIECE_BYTES];
            match below.start(Request::read(own, self.next as u64, piece)) {
                Started::Done => {}
                Started::Pending => self.pending.push(PendingRead {
                    token: own,
                    offset: self.next,
                }),
                Started::Busy => break,
                Started::Failed(error) => return Err(error),
            }
            self.next += PIECE_BYTES;
        }
        match (&self.failed, self.pending.is_empty()) {
            (Some(error), _) => Err(error.clone()),
            (None, true) if self.next == self.image.len() => {
                Ok(Some(std::mem::take(&mut self.image)))
            }
            (None, _) => Ok(None),
        }
    }

    pub fn completed(&mut self, completion: Completion) {
        let is_it = |read: &PendingRead| read.token == completion.token;
        let Some(at) = self.pending.iter().position(is_it) else {
            return;
        };
        let begin = self.pending.swap_remove(at).offset;
        match completion.result {
            Ok(Outcome::Data(data)) if data.len() == PIECE_BYTES => {
                self.image[begin..begin + PIECE_BYTES].copy_from_slice(&data);
            }
            Ok(other) => self.failed = Some(super::unexpected(&other)),
            Err(error) => self.failed = Some(error),
        }
    }
}

/// Begins to open a disk in the threads that derive keys.
pub fn derive(
    key_derivations: &KeyDerivations,
    permit: DerivationPermit,
    job: OpenJob,
) -> Receiver<Result<Opened, String>> {
    let (sender, receiver) = channel();
    key_derivations.run(permit, move || {
        // The filter may have been dropped.
        let _ = sender.send(job.run());
    });
    receiver
}

/// The result of the derivation; `None` until it has ended.
pub fn derived(receiver: &Receiver<Result<Opened, String>>) -> Option<Result<Opened, String>> {
    match receiver.try_recv() {
        Ok(opened) => Some(opened),
        Err(TryRecvError::Empty) => None,
        Err(TryRecvError::Disconnected) => Some(Err("the host is being stopped".to_owned())),
    }
}

/// Finds or makes the key of a disk. Takes a second, so it runs outside of the disk's thread.
pub struct OpenJob {
    /// The first 16 MiB of the disk.
    pub image: Vec<u8>,
    pub config: EncryptConfig,
    pub cost: Argon2Cost,
    pub may_write: bool,
    pub keys: Arc<dyn KeySource>,
    pub random: Arc<dyn world::Random>,
}

impl OpenJob {
    fn run(&self) -> Result<Opened, String> {
        let passphrase = self.keys.passphrase(&self.config.key);
        self.open(&passphrase.map_err(|error| error.to_string())?)
    }

    fn open(&self, passphrase: &[u8]) -> Result<Opened, String> {
        if self.config.format == Format::IfEmpty && Header::is_being_formatted(&self.image) {
            return self.format(passphrase);
        }
        match Header::read(&self.image) {
            Ok((header, repair)) => {
                let mut steps = Vec::new();
                if self.may_write {
                    let repair = repair.map(|copy| header.repair(copy, &*self.random));
                    steps.extend(repair.into_iter().flatten());
                    steps.extend(header.wipe_remains(&self.image));
                }
                self.open_header(header, steps, passphrase)
            }
            Err(HeaderError::None) => self.format_empty(passphrase),
            Err(error) => Err(error.to_string()),
        }
    }

    fn format_empty(&self, passphrase: &[u8]) -> Result<Opened, String> {
        let none = HeaderError::None;
        if self.config.format == Format::Never {
            return Err(format!(
                "{none}; format = \"if-empty\" makes one on an empty disk"
            ));
        }
        if self.image.iter().any(|byte| *byte != 0) {
            return Err(format!(
                "{none}, and its first 16 MiB are not empty, so it is not formatted"
            ));
        }
        self.format(passphrase)
    }

    fn format(&self, passphrase: &[u8]) -> Result<Opened, String> {
        if !self.may_write {
            return Err(format!("{}, and it is read-only", HeaderError::None));
        }
        let done = self.config.reencrypt;
        let made = Header::format(SECTOR_BYTES, done, self.cost, passphrase, &*self.random);
        let (header, key, steps) = made.map_err(|error| error.to_string())?;
        Ok(Opened {
            cipher: Cipher::new(SECTOR_BYTES, Xts::new(&key), None),
            header,
            steps,
            is_new: true,
            saved: None,
        })
    }

    fn open_header(
        &self,
        mut header: Header,
        mut steps: Vec<Step>,
        passphrase: &[u8],
    ) -> Result<Opened, String> {
        let layout = header.layout().clone();
        let (key, new) = match &layout.run {
            Some(run) => {
                if !self.may_write {
                    return Err(
                        "a re-encryption of the disk has not ended, and the disk is read-only"
                            .to_owned(),
                    );
                }
                let both = header.unlock_both(&self.image, passphrase);
                let (old, new) = both.map_err(|error| error.to_string())?;
                (old, Some((run.boundary, new)))
            }
            None => {
                let key = header.unlock(&self.image, passphrase);
                let key = key.map_err(|error| error.to_string())?;
                let new = match layout.done < self.config.reencrypt && self.may_write {
                    true => {
                        let to = self.config.reencrypt;
                        let begun =
                            header.begin_reencryption(to, self.cost, passphrase, &*self.random);
                        let (new, more) = begun
                            .map_err(|error| format!("the disk cannot be re-encrypted: {error}"))?;
                        steps.extend(more);
                        Some((0, new))
                    }
                    false => None,
                };
                (key, new)
            }
        };
        let new = new.map(|(boundary, new)| (boundary, Xts::new(&new)));
        Ok(Opened {
            saved: header.saved(&self.image),
            cipher: Cipher::new(layout.sector_bytes, Xts::new(&key), new),
            header,
            steps,
            is_new: false,
        })
    }
}
