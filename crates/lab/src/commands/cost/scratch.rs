//! [`Scratch`]: a temporary folder for measurements.

use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};

use crate::args::PlaceArguments;
use crate::commands::Failure;
use crate::commands::files::failed;
use crate::measure::{PlaceKind, Settings, Stop};

/// A temporary folder, which is removed when dropped.
pub struct Scratch(PathBuf);

impl Scratch {
    /// Creates one below an existing folder.
    #[expect(
        clippy::disallowed_methods,
        reason = "this measures the disk of this machine itself"
    )]
    pub fn make(below: &Path) -> Result<Self, Failure> {
        let below = std::path::absolute(below).map_err(|error| failed(below, error))?;
        let path = below.join(format!(".scree-cost-{}", std::process::id()));
        std::fs::create_dir(&path).map_err(|error| failed(&path, error))?;
        Ok(Self(path))
    }

    /// The settings for measuring places of these kinds with works of at most `bytes_max` bytes.
    pub fn settings(
        &self,
        arguments: &PlaceArguments,
        kinds: &[PlaceKind],
        bytes_max: u64,
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
    /// Removes the folder, in which nothing may be mounted any more.
    pub fn remove(self) -> Result<(), Failure> {
        remove(&self.0).map_err(|error| failed(&self.0, error))
    }
}

/// Removes a folder; a missing one is no error.
#[expect(clippy::disallowed_methods, reason = "as it was made")]
fn remove(path: &Path) -> std::io::Result<()> {
    match std::fs::remove_dir_all(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // The user sees the earlier failure.
        let _ = remove(&self.0);
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "devices of this machine are not simulated"
)]
fn check_device(arguments: &PlaceArguments) -> Result<(), Failure> {
    let Some(device) = &arguments.device else {
        return Err(Failure::new(
            "guest-block needs a block device that may be overwritten: add --device /dev/vdb \
             --overwrite",
        ));
    };
    let data = std::fs::metadata(device).map_err(|error| failed(device, error))?;
    if !data.file_type().is_block_device() {
        return Err(failed(device, "it is not a block device"));
    }
    if !arguments.overwrite {
        return Err(failed(
            device,
            "its content would be lost; to allow that, add --overwrite",
        ));
    }
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let name = device.to_string_lossy();
    let is_mounted = mounts
        .lines()
        .any(|line| line.split(' ').next() == Some(&name));
    match is_mounted {
        true => Err(failed(
            device,
            "it is mounted; unmount it, or use another device",
        )),
        false => Ok(()),
    }
}
