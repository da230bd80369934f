//! What a volume stores for a version: map pages, version records, tail pages and free plans.

use base::{BlockSize, Location, Sequence, VolumeId};
use catalog::{FreePlan, VersionKey};
use volume::fixture::keyring;
use volume::map::{Entry, Overlay, PAGE_BYTES, PAGE_ENTRIES, Page, Root};
use volume::seal::Address;
use volume::version::{Record, decode_tail_page, encode_tail};

/// A map page.
pub fn map_page(data: &[u8]) {
    let mut bytes = Box::new([0; PAGE_BYTES]);
    let length = data.len().min(PAGE_BYTES);
    bytes[..length].copy_from_slice(&data[..length]);
    let page = Page::from_bytes(bytes);
    let mut again = Page::default();
    for index in 0..PAGE_ENTRIES {
        again.set(index, page.get(index));
        assert_eq!(again.get(index), page.get(index));
    }
    assert_eq!(page.entries().count(), again.entries().count());
}

pub fn map_page_seeds() -> Vec<Vec<u8>> {
    let mut page = Page::default();
    for index in [0, 1, 17, 255] {
        page.set(index, Some(entry(index as u64 + 1)));
    }
    vec![page.bytes().to_vec()]
}

/// A version record, as given and under a valid seal.
pub fn version_record(data: &[u8]) {
    let keyring = keyring(1);
    let key = VersionKey {
        volume: VolumeId::from_u128(5),
        number: 3,
    };
    let open = |sealed: &[u8]| {
        if let Ok(record) = Record::open(key, sealed, &keyring) {
            let again = record.seal(keyring.own(), Sequence::new(1, 77).expect("small"));
            assert_eq!(Record::open(key, &again, &keyring), Ok(record));
        }
    };
    open(data);
    let sequence = Sequence::new(1, 1).expect("small");
    let mut plain = data.to_vec();
    let tag = keyring.own().seal(Address::VERSION, sequence, &mut plain);
    let sealed = [&sequence.bits().to_le_bytes()[..], &tag, &plain].concat();
    open(&sealed);
}

pub fn version_record_seeds() -> Vec<Vec<u8>> {
    let record = Record {
        key: VersionKey {
            volume: VolumeId::from_u128(5),
            number: 3,
        },
        block_size: BlockSize::DEFAULT,
        size_bytes: 1 << 30,
        last_sequence: Sequence::new(1, 9).expect("small"),
        root: Root::new(vec![None, Some(entry(8))]),
        tail: vec![entry(9), entry(10)],
    };
    let keyring = keyring(1);
    let sequence = Sequence::new(1, 100).expect("small");
    let sealed = record.seal(keyring.own(), sequence);
    let tag = sealed[8..24].try_into().expect("16 bytes");
    let mut plain = vec![0; sealed.len() - 24];
    keyring
        .own()
        .open(Address::VERSION, sequence, &tag, &sealed[24..], &mut plain)
        .expect("a valid seal");
    vec![sealed, plain]
}

/// A tail page of a version.
pub fn tail_page(data: &[u8]) {
    let mut overlay = Overlay::default();
    if decode_tail_page(data, &mut overlay).is_ok() {
        let mut again = Overlay::default();
        for page in encode_tail(&overlay, BlockSize::DEFAULT) {
            decode_tail_page(&page, &mut again).expect("a valid page");
        }
        for (block, _) in overlay.blocks() {
            assert_eq!(overlay.get(block), again.get(block));
        }
        for zero in overlay.zeroes() {
            assert_eq!(overlay.get(zero.start), again.get(zero.start));
        }
    }
}

pub fn tail_page_seeds() -> Vec<Vec<u8>> {
    let mut overlay = Overlay::default();
    overlay.zero(4..900);
    for block in [1, 5, 6, 1000] {
        overlay.insert(block, entry(block + 1));
    }
    encode_tail(&overlay, BlockSize::DEFAULT)
}

/// A free plan.
pub fn free_plan(data: &[u8]) {
    if let Ok(plan) = FreePlan::decode(data) {
        assert_eq!(FreePlan::decode(&plan.encode()), Ok(plan));
    }
}

pub fn free_plan_seeds() -> Vec<Vec<u8>> {
    let mut plan = FreePlan::default();
    for bits in [70_000, 70_001, 1 << 40] {
        plan.add(Location::from_bits(bits));
    }
    vec![plan.encode()]
}

fn entry(number: u64) -> Entry {
    Entry {
        location: Location::from_bits(number),
        sequence: Sequence::new(1, number).expect("small"),
    }
}
