//! gocryptfs above a folder. The paper had EncFS, which nobody looks after any more.

use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::time::Duration;

use super::programs::{Running, command, run, start};
use super::{Opened, Place, Settings};
use crate::error::At as _;
use crate::{Account, Cipher, MeasureError, Meter, Surface};

/// Mounting takes no longer, nor does its end.
const WAIT_MAX: Duration = Duration::from_secs(60);

pub struct StackablePlace {
    folder: PathBuf,
}

impl StackablePlace {
    pub fn new(settings: &Settings) -> Result<Self, MeasureError> {
        let folder = settings.folder.join("stackable");
        std::fs::create_dir_all(&folder).at(&folder)?;
        Ok(Self { folder })
    }
}

impl Place for StackablePlace {
    fn open(&mut self, cipher: Option<Cipher>) -> Result<Box<dyn Opened>, MeasureError> {
        let [kept, seen] = ["kept", "seen"].map(|name| self.folder.join(name));
        if kept.exists() {
            std::fs::remove_dir_all(&kept).at(&kept)?;
        }
        for folder in [&kept, &seen] {
            std::fs::create_dir_all(folder).at(folder)?;
        }
        let Some(cipher) = cipher else {
            return Ok(Box::new(StackableOpened {
                surface: Surface::Folder(kept.clone()),
                kept,
                seen: None,
                daemon: None,
            }));
        };
        let passphrase = self.folder.join("passphrase");
        std::fs::write(&passphrase, "measured\n").at(&passphrase)?;
        let passphrase = passphrase.to_string_lossy();
        let kept_name = kept.to_string_lossy();
        let mut words = vec!["gocryptfs", "-q", "-init", "-passfile", &passphrase];
        // What makes keys of passphrases is done once, and not measured.
        words.extend(["-scryptn", "10"]);
        match cipher {
            Cipher::Aes256Gcm => {}
            Cipher::ChaCha20Poly1305 => words.push("-xchacha"),
            _ => {
                let why = format!("gocryptfs has no {cipher}");
                return Err(MeasureError::Unfit(why));
            }
        }
        words.push(&kept_name);
        run(command(&words), &[])?;
        let seen_name = seen.to_string_lossy();
        let words = [
            "gocryptfs",
            "-q",
            "-fg",
            "-passfile",
            &passphrase,
            &kept_name,
            &seen_name,
        ];
        let mut daemon = start(command(&words))?;
        let device = |path: &PathBuf| std::fs::metadata(path).map(|data| data.dev()).ok();
        let outside = device(&self.folder);
        daemon.until("gocryptfs has not mounted", WAIT_MAX, || {
            device(&seen).is_some_and(|inside| Some(inside) != outside)
        })?;
        Ok(Box::new(StackableOpened {
            surface: Surface::Folder(seen.clone()),
            kept,
            seen: Some(seen),
            daemon: Some(daemon),
        }))
    }
}

struct StackableOpened {
    surface: Surface,
    kept: PathBuf,
    seen: Option<PathBuf>,
    daemon: Option<Running>,
}

impl StackableOpened {
    fn take_down(&mut self) -> Result<(), MeasureError> {
        if let Some(seen) = self.seen.take() {
            run(command(&["umount", &seen.to_string_lossy()]), &[])?;
        }
        match self.daemon.take() {
            Some(daemon) => daemon.ended(WAIT_MAX),
            None => Ok(()),
        }
    }
}

impl Opened for StackableOpened {
    fn surface(&self) -> &Surface {
        &self.surface
    }

    fn meter(&self) -> Meter {
        let daemon = self.daemon.as_ref();
        let daemon = daemon.map(|daemon| Account::Process(daemon.id()));
        Meter::new(std::iter::once(Account::Own).chain(daemon).collect())
    }

    fn settle(&mut self) -> Result<(), MeasureError> {
        let folder = std::fs::File::open(&self.kept).at(&self.kept)?;
        rustix::fs::syncfs(&folder)
            .map_err(Into::into)
            .at(&self.kept)
    }

    fn close(mut self: Box<Self>) -> Result<(), MeasureError> {
        self.take_down()
    }
}

impl Drop for StackableOpened {
    fn drop(&mut self) {
        // What went wrong before is what is told.
        let _ = self.take_down();
    }
}
