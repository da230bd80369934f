//! The settings of a volume: fields that its owner gives at creation, that may change later, and
//! that have no effect on its content.
//!
//! All that a setting needs in the controller is in this file: its column, the checks of its
//! limits, and its conversion from and to the API's types. docs/internals/add-a-volume-field.md
//! lists the other places.

use api::types::{CreateVolume, SetSettings, Volume};
use base::size::exact_bytes;
use catalog::{JOURNAL_BYTES_MAX, JOURNAL_BYTES_MIN};
use sqlx::any::AnyRow;
use sqlx::{AnyConnection, Row as _};

use crate::database::attach::attachments::of_volume;
use crate::database::images::administered;
use crate::database::rows::VolumeRow;
use crate::database::{DatabaseError, Principal, Volumes, hosts};
use crate::error::ControlError;

/// The settings of a volume. Not `Copy`: a setting may be a text.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct VolumeSettings {
    /// Size of its journal in bytes; `None`: the host's default.
    pub journal_bytes: Option<u64>,
    /// Its largest share of each host's read cache in bytes; `None`: a fair share.
    pub cache_max_bytes: Option<u64>,
}

impl Volumes<'_> {
    /// Changes the settings that `set` gives, and returns the row with all settings as they are
    /// then. Hosts apply a cache share at once, and a journal length at the next attachment.
    ///
    /// # Errors
    /// [`DatabaseError::NotFound`]; [`DatabaseError::Forbidden`], also if the journal's length
    /// changes and the principal is not an administrator; [`DatabaseError::Refused`] if the volume
    /// is being deleted, or the name is ambiguous.
    pub async fn set_settings(
        self,
        principal: &Principal,
        volume: &str,
        set: &SetSettings,
    ) -> Result<VolumeRow, DatabaseError> {
        self.database
            .transaction_for(principal)
            .run(|mut change| async move {
                let row = administered(&mut change, principal, volume).await?;
                let mut settings = row.settings.clone();
                settings.apply(set);
                if settings.journal_bytes != row.settings.journal_bytes {
                    settings.refuse_unless_allowed(principal)?;
                }
                settings.write(&mut change, &row.id.to_string()).await?;
                for attachment in of_volume(&mut change, row.id).await? {
                    hosts::assign(&mut change, attachment.host).await?;
                }
                let target = format!("{} {}", row.id, row.name);
                principal.note(&mut change, "set", target).await?;
                Ok(VolumeRow { settings, ..row })
            })
            .await
    }
}

impl VolumeSettings {
    /// Changes the settings that `set` gives; the others stay.
    fn apply(&mut self, set: &SetSettings) {
        self.journal_bytes = set.journal_bytes.unwrap_or(self.journal_bytes);
        self.cache_max_bytes = set.cache_max_bytes.unwrap_or(self.cache_max_bytes);
    }

    /// Checks the limits of each setting that `set` gives.
    ///
    /// # Errors
    /// [`ControlError::Invalid`].
    pub(crate) fn check_changes(set: &SetSettings) -> Result<(), ControlError> {
        let mut settings = Self::default();
        settings.apply(set);
        settings.check()
    }

    /// Checks the limits of each setting.
    ///
    /// # Errors
    /// [`ControlError::Invalid`].
    pub(crate) fn check(&self) -> Result<(), ControlError> {
        let lengths = JOURNAL_BYTES_MIN..=JOURNAL_BYTES_MAX;
        if let Some(bytes) = self.journal_bytes.filter(|bytes| !lengths.contains(bytes)) {
            let (min, max) = (
                exact_bytes(JOURNAL_BYTES_MIN),
                exact_bytes(JOURNAL_BYTES_MAX),
            );
            let reason = format!(
                "a journal has a size of {min} to {max}, not {}",
                exact_bytes(bytes)
            );
            return Err(ControlError::invalid("journal_bytes", reason));
        }
        let min = SetSettings::CACHE_MAX_BYTES_MIN;
        let is_small = |bytes: &u64| *bytes < min || i64::try_from(*bytes).is_err();
        if let Some(bytes) = self.cache_max_bytes.filter(is_small) {
            let min = exact_bytes(min);
            let reason = format!(
                "a volume's share of a cache is at least {min}, not {}",
                exact_bytes(bytes)
            );
            return Err(ControlError::invalid("cache_max_bytes", reason));
        }
        Ok(())
    }

