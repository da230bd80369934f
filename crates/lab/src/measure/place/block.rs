//! [`BlockPlace`]: dm-crypt below a file system.

use std::path::{Path, PathBuf};

use super::folder::sync;
use super::programs::{command, run};
use super::{Opened, Place, Settings};
use crate::measure::error::PathContext as _;
use crate::measure::{Account, Cipher, MeasureError, Meter, Surface};

/// Sector size of dm-crypt in bytes, the default of LUKS2 on new disks.
const SECTOR_BYTES: &str = "4096";

pub struct BlockPlace {
    device: PathBuf,
    mount: PathBuf,
    /// Name of the mapped device.
    name: String,
}

impl BlockPlace {
    pub fn new(settings: &Settings) -> Result<Self, MeasureError> {
        let Some(device) = settings.device.clone() else {
            return Err(MeasureError::Unfit(
                "guest-block needs a block device that may be overwritten".to_owned(),
            ));
        };
        let mount = settings.folder.join("mount");
        std::fs::create_dir_all(&mount).at(&mount)?;
        Ok(Self {
            device,
            mount,
            name: format!("scree-measured-{}", std::process::id()),
        })
    }
}

impl Place for BlockPlace {
    fn open(&mut self, cipher: Option<Cipher>) -> Result<Box<dyn Opened>, MeasureError> {
        let mut opened = BlockOpened {
            surface: Surface::Folder(self.mount.clone()),
            mount: self.mount.clone(),
            mapped: None,
            is_mounted: false,
        };
        let device = match cipher {
            None => self.device.clone(),
            Some(cipher) => {
                map(cipher, &self.device, &self.name)?;
                opened.mapped = Some(self.name.clone());
                Path::new("/dev/mapper").join(&self.name)
            }
        };
        let device = device.to_string_lossy();
        // All metadata is written when the file system is created, and none later.
        run(
            command(&[
                "mkfs.ext4",
                "-q",
                "-F",
                "-E",
                "lazy_itable_init=0,lazy_journal_init=0",
                &device,
            ]),
            &[],
        )?;
        let mount = self.mount.to_string_lossy();
        run(command(&["mount", "-t", "ext4", &device, &mount]), &[])?;
        opened.is_mounted = true;
        Ok(Box::new(opened))
    }
}

/// The name of a cipher in dm-crypt, and the length of its key in bytes.
fn named(cipher: Cipher) -> Option<(&'static str, usize)> {
    match cipher {
        // Two keys.
        Cipher::Aes256Xts => Some(("aes-xts-plain64", 64)),
        Cipher::Aes128Xts => Some(("aes-xts-plain64", 32)),
        Cipher::Aes256Cbc => Some(("aes-cbc-essiv:sha256", 32)),
        Cipher::Aes128Cbc => Some(("aes-cbc-essiv:sha256", 16)),
        // dm-crypt has no space for tags by itself.
        Cipher::Aes128Gcm | Cipher::Aes256Gcm | Cipher::ChaCha20Poly1305 => None,
    }
}

fn map(cipher: Cipher, device: &Path, name: &str) -> Result<(), MeasureError> {
    let Some((mode, bytes)) = named(cipher) else {
        let why = format!("dm-crypt does not support {cipher} without dm-integrity");
        return Err(MeasureError::Unfit(why));
    };
    let bits = (bytes * 8).to_string();
    let device = device.to_string_lossy();
    let words = [
        "cryptsetup",
        "open",
        "--type",
        "plain",
        "--cipher",
        mode,
        "--key-size",
        &bits,
        "--sector-size",
        SECTOR_BYTES,
        "--key-file",
        "-",
        &device,
        name,
    ];
    // XTS requires two different keys.
    let key: Vec<u8> = (0..bytes).map(|at| at as u8).collect();
    run(command(&words), &key).map(|_| ())
}

struct BlockOpened {
    surface: Surface,
    mount: PathBuf,
    mapped: Option<String>,
    is_mounted: bool,
}

impl Opened for BlockOpened {
    fn surface(&self) -> &Surface {
        &self.surface
    }

    fn meter(&self) -> Meter {
        // Threads of the kernel encrypt.
        Meter::new(vec![Account::Machine])
    }

    fn settle(&mut self) -> Result<(), MeasureError> {
        sync(&self.mount)
    }

    fn close(mut self: Box<Self>) -> Result<(), MeasureError> {
        if self.is_mounted {
            run(command(&["umount", &self.mount.to_string_lossy()]), &[])?;
            self.is_mounted = false;
        }
        if let Some(name) = &self.mapped {
            run(command(&["cryptsetup", "close", name]), &[])?;
            self.mapped = None;
        }
        Ok(())
    }
}

impl Drop for BlockOpened {
    fn drop(&mut self) {
        // The earlier failure is reported. Processes that still use it hold it until they end.
        if self.is_mounted {
            let mount = self.mount.to_string_lossy();
            let _ = run(command(&["umount", "-l", &mount]), &[]);
        }
        if let Some(name) = &self.mapped {
            let _ = run(command(&["cryptsetup", "close", "--deferred", name]), &[]);
        }
    }
}
