//! Policies that are parsed, and mistakes that are reported.

use super::*;

const WHOLE: &str = r#"
    volume = "web-1"
    vm = "web"

    [[filter]]
    kind = "rate"
    name = "limits"
    iops = 2000
    bytes_per_second = "100M"

    [[filter]]
    kind = "encrypt"
    key = "web-disk"
    format = "if-empty"
    allow_discard = true
    reencrypt = 2

    [[filter]]
    kind = "fault"
    read_errors_one_in = 1000
"#;

fn refused(text: &str) -> String {
    let error = Policy::parse(text).expect_err("it is refused");
    error.to_string()
}

#[test]
fn a_policy_is_read_as_it_was_written() {
    let policy = Policy::parse(WHOLE).expect("it is one");
    let expected = Policy {
        volume: "web-1".to_owned(),
        vm: Some("web".to_owned()),
        filters: vec![
            FilterPolicy {
                name: "limits".to_owned(),
                kind: FilterKind::Rate(RateConfig {
                    iops: Some(2000),
                    bytes_per_second: Some(100 << 20),
                }),
                out_of_process: None,
            },
            FilterPolicy {
                name: "encrypt".to_owned(),
                kind: FilterKind::Encrypt(EncryptConfig {
                    key: "web-disk".to_owned(),
                    format: Format::IfEmpty,
                    allow_discard: true,
                    reencrypt: 2,
                }),
                out_of_process: None,
            },
            FilterPolicy {
                name: "fault".to_owned(),
                kind: FilterKind::Fault(FaultConfig {
                    read_errors_one_in: 1000,
                    ..FaultConfig::default()
                }),
                out_of_process: None,
            },
        ],
    };
    assert_eq!(policy, expected);
}

#[test]
fn a_filter_in_a_process_has_a_policy_of_its_own() {
    let text = "volume = \"a\"\n[[filter]]\nkind = \"monitor\"\nname = \"watch\"\nruns = \
                \"process\"\non_failure = \"bypass\"\nmemory = \"1G\"\ncpu_percent = 50\n\
                operations = [\"create\"]\n[[filter.rule]]\nname = \"r\"\npaths = [\"/etc/**\"]\n\
                action = \"alert\"\n";
    let policy = Policy::parse(text).expect("it is one");
    let settings = policy.filters[0].out_of_process.clone();
    let settings = settings.expect("it runs in a process");
    assert_eq!(settings.on_failure, OnFailure::Bypass);
    let expected = Limits {
        memory_bytes: 1 << 30,
        cpu_percent: Some(50),
    };
    assert_eq!(settings.limits, expected);
    let alone = Policy::parse(&settings.standalone_policy).expect("it is a policy");
    assert_eq!(alone.filters.len(), 1);
    assert_eq!(alone.filters[0].name, "watch");
    assert_eq!(alone.filters[0].kind, policy.filters[0].kind);
    assert_eq!(alone.filters[0].out_of_process, None, "inline, there");
}

/// Journals keep a checksum of these words: with other words, what they have acknowledged is
/// quarantined.
#[test]
fn a_filter_says_how_it_changes_data() {
    let key = format!("sha256:{}", "0".repeat(64));
    let text = format!(
        "volume = 'a'\n\
         [[filter]]\nkind = 'monitor'\n\
         [[filter]]\nkind = 'encrypt'\nkey = 'k'\n\
         [[filter]]\nkind = 'external'\nprogram = 'scan'\n\
         [[filter]]\nkind = 'remote'\naddress = '10.0.0.7:10810'\nkey = '{key}'\n\
         [[filter]]\nkind = 'rate'\niops = 1\n"
    );
    let policy = Policy::parse(&text).expect("it is one");
    let found: Vec<_> = policy
        .filters
        .iter()
        .map(|filter| filter.kind.transformation())
        .collect();
    let expected = [
        None,
        Some("encrypt".to_owned()),
        Some("external scan".to_owned()),
        Some(format!("remote {key}")),
        None,
    ];
    assert_eq!(found, expected);
}