    /// Shows the settings in the API's volume.
    pub(crate) fn show(self, volume: &mut Volume) {
        volume.journal_bytes = self.journal_bytes;
        volume.cache_max_bytes = self.cache_max_bytes;
    }

    /// Reads the settings from a row of `volumes`.
    pub(in crate::database) fn of(row: &AnyRow) -> Result<Self, DatabaseError> {
        let bytes = |column| -> Result<Option<u64>, DatabaseError> {
            let bytes: Option<i64> = row.try_get(column)?;
            Ok(bytes.map(i64::cast_unsigned))
        };
        Ok(Self {
            journal_bytes: bytes("journal_bytes")?,
            cache_max_bytes: bytes("cache_max_bytes")?,
        })
    }

    /// Refuses a journal length that is set by a user: a journal takes space on the host's disk,
    /// which is shared.
    pub(in crate::database) fn refuse_unless_allowed(
        &self,
        principal: &Principal,
    ) -> Result<(), DatabaseError> {
        if self.journal_bytes.is_none() || principal.party.is_administrator {
            return Ok(());
        }
        Err(DatabaseError::Forbidden {
            reason: "a journal takes space on its host, so only an administrator may set its size"
                .to_owned(),
        })
    }

    /// Writes the settings to the row of a volume.
    pub(in crate::database) async fn write(
        &self,
        change: &mut AnyConnection,
        volume: &str,
    ) -> Result<(), DatabaseError> {
        sqlx::query("UPDATE volumes SET journal_bytes = $2, cache_max_bytes = $3 WHERE id = $1")
            .bind(volume)
            .bind(self.journal_bytes.map(u64::cast_signed))
            .bind(self.cache_max_bytes.map(u64::cast_signed))
            .execute(change)
            .await?;
        Ok(())
    }
}

impl From<&CreateVolume> for VolumeSettings {
    fn from(new: &CreateVolume) -> Self {
        Self {
            journal_bytes: new.journal_bytes,
            cache_max_bytes: new.cache_max_bytes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_json(text: &str) -> SetSettings {
        serde_json::from_str(text).expect("a request")
    }

    /// All were replaced once, and a client had to know each of them to keep it.
    #[test]
    fn a_setting_that_is_left_out_stays() {
        let mut before = VolumeSettings::default();
        before.apply(&of_json(
            r#"{"journal_bytes": 8388608, "cache_max_bytes": 1048576}"#,
        ));
        let after = |text| {
            let mut settings = before.clone();
            settings.apply(&of_json(text));
            settings
        };
        assert_eq!(after("{}"), before);
        assert_eq!(
            after(r#"{"cache_max_bytes": 2097152}"#),
            VolumeSettings {
                cache_max_bytes: Some(2 << 20),
                ..before.clone()
            }
        );
        assert_eq!(
            after(r#"{"journal_bytes": null}"#),
            VolumeSettings {
                journal_bytes: None,
                ..before.clone()
            }
        );
    }

    /// What was set before is not checked again: a limit may have changed since.
    #[test]
    fn only_settings_that_are_given_are_checked() {
        for good in [
            "{}",
            r#"{"cache_max_bytes": null}"#,
            r#"{"cache_max_bytes": 1048576}"#,
        ] {
            let checked = VolumeSettings::check_changes(&of_json(good));
            assert!(checked.is_ok(), "{good}");
        }
        for bad in [r#"{"cache_max_bytes": 1}"#, r#"{"journal_bytes": 1}"#] {
            let checked = VolumeSettings::check_changes(&of_json(bad));
            assert!(checked.is_err(), "{bad}");
        }
    }
}
