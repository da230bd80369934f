//! A client of QEMU's machine protocol (QMP): lines of JSON over a unix socket.
//!
//! ```text
//!  1. greeting      QEMU speaks first: {"QMP": ...}
//!  2. negotiation   qmp_capabilities, with nothing asked for
//!  3. commands      one at a time, each with a number; its reply has the same.
//!                   Events may come before any reply and are kept
//! ```
//!
//! Must not know: disks, which commands there are.
//!
//! Invariants: whatever comes from the socket ends in a value or an error.
//! A line is at most [`LINE_BYTES_MAX`], at most [`EVENTS_MAX`] events are kept,
//! and no reply is awaited for longer than was said at the beginning.

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

/// How long a line may be. The longest reply asked for lists a VM's block
/// nodes, about 1 KiB each.
pub const LINE_BYTES_MAX: usize = 8 << 20;

/// How many unread events are kept; the oldest are dropped first. A reader that
/// waits for one looks at the VM as well, so a lost one only costs time.
pub const EVENTS_MAX: usize = 64;

/// A connection to a monitor.
pub struct Monitor {
    stream: UnixStream,
    /// What has been received beyond the last whole line.
    buffer: Vec<u8>,
    /// How much of it is known to hold no end of a line.
    searched: usize,
    events: VecDeque<Event>,
    last_id: u64,
    answer_within: Duration,
}

/// An event that QEMU sends by itself.
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
    /// There is no such socket, or no process listens on it any more.
    #[error("no VM listens on {}", socket.display())]
    NobodyThere {
        /// Where a monitor should be.
        socket: PathBuf,
    },
    /// A link lies on the way to the socket, or in its place.
    #[error(
        "there is a symbolic link in the path {}: links are not followed, as they may lead to \
         another's VM; name the socket by its path without links (`realpath` tells it)",
        socket.display()
    )]
    Link {
        /// Where a monitor should be.
        socket: PathBuf,
    },
    /// The socket cannot be connected to for another reason.
    #[error("cannot connect to the monitor {}; Scree has to be allowed to open it", socket.display())]
    Connect {
        /// Where the monitor is.
        socket: PathBuf,
        /// What the operating system says.
        source: io::Error,
    },
    /// It took the connection and did not greet.
    #[error(
        "the monitor {} does not greet: another client has it, for QEMU serves one at a time, \
         or QEMU hangs; give the VM a monitor for Scree alone (-qmp unix:...)",
        socket.display()
    )]
    InUse {
        /// Where the monitor is.
        socket: PathBuf,
    },
    /// What listens there is not QEMU's QMP.
    #[error(
        "what listens on {} does not speak QMP; name the socket of -qmp, not of -monitor",
        socket.display()
    )]
    NotQmp {
        /// Where a monitor should be.
        socket: PathBuf,
    },
    /// QEMU closed the connection, or ended.
    #[error("QEMU closed its monitor: it has ended, or is about to")]
    Closed(#[source] Option<io::Error>),
    /// No reply came in time. The command may still be carried out.
    #[error("QEMU did not answer `{command}` within {} s", waited.as_secs_f32())]
    NoAnswer {
        /// The command.
        command: &'static str,
        /// How long it had.
        waited: Duration,
    },
    /// QEMU refused the command.
    #[error("QEMU refuses `{command}`: {desc}")]
    Refused {
        /// The command.
        command: &'static str,
        /// The kind of error: mostly `GenericError`.
        class: String,
        /// QEMU's text.
        desc: String,
    },
    /// A line is longer than [`LINE_BYTES_MAX`].
    #[error("the monitor sent a line of more than {LINE_BYTES_MAX} bytes")]
    TooLong,
    /// A line is no message, or a reply is not of the form it should have.
    #[error("the monitor sent what cannot be understood")]
    Unreadable(#[source] serde_json::Error),
}

impl QmpError {
    /// Whether there is no QEMU at the other end, or soon will be none.
    pub(super) fn is_end(&self) -> bool {
        matches!(self, Self::NobodyThere { .. } | Self::Closed(_))
    }
}

/// Any line QEMU sends.
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
    /// Connects and negotiates. `answer_within` holds for the greeting and for
    /// each reply. No link is followed on the way to the socket: who may use
    /// VMs below a folder could make one there that leads out of it.
    ///
    /// # Errors
    /// As the variants of [`QmpError`] say.
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

    /// Sends a command and awaits its reply. Events that come first are kept
    /// for [`Monitor::next_event`].
    ///
    /// # Errors
    /// As the variants of [`QmpError`] say. After [`QmpError::Refused`] the
    /// monitor may be asked other things.
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

    /// The next event, one that was kept or one that is yet to come. May be
    /// dropped while it waits; nothing is lost.
    ///
    /// # Errors
    /// [`QmpError::Closed`], [`QmpError::TooLong`], [`QmpError::Unreadable`].
    pub async fn next_event(&mut self) -> Result<Event, QmpError> {
        loop {
            if let Some(event) = self.events.pop_front() {
                return Ok(event);
            }
            // The reply of a command that was given up.
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
            // QEMU leaves the number out if it could not even read the command.
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

    /// The next message. May be dropped while it waits.
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
        io::ErrorKind::NotFound => QmpError::NobodyThere { socket: of() },
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
        io::ErrorKind::ConnectionRefused => QmpError::NobodyThere { socket: of() },
        // Other clients are waiting as well.
        io::ErrorKind::WouldBlock => QmpError::InUse { socket: of() },
        _ => QmpError::Connect {
            socket: of(),
            source,
        },
    })
}
