//! How it begins: the disk's beginning is read, and its key derived in another thread.
//!
//! ```text
//!  1. read     the 16 MiB before the data
//!  2. derive   the key, in threads for that alone: it takes a second, and much memory;
//!              once no other one of this disk is derived, for whoever has given up
//!  3. ready    what is to be written is, once the filter is in use
//! ```

use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError, channel};

use base::{BlockDevice, Completion, IoError, Outcome, Request, Started, Token};

use super::cipher::Cipher;
use crate::FilterContext;
use crate::key_derivations::DerivationPermit;
use chain_policy::{EncryptConfig, Format};
use luks::{Argon2Cost, DATA_OFFSET, Header, HeaderError, Saved, Step, Xts};

/// Read at once, in bytes.
const PIECE_BYTES: usize = 1 << 20;

/// A sector of a new disk, in bytes. Elsewhere the disk then has the sectors that its guest
/// saw: a partition table counts them.
const SECTOR_BYTES: u32 = 512;

/// What there is before the filter may be used.
pub enum Opening {
    Reading(Reading),
    /// What was read; another key of this disk is being derived.
    Waiting(Vec<u8>),
    Deriving(Receiver<Result<Opened, String>>),
}

/// What was derived.
pub struct Opened {
    pub header: Header,
    pub cipher: Cipher,
    /// To be done to the disk, in order.
    pub steps: Vec<Step>,
    /// Before they are, nothing else may be: the disk has no header yet.
    pub is_new: bool,
    /// A zone that may have been re-encrypted in part.
    pub saved: Option<Saved>,
}

/// The disk's beginning, as far as it was read.
pub struct Reading {
    image: Vec<u8>,
    /// Pieces that have not been asked for.
    next: usize,
    /// Where what was asked for begins.
    asked: Vec<(Token, usize)>,
    failed: Option<IoError>,
}

impl Reading {
    pub fn new() -> Self {
        Self {
            image: vec![0; DATA_OFFSET as usize],
            next: 0,
            asked: Vec::new(),
            failed: None,
        }
    }

    /// Asks for what was not asked for. The image, if all of it is there.
    pub fn go_on(
        &mut self,
        below: &mut dyn BlockDevice,
        mut token: impl FnMut() -> Token,
    ) -> Result<Option<Vec<u8>>, IoError> {
        while self.failed.is_none() && self.next < self.image.len() {
            let own = token();
            let piece = &mut self.image[self.next..][..PIECE_BYTES];
            match below.start(Request::read(own, self.next as u64, piece)) {
                Started::Done => {}
                Started::Pending => self.asked.push((own, self.next)),
                Started::Busy => break,
                Started::Failed(error) => return Err(error),
            }
            self.next += PIECE_BYTES;
        }
        match (&self.failed, self.asked.is_empty()) {
            (Some(error), _) => Err(error.clone()),
            (None, true) if self.next == self.image.len() => {
                Ok(Some(std::mem::take(&mut self.image)))
            }
            (None, _) => Ok(None),
        }
    }

    pub fn answered(&mut self, completion: Completion) {
        let is_it = |(token, _): &(Token, usize)| *token == completion.token;
        let Some(at) = self.asked.iter().position(is_it) else {
            return;
        };
        let (_, begin) = self.asked.swap_remove(at);
        match completion.result {
            Ok(Outcome::Data(data)) if data.len() == PIECE_BYTES => {
                self.image[begin..begin + PIECE_BYTES].copy_from_slice(&data);
            }
            Ok(other) => self.failed = Some(super::nonsense(&other)),
            Err(error) => self.failed = Some(error),
        }
    }
}

