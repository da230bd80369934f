//! The location of a bucket: its URL, and how it is reached.
//!
//! ```text
//!  s3://bucket/prefix     AWS_…     S3 and what speaks its protocol
//!  gs://bucket/prefix     GOOGLE_…  Google Cloud Storage
//!  az://container/prefix  AZURE_…   Azure Blob Storage
//! ```
//!
//! Credentials, endpoint and region come from the settings of each store's own tools, usually in
//! the environment: `AWS_ACCESS_KEY_ID`,
//! `AWS_SECRET_ACCESS_KEY`, `AWS_REGION`, `AWS_ENDPOINT_URL` and so on; for S3 also
//! from a profile (`profile.rs`).

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use object_store::path::Path;
use object_store::{BackoffConfig, ObjectStore, RetryConfig};

use crate::profile::{self, Environment, ProfileError};

/// Default timeout of an answer, all attempts together.
pub const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// Time from the start of a request during which transient errors are retried.
const RETRY_FOR: Duration = Duration::from_secs(5);

/// Maximum number of retries.
const RETRIES_MAX: usize = 5;

/// Timeout for connecting.
const CONNECT_TIMEOUT: &str = "3 seconds";

/// Why a bucket cannot be reached.
#[derive(Debug, thiserror::Error)]
pub enum LocationError {
    /// The URL is not that of a bucket.
    #[error("{url:?} is not s3://BUCKET[/PREFIX], gs://… or az://…: {reason}")]
    Url {
        /// The given URL.
        url: String,
        /// The reason.
        reason: String,
    },
    /// This program was built without support for the store.
    #[error("{url}: this program was built without {feature:?}")]
    NotBuilt {
        /// The given URL.
        url: String,
        /// The missing Cargo feature.
        feature: &'static str,
    },
    /// Plain HTTP, which exposes all requests and credentials to the network.
    #[error("{url}: {endpoint} is neither https nor this machine; {setting}=true allows it")]
    PlainHttp {
        /// The unit's URL.
        url: String,
        /// The endpoint of its store.
        endpoint: String,
        /// The setting that allows it.
        setting: String,
    },
    /// The profile with the credentials cannot be used.
    #[error("{url} cannot be reached")]
    Profile {
        /// The unit's URL.
        url: String,
        /// The error of the profile.
        #[source]
        source: ProfileError,
    },
    /// A setting is missing or invalid.
    #[error("{url} cannot be reached with these settings")]
    Settings {
        /// The unit's URL.
        url: String,
        /// The error of the settings.
        #[source]
        source: object_store::Error,
    },
}

/// A prefix of a bucket, and access to it.
#[derive(Clone)]
pub struct Location {
    pub(crate) url: String,
    pub(crate) prefix: Path,
    pub(crate) store: Arc<dyn ObjectStore>,
    pub(crate) answer_timeout: Duration,
}

/// Omits the store, which has credentials.
impl fmt::Debug for Location {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Location({})", self.url)
    }
}

/// The kinds of stores.
#[derive(Debug, Clone, Copy)]
enum Kind {
    S3,
    Google,
    Azure,
}

impl Kind {
    /// Prefix of the names of its settings.
    fn settings(self) -> &'static str {
        match self {
            Self::S3 => "AWS_",
            Self::Google => "GOOGLE_",
            Self::Azure => "AZURE_",
        }
    }

    /// Whether a setting is for this kind.
    fn has(self, name: &str) -> bool {
        name.starts_with(self.settings())
            || match self {
                Self::S3 => false,
                Self::Google => name == "SERVICE_ACCOUNT",
                Self::Azure => name == "IDENTITY_ENDPOINT",
            }
    }

    /// The settings that name its endpoint.
    fn endpoints(self) -> &'static [&'static str] {
        match self {
            Self::S3 => &["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"],
            Self::Google => &["GOOGLE_BASE_URL"],
            Self::Azure => &["AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"],
        }
    }
}

impl Location {
    /// The bucket at `url`, with settings from the environment and a profile. Sends no request
    /// yet.
    ///
    /// # Errors
    /// [`LocationError`].
    pub fn at(url: &str) -> Result<Self, LocationError> {
        let (kind, ..) = parse(url)?;
        let environment = std::env::vars_os();
        let mut settings: Vec<(String, String)> = environment
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
            .collect();
        if matches!(kind, Kind::S3) {
            let read = profile::read;
            let environment = Environment {
                settings: &settings,
                read,
            };
            let more = environment.profile();
            settings.extend(more.map_err(|source| LocationError::Profile {
                url: url.to_owned(),
                source,
            })?);
        }
        Self::with_settings(url, settings)
    }

