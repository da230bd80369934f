//! What a cluster's errors mean for a unit.

use std::io;
use std::sync::Arc;

use unit::UnitError;

use crate::librados::ConnectError;
use crate::place::Place;
use crate::pool::Errno;

/// What was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Intent {
    Read,
    Write,
}

/// The cluster has told all others not to listen to this client any more: it never
/// answers again on this connection.
pub(crate) fn is_blocklisted(errno: Errno) -> bool {
    errno.0 == libc::ESHUTDOWN
}

/// What `errno` means for the unit at `url`.
pub(crate) fn meaning(url: &str, doing: &str, intent: Intent, errno: Errno) -> UnitError {
    let url = url.to_owned();
    let doing = doing.to_owned();
    let source = || Arc::new(io::Error::from_raw_os_error(errno.0));
    let not_allowed = |reason: &str| UnitError::NotAllowed {
        url: url.clone(),
        reason: format!("cannot {doing}: {reason}"),
    };
    match errno.0 {
        libc::ENOSPC | libc::EDQUOT => UnitError::Full { url },
        libc::EROFS => UnitError::ReadOnly { url },
        libc::EPERM | libc::EACCES if intent == Intent::Write => UnitError::ReadOnly { url },
        libc::EPERM | libc::EACCES => {
            not_allowed("the user's capabilities do not allow it; see `ceph auth get`")
        }
        _ if is_blocklisted(errno) => not_allowed(
            "the cluster has put this host on its blocklist; see `ceph osd blocklist ls`",
        ),
        libc::EOPNOTSUPP if intent == Intent::Write => not_allowed(
            "the pool takes whole objects only; `ceph osd pool set POOL allow_ec_overwrites true` \
             changes that",
        ),
        libc::ENOENT => UnitError::Missing {
            url,
            reason: format!("cannot {doing}: it is not there"),
        },
        libc::ETIMEDOUT
        | libc::ENOTCONN
        | libc::ECONNREFUSED
        | libc::ECONNRESET
        | libc::EHOSTUNREACH
        | libc::ENETUNREACH
        | libc::EAGAIN => UnitError::Unavailable {
            source: source(),
            url,
            doing,
        },
        _ => UnitError::Io {
            source: source(),
            url,
            doing,
        },
    }
}

/// What it means that there is no connection.
pub(crate) fn meaning_of_connect(url: &str, place: &Place, error: &ConnectError) -> UnitError {
    let missing = |reason: String| UnitError::Missing {
        url: url.to_owned(),
        reason,
    };
    let user = place.settings().user;
    let pool = &place.pool;
    match error {
        ConnectError::Library(reason) => missing(reason.clone()),
        ConnectError::NoPool => missing(format!(
            "the cluster has no pool {pool}; make it with `ceph osd pool create {pool}`"
        )),
        ConnectError::Step("read ceph.conf", Errno(libc::ENOENT)) => missing(
            "there is no ceph.conf on this host; put the cluster's into /etc/ceph, or name it \
             by CEPH_CONF"
                .to_owned(),
        ),
        ConnectError::Step("connect", Errno(libc::ENOENT)) => missing(format!(
            "ceph.conf names no monitors, or there is no keyring with a key of {user}"
        )),
        ConnectError::Step("connect", Errno(libc::EPERM | libc::EACCES | libc::EINVAL)) => {
            UnitError::NotAllowed {
                url: url.to_owned(),
                reason: format!("the cluster does not know {user}, or has another key for it"),
            }
        }
        ConnectError::Step(doing, errno) => meaning(url, doing, Intent::Read, *errno),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_told_apart_by_what_can_be_done() {
        let of = |intent, errno| meaning("rados://p", "do it", intent, Errno(errno));
        for errno in [libc::ENOSPC, libc::EDQUOT] {
            assert!(matches!(of(Intent::Write, errno), UnitError::Full { .. }));
        }
        for errno in [libc::EROFS, libc::EPERM, libc::EACCES] {
            assert!(matches!(
                of(Intent::Write, errno),
                UnitError::ReadOnly { .. }
            ));
        }
        for errno in [libc::EPERM, libc::ESHUTDOWN] {
            assert!(matches!(
                of(Intent::Read, errno),
                UnitError::NotAllowed { .. }
            ));
        }
        let blocked = of(Intent::Write, libc::ESHUTDOWN).to_string();
        assert!(blocked.contains("blocklist"), "{blocked}");
        let whole = of(Intent::Write, libc::EOPNOTSUPP).to_string();
        assert!(whole.contains("allow_ec_overwrites"), "{whole}");
        for errno in [libc::ETIMEDOUT, libc::ENOTCONN, libc::ECONNREFUSED] {
            assert!(matches!(
                of(Intent::Read, errno),
                UnitError::Unavailable { .. }
            ));
        }
        assert!(matches!(of(Intent::Read, libc::EIO), UnitError::Io { .. }));
        assert!(matches!(
            of(Intent::Write, libc::ENOENT),
            UnitError::Missing { .. }
        ));
    }

    #[test]
    fn who_cannot_connect_is_told_what_to_do() {
        let place = Place::with_args("rados://me@volumes/n", "").expect("a place");
        let says = |error| meaning_of_connect("rados://me@volumes/n", &place, &error).to_string();
        let pool = says(ConnectError::NoPool);
        assert!(pool.contains("ceph osd pool create volumes"), "{pool}");
        let conf = says(ConnectError::Step("read ceph.conf", Errno(libc::ENOENT)));
        assert!(conf.contains("CEPH_CONF"), "{conf}");
        let key = says(ConnectError::Step("connect", Errno(libc::EPERM)));
        assert!(key.contains("client.me"), "{key}");
        let late = ConnectError::Step("connect", Errno(libc::ETIMEDOUT));
        let late = meaning_of_connect("rados://p", &place, &late);
        assert!(matches!(late, UnitError::Unavailable { .. }), "{late:?}");
    }
}
