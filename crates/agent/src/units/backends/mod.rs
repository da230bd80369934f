//! [`Backend`]: storage that this host accesses directly and uses as a unit; the scheme of a URL
//! tells its kind. A new kind is an implementation of [`Backend`] and a line in [`KINDS`]. Units of
//! daemons are accessed over links (`links`).
//!
//! Must not know: the units of the cluster, and their health.

mod bucket;
mod folder;
mod pool;

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use api::host::Refusal;
use base::{ClusterId, UnitId};
use unit::{Unit, UnitError};
use unit_remote::{Done, Link, RemoteUnit};
use unit_wire::Request;

use super::watch::ANSWER_WITHIN;
use crate::context::HostContext;

pub(super) use folder::Folder;

/// Storage that is a unit, or can become one.
pub(super) trait Backend: Send + Sync {
    /// Its URL, in canonical spelling.
    fn url(&self) -> String;

    /// The same backend under its canonical name. May block.
    ///
    /// # Errors
    /// If it visibly cannot become a unit.
    fn resolved(self: Box<Self>) -> Result<Box<dyn Backend>, Refusal>;

    /// Whether it is, contains or is inside the unit at `url`.
    fn overlaps(&self, url: &str) -> bool;

    /// The id and the cluster of its unit; `None` if it is not a unit, or its marker cannot be
    /// read. May block.
    fn identify(&self, context: &HostContext) -> Option<(ClusterId, UnitId)>;

    /// The unit in it, which should be `unit`. Does not block.
    fn open(&self, context: &HostContext, unit: UnitId) -> Arc<dyn Unit>;

    /// Makes it the unit `unit`. May block.
    ///
    /// # Errors
    /// [`UnitError`].
    fn make(&self, context: &HostContext, unit: UnitId) -> Result<Arc<dyn Unit>, UnitError>;

    /// The time without an answer after which the unit is unresponsive.
    fn answers_within(&self) -> Duration {
        ANSWER_WITHIN
    }

    /// Its path, if it is a folder.
    fn folder(&self) -> Option<&Path> {
        None
    }
}

/// The link of a unit that this host cannot access. Such a unit counts as unavailable, and stays in
/// the table of units: a copyset with a missing copy must not count as complete.
pub(super) struct Unreachable(String);

impl Unreachable {
    /// A unit for `url` that cannot be accessed for this reason.
    pub fn unit(url: &str, reason: String) -> Arc<dyn Unit> {
        Arc::new(RemoteUnit::new(url.to_owned(), Arc::new(Self(reason))))
    }
}

impl Link for Unreachable {
    fn send(&self, _: &Request<'_>, done: Done) {
        done(Err(Arc::new(io::Error::other(self.0.clone()))));
    }
}

/// Parses the URL of one kind of backend.
type Parse = fn(&str) -> Result<Box<dyn Backend>, Refusal>;

/// The URL schemes, and their parsers.
const KINDS: [(&str, Parse); 5] = [
    ("file", folder::parse),
    ("s3", bucket::parse),
    ("gs", bucket::parse),
    ("az", bucket::parse),
    ("rados", pool::parse),
];

/// The backend at `url`; a plain path names a folder.
///
/// # Errors
/// If the URL names no backend.
pub(super) fn backend_of(url: &str) -> Result<Box<dyn Backend>, Refusal> {
    let Some((scheme, _)) = url.split_once("://") else {
        return folder::parse(url);
    };
    match KINDS.iter().find(|(known, _)| *known == scheme) {
        Some((_, parse)) => parse(url),
        None if scheme == "scree" => Err(invalid(
            "a unit daemon adds itself: create one with `scree unit create`, and run `scree unit \
             --listen` on its machine"
                .to_owned(),
        )),
        None => Err(invalid(format!(
            "{scheme}:// is not a known kind of unit; give a folder as file:///path, a bucket as \
             s3://bucket/prefix, gs://… or az://…, or a Ceph pool as rados://POOL/NAMESPACE"
        ))),
    }
}

/// The refusal of a wrong URL.
fn invalid(reason: String) -> Refusal {
    Refusal {
        field: Some("url".to_owned()),
        message: reason,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scheme_of_a_url_selects_its_backend() {
        for (given, url) in [
            ("/srv/u1/", "file:///srv/u1"),
            ("file:///srv/./u%201", "file:///srv/u%201"),
            ("rados://client.a@pool/b/", "rados://a@pool/b"),
        ] {
            assert_eq!(
                backend_of(given).map(|backend| backend.url()),
                Ok(url.to_owned())
            );
        }
        for (bad, words) in [
            ("srv/u1", "absolute"),
            ("", "absolute"),
            ("file:///a%2", "two hex digits"),
            ("ftp://host/a", "file:///path"),
            ("scree://10.0.0.1:7070", "adds itself"),
            ("rados://", "rados://[USER@]POOL"),
            ("s3://", "no bucket"),
            ("s3://bucket//a", "empty"),
        ] {
            let refused = backend_of(bad).map(|backend| backend.url()).expect_err(bad);
            assert_eq!(refused.field.as_deref(), Some("url"));
            assert!(refused.message.contains(words), "{}", refused.message);
        }
    }
}
