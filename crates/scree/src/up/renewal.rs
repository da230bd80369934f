//! Renews certificates long before they expire.

use std::time::Duration;

use api::Profile;
use world::{World, host};

use super::settings::Identity;
use crate::tls_files::READ_EVERY;

/// Interval of renewals; certificates are valid for a day.
pub(super) const RENEW_EVERY: Duration = Duration::from_secs(8 * 60 * 60);

/// Pause after a failed renewal; it doubles after each failure, up to [`RENEW_EVERY`].
const RENEW_AGAIN: Duration = Duration::from_secs(60);

/// The pause after a failure, and after the next one.
fn after_failure(again: Duration, every: Duration) -> (Duration, Duration) {
    let pause = again.min(every);
    (pause, pause * 2)
}

/// Renews a certificate long before it expires, and calls `note` with each new one.
pub(super) async fn keep_renewed(
    world: World,
    mut identity: Identity,
    note: impl Fn(&Profile) + Send,
) {
    let is_external = identity.profile.is_external();
    let every = if is_external { READ_EVERY } else { RENEW_EVERY };
    let mut pause = Duration::ZERO;
    let mut again = RENEW_AGAIN;
    loop {
        host::sleep(pause).await;
        let mut profile = identity.profile.clone();
        let renewed = async {
            if is_external {
                profile.read_again(&world)?;
            } else {
                profile.renew(&identity.client).await?;
            }
            profile.tls()
        };
        // The new certificate is used even if it cannot be written.
        let kept = renewed.await.map(|tls| {
            identity.client.renew(tls);
            identity.profile = profile;
            note(&identity.profile);
            tracing::info!(
                expires = identity.profile.expires,
                "process renewed its certificate"
            );
            identity.profile.write(&world, &identity.path)
        });
        match kept {
            Ok(Ok(())) => (pause, again) = (every, RENEW_AGAIN),
            Ok(Err(error)) => {
                tracing::warn!(%error, "process could not write its new certificate; the next start needs it");
                (pause, again) = after_failure(again, every);
            }
            Err(error) => {
                tracing::warn!(%error, "process could not renew its certificate and will retry");
                (pause, again) = after_failure(again, every);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The pause was once doubled until it overflowed and ended the process.
    #[test]
    fn failed_renewals_are_retried_without_end() {
        for every in [READ_EVERY, RENEW_EVERY] {
            let mut again = RENEW_AGAIN;
            let mut pauses = Vec::new();
            for _ in 0..100 {
                let pause;
                (pause, again) = after_failure(again, every);
                pauses.push(pause);
            }
            assert_eq!(pauses[..2], [RENEW_AGAIN, RENEW_AGAIN * 2]);
            assert!(pauses.is_sorted());
            assert_eq!(pauses[99], every);
        }
    }
}
