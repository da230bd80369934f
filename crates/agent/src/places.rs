//! Kinds of places that this host can reach by itself and use as units, by what
//! their URLs begin with. To add one is to write a [`Place`] and a line in
//! [`KINDS`]; what daemons keep is reached over links (`units.rs`).
//!
//! Must not know: which units there are, and how they do.

mod bucket;
mod folder;
mod pool;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use api::host::Refusal;
use base::{ClusterId, UnitId};
use tokio::runtime::Handle;
use unit::{Unit, UnitError};
use world::World;

use crate::claim::Claim;
use crate::watch::ANSWER_WITHIN;

pub(crate) use folder::Folder;

/// Where a unit is, or could be made.
pub(crate) trait Place: Send + Sync {
    /// Its URL, as it is always written.
    fn url(&self) -> String;

    /// The same place, by the name that it has whatever way leads there. What can be
    /// seen not to be a place for a unit is refused. May wait.
    fn resolved(self: Box<Self>) -> Result<Box<dyn Place>, Refusal>;

    /// Whether a unit there would be, hold or lie in the one at `url`.
    fn is_near(&self, url: &str) -> bool;

    /// Which unit it is already, and whose; `None` if none, or one that cannot be
    /// read. May wait.
    fn identify(&self, host: &Host<'_>) -> Option<(ClusterId, UnitId)>;

    /// The unit there, which should be this one. Does not wait.
    fn open(&self, host: &Host<'_>, unit: UnitId) -> Arc<dyn Unit>;

    /// Makes it that unit. May wait.
    fn make(&self, host: &Host<'_>, unit: UnitId) -> Result<Arc<dyn Unit>, UnitError>;

    /// One that has not answered for longer is taken for one that never will.
    fn answers_within(&self) -> Duration {
        ANSWER_WITHIN
    }

    /// The folder that it is, if it is one.
    fn folder(&self) -> Option<&Path> {
        None
    }
}

/// Who uses a place.
pub(crate) struct Host<'a> {
    pub world: &'a World,
    /// Where answers are waited for.
    pub runtime: &'a Handle,
    pub cluster: ClusterId,
    pub claim: &'a Claim,
}

/// Reads a URL of a kind.
type Read = fn(&str) -> Result<Box<dyn Place>, Refusal>;

/// What URLs begin with, and who reads them.
const KINDS: [(&str, Read); 5] = [
    ("file", folder::read),
    ("s3", bucket::read),
    ("gs", bucket::read),
    ("az", bucket::read),
    ("rados", pool::read),
];

/// The place that `url` names; a plain path is that of a folder.
pub(crate) fn place_of(url: &str) -> Result<Box<dyn Place>, Refusal> {
    let Some((scheme, _)) = url.split_once("://") else {
        return folder::read(url);
    };
    match KINDS.iter().find(|(known, _)| *known == scheme) {
        Some((_, read)) => read(url),
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

/// That the URL is wrong.
pub(crate) fn invalid(reason: String) -> Refusal {
    Refusal {
        field: Some("url".to_owned()),
        reason,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_is_read_by_who_knows_its_kind() {
        for (given, url) in [
            ("/srv/u1/", "file:///srv/u1"),
            ("file:///srv/./u%201", "file:///srv/u%201"),
            ("rados://client.a@pool/b/", "rados://a@pool/b"),
        ] {
            assert_eq!(place_of(given).map(|place| place.url()), Ok(url.to_owned()));
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
            let refused = place_of(bad).map(|place| place.url()).expect_err(bad);
            assert_eq!(refused.field.as_deref(), Some("url"));
            assert!(refused.reason.contains(words), "{}", refused.reason);
        }
    }
}
