//! Requests to the store, and the meaning of its errors.
//!
//! Every request has a timeout: [`crate::ANSWER_TIMEOUT`], and a second more for each MiB that is
//! sent or received. A request that timed out may still be carried out.
//!
//! Must not know: segments, slots, markers.

use std::error::Error as StdError;
use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt as _;
use futures_util::stream::BoxStream;
use object_store::client::{HttpError, HttpErrorKind};
use object_store::path::Path;
use object_store::{
    Error, GetOptions, GetRange, ObjectMeta, ObjectStore, ObjectStoreExt as _, PutMode, PutPayload,
    UpdateVersion,
};
use unit::UnitError;

use crate::location::Location;
use crate::marker::Conditional;

/// Bytes sent or received for which a request gets one more second.
const BYTES_A_SECOND_MIN: u64 = 1 << 20;

/// Maximum length of an object that is put in one request, in bytes; longer ones are put in
/// parts. Only a single request is atomic and can be conditional. A segment of
/// [`crate::SEGMENT_DATA_BYTES`] is shorter.
pub(crate) const PUT_AT_ONCE_BYTES_MAX: usize = 16 << 20;

/// Length of a part in bytes; stores accept no parts of less than 5 MiB.
const PART_BYTES: usize = 8 << 20;

/// The part of an object that was read.
pub(crate) struct Found {
    pub(crate) bytes: Bytes,
    /// The length of the whole object.
    pub(crate) size: u64,
    /// The object's version, for conditional requests.
    pub(crate) version: UpdateVersion,
}

/// A prefix of a bucket.
#[derive(Clone)]
pub(crate) struct Bucket {
    pub(crate) url: String,
    prefix: Path,
    store: Arc<dyn ObjectStore>,
    timeout: RequestTimeout,
}

/// The timeout of a request without its bytes.
#[derive(Debug, Clone, Copy)]
struct RequestTimeout(Duration);

impl RequestTimeout {
    /// Waits for an answer while `bytes` are sent or received.
    async fn wait<T>(
        self,
        bytes: u64,
        answer: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        let wait = self.0 + Duration::from_secs(bytes / BYTES_A_SECOND_MIN);
        world::host::timeout(wait, answer).await.unwrap_or_else(|| {
            Err(Error::Generic {
                store: "store",
                source: Box::new(io::Error::new(
                    io::ErrorKind::TimedOut,
                    format!("no answer within {wait:?}"),
                )),
            })
        })
    }
}

impl Bucket {
    pub(crate) fn new(location: &Location) -> Self {
        Self {
            url: location.url.clone(),
            prefix: location.prefix.clone(),
            store: Arc::clone(&location.store),
            timeout: RequestTimeout(location.answer_timeout),
        }
    }

    /// The path of the object `name` below the prefix.
    pub(crate) fn path(&self, name: &str) -> Path {
        name.split('/')
            .fold(self.prefix.clone(), |path, part| path.join(part))
    }

    /// The prefixes that contain this one, the nearest first.
    pub(crate) fn above(&self) -> Vec<Path> {
        let parts: Vec<_> = self.prefix.parts().collect();
        let lengths = (0..parts.len()).rev();
        lengths
            .map(|length| Path::from_iter(parts[..length].iter().cloned()))
            .collect()
    }

    /// Reads `range` of an object, or all of it. Fails if that is more than `bytes_max` bytes, or
    /// if the object does not have `e_tag`.
    pub(crate) async fn get(
        &self,
        path: &Path,
        range: Option<GetRange>,
        e_tag: Option<&str>,
        bytes_max: u64,
    ) -> Result<Found, Error> {
        self.timeout
            .wait(bytes_max, async {
                let options = GetOptions::new().with_range(range).with_if_match(e_tag);
                let answer = self.store.get_opts(path, options).await?;
                let length = answer.range.end.saturating_sub(answer.range.start);
                if length > bytes_max {
                    return Err(Error::Generic {
                        store: "store",
                        source: format!(
                            "{path} has {length} bytes, more than the expected {bytes_max}"
                        )
                        .into(),
                    });
                }
                let size = answer.meta.size;
                let version = UpdateVersion {
                    e_tag: answer.meta.e_tag.clone(),
                    version: answer.meta.version.clone(),
                };
                let bytes = answer.bytes().await?;
                Ok(Found {
                    bytes,
                    size,
                    version,
                })
            })
            .await
    }

    /// Reads the metadata of an object.
    pub(crate) async fn head(&self, path: &Path) -> Result<ObjectMeta, Error> {
        self.timeout.wait(0, self.store.head(path)).await
    }

