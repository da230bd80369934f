//! A device, and the thread that owns it and serves it.
//!
//! [`ExportThread`] belongs to the owner of the export: it runs closures on the device and stops
//! the export. [`Export`] adds connections, and is cheap to clone.
//!
//! An export stops in these steps: 1. refuse new connections and requests, 2. wait until the
//! device has completed its operations, 3. flush it, 4. send staged replies, 5. close the
//! connections, 6. return the device.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{self, Sender};
use std::thread;
use std::time::Duration;

use base::{BlockDevice, Capabilities, DeviceGeometry, IoError};
use parking_lot::Mutex;
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
    /// The name under which clients request it.
    pub name: String,
    /// A description for people; may be empty.
    pub description: String,
    /// Whether writes are refused even if the device accepts them.
    pub read_only: bool,
    /// The maximal number of connections.
    pub connections_max: usize,
    /// The limits of connections.
    pub limits: Limits,
    /// How long the thread may poll for the next request before it sleeps, when earlier polls
    /// found one; zero disables this.
    pub spin: Duration,
    /// The maximal time in which the device completes its operations and flushes when the export
    /// stops.
    pub stop_timeout: Duration,
    /// The clock of the export.
    pub clock: Arc<dyn Clock>,
}

impl ExportOptions {
    /// The defaults: 64 connections, and 30 s to stop.
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

/// Why an export could not start.
#[derive(Debug, thiserror::Error)]
pub enum SpawnError<E> {
    /// The device could not be opened.
    #[error("the device could not be opened")]
    Device(#[source] E),
    /// The thread could not start.
    #[error("the thread could not be started")]
    Thread(#[source] std::io::Error),
}

/// The export's thread has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the export has ended")]
pub struct ExportEnded;

/// How an export ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stopped {
    /// The result of the last flush: whether all acknowledged changes are durable.
    pub flushed: Result<(), IoError>,
}

/// Why an export refuses a connection.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum OpenRefusal {
    #[error("the export is stopping")]
    Stopping,
    #[error("the export has stopped: {0}")]
    Failed(String),
    #[error("the export has {0} connections, which is its maximum")]
    Full(usize),
}

/// A connection permit: one of a limited number of connections. Dropping it releases it.
#[derive(Debug)]
pub(super) struct ConnectionPermit(Arc<AtomicUsize>);

impl ConnectionPermit {
    /// A permit, if fewer than `max` are taken.
    pub(super) fn take(taken: &Arc<AtomicUsize>, max: usize) -> Option<Self> {
        let more = |count| (count < max).then_some(count + 1);
        taken
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, more)
            .ok()?;
        Some(Self(Arc::clone(taken)))
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// A connection whose handshake has ended.
pub(super) struct NewConnection {
    pub(super) channel: Channel,
    pub(super) settings: Settings,
    /// The handshake's last replies, which have not been sent.
    pub(super) replies: Vec<u8>,
    /// The bytes that followed the handshake.
    pub(super) received: Vec<u8>,
    /// The permits of the export and of the server.
    pub(super) permits: [ConnectionPermit; 2],
}

/// Runs after the device's new size has been published.
pub(super) type AfterPublish = Box<dyn FnOnce()>;

/// A command to the thread of an export.
pub(super) enum Command<D> {
    AddConnection(Box<NewConnection>),
    /// Runs a closure on the device.
    Run(Box<dyn FnOnce(&mut D) -> AfterPublish + Send>),
    /// Stops the export, and passes the device to the closure.
    Stop(Box<dyn FnOnce(D, Stopped) + Send>),
}

/// What the thread of an export publishes to other threads.
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

