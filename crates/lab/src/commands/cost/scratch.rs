//! What places need while they are measured.

use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};

use crate::args::PlaceArguments;
use crate::commands::Failure;
use crate::commands::files::failed;
use crate::measure::{PlaceKind, Settings, Stop};

/// A folder that is removed in the end.
pub struct Scratch(PathBuf);

impl Scratch {
    /// Makes one below that, which must be there.
    #[expect(
        clippy::disallowed_methods,
        reason = "it is kept nowhere: what is measured is this machine's disk itself"
    )]
    pub fn make(below: &Path) -> Result<Self, Failure> {
        let below = std::path::absolute(below).map_err(|error| failed(below, error))?;
        let path = below.join(format!(".scree-cost-{}", std::process::id()));
        std::fs::create_dir(&path).map_err(|error| failed(&path, error))?;
        Ok(Self(path))
    }

    /// What measuring is to have, of places of these kinds and works of so many bytes.
    pub fn settings(
        &self,
        arguments: &PlaceArguments,
        (kinds, bytes_max): (&[PlaceKind], u64),
        stop: &Stop,
    ) -> Result<Settings, Failure> {
        if kinds.contains(&PlaceKind::GuestBlock) {
            check_device(arguments)?;
        }
        let scree = std::env::current_exe();
        Ok(Settings {
            folder: self.0.clone(),
            device: arguments.device.clone(),
            scree: scree.map_err(|error| failed(Path::new("/proc/self/exe"), error))?,
            bytes_max,
            stop: stop.clone(),
        })
    }
}

impl Scratch {
    /// Removes it, when nothing is mounted there any more.
    pub fn remove(self) -> Result<(), Failure> {
        remove(&self.0).map_err(|error| failed(&self.0, error))
    }
}

/// That it is not there is what is wanted.
#[expect(clippy::disallowed_methods, reason = "as it was made")]
fn remove(path: &Path) -> std::io::Result<()> {
    match std::fs::remove_dir_all(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // Something has failed before, and that is what is told.
        let _ = remove(&self.0);
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "a device is what it is on this machine"
)]
fn check_device(arguments: &PlaceArguments) -> Result<(), Failure> {
    let Some(device) = &arguments.device else {
        return Err(Failure::new(
            "guest-block needs a block device whose content may be lost: --device /dev/vdb \
             --overwrite",
        ));
    };
    let data = std::fs::metadata(device).map_err(|error| failed(device, error))?;
    if !data.file_type().is_block_device() {
        return Err(failed(device, "it is no block device"));
    }
    if !arguments.overwrite {
        return Err(failed(
            device,
            "all that it holds would be lost; if that is meant, say --overwrite",
        ));
    }
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let name = device.to_string_lossy();
    let is_mounted = mounts
        .lines()
        .any(|line| line.split(' ').next() == Some(&name));
    match is_mounted {
        true => Err(failed(device, "it is mounted")),
        false => Ok(()),
    }
}