/// Begins to derive the key of a disk that begins so.
pub fn derive(
    image: Vec<u8>,
    config: &EncryptConfig,
    cost: Argon2Cost,
    may_write: bool,
    (turn, context): (Turn, &FilterContext),
) -> Receiver<Result<Opened, String>> {
    let (sender, receiver) = channel();
    let (config, keys) = (config.clone(), Arc::clone(&context.attachment.keys));
    let random = Arc::clone(&context.host.random);
    context.host.key_derivations.run(turn, move || {
        let passphrase = keys.passphrase(&config.key);
        let opened = passphrase
            .map_err(|missing| missing.to_string())
            .and_then(|passphrase| {
                let from = From {
                    image: &image,
                    config: &config,
                    passphrase: &passphrase,
                    cost,
                    may_write,
                    random: &*random,
                };
                from.open()
            });
        // Whoever asked may be gone.
        let _ = sender.send(opened);
    });
    receiver
}

/// What was derived, if it was.
pub fn derived(receiver: &Receiver<Result<Opened, String>>) -> Option<Result<Opened, String>> {
    match receiver.try_recv() {
        Ok(opened) => Some(opened),
        Err(TryRecvError::Empty) => None,
        Err(TryRecvError::Disconnected) => Some(Err("the host is being stopped".to_owned())),
    }
}

struct From<'a> {
    image: &'a [u8],
    config: &'a EncryptConfig,
    passphrase: &'a [u8],
    cost: Argon2Cost,
    may_write: bool,
    random: &'a dyn world::Random,
}

impl From<'_> {
    fn open(&self) -> Result<Opened, String> {
        if self.config.format == Format::IfEmpty && Header::is_being_formatted(self.image) {
            return self.format();
        }
        match Header::read(self.image) {
            Ok((header, repair)) => {
                let mut steps = Vec::new();
                if self.may_write {
                    let repair = repair.map(|copy| header.repair(copy, self.random));
                    steps.extend(repair.into_iter().flatten());
                    steps.extend(header.wipe_remains(self.image));
                }
                self.open_header(header, steps)
            }
            Err(HeaderError::None) => self.format_empty(),
            Err(error) => Err(error.to_string()),
        }
    }

    fn format_empty(&self) -> Result<Opened, String> {
        let none = HeaderError::None;
        if self.config.format == Format::Never {
            return Err(format!(
                "{none}; with format = \"if-empty\" an empty one gets it"
            ));
        }
        if self.image.iter().any(|byte| *byte != 0) {
            return Err(format!(
                "{none}, and its first 16 MiB are not empty: it is not formatted"
            ));
        }
        self.format()
    }

    fn format(&self) -> Result<Opened, String> {
        if !self.may_write {
            return Err(format!("{}, and is read-only", HeaderError::None));
        }
        let done = self.config.reencrypt;
        let made = Header::format(SECTOR_BYTES, done, self.cost, self.passphrase, self.random);
        let (header, key, steps) = made.map_err(|error| error.to_string())?;
        Ok(Opened {
            cipher: Cipher::new(SECTOR_BYTES, Xts::new(&key), None),
            header,
            steps,
            is_new: true,
            saved: None,
        })
    }

    fn open_header(&self, mut header: Header, mut steps: Vec<Step>) -> Result<Opened, String> {
        let layout = header.layout().clone();
        let (key, new) = match &layout.run {
            Some(run) => {
                if !self.may_write {
                    return Err("it is being re-encrypted, and is read-only".to_owned());
                }
                let both = header.unlock_both(self.image, self.passphrase);
                let (old, new) = both.map_err(|error| error.to_string())?;
                (old, Some((run.boundary, new)))
            }
            None => {
                let key = header.unlock(self.image, self.passphrase);
                let key = key.map_err(|error| error.to_string())?;
                let new = match layout.done < self.config.reencrypt && self.may_write {
                    true => {
                        let to = self.config.reencrypt;
                        let begun =
                            header.begin_reencryption(to, self.cost, self.passphrase, self.random);
                        let (new, more) =
                            begun.map_err(|error| format!("it cannot be re-encrypted: {error}"))?;
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
            saved: header.saved(self.image),
            cipher: Cipher::new(layout.sector_bytes, Xts::new(&key), new),
            header,
            steps,
            is_new: false,
        })
    }
}
