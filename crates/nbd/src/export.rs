//! A device and the thread that owns it and serves it.
//!
//! [`ExportThread`] is the owner's end: it runs closures on the device and
//! stops the export. [`Export`] is the entrance for connections, cheap to clone.
//!
//! The end of an export: 1. refuse new connections and new requests, 2. let
//! the device finish what it has, 3. flush it, 4. send the replies that wait,
//! 5. drop the connections, 6. give the device back.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use base::{BlockDevice, Capabilities, DeviceGeometry, IoError};
use world::real::Waker;
use world::{Clock, Wake};

use super::Limits;
use super::connection::Settings;
use super::spin::SPIN;
use super::table::ExportInfo;
use super::watcher::Watcher;
use super::worker::Worker;
use net::Channel;

/// How an export is served.
#[derive(Clone)]
pub struct ExportOptions {
    /// The name that clients ask for.
    pub name: String,
    /// For people; may be empty.
    pub description: String,
    /// Refuse writes, even if the device takes them.
    pub read_only: bool,
    /// Connections at once.
    pub connections_max: usize,
    /// What they may use.
    pub limits: Limits,
    /// How long the thread may look for the next request before it sleeps, if
    /// experience says that this pays; zero: never.
    pub spin: Duration,
    /// How long a stop waits for the device to finish and flush.
    pub stop_timeout: Duration,
    /// Where time comes from.
    pub clock: Arc<dyn Clock>,
}

impl ExportOptions {
    /// Usual values: 64 connections, and 30 s to stop.
    pub fn new(name: impl Into<String>, clock: Arc<dyn Clock>) -> Self {
        Self {
            name: name.into(),
            description: String::new(),
            read_only: false,
            connections_max: 64,
            limits: Limits::default(),
            spin: SPIN,
            stop_timeout: Duration::from_secs(30),
            clock,
        }
    }
}

/// Why an export could not be started.
#[derive(Debug, thiserror::Error)]
pub enum SpawnError<E> {
    /// The device could not be made.
    #[error("the device could not be opened")]
    Device(#[source] E),
    /// The thread could not be made.
    #[error("the thread could not be started")]
    Thread(#[source] std::io::Error),
}

/// The export's thread has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the export has ended")]
pub struct ExportGone;

/// How an export ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stopped {
    /// Whether everything acknowledged is durable.
    pub flushed: Result<(), IoError>,
}

/// Why a client is not let in.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum NotOpen {
    #[error("the export is stopping")]
    Stopping,
    #[error("the export has stopped: {0}")]
    Failed(String),
    #[error("the export has its {0} connections already")]
    Full(usize),
}

/// One of a limited number of places, free again when dropped.
#[derive(Debug)]
pub(super) struct Seat(Arc<AtomicUsize>);

impl Seat {
    /// Takes a place if fewer than `max` are taken.
    pub(super) fn take(taken: &Arc<AtomicUsize>, max: usize) -> Option<Self> {
        let more = |count| (count < max).then_some(count + 1);
        taken
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, more)
            .ok()?;
        Some(Self(Arc::clone(taken)))
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// A client at the end of its handshake.
pub(super) struct Arrival {
    pub(super) channel: Channel,
    pub(super) settings: Settings,
    /// The handshake's last replies.
    pub(super) replies: Vec<u8>,
    /// What came behind the handshake.
    pub(super) received: Vec<u8>,
    /// One of the export's places, and one of the server's.
    pub(super) seats: [Seat; 2],
}

/// What follows.
pub(super) type Then = Box<dyn FnOnce()>;

pub(super) enum Command<D> {
    Arrive(Box<Arrival>),
    /// Works on the device, and returns what to do when its new size has been
    /// published.
    Run(Box<dyn FnOnce(&mut D) -> Then + Send>),
    Stop(Box<dyn FnOnce(D, Stopped) + Send>),
}

/// What the thread tells everyone else.
pub(super) struct Shared {
    size_bytes: AtomicU64,
    block_bytes: AtomicU64,
    block_min: AtomicU32,
    capabilities: Mutex<Capabilities>,
    connections: Arc<AtomicUsize>,
    stopping: AtomicBool,
    pub(super) failure: Mutex<Option<String>>,
}

impl Shared {
    fn new(geometry: DeviceGeometry, capabilities: Capabilities) -> Self {
        Self {
            size_bytes: AtomicU64::new(geometry.size_bytes),
            block_bytes: AtomicU64::new(geometry.block_bytes.into()),
            block_min: AtomicU32::new(1),
            capabilities: Mutex::new(capabilities),
            connections: Arc::default(),
            stopping: AtomicBool::new(false),
            failure: Mutex::default(),
        }
    }

    pub(super) fn publish(&self, geometry: DeviceGeometry) {
        self.size_bytes
            .store(geometry.size_bytes, Ordering::Relaxed);
    }

