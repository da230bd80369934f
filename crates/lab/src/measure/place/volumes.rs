//! [`VolumePlace`]: volumes of a temporary `scree up`: behind an encrypting filter, or encrypted.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::programs::{Running, run, start};
use super::{Opened, Place, PlaceKind, Settings};
use crate::measure::error::PathContext as _;
use crate::measure::{Account, Cipher, MeasureError, Meter, Stop, Surface, exports};

/// Timeout of the start of `scree up`.
const START_MAX: Duration = Duration::from_secs(120);

/// Name of the filter's key.
const KEY: &str = "measured";

pub struct VolumePlace {
    kind: PlaceKind,
    scree: Scree,
    process: Running,
    bytes: u64,
    opened: u32,
    plain: PathBuf,
    stop: Stop,
}

/// Runs commands of the temporary `scree up`.
#[derive(Clone)]
struct Scree {
    program: PathBuf,
    folder: PathBuf,
}

impl Scree {
    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command.args(words).arg("--dir").arg(&self.folder);
        command
    }

    fn run(&self, words: &[&str]) -> Result<String, MeasureError> {
        run(self.command(words), &[])
    }
}

impl VolumePlace {
    pub fn new(kind: PlaceKind, settings: &Settings) -> Result<Self, MeasureError> {
        let folder = settings.folder.join("up");
        let scree = Scree {
            program: settings.scree.clone(),
            folder: folder.clone(),
        };
        // A destage waits only for its snapshot.
        let words = [
            "up",
            "--units",
            "2",
            "--destage-after",
            "1h",
            "--overcommit",
            "100000",
        ];
        let output = settings.folder.join("up.output");
        let mut process = start(&scree.command(&words), output)?;
        process.wait_until("`scree up` does not answer", START_MAX, || {
            scree.run(&["status"]).is_ok()
        })?;
        let keys = folder.join("filter-keys").join("local");
        std::fs::create_dir_all(&keys).at(&keys)?;
        write_private(&keys.join(KEY), "a passphrase to be measured with\n")?;
        Ok(Self {
            kind,
            scree,
            process,
            bytes: settings.bytes_max,
            opened: 0,
            plain: settings.folder.join("plain"),
            stop: settings.stop.clone(),
        })
    }
}

fn write_private(path: &Path, content: &str) -> Result<(), MeasureError> {
    use std::io::Write as _;
    let mut file = world::host::open_private(path).at(path)?;
    file.write_all(content.as_bytes()).at(path)
}

impl Place for VolumePlace {
    fn open(&mut self, cipher: Option<Cipher>) -> Result<Box<dyn Opened>, MeasureError> {
        self.opened += 1;
        let name = format!("measured-{}", self.opened);
        // A disk that a filter encrypts needs space for its header.
        let size = format!("{}M", (self.bytes >> 20) + 64);
        let seal = match (self.kind, cipher) {
            (PlaceKind::Agent, Some(Cipher::Aes256Gcm)) => "aes-256-gcm",
            (PlaceKind::Filter, Some(Cipher::Aes256Xts)) | (_, None) => "none",
            (kind, Some(cipher)) => {
                let why = format!("{kind} does not support {cipher}");
                return Err(MeasureError::Unfit(why));
            }
        };
        let words = [
            "volume",
            "create",
            &name,
            "--size",
            &size,
            "--encryption",
            seal,
            "--replicas",
            "1",
        ];
        self.scree.run(&words)?;
        if self.kind == PlaceKind::Filter && cipher.is_some() {
            let policy = self.scree.folder.join("measured.toml");
            let filters = format!(
                "volume = \"{name}\"\n[[filter]]\nkind = \"encrypt\"\nkey = \"{KEY}\"\nformat = \"if-empty\"\n"
            );
            std::fs::write(&policy, filters).at(&policy)?;
            self.scree
                .run(&["chain", "apply", &policy.to_string_lossy()])?;
        }
        self.scree.run(&["volume", "export", &name])?;
        let socket = self.scree.folder.join("nbd.sock");
        let mut opened = Box::new(VolumeOpened {
            surface: Surface::Export {
                socket: socket.clone(),
                name: name.clone(),
            },
            scree: self.scree.clone(),
            process: self.process.id(),
            name: name.clone(),
            snapshots: 0,
            plain: self.plain.clone(),
        });
        // A filter has written its header by now, while the map of a volume without one is still
        // empty: the first writes cost more, and would look like a saving of the filter.
        exports::fill((&socket, &name), self.bytes, &self.stop)?;
        opened.settle()?;
        Ok(opened)
    }
}

struct VolumeOpened {
    surface: Surface,
    scree: Scree,
    process: u32,
    name: String,
    snapshots: u32,
    plain: PathBuf,
}

impl Opened for VolumeOpened {
    fn surface(&self) -> &Surface {
        &self.surface
    }

    fn meter(&self) -> Meter {
        Meter::new(vec![Account::Process(self.process)])
    }

    fn plain_folder(&self) -> Option<&Path> {
        Some(&self.plain)
    }

    /// A snapshot is completed when all earlier writes are on the units.
    fn settle(&mut self) -> Result<(), MeasureError> {
        self.snapshots += 1;
        let snapshot = format!("{}-{}", self.name, self.snapshots);
        let words = [
            "snapshot", "create", &self.name, "--name", &snapshot, "--wait",
        ];
        self.scree.run(&words)?;
        self.scree.run(&["snapshot", "delete", &snapshot])?;
        Ok(())
    }

    fn close(self: Box<Self>) -> Result<(), MeasureError> {
        self.scree.run(&["volume", "unexport", &self.name])?;
        self.scree.run(&["volume", "delete", &self.name])?;
        Ok(())
    }
}