    /// Publishes the size and the capabilities, which the owner may have changed.
    pub(super) fn publish_all(&self, device: &impl BlockDevice) {
        self.publish(device.geometry());
        let mut capabilities = self.capabilities.lock();
        *capabilities = device.capabilities();
    }
}

/// An [`ExportHandle`] for any type of device.
trait AnyExportHandle: Send + Sync {
    fn shared(&self) -> &Shared;
    fn options(&self) -> &ExportOptions;
    fn add_connection(&self, connection: Box<NewConnection>);
}

/// Sends commands to the thread of an export.
struct ExportHandle<D> {
    commands: Mutex<Sender<Command<D>>>,
    waker: Waker,
    shared: Arc<Shared>,
    options: ExportOptions,
}

impl<D> ExportHandle<D> {
    fn send(&self, command: Command<D>) -> Result<(), ExportEnded> {
        let sender = self.commands.lock();
        sender.send(command).map_err(|_| ExportEnded)?;
        self.waker.wake();
        Ok(())
    }
}

impl<D> AnyExportHandle for ExportHandle<D> {
    fn shared(&self) -> &Shared {
        &self.shared
    }

    fn options(&self) -> &ExportOptions {
        &self.options
    }

    fn add_connection(&self, connection: Box<NewConnection>) {
        // If the export has ended, this closes the connection.
        let _ = self.send(Command::AddConnection(connection));
    }
}

/// What clients of an [`super::EmbeddedServer`] learn about its device. There is no thread to send
/// commands to, and so no descriptor to wake one.
struct ThreadlessHandle {
    shared: Arc<Shared>,
    options: ExportOptions,
}

impl AnyExportHandle for ThreadlessHandle {
    fn shared(&self) -> &Shared {
        &self.shared
    }

    fn options(&self) -> &ExportOptions {
        &self.options
    }

    fn add_connection(&self, _: Box<NewConnection>) {
        // Only the embedded server itself adds connections. This closes the connection.
    }
}

/// An export, to which connections can be added. Cheap to clone.
#[derive(Clone)]
pub struct Export {
    handle: Arc<dyn AnyExportHandle>,
    read_only: bool,
}

impl fmt::Debug for Export {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_tuple("Export").field(&self.name()).finish()
    }
}

impl Export {
    /// The same export for clients that may not write.
    #[must_use]
    pub fn read_only(mut self) -> Self {
        self.read_only = true;
        self
    }

    /// The export's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.handle.options().name
    }

    /// A description for people; may be empty.
    #[must_use]
    pub fn description(&self) -> &str {
        &self.handle.options().description
    }

    /// The current state of the export. Its size may grow.
    #[must_use]
    pub fn info(&self) -> ExportInfo {
        let shared = self.handle.shared();
        let capabilities = *shared.capabilities.lock();
        ExportInfo {
            name: self.name().to_owned(),
            description: self.description().to_owned(),
            size_bytes: shared.size_bytes.load(Ordering::Relaxed),
            block_min: shared.block_min.load(Ordering::Relaxed),
            block_bytes: shared.block_bytes.load(Ordering::Relaxed) as u32,
            capabilities,
            read_only: self.read_only || self.handle.options().read_only || capabilities.read_only,
        }
    }

    /// Sets the minimal block size that new clients get, in bytes, a power of two. It is 1 for
    /// devices that accept any offset and length.
    pub fn set_block_min(&self, block_min: u32) {
        let shared = self.handle.shared();
        shared.block_min.store(block_min, Ordering::Relaxed);
    }

    /// The number of connections.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.handle.shared().connections.load(Ordering::Acquire)
    }

    /// An export without a thread, for [`super::EmbeddedServer`]. Connections cannot be added by
    /// it.
    pub(super) fn without_thread(options: ExportOptions, device: &impl BlockDevice) -> Self {
        let shared = Arc::new(Shared::new(device.geometry(), device.capabilities()));
        Self {
            handle: Arc::new(ThreadlessHandle { shared, options }),
            read_only: false,
        }
    }

    /// An export that no thread serves, for fuzzing the handshake.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(super) fn unserved(name: &str) -> Self {
        let device = testkit::memory_device::MemoryDevice::new(1 << 20);
        let options = ExportOptions::new(name, Arc::new(world::real::RealClock::new()));
        Self::without_thread(options, &device)
    }

    /// Why the device stopped for good; `None` if it works.
    #[must_use]
    pub fn failure(&self) -> Option<String> {
        let failure = self.handle.shared().failure.lock();
        failure.clone()
    }

    /// Takes a permit for a connection.
    pub(super) fn reserve(&self) -> Result<ConnectionPermit, OpenRefusal> {
        let shared = self.handle.shared();
        if shared.stopping.load(Ordering::Acquire) {
            return Err(OpenRefusal::Stopping);
        }
        let failure = shared.failure.lock();
        if let Some(failure) = failure.as_ref() {
            return Err(OpenRefusal::Failed(failure.clone()));
        }
        let max = self.handle.options().connections_max;
        ConnectionPermit::take(&shared.connections, max).ok_or(OpenRefusal::Full(max))
    }

    /// Adds a connection.
    pub(super) fn add_connection(&self, connection: NewConnection) {
        self.handle.add_connection(Box::new(connection));
    }
}

