//! [`Leg`]: an NBD server for connections that are given to it, in the thread of whoever
//! calls [`Leg::turn`]; no thread of its own, and no acceptor.
//!
//! It is made for programs that stand in a chain (docs/internals/out-of-process-filters.md): what
//! such a program asks of the disk below it comes in here.

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use base::BlockDevice;
use net::{Channel, Pipe, Sent};
use world::{Interest, Ready};

use super::export::{Export, ExportOptions, Seat};
use super::guest::{Fate, Guest};
use super::handshake::{Offer, TlsPolicy};
use super::service::Service;
use super::table::{Client, Exports, Listed};
use super::watcher::{Watched, Watcher};

impl AsFd for Guest {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }
}

impl Pipe for Watched<Channel> {
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

/// The only export that there is.
struct Only(Export);

impl Exports for Only {
    fn list(&self, _: &Client) -> Vec<Listed> {
        vec![Listed {
            name: self.0.name().to_owned(),
            description: String::new(),
        }]
    }

    /// Whatever it is called: the connection says which it is.
    fn find(&self, _: &Client, _: &str) -> Option<Export> {
        Some(self.0.clone())
    }
}

/// See the module's head.
pub struct Leg<D> {
    service: Service<D, Watched<Channel>>,
    /// In their handshakes.
    guests: Vec<Watched<Guest>>,
    options: ExportOptions,
    watcher: Watcher,
}

impl<D: BlockDevice> Leg<D> {
    /// Offers `device` to who is given a connection.
    #[must_use]
    pub fn new(device: D, options: ExportOptions, watcher: Watcher) -> Self {
        Self {
            service: Service::new(device, options.limits),
            guests: Vec::new(),
            options,
            watcher,
        }
    }

    /// Begins to serve a client over `channel`, which is connected and does not block. It is
    /// told of the device as it is now.
    ///
    /// # Errors
    /// If it cannot be watched.
    pub fn welcome(&mut self, channel: Channel) -> io::Result<()> {
        let export = Export::without_thread(self.options.clone(), &self.service.desk().device);
        let offer = Offer {
            exports: Arc::new(Only(export)),
            list: true,
            // Whoever wants it has a channel with it.
            tls: TlsPolicy::Off,
        };
        // The export bounds connections; there is no server that does.
        let seat = Seat::take(&Arc::new(AtomicUsize::new(0)), 1).expect("none of one is taken");
        let guest = Guest::new(channel, offer, None, seat);
        self.guests
            .push(self.watcher.watch(guest, Interest::READABLE)?);
        Ok(())
    }

    /// How many clients there are, those in their handshakes included.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.guests.len() + self.service.keys().len()
    }

    /// Ends all connections. What was asked by them goes on in the device.
    pub fn close_all(&mut self) {
        self.guests.clear();
        self.service.close_all("it is ended");
        self.service.hang_up();
    }

    /// The device.
    pub fn device(&mut self) -> &mut D {
        &mut self.service.desk().device
    }

    /// The device was given work by its owner.
    pub fn device_was_used(&mut self) {
        self.service.device_was_used();
    }

    /// How many of the clients' requests the device has not answered.
    #[must_use]
    pub fn operations(&self) -> usize {
        self.service.operations()
    }

    /// Does all that can be done now.
    pub fn turn(&mut self) {
        self.shake_hands();
        for key in self.service.keys() {
            let seen = self.service.pipe(key).map(Watched::take_seen);
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
                tracing::error!(%error, "a connection cannot be watched any more");
            }
        }
        self.service.hang_up();
    }

    fn shake_hands(&mut self) {
        let mut at = 0;
        while let Some(guest) = self.guests.get_mut(at) {
            let seen = guest.take_seen();
            let inner = guest.source();
            inner.writable |= seen.writable;
            match inner.turn(seen.readable) {
                Fate::Stays => {
                    let wanted = inner.wanted();
                    match guest.wait_for(wanted) {
                        Ok(()) => at += 1,
                        Err(error) => self.leave(at, &error.to_string()),
                    }
                }
                Fate::Leaves(reason) => self.leave(at, &reason),
                Fate::Opened(opened) => {
                    let guest = self.guests.swap_remove(at).into_source();
                    let mut settings = opened.settings;
                    settings.read_only |= self.options.read_only;
                    match self.watcher.watch(guest.channel, Interest::READABLE) {
                        Ok(pipe) => {
                            self.service
                                .open(pipe, settings, &guest.output, &guest.input);
                        }
                        Err(error) => tracing::error!(%error, "a connection cannot be watched"),
                    }
                }
            }
        }
    }

    fn leave(&mut self, at: usize, reason: &str) {
        tracing::debug!(reason, "a handshake ended");
        drop(self.guests.swap_remove(at));
    }

    /// How long it may be left without a turn, if nothing is seen.
    #[must_use]
    pub fn sleep(&self) -> Option<Duration> {
        self.service.sleep()
    }

    /// From now on requests are refused, and those that wait for what is away fail.
    pub fn refuse_requests(&mut self) {
        self.service.refuse_requests();
    }

    /// Begins a last flush, when all else is answered, and says how it ended.
    pub fn flush(&mut self) -> Option<Result<(), base::IoError>> {
        self.service.flush()
    }
}