    /// The same, and what else may be otherwise after its owner has worked on it.
    pub(super) fn publish_all(&self, device: &impl BlockDevice) {
        self.publish(device.geometry());
        let mut capabilities = self
            .capabilities
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        *capabilities = device.capabilities();
    }
}

trait AnyEntrance: Send + Sync {
    fn shared(&self) -> &Shared;
    fn options(&self) -> &ExportOptions;
    fn arrive(&self, arrival: Box<Arrival>);
}

struct Entrance<D> {
    commands: Mutex<Sender<Command<D>>>,
    waker: Waker,
    shared: Arc<Shared>,
    options: ExportOptions,
}

impl<D> Entrance<D> {
    fn send(&self, command: Command<D>) -> Result<(), ExportGone> {
        let sender = self.commands.lock().unwrap_or_else(PoisonError::into_inner);
        sender.send(command).map_err(|_| ExportGone)?;
        self.waker.wake();
        Ok(())
    }
}

impl<D> AnyEntrance for Entrance<D> {
    fn shared(&self) -> &Shared {
        &self.shared
    }

    fn options(&self) -> &ExportOptions {
        &self.options
    }

    fn arrive(&self, arrival: Box<Arrival>) {
        // If the export is gone the client sees its connection close.
        let _ = self.send(Command::Arrive(arrival));
    }
}

/// An export, as clients are let in to it. Cheap to clone.
#[derive(Clone)]
pub struct Export {
    entrance: Arc<dyn AnyEntrance>,
    read_only: bool,
}

impl fmt::Debug for Export {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_tuple("Export").field(&self.name()).finish()
    }
}

impl Export {
    /// The same export, for clients that may not write.
    #[must_use]
    pub fn read_only(mut self) -> Self {
        self.read_only = true;
        self
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.entrance.options().name
    }

    /// For people; may be empty.
    #[must_use]
    pub fn description(&self) -> &str {
        &self.entrance.options().description
    }

    /// How it is now: the size may have grown since it was asked last.
    #[must_use]
    pub fn info(&self) -> ExportInfo {
        let shared = self.entrance.shared();
        let capabilities = *shared
            .capabilities
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        ExportInfo {
            name: self.name().to_owned(),
            description: self.description().to_owned(),
            size_bytes: shared.size_bytes.load(Ordering::Relaxed),
            block_min: shared.block_min.load(Ordering::Relaxed),
            block_bytes: shared.block_bytes.load(Ordering::Relaxed) as u32,
            capabilities,
            read_only: self.read_only
                || self.entrance.options().read_only
                || capabilities.read_only,
        }
    }

    /// Tells new clients that it takes multiples of `block_min` bytes only: a device that
    /// takes any, as devices do, needs nobody to be told. A power of two.
    pub fn tell_block_min(&self, block_min: u32) {
        let shared = self.entrance.shared();
        shared.block_min.store(block_min, Ordering::Relaxed);
    }

    /// How many connections it has.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.entrance.shared().connections.load(Ordering::Acquire)
    }

    /// An export whose connections its owner takes himself ([`super::Leg`]): nobody comes
    /// in by it.
    pub(super) fn without_thread(options: ExportOptions, device: &impl BlockDevice) -> Self {
        let shared = Shared::new(device.geometry(), device.capabilities());
        let waker = Waker::new().expect("a file descriptor is left");
        Self {
            entrance: Arc::new(Entrance::<()> {
                commands: Mutex::new(mpsc::channel().0),
                waker,
                shared: Arc::new(shared),
                options,
            }),
            read_only: false,
        }
    }

    /// An export that nobody serves, for the handshake's fuzzer.
    pub(super) fn unserved(name: &str) -> Self {
        let device = crate::memory::MemoryDevice::new(1 << 20);
        let options = ExportOptions::new(name, Arc::new(world::real::RealClock::new()));
        Self::without_thread(options, &device)
    }

    /// Why its device stopped for good, if it did.
    #[must_use]
    pub fn failure(&self) -> Option<String> {
        let failure = self.entrance.shared().failure.lock();
        failure.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Takes one of its places.
    pub(super) fn reserve(&self) -> Result<Seat, NotOpen> {
        let shared = self.entrance.shared();
        if shared.stopping.load(Ordering::Acquire) {
            return Err(NotOpen::Stopping);
        }
        let failure = shared
            .failure
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(failure) = failure.as_ref() {
            return Err(NotOpen::Failed(failure.clone()));
        }
        let max = self.entrance.options().connections_max;
        Seat::take(&shared.connections, max).ok_or(NotOpen::Full(max))
    }

    /// Lets a client in.
    pub(super) fn arrive(&self, arrival: Arrival) {
        self.entrance.arrive(Box::new(arrival));
    }
}