    /// Puts an object subject to `mode`, as far as the store supports that. Durable on return.
    pub(crate) async fn put(
        &self,
        path: &Path,
        object: Bytes,
        mode: PutMode,
        conditional: Conditional,
    ) -> Result<UpdateVersion, Error> {
        let is_left_to_store = object.len() <= PUT_AT_ONCE_BYTES_MAX
            && match mode {
                PutMode::Overwrite => true,
                PutMode::Create => conditional.create,
                PutMode::Update(_) => conditional.update,
            };
        if is_left_to_store {
            return self.put_at_once(path, object, mode).await;
        }
        // Without conditional requests: check first. A concurrent put is overwritten.
        match (&mode, self.head(path).await) {
            (PutMode::Create, Ok(_)) => {
                return Err(Error::AlreadyExists {
                    path: path.to_string(),
                    source: "the object exists".into(),
                });
            }
            (PutMode::Update(read), Ok(found)) if found.e_tag != read.e_tag => {
                return Err(changed(path));
            }
            (PutMode::Update(_), Err(Error::NotFound { .. })) => return Err(changed(path)),
            (_, Err(Error::NotFound { .. }) | Ok(_)) => {}
            (_, Err(why)) => return Err(why),
        }
        if object.len() <= PUT_AT_ONCE_BYTES_MAX {
            self.put_at_once(path, object, PutMode::Overwrite).await
        } else {
            self.put_in_parts(path, &object).await
        }
    }

    pub(crate) async fn put_at_once(
        &self,
        path: &Path,
        object: Bytes,
        mode: PutMode,
    ) -> Result<UpdateVersion, Error> {
        let bytes = object.len() as u64;
        let payload = PutPayload::from_bytes(object);
        let put = self.store.put_opts(path, payload, mode.into());
        Ok(self.timeout.wait(bytes, put).await?.into())
    }

    /// Puts an object in parts. It becomes visible as a whole with its last part.
    async fn put_in_parts(&self, path: &Path, object: &Bytes) -> Result<UpdateVersion, Error> {
        let mut upload = self.timeout.wait(0, self.store.put_multipart(path)).await?;
        let put = async {
            for first in (0..object.len()).step_by(PART_BYTES) {
                let part = object.slice(first..object.len().min(first + PART_BYTES));
                let bytes = part.len() as u64;
                self.timeout
                    .wait(bytes, upload.put_part(PutPayload::from_bytes(part)))
                    .await?;
            }
            self.timeout.wait(0, upload.complete()).await
        };
        match put.await {
            Ok(done) => Ok(done.into()),
            Err(why) => {
                // If this fails, the parts take room until the bucket's rules remove them.
                let _ = self.timeout.wait(0, upload.abort()).await;
                Err(why)
            }
        }
    }

    /// Removes an object. A missing one is no error.
    pub(crate) async fn delete(&self, path: &Path) -> Result<(), Error> {
        match self.timeout.wait(0, self.store.delete(path)).await {
            Err(Error::NotFound { .. }) => Ok(()),
            other => other,
        }
    }

    /// Lists the objects below `path`; with `after`, those with names behind it.
    pub(crate) fn list(&self, path: &Path, after: Option<&Path>) -> Listing {
        let objects = match after {
            Some(after) => self.store.list_with_offset(Some(path), after),
            None => self.store.list(Some(path)),
        };
        Listing {
            objects,
            timeout: self.timeout,
        }
    }

    /// Lists all objects below the prefix.
    pub(crate) fn list_all(&self) -> Listing {
        self.list(&self.prefix, None)
    }

    /// Converts an error of a request that changes nothing.
    pub(crate) fn read_error(&self, doing: &str, error: Error) -> UnitError {
        unit_error(&self.url, doing, Intent::Read, error)
    }

    /// Converts an error of a request that would have changed something.
    pub(crate) fn write_error(&self, doing: &str, error: Error) -> UnitError {
        unit_error(&self.url, doing, Intent::Write, error)
    }
}

fn changed(path: &Path) -> Error {
    Error::Precondition {
        path: path.to_string(),
        source: "the object has changed".into(),
    }
}

/// A list of objects that is read incrementally.
pub(crate) struct Listing {
    objects: BoxStream<'static, Result<ObjectMeta, Error>>,
    timeout: RequestTimeout,
}

impl Listing {
    /// The next one; `None` after the last.
    pub(crate) async fn next(&mut self) -> Result<Option<ObjectMeta>, Error> {
        let next = async { self.objects.next().await.transpose() };
        self.timeout.wait(0, next).await
    }
}

/// Whether a request changes something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Intent {
    Read,
    Write,
}

/// Words in errors of stores that are full.
const WORDS_FOR_FULL: [&str; 3] = ["QuotaExceeded", "StorageFull", "507 Insufficient Storage"];

/// Words in errors of stores whose policy allows no writes, of S3 and Google and of Azure. Other
/// errors of denied permission are about the credentials: a wrong signature, a key that expired or
/// was deleted, a wrong clock.
const WORDS_FOR_READ_ONLY: [&str; 2] = ["AccessDenied", "AuthorizationPermissionMismatch"];

/// Words in errors about a missing bucket that are no [`Error::NotFound`].
const WORDS_FOR_MISSING: [&str; 2] = ["NoSuchBucket", "ContainerNotFound"];