/// The lines of a filter, and a part of the error that they cause.
const INVALID_FILTERS: &[(&str, &str)] = &[
    ("name = 'x'", "filter 1 (x): kind is missing"),
    (
        "kind = 'turbo'",
        "unknown kind \"turbo\"; use one of monitor, encrypt, replicate",
    ),
    ("kind = 3", "kind is 3; it must be a string"),
    ("kind = 'rate'\niops = 0", "iops must be at least 1"),
    ("kind = 'rate'\niops = -4", "invalid value"),
    ("kind = 'rate'\nspeed = 4", "unknown field `speed`"),
    ("kind = 'rate'", "the filter limits nothing"),
    (
        "kind = 'rate'\nbytes_per_second = 'fast'",
        "\"fast\" is not a size",
    ),
    ("kind = 'encrypt'", "missing field `key`"),
    (
        "kind = 'rate'\niops = 1\nruns = 'there'",
        "it must be \"inline\" or \"process\"",
    ),
    (
        "kind = 'rate'\niops = 1\nmemory = '1G'",
        "this filter runs inline",
    ),
    (
        "kind = 'rate'\niops = 1\nruns = 'process'\nmemory = '1M'",
        "memory must be 64M to 64G",
    ),
    (
        "kind = 'rate'\niops = 1\nruns = 'process'\ncpu_percent = 0",
        "cpu_percent must be 1 to",
    ),
    (
        "kind = 'rate'\niops = 1\nruns = 'process'\non_failure = 'x'",
        "on_failure must be",
    ),
    (
        "kind = 'encrypt'\nkey = 'a'\nruns = 'process'\non_failure = 'bypass'",
        "cannot be bypassed",
    ),
    ("kind = 'journal'\nsize = '1M'", "size must be 4M to 1T"),
    (
        "kind = 'journal'\nflush = 'never'",
        "unknown variant `never`, expected `through` or `journal` in `flush`",
    ),
    ("kind = 'journal'\nruns = 'process'", "run only inline"),
    (
        "kind = 'journal'\n[[filter]]\nkind = 'journal'\nname = 'b'",
        "filter 2 (b): a chain has at most one journal, and filter journal is one",
    ),
    (
        "kind = 'journal'\n[[filter]]\nkind = 'monitor'\n[[filter.rule]]\nname = 'r'\npaths = ['/etc/**']\naction = 'deny'",
        "filter 2 (monitor): a monitor with a deny rule must be above the journal journal",
    ),
    (
        "kind = 'trace'\nbytes_max = 5",
        "bytes_max must be 1M to 1T",
    ),
    (
        "kind = 'external'\nprogram = '../x'",
        "program must be a name",
    ),
    (
        "kind = 'external'\nprogram = 'x'\nruns = 'process'",
        "remove runs",
    ),
    (
        "kind = 'remote'\naddress = '10.0.0.1:1'\nkey = 'sha256:12'",
        "key must be sha256: and 64",
    ),
    (
        "kind = 'remote'\naddress = 'host'\nkey = ''",
        "invalid socket address",
    ),
    ("kind = 'encrypt'\nkey = ''", "key must be a name"),
    ("kind = 'encrypt'\nkey = '../x'", "key must be a name"),
    (
        "kind = 'encrypt'\nkey = 'k'\nformat = 'always'",
        "unknown variant `always`",
    ),
    ("kind = 'fault'\nname = 'A b'", "\"A b\" is not a name"),
    (
        "kind = 'fault'\n[[filter]]\nkind = 'fault'",
        "filter 2 (fault): another filter of this chain has the same name",
    ),
];

/// Policies, and a part of the error that they cause.
const INVALID_POLICIES: &[(&str, &str)] = &[
    ("volume = 'a'", "delete the chain"),
    ("[[filter]]\nkind = 'fault'", "missing field `volume`"),
    (
        "[[filter]]\nkind = 'fault'",
        "volume = \"NAME\" above the first",
    ),
    (
        "volume = 'a'\n[filter]\nkind = 'fault'",
        "with two pairs of brackets",
    ),
    ("volume = ", "TOML parse error at line 1"),
    ("color = 1\nvolume = 'a'", "unknown field `color`"),
];

#[test]
fn a_mistake_is_reported_with_the_filter_that_has_it() {
    let filters = INVALID_FILTERS.iter().map(|(lines, expected)| {
        let text = format!("volume = 'a'\n[[filter]]\n{lines}");
        (text, *expected)
    });
    let policies = INVALID_POLICIES.iter();
    let policies = policies.map(|(text, expected)| ((*text).to_owned(), *expected));
    for (text, expected) in filters.chain(policies) {
        let error = refused(&text);
        assert!(error.contains(expected), "{text}: {error}");
    }
}

#[test]
fn a_policy_that_is_too_long_or_has_too_many_filters_is_refused() {
    let long = format!("volume = \"{}\"", "a".repeat(TEXT_BYTES_MAX));
    assert!(refused(&long).contains("the maximum is 65536"));
    let mut many = "volume = \"a\"".to_owned();
    for number in 0..=FILTERS_MAX {
        many += &format!("\n[[filter]]\nkind = \"fault\"\nname = \"b{number}\"");
    }
    assert!(refused(&many).contains("has 17 filters; the maximum is 16"));
}
