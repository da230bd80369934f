//! The client as a device, with nbdkit and qemu-nbd as servers, which have to be installed.

use std::path::Path;
use std::process::{Child, Command, Stdio};

use base::{BlockDevice, Durability, ExtentKind, IoError};
use nbd::client::ConnectionError;

use crate::device::same_as_an_array;
use crate::requester::{Requester, options};
use crate::support::{MIB, eventually};

/// A foreign server. Dropping it kills the server.
struct ForeignServer {
    child: Child,
    folder: tempfile::TempDir,
}

impl Drop for ForeignServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl ForeignServer {
    fn start(tool: &str, arguments: impl FnOnce(&Path) -> Vec<String>) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let mut command = Command::new(tool);
        command.args(arguments(&folder.path().join("socket")));
        command.env("PATH", "/usr/bin:/bin:/usr/sbin:/usr/local/bin");
        let child = command.stdin(Stdio::null()).stderr(Stdio::null()).spawn();
        let child = match child {
            Ok(child) => child,
            Err(error) => panic!("cannot run {tool}, which this test needs: {error}"),
        };
        let server = Self { child, folder };
        eventually("the server listens", || {
            server.folder.path().join("socket").exists()
        });
        server
    }

    fn nbdkit(arguments: &[&str]) -> Self {
        Self::start("nbdkit", |socket| {
            let own = ["--foreground", "--unix", &socket.display().to_string()].map(str::to_owned);
            let given = arguments.iter().map(|word| (*word).to_owned());
            own.into_iter().chain(given).collect()
        })
    }

    fn open(&self, export: &str) -> Result<Requester, ConnectionError> {
        let socket = self.folder.path().join("socket");
        // The socket may exist before the server listens.
        let mut opened = Requester::at(&socket, options(export));
        for _ in 0..1000 {
            if !matches!(opened, Err(ConnectionError::Socket(_))) {
                break;
            }
            std::thread::yield_now();
            opened = Requester::at(&socket, options(export));
        }
        opened
    }
}

#[test]
fn the_client_works_with_nbdkit() {
    let server = ForeignServer::nbdkit(&["memory", "1M"]);
    let mut requester = server.open("").expect("a connection");
    let capabilities = requester.device.capabilities();
    assert!(capabilities.can_extents && capabilities.can_trim && capabilities.can_write_zeroes);
    same_as_an_array(&mut requester, MIB, 1, 60);
    requester.trim(0, MIB as u64).expect("trimmed");
    requester
        .write(65536, &[1; 65536], Durability::Durable)
        .expect("written");
    let runs = requester.extents(0, MIB as u64).expect("extents");
    assert_eq!(runs[0].length, 65536);
    assert_eq!(runs[0].kind, ExtentKind::Hole);
    assert_eq!(runs[1].kind, ExtentKind::Data);
}

#[test]
fn the_client_works_without_structured_replies() {
    let server = ForeignServer::nbdkit(&["--no-sr", "memory", "1M"]);
    let mut requester = server.open("").expect("a connection");
    assert!(!requester.device.capabilities().can_extents);
    same_as_an_array(&mut requester, MIB, 2, 60);
    assert_eq!(requester.extents(0, 4096), Err(IoError::NotSupported));
}

#[test]
fn the_client_respects_the_block_sizes_and_the_read_only_flag_of_its_server() {
    let policy = [
        "--filter=blocksize-policy",
        "memory",
        "1M",
        "blocksize-minimum=4096",
        "blocksize-preferred=65536",
        "blocksize-maximum=65536",
        "blocksize-error-policy=error",
    ];
    let server = ForeignServer::nbdkit(&policy);
    let mut requester = server.open("").expect("a connection");
    assert_eq!(requester.device.geometry().block_bytes, 65536);
    let data: Vec<u8> = (0..MIB).map(|at| (at / 999) as u8).collect();
    requester
        .write(0, &data, Durability::Durable)
        .expect("written in parts");
    assert_eq!(requester.read(0, MIB), Ok(data));
    assert_eq!(requester.read(512, 512), Err(IoError::NotSupported));
    requester
        .trim(100, 20_000)
        .expect("whole blocks are trimmed");

    let server = ForeignServer::nbdkit(&["--read-only", "memory", "1M"]);
    let mut requester = server.open("").expect("a connection");
    assert!(requester.device.capabilities().read_only);
    let refused = requester.write(0, &[1], Durability::Volatile);
    assert_eq!(refused, Err(IoError::ReadOnly));
}

#[test]
fn an_error_of_the_server_is_an_error_of_the_device() {
    let server =
        ForeignServer::nbdkit(&["--filter=error", "memory", "1M", "error-pread-rate=100%"]);
    let mut requester = server.open("").expect("a connection");
    let failed = requester.read(0, 4096);
    assert!(matches!(failed, Err(IoError::Damaged(_))), "{failed:?}");
    requester
        .write(0, &[1; 512], Durability::Volatile)
        .expect("written");
}

#[test]
fn the_client_works_with_qemu_nbd() {
    let server = ForeignServer::start("qemu-nbd", |socket| {
        let image = socket.with_file_name("image");
        std::fs::File::create(&image)
            .and_then(|file| file.set_len(MIB as u64))
            .expect("a file");
        ["-t", "-e", "4", "-f", "raw", "-x", "disk", "-k"]
            .map(str::to_owned)
            .into_iter()
            .chain([socket.display().to_string(), image.display().to_string()])
            .collect()
    });
    let mut requester = server.open("disk").expect("a connection");
    same_as_an_array(&mut requester, MIB, 3, 40);
    requester.trim(0, MIB as u64).expect("trimmed");
    assert!(requester.extents(0, MIB as u64).is_ok());
    assert!(matches!(
        server.open("other"),
        Err(ConnectionError::Refused(_))
    ));
}
