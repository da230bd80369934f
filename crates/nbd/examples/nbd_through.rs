//! Serves the export of another NBD server, to measure the client or to try servers.
//!
//! ```text
//! nbd_through --to SOCKET [--export NAME] --unix PATH [--reconnect]
//! ```
//!
//! Prints a line and serves until its standard input ends. With `--reconnect` it connects again
//! after an error.

use std::error::Error;
use std::io::Read;
use std::sync::Arc;
use std::time::Duration;

use nbd::client::{ClientOptions, NbdClient, Reconnect, Target};
use nbd::{ExportOptions, ExportTable, ExportThread, ListenOptions, Server, ServerOptions};
use world::real::RealClock;
use world::{Clock, Endpoint};

fn main() -> Result<(), Box<dyn Error>> {
    let clock: Arc<dyn Clock> = Arc::new(RealClock::new());
    let mut options = ClientOptions::new("", clock.clone());
    let (mut to, mut unix) = (None, None);
    let mut arguments = std::env::args().skip(1);
    while let Some(name) = arguments.next() {
        let mut value = || arguments.next().ok_or(format!("{name} needs a value"));
        match name.as_str() {
            "--to" => to = Some(Endpoint::Unix(value()?.into())),
            "--unix" => unix = Some(Endpoint::Unix(value()?.into())),
            "--export" => options.export = value()?,
            "--reconnect" => {
                options.reconnect = Reconnect::Backoff {
                    min: Duration::from_millis(100),
                    max: Duration::from_secs(5),
                }
            }
            _ => return Err(format!("unknown argument {name}").into()),
        }
    }
    let target = Target::Endpoint(to.ok_or("--to is missing")?);
    let export = ExportOptions::new("through", clock.clone());
    let thread = ExportThread::spawn_watching(export, move |_, watcher| {
        NbdClient::new(target, options, watcher).opened()
    })?;
    let table = Arc::new(ExportTable::new());
    table.add(thread.export());
    let server = Server::start(ServerOptions::new(clock))?;
    let endpoint = unix.ok_or("--unix is missing")?;
    let listening = server.listen(&endpoint, ListenOptions::new(table))?;
    println!("{}", listening.endpoint);
    std::io::stdin().read_to_end(&mut Vec::new())?;
    drop(server);
    let stopped = thread.stop(|_, stopped| stopped)?;
    stopped.flushed?;
    Ok(())
}
