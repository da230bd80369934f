//! The formats of filters: LUKS2 headers, journals of `journal` filters, and policies.

use chain::filters::journal::fuzz::{fuzz_damage, fuzz_file};
use chain_policy::{FilterKind, Policy};

use crate::images::luks_header as luks_image;

pub use luks::fuzz::fuzz_header as luks_header;

/// A header of cryptsetup, used as either copy and damaged in several ways.
pub fn luks_header_seeds() -> Vec<Vec<u8>> {
    let (fixed, text) = luks_image();
    [0, 1, 2, 3, 7]
        .map(|how| [&[how][..], &fixed, &text].concat())
        .into()
}

/// The file of a `journal` filter's journal, or damage to a valid one.
pub fn relay_journal(data: &[u8]) {
    match data.split_first() {
        Some((0..128, rest)) => fuzz_file(rest),
        Some((_, rest)) => fuzz_damage(rest),
        None => {}
    }
}

pub fn relay_journal_seeds() -> Vec<Vec<u8>> {
    let words =
        |words: &[u64]| -> Vec<u8> { words.iter().flat_map(|word| word.to_le_bytes()).collect() };
    let page = |number: u64, tail: u64| {
        let fields = [number, 3, tail, 10, 65536, 1 << 30, 0, 0, 0, 0];
        let mut page = [b"SCRFJNL\x01".to_vec(), words(&fields)].concat();
        page.resize(4096, 0);
        page
    };
    let record = |offset: u64, length: u64, kind: u64, payload: &[u8]| {
        let mut record = words(&[0x6c6a_7263, 0, 3, offset, length, kind]);
        record.extend(payload);
        record.resize(record.len().next_multiple_of(16), 0);
        record
    };
    let records = [
        record(4096, 5, 0, b"hello"),
        record(8192, 1 << 20, 1, &[]),
        record(0, 300, 0, &[7; 300]),
        record(512, 1 << 30, 2, &[]),
    ]
    .concat();
    let file = |tail: u64, other: u64| {
        let mut file = [vec![0], page(4, tail), page(other, 0)].concat();
        file.resize(1 + 8192 + (tail % 65536) as usize, 0);
        file.extend(&records);
        file
    };
    vec![
        file(0, 3),
        file(40_000, 5),
        file(65536 * 7 + 65_500, 3),
        vec![200, 30],
        vec![200, 255, 1, 0, 4, 9, 100, 0, 8, 1],
        vec![255, 90, 3, 0, 0, 0x72],
    ]
}

/// The text of a policy.
pub fn policy(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    let Ok(read) = Policy::parse(text) else {
        return;
    };
    assert!((1..=16).contains(&read.filters.len()) && text.len() <= 64 << 10);
    assert_eq!(Policy::parse(text).as_ref(), Ok(&read));
    let _ = read.volumes();
    for filter in &read.filters {
        if let FilterKind::Monitor(config) = &filter.kind {
            let rules = config.rules.iter().flat_map(|rule| &rule.paths);
            for glob in config.paths.iter().chain(rules) {
                let _ = glob.is_match(glob.as_str().as_bytes());
                let _ = glob.is_match(&data[..data.len().min(4096)]);
            }
        }
    }
}

pub fn policy_seeds() -> Vec<Vec<u8>> {
    [
        "volume = 'disk'\nvm = 'qmp:/run/vm'\n[[filter]]\nkind = 'monitor'\nname = 'watch'\n\
         paths = ['/etc/**', '/home/*/{a,b{c,d}}?']\noperations = ['create', 'write']\n\
         memory_max = '64M'\nruns = 'process'\non_failure = 'bypass'\ncpu_percent = 50\n\
         [[filter.rule]]\nname = 'rule'\npaths = ['/bin/**']\noperations = ['rename']\n\
         first_time = true\nmore_than_a_minute = 5\naction = 'deny'\n",
        "volume = 'disk'\n[[filter]]\nkind = 'encrypt'\nkey = 'web'\nformat = 'if-empty'\n\
         allow_discard = true\nreencrypt = 2\n[[filter]]\nkind = 'replicate'\nstall_ms = 1000\n\
         [[filter.replica]]\nname = 'b'\nuri = 'nbd+unix:///x?socket=b'\n\
         [[filter.replica]]\nname = 'c'\nvolume = 'other'\npaths = ['/etc/**']\n",
        "volume = '*'\n[[filter]]\nkind = 'rate'\niops = 100\n[[filter]]\nkind = 'fault'\n\
         [[filter]]\nkind = 'remote'\naddress = '10.0.0.7:10810'\n\
         key = 'sha256:00000000000000000000000000000000\
         00000000000000000000000000000000'\n\
         [[filter]]\nkind = 'external'\nprogram = 'filter'\n",
        "volume = 'disk'\n[[filter]]\nkind = 'replicate'\n[[filter.replica]]\nname = 'n'\n\
         uri = 'nbds://[fe80::1%25eth0]:10809/disk?tls-certificates=web&tls-hostname=a.b'\n",
        "volume = 'disk'\n[[filter]]\nkind = 'trace'\nbytes_max = '8M'\n\
         [[filter]]\nkind = 'journal'\nname = 'log'\nsize = '16M'\nflush = 'journal'\n",
    ]
    .map(|text| text.as_bytes().to_vec())
    .into()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A seed that is refused at its first filter once left the filters after it untried.
    #[test]
    fn each_seed_is_a_valid_policy() {
        for seed in policy_seeds() {
            let text = String::from_utf8(seed).expect("text");
            if let Err(error) = Policy::parse(&text) {
                panic!("{error}: {text}");
            }
        }
    }
}
