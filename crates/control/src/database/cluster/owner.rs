//! Which copy of the database this is, and where it was last served.

use std::fmt;

use base::DatabaseId;
use sqlx::{AnyConnection, Row as _};

use crate::database::{Backend, Database, DatabaseError, rows};

/// The identity of a database, which holds as long as it is served from the same location.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnerRow {
    /// The id of this copy.
    pub id: DatabaseId,
    /// How many times an operator has confirmed that the other copies are gone.
    pub generation: u32,
    /// The location it is served from.
    pub place: PlaceRow,
}

/// A location that no copy of the database shares.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PlaceRow {
    /// SQLite: the folder of the file.
    Folder(FolderPlace),
    /// PostgreSQL: the server and the database on it.
    Server(ServerPlace),
}

/// Properties that no copy of a folder shares with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FolderPlace {
    /// The absolute path without links, percent-encoded.
    pub folder: String,
    /// The inode.
    pub inode: Option<i64>,
    /// The birth time in nanoseconds since 1970, if the file system knows it.
    pub born_ns: Option<i64>,
}

/// A PostgreSQL server and database. A restored dump or a database created from a template differs
/// in it; a standby of the server does not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ServerPlace {
    /// The server's `system_identifier`, which `initdb` chose.
    pub system: i64,
    /// The database's `oid`.
    pub database: u32,
}

/// The prefix of a server's location. A folder's location begins with a slash.
const SERVER: &str = "postgresql:";

impl fmt::Display for ServerPlace {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{SERVER}{}/{}", self.system, self.database)
    }
}

impl ServerPlace {
    /// Parses the displayed form.
    fn parse(text: &str) -> Option<Self> {
        let (system, database) = text.strip_prefix(SERVER)?.split_once('/')?;
        Some(Self {
            system: system.parse().ok()?,
            database: database.parse().ok()?,
        })
    }
}

/// The cluster: its id, its owner and its authority.
#[derive(Clone, Copy, Debug)]
pub struct Cluster<'a> {
    pub(in crate::database) database: &'a Database,
}

impl Cluster<'_> {
    /// The identity; `None` if the database was never served.
    ///
    /// # Errors
    /// [`DatabaseError`].
    pub async fn owner(self) -> Result<Option<OwnerRow>, DatabaseError> {
        owner_of(&mut *self.database.reader.acquire().await?).await
    }

    /// Records the identity, if it is still `before`; `false` if it is not.
    ///
    /// # Errors
    /// [`DatabaseError`].
    pub async fn set_owner(
        self,
        before: Option<&OwnerRow>,
        owner: &OwnerRow,
    ) -> Result<bool, DatabaseError> {
        let (folder, inode, born_ns) = match &owner.place {
            PlaceRow::Folder(place) => (place.folder.clone(), place.inode, place.born_ns),
            PlaceRow::Server(place) => (place.to_string(), None, None),
        };
        let folder = &folder;
        self.database
            .transaction()
            .run(|mut change| async move {
                if owner_of(&mut change).await?.as_ref() != before {
                    return Ok(false);
                }
                sqlx::query(
                    "UPDATE cluster SET owner = $1, owner_generation = $2, owner_folder = $3, \
                 owner_inode = $4, owner_born_ns = $5",
                )
                .bind(owner.id.to_string())
                .bind(i64::from(owner.generation))
                .bind(folder)
                .bind(inode)
                .bind(born_ns)
                .execute(&mut *change)
                .await?;
                Ok(true)
            })
            .await
    }

    /// The PostgreSQL server and database; `None` for SQLite, whose location is its folder. After
    /// the first call, a connection to another database is refused.
    ///
    /// # Errors
    /// [`DatabaseError::Refused`] if the database user may not read it.
    pub async fn server_location(self) -> Result<Option<ServerPlace>, DatabaseError> {
        match self.database.backend {
            Backend::Sqlite => Ok(None),
            Backend::Postgres => {
                let found = server_place(&mut *self.database.reader.acquire().await?).await?;
                Ok(Some(*self.database.place.get_or_init(|| found)))
            }
        }
    }
}

/// `insufficient_privilege`.
const MAY_NOT: &str = "42501";

pub(in crate::database) async fn server_place(
    connection: &mut AnyConnection,
) -> Result<ServerPlace, DatabaseError> {
    let row = sqlx::query(
        "SELECT system_identifier, (SELECT CAST(oid AS BIGINT) FROM pg_database \
         WHERE datname = current_database()) AS number FROM pg_control_system()",
    )
    .fetch_one(connection)
    .await
    .map_err(|error| {
        let code = error.as_database_error().and_then(|error| error.code());
        if code.is_some_and(|code| code == MAY_NOT) {
            return DatabaseError::Refused {
                reason: "Scree cannot tell this database from a copy of it: its user may not call \
                         pg_control_system(); run `GRANT EXECUTE ON FUNCTION \
                         pg_control_system() TO` that user, as PostgreSQL's superuser"
                    .to_owned(),
            };
        }
        error.into()
    })?;
    Ok(ServerPlace {
        system: row.try_get("system_identifier")?,
        database: rows::small(&row, "number")?,
    })
}

async fn owner_of(connection: &mut AnyConnection) -> Result<Option<OwnerRow>, DatabaseError> {
    let row = sqlx::query(
        "SELECT owner, owner_generation, owner_folder, owner_inode, owner_born_ns FROM cluster",
    )
    .fetch_one(connection)
    .await?;
    let id = rows::spelled_if_any(&row, "owner")?;
    let folder: Option<String> = row.try_get("owner_folder")?;
    let (Some(id), Some(folder)) = (id, folder) else {
        return Ok(None);
    };
    let place = match ServerPlace::parse(&folder) {
        Some(place) => PlaceRow::Server(place),
        None => PlaceRow::Folder(FolderPlace {
            folder,
            inode: row.try_get("owner_inode")?,
            born_ns: row.try_get("owner_born_ns")?,
        }),
    };
    Ok(Some(OwnerRow {
        id,
        generation: rows::small(&row, "owner_generation")?,
        place,
    }))
}
