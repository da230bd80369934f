//! Converting errors of a cluster to errors of a unit.

use std::io;
use std::sync::Arc;

use unit::UnitError;

use crate::librados::ConnectError;
use crate::location::Location;
use crate::pool::Errno;

/// Whether a request changes something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Intent {
    Read,
    Write,
}

/// Why a cluster refuses a request with `EPERM` or `EACCES`.
const CAPABILITIES: &str = "the user's capabilities do not allow it; see `ceph auth get`";

/// Whether the cluster has blocklisted this client: it never answers again on this connection.
pub(crate) fn is_blocklisted(errno: Errno) -> bool {
    errno.0 == libc::ESHUTDOWN
}

/// Converts an error of a request for the unit at `url`.
pub(crate) fn unit_error(url: &str, doing: &str, intent: Intent, errno: Errno) -> UnitError {
    let url = url.to_owned();
    let doing = doing.to_owned();
    let source = || Arc::new(io::Error::from_raw_os_error(errno.0));
    let not_allowed = |reason: &str| UnitError::NotAllowed {
        url: url.clone(),
        reason: format!("cannot {doing}: {reason}"),
    };
    match errno.0 {
        libc::ENOSPC | libc::EDQUOT => UnitError::Full { url },
        libc::EROFS => UnitError::ReadOnly {
            url,
            reason: format!("cannot {doing}: {}", source()),
        },
        libc::EPERM | libc::EACCES if intent == Intent::Write => UnitError::ReadOnly {
            url,
            reason: format!("cannot {doing}: {CAPABILITIES}"),
        },
        libc::EPERM | libc::EACCES => not_allowed(CAPABILITIES),
        _ if is_blocklisted(errno) => not_allowed(
            "the cluster has put this host on its blocklist; see `ceph osd blocklist ls`",
        ),
        libc::EOPNOTSUPP if intent == Intent::Write => not_allowed(
            "the pool does not support partial writes; enable them with \
             `ceph osd pool set POOL allow_ec_overwrites true`",
        ),
        libc::ENOENT => UnitError::Missing {
            url,
            reason: format!("cannot {doing}: it does not exist"),
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

/// Converts an error of connecting.
pub(crate) fn connect_error(url: &str, location: &Location, error: &ConnectError) -> UnitError {
    let missing = |reason: String| UnitError::Missing {
        url: url.to_owned(),
        reason,
    };
    let user = location.settings().user;
    let pool = &location.pool;
    match error {
        ConnectError::Library(reason) => missing(reason.clone()),
        ConnectError::NoPool => missing(format!(
            "the cluster has no pool {pool}; create it with `ceph osd pool create {pool}`"
        )),
        ConnectError::Step("read ceph.conf", Errno(libc::ENOENT)) => missing(
            "there is no ceph.conf on this host; copy the cluster's to /etc/ceph, or set CEPH_CONF \
             to its path"
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
        ConnectError::Step(doing, errno) => unit_error(url, doing, Intent::Read, *errno),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_classified_by_what_can_be_done() {
        let of = |intent, errno| unit_error("rados://p", "do it", intent, Errno(errno));
        for errno in [libc::ENOSPC, libc::EDQUOT] {
            assert!(matches!(of(Intent::Write, errno), UnitError::Full { .. }));
        }
        for errno in [libc::EROFS, libc::EPERM, libc::EACCES] {
            assert!(matches!(
                of(Intent::Write, errno),
                UnitError::ReadOnly { .. }
            ));
        }
        let denied = of(Intent::Write, libc::EPERM).to_string();
        assert!(
            denied.contains("read-only: cannot do it: the user's capabilities"),
            "{denied}"
        );
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
    fn errors_of_connecting_say_what_to_do() {
        let location = Location::with_args("rados://me@volumes/n", "").expect("a URL");
        let says = |error| connect_error("rados://me@volumes/n", &location, &error).to_string();
        let pool = says(ConnectError::NoPool);
        assert!(pool.contains("ceph osd pool create volumes"), "{pool}");
        let conf = says(ConnectError::Step("read ceph.conf", Errno(libc::ENOENT)));
        assert!(conf.contains("CEPH_CONF"), "{conf}");
        let key = says(ConnectError::Step("connect", Errno(libc::EPERM)));
        assert!(key.contains("client.me"), "{key}");
        let late = ConnectError::Step("connect", Errno(libc::ETIMEDOUT));
        let late = connect_error("rados://p", &location, &late);
        assert!(matches!(late, UnitError::Unavailable { .. }), "{late:?}");
    }
}
