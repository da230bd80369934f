//! Connections that break while a host waits for an answer.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;

use base::Slot;
use unit::{ReadSlots, SlotRun, Unit, UnitError};
use world::Endpoint;

use crate::inside::whole_lease;
use crate::site::{Site, connect, put, read, segment, unit_called};

/// A proxy between hosts and a daemon, which breaks connections.
struct Between {
    at: Endpoint,
    /// Number of further requests that are lost with their connection.
    breaks: Arc<AtomicUsize>,
    connections: Arc<AtomicUsize>,
}

impl Between {
    #[expect(clippy::disallowed_methods, reason = "it is no daemon")]
    fn new(daemon: &Endpoint) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let at = Endpoint::Tcp(listener.local_addr().expect("bound"));
        let (breaks, connections) = (Arc::<AtomicUsize>::default(), Arc::<AtomicUsize>::default());
        let (counted, made, daemon) = (
            Arc::clone(&breaks),
            Arc::clone(&connections),
            daemon.clone(),
        );
        thread::spawn(move || {
            for host in listener.incoming() {
                made.fetch_add(1, Ordering::SeqCst);
                let (host, daemon) = (host.expect("a host"), connect(&daemon));
                let same = |stream: &TcpStream| stream.try_clone().expect("a descriptor");
                let (to_host, from_daemon) = (same(&host), same(&daemon));
                thread::spawn(move || carry(&from_daemon, &to_host, &AtomicUsize::new(0)));
                let breaks = Arc::clone(&counted);
                thread::spawn(move || carry(&host, &daemon, &breaks));
            }
        });
        Self {
            at,
            breaks,
            connections,
        }
    }
}

fn carry(mut from: &TcpStream, mut to: &TcpStream, breaks: &AtomicUsize) {
    let mut buffer = [0; 4096];
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        let left = breaks.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| {
            left.checked_sub(1)
        });
        if left.is_ok() || to.write_all(&buffer[..count]).is_err() {
            break;
        }
    }
    // This fails if the other side has closed already.
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}

fn read_async(unit: &dyn Unit, serial: u64) -> Result<Vec<u8>, UnitError> {
    let run = SlotRun {
        segment: segment(serial),
        first: Slot(0),
        count: 1,
    };
    let (sender, receiver) = mpsc::channel();
    let done = move |read: Result<ReadSlots<'_>, UnitError>| {
        let content = |slots: ReadSlots<'_>| {
            let slot = slots.iter(512).next();
            slot.map(|(_, data)| data.to_vec()).unwrap_or_default()
        };
        sender.send(read.map(content)).expect("waited for");
    };
    assert!(unit.read_async(run, 512, Box::new(done)), "it is there");
    receiver.recv().expect("answered once")
}

/// A guest got an I/O error if the daemon restarted during its read.
#[test]
fn a_read_is_repeated_once_if_its_connection_breaks() {
    let site = Site::new();
    let (id, host) = (unit_called(1), site.host("h1"));
    let server = site.server(id);
    let between = Between::new(server.endpoint());
    type Read = fn(&dyn Unit, u64) -> Result<Vec<u8>, UnitError>;
    for (serial, read) in [(10, read as Read), (12, read_async)] {
        let at = std::slice::from_ref(&between.at);
        let unit = site.unit(&host, id, at, &[whole_lease(1)]);
        put(&unit, serial, 0).expect("put");
        let content = [serial as u8; 512];
        assert_eq!(read(&unit, serial).expect("it exists"), content);
        let before = between.connections.load(Ordering::SeqCst);
        between.breaks.store(1, Ordering::SeqCst);
        assert_eq!(read(&unit, serial).expect("once more"), content);
        assert_eq!(between.connections.load(Ordering::SeqCst), before + 1);
    }
}

/// The outcome of a put is unknown, and a second break means that the daemon is unavailable.
#[test]
fn a_put_and_a_read_that_breaks_twice_are_not_repeated() {
    let site = Site::new();
    let (id, host) = (unit_called(1), site.host("h1"));
    let server = site.server(id);
    let between = Between::new(server.endpoint());
    let at = std::slice::from_ref(&between.at);
    for (breaks, is_put) in [(1, true), (2, false)] {
        let unit = site.unit(&host, id, at, &[whole_lease(1)]);
        unit.probe().expect("it exists");
        between.breaks.store(breaks, Ordering::SeqCst);
        let failed = match is_put {
            true => put(&unit, 11, 0),
            false => read(&unit, 10).map(|_| ()),
        };
        let error = failed.expect_err("it broke");
        assert!(matches!(error, UnitError::Unavailable { .. }), "{error}");
        assert_eq!(between.breaks.load(Ordering::SeqCst), 0);
    }
}
