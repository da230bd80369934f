//! A client of QEMU's machine protocol (QMP): lines of JSON over a unix socket.
//!
//! ```text
//!  1. greeting      QEMU speaks first: {"QMP": ...}
//!  2. negotiation   qmp_capabilities, without capabilities
//!  3. commands      one at a time, each with a number; its reply has the same number.
//!                   Events may come before any reply and are stored
//! ```
//!
//! Must not know: disks, the set of commands.
//!
//! Invariants: any input from the socket yields a value or an error. A line is at most
//! [`LINE_BYTES_MAX`], at most [`EVENTS_MAX`] events are stored, and no reply is awaited for longer
//! than `answer_within`.

use std::collections::VecDeque;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use world::host;

/// The longest line, in bytes. The longest expected reply lists a VM's block nodes, about 1 KiB
/// each.
pub const LINE_BYTES_MAX: usize = 8 << 20;

/// The most unread events; the oldest are dropped first. A reader that waits for an event also
/// polls the VM, so a lost event only costs time.
pub const EVENTS_MAX: usize = 64;

/// A connection to a monitor.
pub struct Monitor {
    stream: UnixStream,
    /// Received bytes after the last complete line.
    buffer: Vec<u8>,
    /// Length of the part of `buffer` that is known to contain no line feed.
    searched: usize,
    events: VecDeque<Event>,
    last_id: u64,
    answer_within: Duration,
}

