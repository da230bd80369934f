//! Several wrapping keys on one host.

use agent::keys::{KeyEntry, KeyProvider as _, OpenKeyError, rewrap};
use base::{KeyId, Lineage};
use catalog::{LeaseSalt, LineageKey};
use volume::seal::{DataKey, KeyError, Keyring};

use super::conformance::opened;
use super::{Place, text};

#[test]
fn a_volume_opens_with_the_keys_of_several_tenants() {
    let place = Place::new();
    let [a, b] = [1, 2].map(|number: u128| {
        let entry = place.key_file(&number.to_string());
        let parameters = place.keys.new_parameters(&entry).expect("parameters");
        let id = KeyId::from_u128(number);
        (id, place.keys.open(id, &entry, &parameters).expect("open"))
    });
    let (clone, parent) = (Lineage::from_u128(20), Lineage::from_u128(10));
    let row = |lineage, epoch_first, wrapped| LineageKey {
        lineage,
        epoch_first,
        wrapped: Some(wrapped),
        wrapped_by: None,
        salts: vec![(epoch_first, LeaseSalt([7; 16]))],
    };
    let data_key = DataKey::from_bytes([1; 32]);
    let rows = [
        row(clone, 5, a.1.wrap(clone, &data_key).expect("wrapped")),
        row(parent, 1, b.1.wrap_none(parent).expect("wrapped")),
    ];
    let wrapped_by = |lineage| {
        [(clone, a.0), (parent, b.0)]
            .iter()
            .find_map(|(of, id)| (*of == lineage).then_some(*id))
    };
    let ring = Keyring::unwrap(&rows, &place.keys.unwrapping(wrapped_by)).expect("opens");
    assert_eq!(ring.own().lineage(), clone);
    assert_eq!(ring.of_epoch(2).lineage(), parent);

    // A row that names another key, a missing key, or none.
    let with = |id| Keyring::unwrap(&rows, &place.keys.unwrapping(move |_| id));
    assert!(matches!(with(Some(a.0)), Err(KeyError::Unwrap { lineage }) if lineage == parent));
    place.keys.close(b.0);
    for (id, said) in [
        (Some(b.0), "key-00000000000000002"),
        (None, "of that volume"),
    ] {
        let refused = with(id).expect_err("unknown");
        assert!(matches!(refused, KeyError::Unavailable { .. }));
        assert!(base::with_causes(&refused).contains(said), "{refused}");
    }
}

#[test]
fn a_key_is_rewrapped_from_one_kind_to_another() {
    let place = Place::new();
    let file = place.key_file("a");
    let words = KeyEntry::Passphrase {
        path: place.private("words", "a walrus"),
    };
    let [file, words] = [(1, file), (2, words)].map(|(id, entry)| {
        let parameters = place.keys.new_parameters(&entry).expect("parameters");
        let id = KeyId::from_u128(id);
        place.keys.open(id, &entry, &parameters).expect("open")
    });
    let lineage = Lineage::from_u128(4);
    let wrapped = file
        .wrap(lineage, &DataKey::from_bytes([9; 32]))
        .expect("wrapped");
    let rewrapped = rewrap(lineage, &wrapped, &*file, &*words).expect("rewrapped");
    assert_eq!(opened(&*words, lineage, &rewrapped), Some([9; 32]));
}

#[test]
fn a_key_of_another_kind_or_from_another_source_is_reported() {
    let place = Place::new();
    let file = place.key_file("a");
    let parameters = place.keys.new_parameters(&file).expect("parameters");
    let words = KeyEntry::Passphrase {
        path: place.private("words", "a walrus"),
    };
    let id = KeyId::from_u128(1);
    let refused = place
        .keys
        .open(id, &words, &parameters)
        .expect_err("another kind");
    assert!(matches!(refused, OpenKeyError::OtherKind { .. }));
    assert!(text(&refused).contains("correct keys.toml"));
    let refused = place.keys.create(&words).expect_err("not created by Scree");
    assert!(text(&refused).contains("choose a passphrase"));
}
