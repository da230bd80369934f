//! Serves a memory device, to measure the server or to try clients.
//!
//! ```text
//! nbd_memory [--unix PATH] [--tcp ADDRESS:PORT] [--size BYTES] [--tls FOLDER] [--read-only]
//!            [--spin-us N]
//! ```
//!
//! Prints one line per listener and serves until its standard input ends. `--tls` requires TLS,
//! with `ca-cert.pem`, `server-cert.pem` and `server-key.pem` of that folder.

use std::error::Error;
use std::io::Read;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use nbd::{
    ExportOptions, ExportTable, ExportThread, ListenOptions, Server, ServerOptions, ServerTls,
    TlsPolicy,
};
use testkit::memory_device::MemoryDevice;
use world::real::{RealClock, RealDisk};
use world::{Clock, Endpoint};

fn main() -> Result<(), Box<dyn Error>> {
    let clock: Arc<dyn Clock> = Arc::new(RealClock::new());
    let table = Arc::new(ExportTable::new());
    let mut listen = ListenOptions::new(table.clone());
    let mut endpoints = Vec::new();
    let mut export = ExportOptions::new("memory", clock.clone());
    let mut size = 1_usize << 30;
    let mut arguments = std::env::args().skip(1);
    while let Some(name) = arguments.next() {
        let mut value = || arguments.next().ok_or(format!("{name} needs a value"));
        match name.as_str() {
            "--unix" => endpoints.push(Endpoint::Unix(value()?.into())),
            "--tcp" => endpoints.push(Endpoint::Tcp(value()?.parse()?)),
            "--size" => size = value()?.parse()?,
            "--spin-us" => export.spin = Duration::from_micros(value()?.parse()?),
            "--read-only" => export.read_only = true,
            "--tls" => {
                let folder = PathBuf::from(value()?);
                let file = |name| folder.join(name);
                listen.tls = Some(ServerTls::read(
                    &RealDisk,
                    &file("ca-cert.pem"),
                    &file("server-cert.pem"),
                    &file("server-key.pem"),
                )?);
                listen.tls_policy = TlsPolicy::Required;
            }
            _ => return Err(format!("unknown argument {name}").into()),
        }
    }
    let thread = ExportThread::spawn(export, move |_| MemoryDevice::new(size).ok())?;
    table.add(thread.export());
    let server = Server::start(ServerOptions::new(clock))?;
    for endpoint in &endpoints {
        println!("{}", server.listen(endpoint, listen.clone())?.endpoint);
    }
    std::io::stdin().read_to_end(&mut Vec::new())?;
    drop(server);
    let stopped = thread.stop(|_, stopped| stopped)?;
    stopped.flushed?;
    Ok(())
}
