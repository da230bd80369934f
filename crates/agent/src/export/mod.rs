//! Open volumes, each served over NBD in a thread of its own.
//!
//! * [`OpenVolume`]: an open volume, and requests to its thread
//! * [`OpenVolumes`]: all of them; `statuses`: their states
//! * `server`: the NBD server that exports them
//! * `closer`: closes a volume; `image`: its view of the cache; `events`: the events of its filters
//!
//! Must not know: the desired state of a volume, leases, paths of journals.

mod closer;
mod error;
mod events;
mod image;
mod open_volume;
mod open_volumes;
mod server;
mod statuses;

pub(crate) use closer::Closer;
pub use error::VolumeError;
pub(crate) use events::{EventLog, volume_of_file};
pub(crate) use image::VolumeCache;
pub(crate) use open_volume::{AttachmentLease, OpenVolume, Opened, Served};
pub(crate) use open_volumes::OpenVolumes;
pub(crate) use server::NbdServer;
pub use server::NbdServerError;
pub(crate) use statuses::{OpenVolumeStatus, VolumeStatuses};
