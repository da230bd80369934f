//! The rows of versions.

use catalog::{StoredVersion, VersionKey};
use sqlx::AnyConnection;

use crate::database::{DatabaseError, ObjectKind, rows};

/// The version with this key.
///
/// # Errors
/// [`DatabaseError::NotFound`].
pub(in crate::database) async fn version_of(
    connection: &mut AnyConnection,
    key: VersionKey,
) -> Result<StoredVersion, DatabaseError> {
    let row = sqlx::query("SELECT * FROM versions WHERE volume = $1 AND number = $2")
        .bind(key.volume.to_string())
        .bind(key.number.cast_signed())
        .fetch_optional(connection)
        .await?
        .ok_or_else(|| not_found(key))?;
    rows::stored_version(&row)
}

/// The error if there is no version with this key.
pub(in crate::database) fn not_found(key: VersionKey) -> DatabaseError {
    let name = format_args!("{} of {}", key.number, key.volume);
    DatabaseError::not_found(ObjectKind::Version, name)
}