/// An asynchronous event of QEMU.
#[derive(Debug, Clone, PartialEq)]
pub struct Event {
    /// Its name, such as `DEVICE_DELETED`.
    pub name: String,
    /// Its data; null if it has none.
    pub data: Value,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum QmpError {
    /// The socket does not exist, or no process listens on it.
    #[error("no VM listens on {}", socket.display())]
    NoListener {
        /// Path of the socket.
        socket: PathBuf,
    },
    /// The path of the socket has a symbolic link.
    #[error(
        "there is a symbolic link in the path {}: links are not followed, because they may lead to \
         the VM of another user; give the path without links (see `realpath`)",
        socket.display()
    )]
    Link {
        /// Path of the socket.
        socket: PathBuf,
    },
    /// Connecting failed for another reason.
    #[error("cannot connect to the monitor {}; Scree must be allowed to open it", socket.display())]
    Connect {
        /// Path of the socket.
        socket: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// QEMU accepted the connection and sent no greeting.
    #[error(
        "the monitor {} sends no greeting: another client is connected (QEMU serves one at a \
         time), or QEMU hangs; give the VM a monitor for Scree alone (-qmp unix:...)",
        socket.display()
    )]
    InUse {
        /// Path of the socket.
        socket: PathBuf,
    },
    /// The listener does not use QMP.
    #[error(
        "the listener on {} does not use QMP; give the socket of -qmp, not of -monitor",
        socket.display()
    )]
    NotQmp {
        /// Path of the socket.
        socket: PathBuf,
    },
    /// QEMU closed the connection, or ended.
    #[error("QEMU closed its monitor: it has ended, or is ending")]
    Closed(#[source] Option<io::Error>),
    /// No reply came in time. The command may still take effect.
    #[error("QEMU did not answer `{command}` within {} s", waited.as_secs_f32())]
    NoAnswer {
        /// The command.
        command: &'static str,
        /// The timeout.
        waited: Duration,
    },
    /// QEMU refused the command.
    #[error("QEMU refuses `{command}`: {desc}")]
    Refused {
        /// The command.
        command: &'static str,
        /// The class of the error, usually `GenericError`.
        class: String,
        /// QEMU's text.
        desc: String,
    },
    /// A line is longer than [`LINE_BYTES_MAX`].
    #[error("the monitor sent a line of more than {LINE_BYTES_MAX} bytes")]
    TooLong,
    /// A line cannot be parsed, or a reply has an unexpected form.
    #[error("the monitor sent a message that cannot be parsed")]
    Unreadable(#[source] serde_json::Error),
}

impl QmpError {
    /// Whether QEMU has ended or is ending.
    pub(super) fn is_end(&self) -> bool {
        matches!(self, Self::NoListener { .. } | Self::Closed(_))
    }
}

/// A line from QEMU.
#[derive(Deserialize)]
struct Message {
    #[serde(rename = "QMP")]
    greeting: Option<Value>,
    #[serde(rename = "return")]
    result: Option<Value>,
    error: Option<Refusal>,
    id: Option<Value>,
    event: Option<String>,
    #[serde(default)]
    data: Value,
}

#[derive(Deserialize)]
struct Refusal {
    class: String,
    desc: String,
}

impl Monitor {
    /// Connects and negotiates. `answer_within` is the timeout of the greeting and of each reply.
    /// Symbolic links in the path of the socket are not followed: a user who may use VMs below a
    /// folder could create one there that leads out of it.
    ///
    /// # Errors
    /// The variants of [`QmpError`].
    pub async fn connect(socket: &Path, answer_within: Duration) -> Result<Self, QmpError> {
        let stream = connect(socket).await?;
        let socket = socket.to_owned();
        let mut monitor = Self {
            stream,
            buffer: Vec::new(),
            searched: 0,
            events: VecDeque::new(),
            last_id: 0,
            answer_within,
        };
        match host::timeout(answer_within, monitor.message()).await {
            Some(Ok(message)) if message.greeting.is_some() => {}
            Some(Ok(_) | Err(QmpError::Unreadable(_) | QmpError::TooLong)) => {
                return Err(QmpError::NotQmp { socket });
            }
            Some(Err(error)) => return Err(error),
            None => return Err(QmpError::InUse { socket }),
        }
        let _: Value = monitor.execute("qmp_capabilities", json!({})).await?;
        Ok(monitor)
    }

    /// Sends a command and awaits its reply. Events that come first are stored for
    /// [`Monitor::next_event`].
    ///
    /// # Errors
    /// The variants of [`QmpError`]. After [`QmpError::Refused`] the monitor can be used further.
    pub async fn execute<T: DeserializeOwned>(
        &mut self,
        command: &'static str,
        arguments: Value,
    ) -> Result<T, QmpError> {
        let waited = self.answer_within;
        match host::timeout(waited, self.exchange(command, arguments)).await {
            Some(reply) => serde_json::from_value(reply?).map_err(QmpError::Unreadable),
            None => Err(QmpError::NoAnswer { command, waited }),
        }
    }

    /// Returns the next event, a stored or a future one. The future may be dropped while it waits;
    /// no event is lost.
    ///
    /// # Errors
    /// [`QmpError::Closed`], [`QmpError::TooLong`], [`QmpError::Unreadable`].
    pub async fn next_event(&mut self) -> Result<Event, QmpError> {
        loop {
            if let Some(event) = self.events.pop_front() {
                return Ok(event);
            }
            // The reply of a command that timed out.
            let message = self.message().await?;
            self.keep_event(message);
        }
    }

    async fn exchange(
        &mut self,
        command: &'static str,
        arguments: Value,
    ) -> Result<Value, QmpError> {
        self.last_id += 1;
        let id = self.last_id;
        let request = json!({ "execute": command, "arguments": arguments, "id": id });
        let line = format!("{request}\n");
        let sent = self.stream.write_all(line.as_bytes()).await;
        sent.map_err(|error| QmpError::Closed(Some(error)))?;
        loop {
            let message = self.message().await?;
            // QEMU omits the number if it could not even parse the command.
            let is_ours = match &message.id {
                Some(replied) => *replied == json!(id),
                None => message.error.is_some(),
            };
            if !is_ours {
                self.keep_event(message);
            } else if let Some(Refusal { class, desc }) = message.error {
                return Err(QmpError::Refused {
                    command,
                    class,
                    desc,
                });
            } else if let Some(result) = message.result {
                return Ok(result);
            }
        }
    }

    fn keep_event(&mut self, message: Message) {
        if let Some(name) = message.event {
            if self.events.len() == EVENTS_MAX {
                self.events.pop_front();
            }
            let data = message.data;
            self.events.push_back(Event { name, data });
        }
    }

    /// Receives the next message. The future may be dropped while it waits.
    async fn message(&mut self) -> Result<Message, QmpError> {
        loop {
            let unsearched = self.buffer.get(self.searched..).unwrap_or_default();
            if let Some(at) = unsearched.iter().position(|byte| *byte == b'\n') {
                let rest = self.buffer.split_off(self.searched + at + 1);
                let line = std::mem::replace(&mut self.buffer, rest);
                self.searched = 0;
                if line.trim_ascii().is_empty() {
                    continue;
                }
                return serde_json::from_slice(&line).map_err(QmpError::Unreadable);
            }
            self.searched = self.buffer.len();
            if self.buffer.len() > LINE_BYTES_MAX {
                return Err(QmpError::TooLong);
            }
            match self.stream.read_buf(&mut self.buffer).await {
                Ok(0) => return Err(QmpError::Closed(None)),
                Ok(_) => {}
                Err(error) => return Err(QmpError::Closed(Some(error))),
            }
        }
    }
}

async fn connect(socket: &Path) -> Result<UnixStream, QmpError> {
    let of = || socket.to_owned();
    let found = host::Unfollowed::find(socket).map_err(|source| match source.kind() {
        io::ErrorKind::NotFound => QmpError::NoListener { socket: of() },
        _ if host::is_link(&source) => QmpError::Link { socket: of() },
        _ => QmpError::Connect {
            socket: of(),
            source,
        },
    })?;
    #[expect(
        clippy::disallowed_methods,
        reason = "QEMU listens, and this is its client"
    )]
    let connected = UnixStream::connect(found.path()).await;
    connected.map_err(|source| match source.kind() {
        io::ErrorKind::ConnectionRefused => QmpError::NoListener { socket: of() },
        // Other clients are waiting as well.
        io::ErrorKind::WouldBlock => QmpError::InUse { socket: of() },
        _ => QmpError::Connect {
            socket: of(),
            source,
        },
    })
}
