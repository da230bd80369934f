//! The schema of the database, one for each engine, and the steps that create and upgrade it.
//!
//! A step is never changed once a version with it has been released: the database records the
//! checksum of each step that ran. A later version appends a step to both lists.
//!
//! The steps are listed here and not collected with `sqlx::migrate!`, since that macro builds the
//! database drivers and their TLS library a second time, for the build machine.

use std::pin::Pin;

use sqlx::error::BoxDynError;
use sqlx::migrate::{Migration, MigrationSource, MigrationType};

/// The steps for SQLite, oldest first.
pub(super) const SQLITE: Schema = Schema(&[Step {
    version: 1,
    name: "schema",
    sql: include_str!("../../migrations/sqlite/0001_schema.sql"),
}]);

/// The steps for PostgreSQL, oldest first.
pub(super) const POSTGRES: Schema = Schema(&[Step {
    version: 1,
    name: "schema",
    sql: include_str!("../../migrations/postgres/0001_schema.sql"),
}]);

/// The steps that create a schema and bring it up to date.
#[derive(Debug, Clone, Copy)]
pub(super) struct Schema(&'static [Step]);

/// A step of a schema, which runs in one transaction.
#[derive(Debug)]
struct Step {
    /// The position in the list, counted from 1.
    version: i64,
    name: &'static str,
    sql: &'static str,
}

impl MigrationSource<'static> for Schema {
    fn resolve(
        self,
    ) -> Pin<Box<dyn Future<Output = Result<Vec<Migration>, BoxDynError>> + Send + 'static>> {
        let migrations = self.0.iter().map(|step| {
            let kind = MigrationType::Simple;
            Migration::new(step.version, step.name.into(), kind, step.sql.into(), false)
        });
        let migrations = migrations.collect();
        Box::pin(async move { Ok(migrations) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[expect(clippy::disallowed_methods, reason = "a check of the real source tree")]
    #[test]
    fn each_file_of_the_migrations_is_a_step() {
        for (engine, schema) in [("sqlite", SQLITE), ("postgres", POSTGRES)] {
            let folder = format!("{}/migrations/{engine}", env!("CARGO_MANIFEST_DIR"));
            let files = std::fs::read_dir(folder).expect("the folder is readable");
            let mut files: Vec<String> = files
                .map(|entry| entry.expect("an entry").file_name())
                .map(|name| name.to_string_lossy().into_owned())
                .collect();
            files.sort();
            let steps = schema.0.iter();
            let steps: Vec<String> = steps
                .map(|step| format!("{:04}_{}.sql", step.version, step.name))
                .collect();
            assert_eq!(steps, files, "{engine}");
        }
    }
}
