//! [`Backend`]: what this host can reach by itself and use as a unit, told apart by the scheme of
//! its URL. A new kind is an implementation of [`Backend`] and a line in [`KINDS`]; units of daemons
//! are reached over links (`links`).
//!
//! Must not know: which units there are, and their health.

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

/// What a unit is stored in, or could be.
pub(super) trait Backend: Send + Sync {
    /// Its URL, in the canonical spelling.
    fn url(&self) -> String;

    /// The same backend, by its canonical name. May wait.
    ///
    /// # Errors
    /// If it cannot be a unit, as far as can be seen.
    fn resolved(self: Box<Self>) -> Result<Box<dyn Backend>, Refusal>;

    /// Whether it is, holds or lies in the unit at `url`.
    fn overlaps(&self, url: &str) -> bool;

    /// The unit that it is already, and its cluster; `None` if it is none, or its marker cannot be
    /// read. May wait.
    fn identify(&self, context: &HostContext) -> Option<(ClusterId, UnitId)>;

    /// The unit there, which should be `unit`. Does not wait.
    fn open(&self, context: &HostContext, unit: UnitId) -> Arc<dyn Unit>;

    /// Makes it the unit `unit`. May wait.
    ///
    /// # Errors
    /// [`UnitError`].
    fn make(&self, context: &HostContext, unit: UnitId) -> Result<Arc<dyn Unit>, UnitError>;

    /// After this long without an answer the unit is unresponsive.
    fn answers_within(&self) -> Duration {
        ANSWER_WITHIN
    }

    /// Its path, if it is a folder.
    fn folder(&self) -> Option<&Path> {
        None
    }
}

/// The link of a unit that this host has no way to use. Such a unit counts as unavailable, and
/// stays in the table of units: a copyset that is missing a copy there must not count as complete.
pub(super) struct Unreachable(String);

impl Unreachable {
    /// The unit at `url`, which cannot be used for this reason.
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

/// The schemes of URLs, and how each is parsed.
const KINDS: [(&str, Parse); 5] = [
    ("file", folder::parse),
    ("s3", bucket::parse),
    ("gs", bucket::parse),
    ("az", bucket::parse),
    ("rados", pool::parse),
];

/// The backend that `url` names; a plain path names a folder.
///
/// # Errors
/// If it names none.
pub(super) fn backend_of(url: &str) -> Result<Box<dyn Backend>, Refusal> {
    let Some((scheme, _)) = url.split_once("://") else {
        return folder::parse(url);
    };
    match KINDS.iter().find(|(known, _)| *known == scheme) {
        Some((_, parse)) => parse(url),
        None if scheme == "scree" => Err(invalid(
            "a unit daemon adds itself: make one with `scree unit create`, and run `scree unit \
             --listen` on its machine"
                .to_owned(),
        )),
        None => Err(invalid(format!(
            "{scheme}:// units are not known; give a folder as file:///path, a bucket as \
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
    fn the_scheme_of_a_url_says_which_backend_it_names() {
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