    /// The bucket at `url`, with these settings: names, such as `AWS_REGION`, and values. Others
    /// are ignored.
    ///
    /// # Errors
    /// [`LocationError`].
    pub fn with_settings(
        url: &str,
        settings: impl IntoIterator<Item = (String, String)>,
    ) -> Result<Self, LocationError> {
        let (kind, bucket, prefix) = parse(url)?;
        let settings = settings.into_iter();
        let settings: Vec<(String, String)> = settings.filter(|(name, _)| kind.has(name)).collect();
        let scheme = url.split_once(':').map_or("", |(scheme, _)| scheme);
        let url = match prefix.as_ref() {
            "" => format!("{scheme}://{bucket}"),
            prefix => format!("{scheme}://{bucket}/{prefix}"),
        };
        let is_plain = is_plain_http(&url, kind, &settings)?;
        let store = client(&url, kind, bucket, &settings, is_plain)?;
        Ok(Self::on(store, prefix, url))
    }

    /// The objects in `store` below `prefix`, with `url` as their URL.
    #[must_use]
    pub fn on(store: Arc<dyn ObjectStore>, prefix: Path, url: String) -> Self {
        Self {
            url,
            prefix,
            store,
            answer_timeout: ANSWER_TIMEOUT,
        }
    }

    /// Sets the timeout of an answer instead of [`ANSWER_TIMEOUT`]. Each MiB that is sent or
    /// received adds a second.
    #[must_use]
    pub fn with_answer_timeout(self, wait: Duration) -> Self {
        Self {
            answer_timeout: wait,
            ..self
        }
    }

    /// The URL in its canonical form.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }
}

/// Whether `url` has the scheme of a bucket, valid or not.
#[must_use]
pub fn is_object_url(url: &str) -> bool {
    ["s3://", "gs://", "az://"]
        .iter()
        .any(|scheme| url.starts_with(scheme))
}

fn parse(url: &str) -> Result<(Kind, &str, Path), LocationError> {
    let wrong = |reason: &str| LocationError::Url {
        url: url.to_owned(),
        reason: reason.to_owned(),
    };
    let (scheme, rest) = url.split_once("://").ok_or_else(|| wrong("no scheme"))?;
    let kind = match scheme {
        "s3" => Kind::S3,
        "gs" => Kind::Google,
        "az" => Kind::Azure,
        _ => return Err(wrong("another scheme")),
    };
    let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    if bucket.is_empty() || !bucket.bytes().all(is_name) {
        return Err(wrong("no bucket has that name"));
    }
    // Stores and programs that show the URL treat other characters differently.
    let is_part = |byte: u8| is_name(byte) || byte == b'/';
    if !prefix.bytes().all(is_part) {
        return Err(wrong("a prefix has letters, digits, '-', '.', '_' and '/'"));
    }
    if prefix.starts_with('/') {
        return Err(wrong("a part of the prefix is empty"));
    }
    let prefix = Path::parse(prefix).map_err(|error| wrong(&error.to_string()))?;
    Ok((kind, bucket, prefix))
}

/// Whether the store is reached over plain HTTP, where that is allowed. Every setting that names
/// an endpoint is checked.
fn is_plain_http(
    url: &str,
    kind: Kind,
    settings: &[(String, String)],
) -> Result<bool, LocationError> {
    let allowing = format!("{}ALLOW_HTTP", kind.settings());
    let is_yes = |value: &str| {
        let value = value.to_ascii_lowercase();
        ["1", "true", "on", "yes", "y"].contains(&value.as_str())
    };
    let is_allowed = settings
        .iter()
        .any(|(name, value)| *name == allowing && is_yes(value));
    let mut is_plain = false;
    for (name, endpoint) in settings {
        let mut known = kind.endpoints().iter();
        let is_endpoint = known.any(|known| name.eq_ignore_ascii_case(known));
        let scheme = endpoint.get(..7).unwrap_or_default();
        if !is_endpoint || !scheme.eq_ignore_ascii_case("http://") {
            continue;
        }
        if !is_allowed && !is_this_machine(&endpoint[7..]) {
            return Err(LocationError::PlainHttp {
                url: url.to_owned(),
                endpoint: endpoint.clone(),
                setting: allowing,
            });
        }
        is_plain = true;
    }
    Ok(is_plain)
}

