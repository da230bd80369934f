//! [`EmbeddedServer`]: an NBD server without threads. Its owner gives it connections, and it runs
//! in the thread that calls [`EmbeddedServer::turn`].
//!
//! The process of an out-of-process filter uses the disk below through one
//! (docs/internals/out-of-process-filters.md).

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use base::BlockDevice;
use net::{Channel, Pipe, Sent};
use world::{Interest, Ready};

use super::export::{ConnectionPermit, Export, ExportOptions};
use super::handshake::{Offer, TlsPolicy};
use super::handshaking_client::{HandshakeProgress, HandshakingClient};
use super::service::Service;
use super::table::{Client, Exports, Listed};
use super::watcher::{WatchedSource, Watcher};

impl AsFd for HandshakingClient {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }
}

impl Pipe for WatchedSource<Channel> {
    fn receive(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.source().receive(into)
    }

    fn holds_received(&self) -> bool {
        self.get().holds_received()
    }

    fn send(&mut self, from: &[IoSlice<'_>]) -> io::Result<Sent> {
        self.source().send(from)
    }

    fn holds_unsent(&self) -> bool {
        self.get().holds_unsent()
    }
}

/// A list of exports that has one.
struct SingleExport(Export);

impl Exports for SingleExport {
    fn list(&self, _: &Client) -> Vec<Listed> {
        vec![Listed {
            name: self.0.name().to_owned(),
            description: String::new(),
        }]
    }

    /// The export, under any name.
    fn find(&self, _: &Client, _: &str) -> Option<Export> {
        Some(self.0.clone())
    }
}

/// An NBD server for connections that its owner gives it, in the owner's thread.
pub struct EmbeddedServer<D> {
    service: Service<D, WatchedSource<Channel>>,
    /// The clients whose handshake has not ended.
    handshaking: Vec<WatchedSource<HandshakingClient>>,
    options: ExportOptions,
    watcher: Watcher,
}

impl<D: BlockDevice> EmbeddedServer<D> {
    /// A server that serves `device` on every connection.
    #[must_use]
    pub fn new(device: D, options: ExportOptions, watcher: Watcher) -> Self {
        Self {
            service: Service::new(device, options.limits),
            handshaking: Vec::new(),
            options,
            watcher,
        }
    }

    /// Begins to serve a client over `channel`, which is connected and does not block. The client
    /// gets the device's current size and capabilities.
    ///
    /// # Errors
    /// The operating system's, if the channel cannot be watched.
    pub fn add_connection(&mut self, channel: Channel) -> io::Result<()> {
        let export = Export::without_thread(self.options.clone(), &self.service.state().device);
        let offer = Offer {
            exports: Arc::new(SingleExport(export)),
            list: true,
            // The owner may use a channel with TLS.
            tls: TlsPolicy::Off,
        };
        // The export limits connections; a server-wide limit does not exist here.
        let permit =
            ConnectionPermit::take(&Arc::new(AtomicUsize::new(0)), 1).expect("the counter is new");
        let client = HandshakingClient::new(channel, offer, None, permit);
        self.handshaking
            .push(self.watcher.watch(client, Interest::READABLE)?);
        Ok(())
    }

    /// The number of connections, those in the handshake included.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.handshaking.len() + self.service.keys().len()
    }

    /// Closes all connections. Their requests continue in the device.
    pub fn close_all(&mut self) {
        self.handshaking.clear();
        self.service.close_all("the server closed all connections");
        self.service.hang_up();
    }

    /// The device.
    pub fn device(&mut self) -> &mut D {
        &mut self.service.state().device
    }

    /// Notes that the owner has started requests on the device, whose batch must end.
    pub fn device_was_used(&mut self) {
        self.service.device_was_used();
    }

    /// The number of clients' operations that are pending in the device.
    #[must_use]
    pub fn operations(&self) -> usize {
        self.service.operations()
    }

    /// Does everything that is possible without waiting.
    pub fn turn(&mut self) {
        self.shake_hands();
        for key in self.service.keys() {
            let seen = self.service.pipe(key).map(WatchedSource::take_readiness);
            let seen = seen.unwrap_or_default();
            if seen.readable || seen.writable {
                self.service.ready(Ready {
                    key,
                    readable: seen.readable,
                    writable: seen.writable,
                    hung_up: false,
                });
            }
        }
        self.service.turn();
        while let Some((_, pipe, interest)) = self.service.next_changed() {
            if let Err(error) = pipe.wait_for(interest) {
                tracing::error!(%error, "NBD server cannot watch connection");
            }
        }
        self.service.hang_up();
    }

    fn shake_hands(&mut self) {
        let mut at = 0;
        while let Some(client) = self.handshaking.get_mut(at) {
            let seen = client.take_readiness();
            let inner = client.source();
            inner.writable |= seen.writable;
            match inner.turn(seen.readable) {
                HandshakeProgress::Continues => {
                    let interest = inner.needed_interest();
                    match client.wait_for(interest) {
                        Ok(()) => at += 1,
                        Err(error) => self.drop_client(at, &error.to_string()),
                    }
                }
                HandshakeProgress::Ended(reason) => self.drop_client(at, &reason),
                HandshakeProgress::Opened(opened) => {
                    let client = self.handshaking.swap_remove(at).into_source();
                    let mut settings = opened.settings;
                    settings.read_only |= self.options.read_only;
                    match self.watcher.watch(client.channel, Interest::READABLE) {
                        Ok(pipe) => {
                            self.service
                                .open(pipe, settings, &client.output, &client.input);
                        }
                        Err(error) => tracing::error!(%error, "NBD server cannot watch connection"),
                    }
                }
            }
        }
    }

    fn drop_client(&mut self, at: usize, reason: &str) {
        tracing::debug!(reason, "NBD handshake ended without an export");
        drop(self.handshaking.swap_remove(at));
    }

    /// The time until the next turn is needed, unless a socket becomes ready before.
    #[must_use]
    pub fn next_timer(&self) -> Option<Duration> {
        self.service.next_timer()
    }

    /// Refuses new requests, and fails those that wait for something unavailable.
    pub fn refuse_requests(&mut self) {
        self.service.refuse_requests();
    }

    /// Flushes the device after all requests have ended. Returns the result once there is one.
    pub fn flush(&mut self) -> Option<Result<(), base::IoError>> {
        self.service.flush()
    }
}
