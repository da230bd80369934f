//! Chains of filters, on both databases.

use api::host::{Access, AttachmentReport, AttachmentState, ChainKey};
use base::{ChainId, PartyId, VolumeId};
use control::database::{
    AttachmentRow, ChainRow, ChainVolumes, Database, DatabaseError, NewAttachment, NewChain,
    Principal,
};
use world::Millis;

use crate::fresh::{self, add_host, attachment, number, on_postgres, on_sqlite, report};
use crate::postgres::Postgres;
use crate::principals::local;

const NOW: Millis = Millis(1_000_000);

/// A volume that is attached to a host.
struct Rows {
    database: Database,
    principal: Principal,
    host: PartyId,
    volume: VolumeId,
}

impl fresh::Rows for Rows {
    async fn new(database: Database) -> Self {
        let principal = local(&database).await;
        let host = add_host(&database, &principal, "h1", NOW).await;
        let new = fresh::volume("disk", NOW);
        let volume = new.id;
        database
            .volumes()
            .insert(&principal, &new)
            .await
            .expect("made");
        Self {
            database,
            principal,
            host,
            volume,
        }
    }
}

impl Rows {
    async fn attach(&self, vm: Option<&str>) -> AttachmentRow {
        let new = NewAttachment {
            vm: vm.map(str::to_owned),
            ..attachment(self.volume, self.host, Access::ReadOnly, NOW)
        };
        let asked = self
            .database
            .attachments()
            .attach(&self.principal, &new)
            .await;
        asked.expect("the request is accepted")
    }

    async fn apply(
        &self,
        vm: Option<&str>,
        policy: &str,
    ) -> Result<(ChainRow, bool), DatabaseError> {
        self.apply_to(self.volume, vm, (policy, &[])).await
    }

    /// A chain with replicas at these addresses.
    async fn apply_to(
        &self,
        volume: VolumeId,
        vm: Option<&str>,
        (policy, addresses): (&str, &[&str]),
    ) -> Result<(ChainRow, bool), DatabaseError> {
        let new = NewChain {
            id: ChainId::from_u128(number()),
            volume,
            vm: vm.map(str::to_owned),
            policy: policy.to_owned(),
            volumes: ChainVolumes::new(),
            addresses: addresses
                .iter()
                .map(|address| (*address).to_owned())
                .collect(),
            changed: NOW,
        };
        self.database.chains().set(&self.principal, &new).await
    }

    /// The desired chain of the volume in `vm`.
    async fn wanted(&self, vm: Option<&str>) -> Option<ChainKey> {
        let chains = self
            .database
            .chains()
            .on_host(self.host)
            .await
            .expect("read");
        chains.for_one(self.volume, vm).map(ChainRow::key)
    }

    async fn row(&self, of: &AttachmentRow) -> AttachmentRow {
        self.database
            .attachments()
            .get(of.id)
            .await
            .expect("it exists")
    }

    async fn serial(&self) -> u64 {
        self.database
            .hosts()
            .counters(self.host)
            .await
            .expect("it exists")
            .assignments
    }
}

#[test]
fn a_changed_chain_is_a_new_desired_state_and_an_equal_one_is_not() {
    on_sqlite(claims::a_changed_chain_is_a_new_desired_state_and_an_equal_one_is_not);
}

#[test]
fn the_chain_of_a_vm_takes_precedence_over_the_general_one() {
    on_sqlite(claims::the_chain_of_a_vm_takes_precedence_over_the_general_one);
}

#[test]
fn a_chain_is_deleted_with_its_volume_and_their_number_is_limited() {
    on_sqlite(claims::a_chain_is_deleted_with_its_volume_and_their_number_is_limited);
}

#[test]
fn reapplying_a_chain_records_its_addresses() {
    on_sqlite(claims::reapplying_a_chain_records_its_addresses);
}

#[test]
fn all_of_this_holds_on_postgresql() {
    let server = Postgres::start();
    on_postgres(
        &server,
        claims::a_changed_chain_is_a_new_desired_state_and_an_equal_one_is_not,
    );
    on_postgres(
        &server,
        claims::the_chain_of_a_vm_takes_precedence_over_the_general_one,
    );
    on_postgres(
        &server,
        claims::a_chain_is_deleted_with_its_volume_and_their_number_is_limited,
    );
    on_postgres(&server, claims::reapplying_a_chain_records_its_addresses);
}

/// The claims, which hold on both databases.
mod claims {
    use super::*;

