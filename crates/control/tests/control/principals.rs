//! Principals for tests of other subjects.

use auth::Kind;
use base::{PartyId, SnapshotId, VolumeId};
use control::database::{Database, NewSnapshot, Origin, PartyRow, Principal, Tags};
use world::Millis;

/// The local user, who owns the database.
pub async fn local(database: &Database) -> Principal {
    let id = PartyId::from_u128(2);
    let made = database.parties().local(Kind::User, id, Millis(0)).await;
    let subject = control::parties::local(Kind::User);
    let party = database.parties().get(&subject).await.expect("it exists");
    assert_eq!(made.expect("made"), party.id);
    of(party)
}

/// The principal of this party.
pub fn of(party: PartyRow) -> Principal {
    let by = Origin {
        at: Millis(0),
        who: party.subject.to_string(),
        key: None,
        address: None,
    };
    Principal {
        party,
        by,
        signed_by: None,
        is_dry_run: false,
        idempotency: None,
    }
}

/// A new snapshot.
pub fn snapshot(id: SnapshotId, name: &str, volume: VolumeId) -> NewSnapshot {
    NewSnapshot {
        id,
        name: name.to_owned(),
        volume,
        tags: Tags::new(),
        created: Millis(2),
    }
}
