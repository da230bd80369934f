//! dm-crypt below a file system.

use std::path::{Path, PathBuf};

use super::programs::{command, run};
use super::{Opened, Place, Settings};
use crate::error::At as _;
use crate::{Account, Cipher, MeasureError, Meter, Surface};

/// The mapped device's name.
const NAME: &str = "scree-measured";

/// dm-crypt en- and decrypts so much at once, in bytes: as LUKS2 has it on new disks.
const SECTOR_BYTES: &str = "4096";

pub struct BlockPlace {
    device: PathBuf,
    mount: PathBuf,
}

impl BlockPlace {
    pub fn new(settings: &Settings) -> Result<Self, MeasureError> {
        let Some(device) = settings.device.clone() else {
            return Err(MeasureError::Unfit(
                "guest-block needs a block device whose content may be lost".to_owned(),
            ));
        };
        let mount = settings.folder.join("mount");
        std::fs::create_dir_all(&mount).at(&mount)?;
        Ok(Self { device, mount })
    }
}

impl Place for BlockPlace {
    fn open(&mut self, cipher: Option<Cipher>) -> Result<Box<dyn Opened>, MeasureError> {
        let mut opened = BlockOpened {
            surface: Surface::Folder(self.mount.clone()),
            mount: self.mount.clone(),
            is_mapped: false,
            is_mounted: false,
        };
        let device = match cipher {
            None => self.device.clone(),
            Some(cipher) => {
                map(cipher, &self.device)?;
                opened.is_mapped = true;
                Path::new("/dev/mapper").join(NAME)
            }
        };
        let device = device.to_string_lossy();
        // All of it is written when it is made, and none of it later.
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

/// What dm-crypt calls a cipher, and the length of its key in bytes.
fn named(cipher: Cipher) -> Option<(&'static str, usize)> {
    match cipher {
        // Two keys.
        Cipher::Aes256Xts => Some(("aes-xts-plain64", 64)),
        Cipher::Aes128Xts => Some(("aes-xts-plain64", 32)),
        Cipher::Aes256Cbc => Some(("aes-cbc-essiv:sha256", 32)),
        Cipher::Aes128Cbc => Some(("aes-cbc-essiv:sha256", 16)),
        // Without a place for tags.
        Cipher::Aes128Gcm | Cipher::Aes256Gcm | Cipher::ChaCha20Poly1305 => None,
    }
}

fn map(cipher: Cipher, device: &Path) -> Result<(), MeasureError> {
    let Some((mode, bytes)) = named(cipher) else {
        let why = format!("dm-crypt has no {cipher} by itself");
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
        NAME,
    ];
    // XTS wants two keys that differ.
    let key: Vec<u8> = (0..bytes).map(|at| at as u8).collect();
    run(command(&words), &key).map(|_| ())
}

struct BlockOpened {
    surface: Surface,
    mount: PathBuf,
    is_mapped: bool,
    is_mounted: bool,
}

impl BlockOpened {
    fn take_down(&mut self) -> Result<(), MeasureError> {
        if std::mem::take(&mut self.is_mounted) {
            run(command(&["umount", &self.mount.to_string_lossy()]), &[])?;
        }
        if std::mem::take(&mut self.is_mapped) {
            run(command(&["cryptsetup", "close", NAME]), &[])?;
        }
        Ok(())
    }
}

impl Opened for BlockOpened {
    fn surface(&self) -> &Surface {
        &self.surface
    }

    fn meter(&self) -> Meter {
        // The kernel's threads encrypt.
        Meter::new(vec![Account::Machine])
    }

    fn settle(&mut self) -> Result<(), MeasureError> {
        let folder = std::fs::File::open(&self.mount).at(&self.mount)?;
        rustix::fs::syncfs(&folder)
            .map_err(Into::into)
            .at(&self.mount)
    }

    fn close(mut self: Box<Self>) -> Result<(), MeasureError> {
        self.take_down()
    }
}

impl Drop for BlockOpened {
    fn drop(&mut self) {
        // What went wrong before is what is told.
        let _ = self.take_down();
    }
}