    pub async fn a_changed_chain_is_a_new_desired_state_and_an_equal_one_is_not(rows: Rows) {
        let asked = rows.attach(None).await;
        let before = rows.serial().await;
        let (first, is_news) = rows.apply(None, "one").await.expect("kept");
        assert_eq!((first.revision, is_news), (1, true));
        assert!(rows.serial().await > before, "its host hears of it");
        let wish = rows.row(&asked).await;
        assert!(
            wish.desired.generation > asked.desired.generation
                && wish.observed.state == asked.observed.state
        );
        let late = report(&asked, AttachmentState::Attached);
        let database = &rows.database;
        let late = database
            .attachments()
            .record_report(rows.host, asked.id, &late, NOW);
        assert!(!late.await.expect("heard"), "that was of the older wish");
        let said = AttachmentReport {
            chain: Some(first.key()),
            chain_problem: Some("none".to_owned()),
            ..report(&wish, AttachmentState::Attached)
        };
        let kept = database
            .attachments()
            .record_report(rows.host, asked.id, &said, NOW);
        assert!(kept.await.expect("heard"));
        let shown = rows.row(&asked).await;
        assert_eq!(shown.observed.chain, Some(first.key()));
        assert_eq!(shown.observed.chain_problem.as_deref(), Some("none"));

        let before = rows.serial().await;
        let (again, is_news) = rows.apply(None, "one").await.expect("kept");
        assert_eq!((again, is_news), (first.clone(), false));
        assert_eq!(rows.serial().await, before);
        let (second, _) = rows.apply(None, "two").await.expect("kept");
        assert_eq!((second.id, second.revision), (first.id, 2));
        assert_eq!(rows.wanted(None).await, Some(second.key()));
        let gone = database.chains().delete(&rows.principal, first.id).await;
        assert_eq!(gone.expect("deleted").policy, "two");
        assert_eq!(rows.wanted(None).await, None);
        assert!(rows.serial().await > before);
        // A chain that is created again is another one, with its own revision.
        let (other, _) = rows.apply(None, "one").await.expect("kept");
        assert!(other.id != first.id && other.revision == 1);

        // The reports of a host no longer hold when it starts again.
        rows.database
            .attachments()
            .nothing_open(rows.host)
            .await
            .expect("kept");
        assert_eq!(rows.row(&asked).await.observed.chain, None);
    }

    pub async fn the_chain_of_a_vm_takes_precedence_over_the_general_one(rows: Rows) {
        let (one, two) = (Some("libvirt:one"), Some("libvirt:two"));
        rows.attach(one).await;
        let (all, _) = rows.apply(None, "all").await.expect("kept");
        let (own, _) = rows.apply(one, "own").await.expect("kept");
        assert_eq!(rows.wanted(one).await, Some(own.key()));
        assert_eq!(rows.wanted(two).await, Some(all.key()));
        assert_eq!(rows.wanted(None).await, Some(all.key()));
        let deleted = rows.database.chains().delete(&rows.principal, own.id).await;
        deleted.expect("deleted");
        assert_eq!(rows.wanted(one).await, Some(all.key()));
    }

    pub async fn a_chain_is_deleted_with_its_volume_and_their_number_is_limited(rows: Rows) {
        let mut last = None;
        for number in 0..64 {
            let vm = format!("libvirt:vm-{number}");
            last = Some(rows.apply(Some(&vm), "own").await.expect("kept").0);
        }
        let refused = rows.apply(None, "all").await;
        assert!(matches!(refused, Err(DatabaseError::Quota { .. })));
        // An address that the chain has already does not count again.
        let vm = Some("libvirt:vm-0");
        assert_eq!(rows.apply(vm, "new").await.expect("kept").0.revision, 2);

        let database = &rows.database;
        let deleted = database
            .volumes()
            .begin_delete(&rows.principal, rows.volume, NOW)
            .await;
        deleted.expect("on its way out");
        let gone = database
            .chains()
            .find(&rows.principal, last.expect("made").id)
            .await;
        assert!(matches!(gone, Err(DatabaseError::NotFound { .. })));
        let late = rows.apply(vm, "late").await;
        assert!(
            matches!(late, Err(DatabaseError::Refused { .. })),
            "{late:?}"
        );
    }

    /// A chain that is older than the table of addresses has none there, and got none when it was
    /// applied again, so another volume's chain could use its addresses.
    pub async fn reapplying_a_chain_records_its_addresses(rows: Rows) {
        let (here, place) = (rows.volume, ["10.0.0.1:10809/x"]);
        let new = fresh::volume("other", NOW);
        let other = new.id;
        let made = rows.database.volumes().insert(&rows.principal, &new).await;
        made.expect("made");
        let (first, _) = rows.apply_to(here, None, ("one", &[])).await.expect("kept");
        let again = rows.apply_to(here, None, ("one", &place)).await;
        let (again, is_new) = again.expect("it is the same");
        assert_eq!((again.revision, is_new), (first.revision, false));
        let refused = rows.apply_to(other, None, ("two", &place)).await;
        assert!(
            matches!(refused, Err(DatabaseError::Refused { .. })),
            "{refused:?}"
        );
        // An old chain cannot add an address that another chain has.
        let kept = rows.apply_to(other, None, ("two", &[])).await;
        kept.expect("kept");
        let refused = rows.apply_to(other, None, ("two", &place)).await;
        assert!(
            matches!(refused, Err(DatabaseError::Refused { .. })),
            "{refused:?}"
        );
    }
}
