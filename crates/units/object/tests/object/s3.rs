//! Over HTTP, against a real server: moto, in a Python of our own
//! (`tools/venv object`). Where that cannot be had, these tests fail.

use std::io::{BufRead as _, BufReader};
use std::path::Path as FilePath;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{LazyLock, Mutex};

use bytes::Bytes;
use futures_util::{StreamExt as _, TryStreamExt as _};
use object_store::aws::AmazonS3Builder;
use object_store::path::Path;
use object_store::{ObjectStoreExt as _, PutPayload};
use testkit::units::conformance;
use unit::{Unit as _, UnitError};
use unit_object::{Conditional, Location, ObjectUnit};
use world::World;

use crate::help::{CLUSTER, UNIT, free, live, put_slots, read_slots, runtime, segment};

/// The server; it ends with this process, which has the other end of its input.
struct Server {
    endpoint: String,
    _process: Mutex<Child>,
}

static SERVER: LazyLock<Server> = LazyLock::new(|| {
    let here = FilePath::new(env!("CARGO_MANIFEST_DIR"));
    let root = here.join("../../..");
    let made = Command::new(root.join("tools/venv"))
        .arg("object")
        .stderr(Stdio::inherit())
        .output()
        .expect("tools/venv can be run");
    assert!(made.status.success(), "tools/venv object: {}", made.status);
    let venv = String::from_utf8(made.stdout).expect("a path");
    let mut process = Command::new(root.join(venv.trim()).join("bin/python"))
        .arg(here.join("tests/object/s3-server.py"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("Python can be run");
    let mut port = String::new();
    let output = process.stdout.take().expect("it is piped");
    BufReader::new(output).read_line(&mut port).expect("a line");
    let port: u16 = port.trim().parse().expect("the server's port");
    Server {
        endpoint: format!("http://127.0.0.1:{port}"),
        _process: Mutex::new(process),
    }
});

fn settings(more: &[(&str, &str)]) -> Vec<(String, String)> {
    let mut settings = vec![
        ("AWS_ENDPOINT_URL", SERVER.endpoint.as_str()),
        ("AWS_ACCESS_KEY_ID", "key"),
        ("AWS_SECRET_ACCESS_KEY", "secret"),
        ("AWS_REGION", "us-east-1"),
    ];
    settings.extend(more);
    let settings = settings.into_iter();
    settings
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect()
}

/// A prefix that nothing else has, and its name.
fn location(more: &[(&str, &str)]) -> (Location, String) {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let prefix = format!("p{}/unit", NEXT.fetch_add(1, Ordering::SeqCst));
    let url = format!("s3://bucket/{prefix}");
    (
        Location::with_settings(&url, settings(more)).expect("a URL"),
        prefix,
    )
}

fn open(location: &Location) -> ObjectUnit {
    ObjectUnit::open(&World::real(1), runtime(), location, CLUSTER, UNIT)
}

fn unit(more: &[(&str, &str)]) -> (ObjectUnit, Location) {
    let (location, _) = location(more);
    (open(&location).created().expect("made"), location)
}

#[test]
fn s3_is_a_unit_like_any_other() {
    conformance::run(&|| Arc::new(unit(&[]).0));
}

#[test]
fn s3_without_conditions_is_a_unit_like_any_other() {
    let settings = [("AWS_CONDITIONAL_PUT", "disabled")];
    let (_, location) = unit(&settings);
    let marker = ObjectUnit::identify(runtime(), &location).expect("a unit");
    let none = Conditional {
        create: false,
        update: false,
    };
    assert_eq!(marker.conditional, none);
    conformance::run(&|| Arc::new(unit(&settings).0));
}

#[test]
fn s3_knows_conditions_and_hosts_free_at_once_by_them() {
    let (unit, location) = unit(&[]);
    let marker = ObjectUnit::identify(runtime(), &location).expect("a unit");
    let all = Conditional {
        create: true,
        update: true,
    };
    assert_eq!(marker.conditional, all);
    put_slots(&unit, segment(1), 4096, 100).expect("put");
    put_slots(&unit, segment(1), 4096, 100).expect("the same once more");
    let again = put_slots(&open(&location), segment(1), 4096, 99);
    assert!(
        matches!(again, Err(UnitError::Misplaced { slots: 100, .. })),
        "{again:?}"
    );
    let hosts = [open(&location), open(&location)];
    std::thread::scope(|scope| {
        for (host, unit) in (0u16..).zip(&hosts) {
            scope.spawn(move || {
                for slots in 0..8 {
                    let first = slots * 10 + host * 5;
                    free(unit, segment(1), first..first + 5).expect("freed");
                    unit.reclaim().expect("settled");
                }
            });
        }
    });
    while unit.reclaim().expect("settled") {}
    assert_eq!(live(&unit, segment(1), 0..101), Vec::from_iter(80..100));
    let stat = open(&location).stat_segment(segment(1)).expect("there");
    assert_eq!((stat.slots, stat.freed), (100, 80));
    // Less than half of what is in it is dead.
    let bytes = open(&location).stat().expect("counted").bytes;
    assert!(bytes < 64 + 16 + 40 * 4120, "{bytes}");
}

#[test]
fn s3_takes_large_segments_in_parts() {
    let (location, _) = location(&[]);
    let unit = open(&location).with_segment_data_bytes(64 << 20);
    let unit = unit.created().expect("made");
    put_slots(&unit, segment(1), 1 << 20, 20).expect("put");
    read_slots(&unit, segment(1), 1 << 20, 3, 4).expect("known");
    let other = open(&location);
    read_slots(&other, segment(1), 1 << 20, 0, 20).expect("found");
    assert_eq!(other.scrub(segment(1)).expect("scrubbed"), []);
}

/// It names a thousand objects at once.
#[test]
fn s3_names_all_segments() {
    let (location, prefix) = location(&[]);
    let unit = open(&location).created().expect("made");
    let store = AmazonS3Builder::new()
        .with_endpoint(&SERVER.endpoint)
        .with_allow_http(true)
        .with_access_key_id("key")
        .with_secret_access_key("secret")
        .with_bucket_name("bucket")
        .build()
        .expect("a store");
    let puts = (0..1100u64).map(|serial| {
        let name = format!("{prefix}/segments/{serial:09x}-000");
        let store = &store;
        async move {
            let payload = PutPayload::from_bytes(Bytes::from_static(b"12345"));
            store.put(&Path::from(name), payload).await.map(drop)
        }
    });
    let puts = futures_util::stream::iter(puts).buffer_unordered(8);
    runtime().block_on(puts.try_collect::<()>()).expect("put");
    let listed = unit.list().expect("listed");
    let serials: Vec<u64> = listed.iter().map(|segment| segment.serial()).collect();
    assert_eq!(serials, Vec::from_iter(0..1100));
    assert_eq!(unit.list_serials(1090..1200).expect("listed").len(), 10);
    assert_eq!(unit.list_serials(5..6).expect("listed").len(), 1);
    let stat = unit.stat().expect("counted");
    assert_eq!(
        (stat.segments, stat.bytes, stat.free_bytes),
        (1100, 5500, None)
    );
    assert!(store.to_string().contains("bucket"));
}

#[test]
fn a_bucket_that_is_not_there_is_missing_and_a_server_that_is_not_there_is_away() {
    let missing = Location::with_settings("s3://no-such-bucket", settings(&[])).expect("a URL");
    let unit = open(&missing);
    for missing in [
        unit.probe(),
        unit.list().map(drop),
        open(&missing).created().map(drop),
    ] {
        assert!(
            matches!(&missing, Err(UnitError::Missing { reason, .. }) if reason.contains("NoSuchBucket")),
            "{missing:?}"
        );
    }
    // A port that was just released is not reused so soon.
    let address = {
        let _within = runtime().enter();
        let any = "127.0.0.1:0".parse().expect("an address");
        let unused = world::host::listen(any).expect("a port");
        unused.local_addr().expect("its address")
    };
    let endpoint = format!("http://{address}");
    let settings = settings(&[("AWS_ENDPOINT_URL_S3", &endpoint)]);
    let away = Location::with_settings("s3://bucket/away", settings).expect("a URL");
    let probed = open(&away).probe();
    assert!(
        matches!(probed, Err(UnitError::Unavailable { .. })),
        "{probed:?}"
    );
}
