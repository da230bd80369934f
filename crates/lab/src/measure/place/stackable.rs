//! [`StackablePlace`]: gocryptfs above a folder. The paper used EncFS, which is not maintained any
//! more.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::folder::{FolderOpened, sync};
use super::programs::{Running, command, run, start};
use super::{Opened, Place, Settings};
use crate::measure::error::PathContext as _;
use crate::measure::{Account, Cipher, MeasureError, Meter, Surface};

/// Timeout of mounting and unmounting.
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
            return Ok(Box::new(FolderOpened::new(kept)?));
        };
        let passphrase = self.folder.join("passphrase");
        std::fs::write(&passphrase, "measured\n").at(&passphrase)?;
        let passphrase = passphrase.to_string_lossy();
        let kept_name = kept.to_string_lossy();
        let mut words = vec!["gocryptfs", "-q", "-init", "-passfile", &passphrase];
        // The key derivation runs once, and is not measured.
        words.extend(["-scryptn", "10"]);
        match cipher {
            Cipher::Aes256Gcm => {}
            Cipher::ChaCha20Poly1305 => words.push("-xchacha"),
            _ => {
                let why = format!("gocryptfs does not support {cipher}");
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
        let mut daemon = start(&command(&words), self.folder.join("gocryptfs.said"))?;
        let device = |path: &PathBuf| std::fs::metadata(path).map(|data| data.dev()).ok();
        let outside = device(&self.folder);
        // It is unmounted when this is dropped, even after a failure.
        let mut opened = StackableOpened {
            surface: Surface::Folder(seen.clone()),
            kept,
            seen: Some(seen.clone()),
            daemon: None,
        };
        let mounted = daemon.wait_until("gocryptfs has not mounted", WAIT_MAX, || {
            device(&seen).is_some_and(|inside| Some(inside) != outside)
        });
        opened.daemon = Some(daemon);
        mounted?;
        Ok(Box::new(opened))
    }
}

struct StackableOpened {
    surface: Surface,
    kept: PathBuf,
    seen: Option<PathBuf>,
    daemon: Option<Running>,
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

    fn folders(&self) -> Vec<&Path> {
        let seen = self.seen.iter().map(PathBuf::as_path);
        seen.chain([self.kept.as_path()]).collect()
    }

    fn settle(&mut self) -> Result<(), MeasureError> {
        sync(&self.kept)
    }

    fn close(mut self: Box<Self>) -> Result<(), MeasureError> {
        if let Some(seen) = &self.seen {
            unmount(seen, &[])?;
            self.seen = None;
        }
        match self.daemon.take() {
            Some(daemon) => daemon.wait_for_end(WAIT_MAX),
            None => Ok(()),
        }
    }
}

/// Only root may use `umount`; the name of fuse's program depends on its version.
fn unmount(seen: &Path, flags: &[&str]) -> Result<(), MeasureError> {
    let seen = seen.to_string_lossy();
    let with = |words: &[&str]| run(command(&[words, flags, &[&*seen]].concat()), &[]);
    let mut done = Ok(String::new());
    for program in ["fusermount3", "fusermount"] {
        done = with(&[program, "-u"]);
        if !matches!(done, Err(MeasureError::Program { .. })) {
            break;
        }
    }
    done.map(|_| ())
}

impl Drop for StackableOpened {
    fn drop(&mut self) {
        // The earlier failure is reported. Processes that still use it hold it until they end.
        if let Some(seen) = &self.seen {
            let _ = unmount(seen, &["-z"]);
        }
    }
}