/// The owner of an export's thread. Dropping it stops the export and does not wait for that.
pub struct ExportThread<D> {
    handle: Arc<ExportHandle<D>>,
    thread: Option<thread::JoinHandle<()>>,
}

impl<D: BlockDevice + 'static> ExportThread<D> {
    /// Starts a thread, which opens a device with `make_device` and serves it. Returns when the
    /// device is open. The device calls the [`Wake`] when it has to be polled.
    ///
    /// # Errors
    /// [`SpawnError`], with the error of `make_device`.
    pub fn spawn<E: Send + 'static>(
        options: ExportOptions,
        make_device: impl FnOnce(Wake) -> Result<D, E> + Send + 'static,
    ) -> Result<Self, SpawnError<E>> {
        Self::spawn_watching(options, |wake, _| make_device(wake))
    }

    /// As [`ExportThread::spawn`], for a device that has sockets. It is polled when a socket that
    /// the [`Watcher`] watches becomes ready.
    ///
    /// # Errors
    /// As [`ExportThread::spawn`].
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
            reason = "the thread lives as long as the export, which is too long for a pool"
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
            handle: Arc::new(ExportHandle {
                commands: Mutex::new(commands),
                waker,
                shared,
                options,
            }),
            thread: Some(thread),
        })
    }

    /// The export, for an [`ExportTable`](super::ExportTable).
    #[must_use]
    pub fn export(&self) -> Export {
        Export {
            handle: Arc::clone(&self.handle) as Arc<dyn AnyExportHandle>,
            read_only: false,
        }
    }

    /// Runs `action` on the device, in its thread between two turns, and waits for the result. The
    /// completions of requests that `action` starts are dropped. Clients whose handshake ends
    /// later get the new size, if `action` changed it.
    ///
    /// # Errors
    /// [`ExportEnded`] if the thread has ended.
    pub fn call<R: Send + 'static>(
        &self,
        action: impl FnOnce(&mut D) -> R + Send + 'static,
    ) -> Result<R, ExportEnded> {
        let (sender, receiver) = mpsc::channel();
        self.handle.send(Command::Run(Box::new(move |device| {
            let result = action(device);
            Box::new(move || {
                let _ = sender.send(result);
            })
        })))?;
        receiver.recv().map_err(|_| ExportEnded)
    }

    /// Stops the export in the steps of the module's head, runs `finish` on the device in its
    /// thread, and returns the result. `|device, stopped| (device, stopped)` returns a device
    /// that may change threads.
    ///
    /// # Errors
    /// [`ExportEnded`] if the thread has ended.
    pub fn stop<R: Send + 'static>(
        mut self,
        finish: impl FnOnce(D, Stopped) -> R + Send + 'static,
    ) -> Result<R, ExportEnded> {
        let (sender, receiver) = mpsc::channel();
        self.handle.shared.stopping.store(true, Ordering::Release);
        self.handle
            .send(Command::Stop(Box::new(move |device, stopped| {
                let _ = sender.send(finish(device, stopped));
            })))?;
        let result = receiver.recv().map_err(|_| ExportEnded);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        result
    }
}

impl<D> Drop for ExportThread<D> {
    fn drop(&mut self) {
        if self.thread.is_some() {
            self.handle.shared.stopping.store(true, Ordering::Release);
            let _ = self.handle.send(Command::Stop(Box::new(|_, _| {})));
        }
    }
}