/// Address of the service that provides credentials to machines in a cloud; it is tried when
/// there are none.
const METADATA_SERVICE: &str = "169.254.169.254";

fn unit_error(url: &str, doing: &str, intent: Intent, error: Error) -> UnitError {
    let url = url.to_owned();
    let doing = doing.to_owned();
    let text = error.to_string();
    if text.contains(METADATA_SERVICE) {
        return UnitError::NotAllowed {
            url,
            reason: format!(
                "no credentials: set them in the environment or in a profile; no cloud provides any \
                 to this machine ({text})"
            ),
        };
    }
    if WORDS_FOR_FULL.iter().any(|word| text.contains(word)) {
        return UnitError::Full { url };
    }
    if WORDS_FOR_MISSING.iter().any(|word| text.contains(word)) {
        return UnitError::Missing { url, reason: text };
    }
    let is_denied = WORDS_FOR_READ_ONLY.iter().any(|word| text.contains(word));
    match error {
        Error::PermissionDenied { .. } if intent == Intent::Write && is_denied => {
            UnitError::ReadOnly {
                url,
                reason: format!("cannot {doing}: {text}"),
            }
        }
        Error::PermissionDenied { .. } | Error::Unauthenticated { .. } => {
            UnitError::NotAllowed { url, reason: text }
        }
        Error::NotFound { .. } => UnitError::Missing {
            url,
            reason: format!("cannot {doing}: {text}"),
        },
        error if is_unreachable(&error) => UnitError::Unavailable {
            url,
            doing,
            source: Arc::new(io::Error::new(io::ErrorKind::NotConnected, error)),
        },
        error => UnitError::Io {
            url,
            doing,
            source: Arc::new(io::Error::other(error)),
        },
    }
}

/// Whether the store did not answer, as opposed to refusing.
fn is_unreachable(error: &Error) -> bool {
    let mut cause: Option<&(dyn StdError + 'static)> = Some(error);
    while let Some(found) = cause {
        let is_http = found.downcast_ref::<HttpError>().is_some_and(|http| {
            use HttpErrorKind as Kind;
            matches!(
                http.kind(),
                Kind::Connect | Kind::Request | Kind::Timeout | Kind::Interrupted
            )
        });
        let is_late = found
            .downcast_ref::<io::Error>()
            .is_some_and(|io| io.kind() == io::ErrorKind::TimedOut);
        if is_http || is_late {
            return true;
        }
        cause = found.source();
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(text: &str) -> Box<dyn StdError + Send + Sync> {
        text.into()
    }

    #[test]
    fn errors_of_the_store_are_classified_by_what_can_be_done() {
        let path = || "p".to_owned();
        let of = |source| Error::Generic {
            store: "S3",
            source,
        };
        let denied = |text| Error::PermissionDenied {
            path: path(),
            source: source(text),
        };
        let convert = |intent, error| unit_error("s3://b", "do it", intent, error);
        let write = convert(
            Intent::Write,
            denied("<Code>AccessDenied</Code><Message>no s3:PutObject</Message>"),
        );
        assert!(
            matches!(&write, UnitError::ReadOnly { reason, .. } if reason.contains("s3:PutObject")),
            "{write:?}"
        );
        // The bucket may accept writes of other credentials, or at the right time.
        for code in [
            "SignatureDoesNotMatch",
            "ExpiredToken",
            "InvalidAccessKeyId",
            "RequestTimeTooSkewed",
        ] {
            for intent in [Intent::Read, Intent::Write] {
                let refused = convert(intent, denied(code));
                assert!(
                    matches!(&refused, UnitError::NotAllowed { reason, .. } if reason.contains(code)),
                    "{refused:?}"
                );
            }
        }
        let read = convert(Intent::Read, denied("AccessDenied"));
        assert!(matches!(read, UnitError::NotAllowed { .. }), "{read:?}");
        let full = convert(Intent::Write, denied("<Code>QuotaExceeded</Code>"));
        assert!(matches!(full, UnitError::Full { .. }), "{full:?}");
        let gone = Error::NotFound {
            path: path(),
            source: source("NoSuchBucket"),
        };
        let gone = convert(Intent::Read, gone);
        assert!(matches!(gone, UnitError::Missing { .. }), "{gone:?}");
        let listed = convert(Intent::Read, of(source("404: ContainerNotFound")));
        assert!(matches!(listed, UnitError::Missing { .. }), "{listed:?}");
        let late = of(Box::new(io::Error::new(io::ErrorKind::TimedOut, "late")));
        let late = convert(Intent::Write, late);
        assert!(matches!(late, UnitError::Unavailable { .. }), "{late:?}");
        let refused = HttpError::new(HttpErrorKind::Connect, io::Error::other("refused"));
        let refused = convert(Intent::Read, of(Box::new(refused)));
        assert!(
            matches!(refused, UnitError::Unavailable { .. }),
            "{refused:?}"
        );
        let broken = convert(Intent::Read, of(source("500 InternalError")));
        assert!(matches!(broken, UnitError::Io { .. }), "{broken:?}");
    }
}
