//! Base images, which hosts keep for all that are cloned from them.

use clap::Subcommand;

#[derive(Subcommand)]
pub enum ImageCommand {
    /// Make a volume a base image: on each host that has a clone of it, what both share is kept
    /// in the part of the cache that is for images.
    Mark {
        /// The volume: name or id.
        volume: String,
    },
    /// Make it none any more. Its clones stay as they are.
    Unmark {
        /// The volume: name or id.
        volume: String,
    },
    /// Let an image's blocks stay in the caches of hosts, as far as there is room for what stays
    /// (90 % of what is for images); the volume becomes one, if it is none. For administrators.
    Pin {
        /// The volume: name or id.
        volume: String,
    },
    /// Let them go again when others want the room. It is an image still.
    Unpin {
        /// The volume: name or id.
        volume: String,
    },
    /// List the base images, and how far hosts have read them into their caches.
    List,
    /// Read an image into the caches of hosts, before anybody asks for it: what of it is on the
    /// units by now.
    Preload {
        /// The volume: name or id.
        volume: String,
        /// Into that of this host; may be given again. [default: all that are for you, were
        /// heard of a moment ago, and have a cache]
        #[arg(long, conflicts_with = "cancel")]
        host: Vec<String>,
        /// Return at once, and not when all hosts have read it.
        #[arg(long)]
        no_wait: bool,
        /// Have no host read it any more. What was read stays.
        #[arg(long, conflicts_with = "no_wait")]
        cancel: bool,
    },
}
