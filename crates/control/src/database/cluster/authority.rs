//! The fingerprint of the authority that signs the cluster's users, hosts and controllers, so that
//! no controller signs with another one.

use crate::database::{Cluster, DatabaseError};

impl Cluster<'_> {
    /// The fingerprint of the cluster's authority; `None` if none was recorded yet.
    ///
    /// # Errors
    /// [`DatabaseError`].
    pub async fn authority(self) -> Result<Option<String>, DatabaseError> {
        Ok(sqlx::query_scalar("SELECT authority FROM cluster")
            .fetch_one(&self.database.reader)
            .await?)
    }

    /// Replaces the authority `before`. Returns the authority after that, which is another one if
    /// `before` was not the current one.
    ///
    /// # Errors
    /// [`DatabaseError`].
    pub async fn set_authority(
        self,
        before: Option<&str>,
        fingerprint: &str,
    ) -> Result<Option<String>, DatabaseError> {
        self.database
            .transaction()
            .run(|mut change| async move {
                let known: Option<String> = sqlx::query_scalar("SELECT authority FROM cluster")
                    .fetch_one(&mut *change)
                    .await?;
                if known.as_deref() != before {
                    return Ok(known);
                }
                sqlx::query("UPDATE cluster SET authority = $1")
                    .bind(fingerprint)
                    .execute(&mut *change)
                    .await?;
                Ok(Some(fingerprint.to_owned()))
            })
            .await
    }
}