/// Whether `rest`, a URL without its scheme, is on this machine.
fn is_this_machine(rest: &str) -> bool {
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    // A user name in front is a trap or a mistake.
    let host = match authority.strip_prefix('[') {
        Some(v6) => v6.split(']').next().unwrap_or_default(),
        None => authority.split(':').next().unwrap_or_default(),
    };
    !authority.contains('@')
        && (host.eq_ignore_ascii_case("localhost")
            || host
                .parse::<IpAddr>()
                .is_ok_and(|address| address.is_loopback()))
}

/// Retries with jitter.
fn retry() -> RetryConfig {
    RetryConfig {
        backoff: BackoffConfig {
            init_backoff: Duration::from_millis(100),
            max_backoff: Duration::from_secs(1),
            base: 2.0,
        },
        max_retries: RETRIES_MAX,
        retry_timeout: RETRY_FOR,
    }
}

/// Hands a builder what all kinds have in common, and the settings on top of
/// that, as its own `from_env` does.
macro_rules! build {
    ($builder:ty, $key:ident, $bucket:ident($name:expr), $settings:expr, $is_plain:expr) => {{
        use object_store::ClientConfigKey as Client;
        let mut builder = <$builder>::new()
            .with_retry(retry())
            .with_config($key::Client(Client::ConnectTimeout), CONNECT_TIMEOUT);
        for (name, value) in $settings {
            if let Ok(key) = name.to_ascii_lowercase().parse() {
                builder = builder.with_config(key, value);
            }
        }
        builder
            .$bucket($name)
            .with_config($key::Client(Client::AllowHttp), $is_plain.to_string())
    }};
}

#[cfg(feature = "aws")]
fn s3(
    bucket: &str,
    settings: &[(String, String)],
    is_plain: bool,
) -> Result<Arc<dyn ObjectStore>, object_store::Error> {
    use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
    let builder = build!(
        AmazonS3Builder,
        AmazonS3ConfigKey,
        with_bucket_name(bucket),
        settings,
        is_plain
    );
    // One object is deleted at a time, and not every store that speaks
    // S3 knows how to delete many.
    Ok(Arc::new(builder.with_disable_bulk_delete(true).build()?))
}

#[cfg(feature = "gcp")]
fn google(
    bucket: &str,
    settings: &[(String, String)],
    is_plain: bool,
) -> Result<Arc<dyn ObjectStore>, object_store::Error> {
    use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey};
    let builder = build!(
        GoogleCloudStorageBuilder,
        GoogleConfigKey,
        with_bucket_name(bucket),
        settings,
        is_plain
    );
    Ok(Arc::new(builder.build()?))
}

#[cfg(feature = "azure")]
fn azure(
    bucket: &str,
    settings: &[(String, String)],
    is_plain: bool,
) -> Result<Arc<dyn ObjectStore>, object_store::Error> {
    use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
    let builder = build!(
        MicrosoftAzureBuilder,
        AzureConfigKey,
        with_container_name(bucket),
        settings,
        is_plain
    );
    Ok(Arc::new(builder.build()?))
}

/// A client of the store, which sends no request yet.
fn client(
    url: &str,
    kind: Kind,
    bucket: &str,
    settings: &[(String, String)],
    is_plain: bool,
) -> Result<Arc<dyn ObjectStore>, LocationError> {
    let failed = |source| LocationError::Settings {
        url: url.to_owned(),
        source,
    };
    match kind {
        #[cfg(feature = "aws")]
        Kind::S3 => s3(bucket, settings, is_plain).map_err(failed),
        #[cfg(feature = "gcp")]
        Kind::Google => google(bucket, settings, is_plain).map_err(failed),
        #[cfg(feature = "azure")]
        Kind::Azure => azure(bucket, settings, is_plain).map_err(failed),
        #[cfg(not(all(feature = "aws", feature = "azure", feature = "gcp")))]
        _ => Err(LocationError::NotBuilt {
            url: url.to_owned(),
            feature: match kind {
                Kind::S3 => "aws",
                Kind::Google => "gcp",
                Kind::Azure => "azure",
            },
        }),
    }
}

#[cfg(all(test, feature = "aws", feature = "azure", feature = "gcp"))]
mod tests;
