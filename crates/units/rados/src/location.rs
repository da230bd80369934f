//! The location of a unit in a cluster: its URL, and how the cluster is reached.
//!
//! ```text
//!  rados://[USER@]POOL[/NAMESPACE]
//! ```
//!
//! Monitors, keys and other settings come from the same sources as for Ceph's own tools: the file
//! that `CEPH_CONF` names or `/etc/ceph/ceph.conf`, and `CEPH_ARGS`. The user is that of the URL,
//! or the one in `CEPH_ARGS` (`--id`, `--name`), or `admin`.

use std::fmt;

/// Timeouts of librados in seconds, unless ceph.conf sets them: its defaults are five minutes or
/// none.
pub(crate) const TIMEOUTS_S: [(&str, &str); 3] = [
    ("client_mount_timeout", "5"),
    ("rados_mon_op_timeout", "5"),
    ("rados_osd_op_timeout", "30"),
];

/// How a cluster is reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Settings {
    /// The user, in Ceph's form: `client.…`.
    pub(crate) user: String,
    /// Path of the configuration; `None` for the default ones.
    pub(crate) file: Option<String>,
}

/// Why a URL is not that of a pool.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{url:?} is not rados://[USER@]POOL[/NAMESPACE]: {reason}")]
pub struct LocationError {
    /// The given URL.
    pub url: String,
    /// The reason.
    pub reason: &'static str,
}

/// A namespace of a pool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Location {
    user: Option<String>,
    pub(crate) pool: String,
    /// Empty if there is none.
    pub(crate) namespace: String,
    args: String,
}

/// Whether `url` has the scheme of a pool, valid or not.
#[must_use]
pub fn is_rados_url(url: &str) -> bool {
    url.starts_with("rados://")
}

impl Location {
    /// The pool at `url`, with settings from the environment. Sends no request yet.
    ///
    /// # Errors
    /// [`LocationError`].
    pub fn at(url: &str) -> Result<Self, LocationError> {
        let args = std::env::var("CEPH_ARGS").unwrap_or_default();
        Self::with_args(url, &args)
    }

    /// The pool at `url`, with `args` in place of `CEPH_ARGS`.
    ///
    /// # Errors
    /// [`LocationError`].
    pub fn with_args(url: &str, args: &str) -> Result<Self, LocationError> {
        let wrong = |reason| LocationError {
            url: url.to_owned(),
            reason,
        };
        let rest = url
            .strip_prefix("rados://")
            .ok_or_else(|| wrong("it has another scheme"))?;
        let (authority, namespace) = rest.split_once('/').unwrap_or((rest, ""));
        let (user, pool) = match authority.split_once('@') {
            Some((user, pool)) => (Some(user), pool),
            None => (None, authority),
        };
        if !is_name(pool) {
            return Err(wrong(
                "the name of a pool may have letters, digits and - _ .",
            ));
        }
        if !user.is_none_or(is_name) {
            return Err(wrong(
                "the name of a user may have letters, digits and - _ .",
            ));
        }
        let namespace = namespace.strip_suffix('/').unwrap_or(namespace);
        if !namespace.is_empty() && !namespace.split('/').all(is_name) {
            return Err(wrong("a namespace may have letters, digits and - _ . /"));
        }
        Ok(Self {
            user: user.map(|user| user.strip_prefix("client.").unwrap_or(user).to_owned()),
            pool: pool.to_owned(),
            namespace: namespace.to_owned(),
            args: args.to_owned(),
        })
    }

    /// The URL in its canonical form.
    #[must_use]
    pub fn url(&self) -> String {
        self.to_string()
    }

    /// Whether both are the same namespace of the same pool. Their users may differ.
    #[must_use]
    pub fn is_same_pool(&self, other: &Self) -> bool {
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

impl fmt::Display for Location {
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

/// Whether `text` needs no quoting in a URL, in a capability or on a command line.
fn is_name(text: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    !text.is_empty() && text.bytes().all(is_plain)
}

/// The value of the last argument with one of `names`: `--id scree` or `--id=scree`.
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
        let location = Location::with_args(url, args).expect("a URL");
        (
            location.pool.clone(),
            location.namespace.clone(),
            location.settings().user,
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
        let location =
            Location::with_args("rados://client.me@p/n/", "--conf /etc/x").expect("a URL");
        assert_eq!(location.url(), "rados://me@p/n");
        assert_eq!(location.settings().file.as_deref(), Some("/etc/x"));
    }

    #[test]
    fn other_urls_are_refused() {
        for (url, has_scheme) in [
            ("rados://", true),
            ("rados:///n", true),
            ("rados://a b", true),
            ("rados://@p", true),
            ("rados://p//n", true),
            ("rados://p/%41", true),
            ("rados://p?id=x", true),
            ("ceph://p", false),
            ("rados:p", false),
            ("radosgw://p", false),
        ] {
            let refused = Location::with_args(url, "");
            assert!(refused.is_err(), "{url}: {refused:?}");
            assert_eq!(is_rados_url(url), has_scheme, "{url}");
        }
    }
}