/// The owner's end of an export. Dropping it stops the export without waiting
/// for it.
pub struct ExportThread<D> {
    entrance: Arc<Entrance<D>>,
    thread: Option<thread::JoinHandle<()>>,
}

impl<D: BlockDevice + 'static> ExportThread<D> {
    /// Starts a thread, makes a device in it, and serves that. Returns when
    /// the device is made. The device calls the [`Wake`] when work of its own
    /// has ended and it wants to be polled.
    ///
    /// # Errors
    /// [`SpawnError`], with what `make_device` said.
    pub fn spawn<E: Send + 'static>(
        options: ExportOptions,
        make_device: impl FnOnce(Wake) -> Result<D, E> + Send + 'static,
    ) -> Result<Self, SpawnError<E>> {
        Self::spawn_watching(options, |wake, _| make_device(wake))
    }

    /// As [`ExportThread::spawn`], for a device that has descriptors of its own: what it
    /// has watched by the [`Watcher`] has it polled.
    ///
    /// # Errors
    /// As there.
    pub fn spawn_watching<E: Send + 'static>(
        options: ExportOptions,
        make_device: impl FnOnce(Wake, Watcher) -> Result<D, E> + Send + 'static,
    ) -> Result<Self, SpawnError<E>> {
        let waker = Waker::new().map_err(SpawnError::Thread)?;
        let (commands, received) = mpsc::channel();
        let (made, result) = mpsc::channel();
        let worker = Worker::new(waker.clone(), received, options.clone());
        let worker = worker.map_err(SpawnError::Thread)?;
        let wake = waker.handle();
        #[expect(
            clippy::disallowed_methods,
            reason = "it lasts as long as the export: no job for a pool"
        )]
        let thread = thread::Builder::new()
            .name(format!("nbd-{}", options.name))
            .spawn(move || {
                let device = match make_device(wake, worker.watcher()) {
                    Ok(device) => device,
                    Err(error) => {
                        let _ = made.send(Err(error));
                        return;
                    }
                };
                let shared = Arc::new(Shared::new(device.geometry(), device.capabilities()));
                let _ = made.send(Ok(Arc::clone(&shared)));
                worker.serve(device, &shared);
            })
            .map_err(SpawnError::Thread)?;
        let shared = match result.recv() {
            Ok(Ok(shared)) => shared,
            Ok(Err(error)) => return Err(SpawnError::Device(error)),
            Err(_) => {
                let message = "the thread panicked while it opened the device";
                return Err(SpawnError::Thread(std::io::Error::other(message)));
            }
        };
        Ok(Self {
            entrance: Arc::new(Entrance {
                commands: Mutex::new(commands),
                waker,
                shared,
                options,
            }),
            thread: Some(thread),
        })
    }

    /// The entrance, to be given to an [`ExportTable`](super::ExportTable).
    #[must_use]
    pub fn export(&self) -> Export {
        Export {
            entrance: Arc::clone(&self.entrance) as Arc<dyn AnyEntrance>,
            read_only: false,
        }
    }

    /// Runs `action` on the device, in its thread, between two turns, and waits
    /// for what it returns. The completions of requests that it starts are not
    /// told to anyone. If it changed the size, every handshake from now on tells the
    /// new one.
    ///
    /// # Errors
    /// [`ExportGone`] if the thread has ended.
    pub fn call<R: Send + 'static>(
        &self,
        action: impl FnOnce(&mut D) -> R + Send + 'static,
    ) -> Result<R, ExportGone> {
        let (answer, answered) = mpsc::channel();
        self.entrance.send(Command::Run(Box::new(move |device| {
            let result = action(device);
            Box::new(move || {
                let _ = answer.send(result);
            })
        })))?;
        answered.recv().map_err(|_| ExportGone)
    }

    /// Stops the export gracefully (see the module's head), runs `finish` on
    /// the device in its thread, and returns what that returned. A device that
    /// may change threads is given back by `|device, stopped| (device,
    /// stopped)`.
    ///
    /// # Errors
    /// [`ExportGone`] if the thread has ended.
    pub fn stop<R: Send + 'static>(
        mut self,
        finish: impl FnOnce(D, Stopped) -> R + Send + 'static,
    ) -> Result<R, ExportGone> {
        let (answer, answered) = mpsc::channel();
        self.entrance.shared.stopping.store(true, Ordering::Release);
        self.entrance
            .send(Command::Stop(Box::new(move |device, stopped| {
                let _ = answer.send(finish(device, stopped));
            })))?;
        let result = answered.recv().map_err(|_| ExportGone);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        result
    }
}

impl<D> Drop for ExportThread<D> {
    fn drop(&mut self) {
        if self.thread.is_some() {
            self.entrance.shared.stopping.store(true, Ordering::Release);
            let _ = self.entrance.send(Command::Stop(Box::new(|_, _| {})));
        }
    }
}
