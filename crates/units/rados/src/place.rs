//! Which pool a URL names, and how its cluster is reached.
//!
//! ```text
//!  rados://[USER@]POOL[/NAMESPACE]
//! ```
//!
//! Monitors, keys and everything else come from where Ceph's own tools take them:
//! the file that `CEPH_CONF` names or `/etc/ceph/ceph.conf`, and `CEPH_ARGS`. The
//! user is the URL's, or the one in `CEPH_ARGS` (`--id`, `--name`), or `admin`.

use std::fmt;

/// Seconds that librados may take, by its own count, where ceph.conf says no
/// less: it would wait for ever, or five minutes.
pub(crate) const TIMES_MAX: [(&str, &str); 3] = [
    ("client_mount_timeout", "5"),
    ("rados_mon_op_timeout", "5"),
    ("rados_osd_op_timeout", "30"),
];

/// How a cluster is reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Settings {
    /// Who asks, as Ceph names users: `client.…`.
    pub(crate) user: String,
    /// The configuration; none for the usual places.
    pub(crate) file: Option<String>,
}

/// Why a URL leads to no pool.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{url:?} is not rados://[USER@]POOL[/NAMESPACE]: {reason}")]
pub struct PlaceError {
    /// What was given.
    pub url: String,
    /// What is wrong with it.
    pub reason: &'static str,
}

/// A namespace of a pool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    user: Option<String>,
    pub(crate) pool: String,
    /// Empty for what has none.
    pub(crate) namespace: String,
    args: String,
}

/// Whether `url` names a pool, right or wrong, rather than something else.
#[must_use]
pub fn is_rados_url(url: &str) -> bool {
    url.starts_with("rados://")
}

impl Place {
    /// The pool at `url`, reached as the environment says. Asks nobody yet.
    ///
    /// # Errors
    /// [`PlaceError`].
    pub fn at(url: &str) -> Result<Self, PlaceError> {
        let args = std::env::var("CEPH_ARGS").unwrap_or_default();
        Self::with_args(url, &args)
    }

    /// The pool at `url`, reached as Ceph's tools would with `args` for
    /// `CEPH_ARGS`.
    ///
    /// # Errors
    /// [`PlaceError`].
    pub fn with_args(url: &str, args: &str) -> Result<Self, PlaceError> {
        let wrong = |reason| PlaceError {
            url: url.to_owned(),
            reason,
        };
        let rest = url
            .strip_prefix("rados://")
            .ok_or_else(|| wrong("it does not begin so"))?;
        let (authority, namespace) = rest.split_once('/').unwrap_or((rest, ""));
        let (user, pool) = match authority.split_once('@') {
            Some((user, pool)) => (Some(user), pool),
            None => (None, authority),
        };
        if !is_name(pool) {
            return Err(wrong(
                "a pool's name has letters, digits and - _ . and no others",
            ));
        }
        if !user.is_none_or(is_name) {
            return Err(wrong(
                "a user's name has letters, digits and - _ . and no others",
            ));
        }
        let namespace = namespace.strip_suffix('/').unwrap_or(namespace);
        if !namespace.is_empty() && !namespace.split('/').all(is_name) {
            return Err(wrong(
                "a namespace has letters, digits and - _ . / and no others",
            ));
        }
        Ok(Self {
            user: user.map(|user| user.strip_prefix("client.").unwrap_or(user).to_owned()),
            pool: pool.to_owned(),
            namespace: namespace.to_owned(),
            args: args.to_owned(),
        })
    }

    /// The URL, as it is always written.
    #[must_use]
    pub fn url(&self) -> String {
        self.to_string()
    }

    /// Whether both are one namespace of one pool, whoever asks for it.
    #[must_use]
    pub fn is_same_place(&self, other: &Self) -> bool {
        self.pool == other.pool && self.namespace == other.namespace
    }

    /// How the cluster is reached.
    pub(crate) fn settings(&self) -> Settings {
        let (id, name, file) = (
            argument(&self.args, &["--id", "--user", "-i"]).map(|id| format!("client.{id}")),
            argument(&self.args, &["--name", "-n"]),
            argument(&self.args, &["--conf", "-c"]),
        );
        let user = self.user.as_ref().map(|user| format!("client.{user}"));
        let default = || "client.admin".to_owned();
        Settings {
            user: user.or(name).or(id).unwrap_or_else(default),
            file,
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("rados://")?;
        if let Some(user) = &self.user {
            write!(formatter, "{user}@")?;
        }
        formatter.write_str(&self.pool)?;
        if !self.namespace.is_empty() {
            write!(formatter, "/{}", self.namespace)?;
        }
        Ok(())
    }
}

/// Names that are the same in a URL, in a capability and on a command line.
fn is_name(text: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    !text.is_empty() && text.bytes().all(is_plain)
}

/// The value of the last argument that is called one of `names`: `--id scree` or
/// `--id=scree`.
fn argument(args: &str, names: &[&str]) -> Option<String> {
    let mut words = args.split_whitespace();
    let mut found = None;
    while let Some(word) = words.next() {
        let (name, value) = match word.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (word, None),
        };
        if names.contains(&name) {
            found = value.or_else(|| words.next()).map(str::to_owned);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(url: &str, args: &str) -> (String, String, String) {
        let place = Place::with_args(url, args).expect("a place");
        (
            place.pool.clone(),
            place.namespace.clone(),
            place.settings().user,
        )
    }

    #[test]
    fn a_url_names_pool_namespace_and_user() {
        let is = |pool: &str, namespace: &str, user: &str| {
            (pool.to_owned(), namespace.to_owned(), user.to_owned())
        };
        assert_eq!(at("rados://volumes", ""), is("volumes", "", "client.admin"));
        assert_eq!(at("rados://p/n-1/", ""), is("p", "n-1", "client.admin"));
        assert_eq!(at("rados://me@p/n", "--id you"), is("p", "n", "client.me"));
        assert_eq!(at("rados://client.me@p", ""), is("p", "", "client.me"));
        assert_eq!(at("rados://p", "--id=you"), is("p", "", "client.you"));
        assert_eq!(
            at("rados://p", "-n client.x -c /f"),
            is("p", "", "client.x")
        );
        let place = Place::with_args("rados://client.me@p/n/", "--conf /etc/x").expect("a place");
        assert_eq!(place.url(), "rados://me@p/n");
        assert_eq!(place.settings().file.as_deref(), Some("/etc/x"));
    }

    #[test]
    fn other_urls_are_refused() {
        for url in [
            "rados://",
            "rados:///n",
            "rados://a b",
            "rados://@p",
            "rados://p//n",
            "rados://p/%41",
            "rados://p?id=x",
            "ceph://p",
        ] {
            let refused = Place::with_args(url, "");
            assert!(refused.is_err(), "{url}: {refused:?}");
            assert_eq!(is_rados_url(url), url.starts_with("rados"));
        }
    }
}
