//! Exports: several at once, and read-only, growing and stopping ones.

use std::sync::Arc;

use base::{Capabilities, IoError};
use nbd::{ExportTable, ExportThread, ListenOptions, SpawnError};
use testkit::memory_device::{MemoryDevice, Misbehavior};
use world::Endpoint;

use crate::client::*;
use crate::support::{Fixture, MIB, eventually, holding};

#[test]
fn several_exports_at_once_have_their_own_data() {
    let fixture = Fixture::new();
    let exports: Vec<_> = (0..5)
        .map(|number| fixture.export(&format!("disk{number}"), MIB))
        .collect();
    let mut clients: Vec<_> = (0..20)
        .map(|number| fixture.client(&format!("disk{}", number % 5)))
        .collect();
    for (number, client) in clients.iter_mut().enumerate() {
        let offset = (number / 5 * 4096) as u64;
        assert_eq!(client.write(offset, &[number as u8 + 1; 4096]).errno, 0);
    }
    for (number, client) in clients.iter_mut().enumerate() {
        let offset = (number / 5 * 4096) as u64;
        assert_eq!(client.read(offset, 4096).data, [number as u8 + 1; 4096]);
    }
    for export in exports {
        assert_eq!(export.export().connections(), 4);
        let device = export
            .stop(|device, _| device)
            .expect("the export's thread");
        assert_eq!(device.calls.writes, 4);
        assert_eq!(device.bytes()[4 * 4096], 0);
    }
}

/// Otherwise CAN_MULTI_CONN would be wrong.
#[test]
fn a_flush_on_one_connection_covers_writes_on_another() {
    let fixture = Fixture::new();
    let export = fixture.export("disk", MIB);
    let (mut a, mut b, mut c) = (
        fixture.client("disk"),
        fixture.client("disk"),
        fixture.client("disk"),
    );
    for round in 1..=50_u8 {
        assert_eq!(a.write(8192, &[round; 5000]).errno, 0);
        assert_eq!(
            c.read(8192, 5000).data,
            [round; 5000],
            "visible before a flush"
        );
        assert_eq!(b.call(FLUSH, 0, 0, 0, &[]).errno, 0);
        assert_eq!(c.read(8192, 5000).data, [round; 5000]);
        let calls = export
            .call(|device| device.calls)
            .expect("the export's thread");
        assert_eq!(calls.flushes, u64::from(round));
    }
}

#[test]
fn after_growth_new_connections_get_the_new_size_and_old_ones_may_use_it() {
    let fixture = Fixture::new();
    let export = fixture.export("disk", MIB);
    let mut old = fixture.client("disk");
    assert_eq!(old.read(MIB as u64, 512).errno, 22);
    export
        .call(|device| device.grow(2 * MIB))
        .expect("the export's thread");
    let mut new = Client::connect(&fixture.socket());
    assert_eq!(new.go("disk").0, 2 * MIB as u64);
    assert_eq!(old.read(MIB as u64, 512).errno, 0);
}

#[test]
fn a_read_only_export_refuses_every_change() {
    let fixture = Fixture::new();
    let mut options = fixture.options("disk");
    options.read_only = true;
    let _export = fixture.export_with(options, MIB, Misbehavior::default());
    let mut client = Client::connect(&fixture.socket());
    client.structured();
    let (_, flags) = client.go("disk");
    assert_eq!(flags & 0b11, 0b11, "has flags, and is read-only");
    assert_eq!(
        flags & (1 << 5 | 1 << 6),
        0,
        "offers neither trim nor zeroes"
    );
    assert_eq!(client.write(0, &[1; 4096]).errno, 1);
    assert_eq!(
        client.write(0, &vec![1; 600_000]).errno,
        1,
        "a long payload is discarded"
    );
    assert_eq!(client.call(TRIM, 0, 0, 4096, &[]).errno, 1);
    assert_eq!(client.call(WRITE_ZEROES, 0, 0, 4096, &[]).errno, 1);
    assert_eq!(client.read(0, 4096).data, [0; 4096]);
}

#[test]
fn a_device_can_be_writable_and_read_only_on_different_sockets() {
    let fixture = Fixture::new();
    let export = fixture.export("disk", MIB);
    let read_only = Arc::new(ExportTable::new());
    read_only.add(export.export().read_only());
    let path = fixture.folder.path().join("read_only");
    fixture
        .server
        .listen(&Endpoint::Unix(path.clone()), ListenOptions::new(read_only))
        .expect("a free name");
    let mut reader = Client::connect(&path);
    reader.structured();
    reader.go("");
    assert_eq!(fixture.client("disk").write(0, &[7; 512]).errno, 0);
    assert_eq!(reader.read(0, 512).data, [7; 512]);
    assert_eq!(reader.write(0, &[8; 512]).errno, 1);
    drop(fixture.server);
    assert!(!path.exists());
    assert_eq!(
        reader.read(0, 512).data,
        [7; 512],
        "an open connection continues"
    );
}

#[test]
fn transmission_flags_are_the_capabilities_of_the_device() {
    let fixture = Fixture::new();
    let capabilities = Capabilities {
        read_only: false,
        can_flush: true,
        can_trim: false,
        can_write_zeroes: true,
        can_extents: false,
        can_multi_conn: false,
    };
    let make = move |_| MemoryDevice::new(MIB).with_capabilities(capabilities).ok();
    let thread = ExportThread::spawn(fixture.options("disk"), make).expect("a thread");
    fixture.table.add(thread.export());
    let mut client = Client::connect(&fixture.socket());
    client.structured();
    let contexts = client.send_option(OPT_LIST_META_CONTEXT, &named("disk", &[0; 4]));
    assert_eq!(contexts.len(), 1, "only the last reply");
    let (_, flags) = client.go("disk");
    let expected = 1 | 1 << 2 | 1 << 3 | 1 << 6 | 1 << 7 | 1 << 10 | 1 << 11;
    assert_eq!(flags, expected, "{flags:#b}");
    assert_eq!(client.call(TRIM, 0, 0, 4096, &[]).errno, 22);
    assert_eq!(client.call(BLOCK_STATUS, 0, 0, 4096, &[]).errno, 22);
}

#[test]
fn fua_reaches_the_device_with_every_change() {
    let fixture = Fixture::new();
    let export = fixture.export("disk", 4 * MIB);
    let mut client = fixture.client("disk");
    assert_eq!(client.call(WRITE, FUA, 0, 512, &[1; 512]).errno, 0);
    assert_eq!(client.call(TRIM, FUA, 0, 4096, &[]).errno, 0);
    assert_eq!(client.call(WRITE_ZEROES, FUA, 0, 4096, &[]).errno, 0);
    assert_eq!(
        client.call(READ, FUA, 0, 512, &[]).errno,
        0,
        "allowed without effect"
    );
    assert_eq!(client.call(CACHE, 0, 0, 4096, &[]).errno, 0);
    let calls = export
        .call(|device| device.calls)
        .expect("the export's thread");
    assert_eq!((calls.durable, calls.prefetches), (3, 1));
    let long = vec![3; 700_000];
    assert_eq!(client.call(WRITE, FUA, 0, 700_000, &long).errno, 0);
    let calls = export
        .call(|device| device.calls)
        .expect("the export's thread");
    assert_eq!(calls.durable, 6, "each of the three pieces");
}

#[test]
fn block_status_distinguishes_holes_and_data() {
    let fixture = Fixture::new();
    let _export = fixture.export("disk", MIB);
    let mut client = Client::connect(&fixture.socket());
    client.structured();
    client.set_base_allocation("disk");
    client.go("disk");
    assert_eq!(client.write(8192, &[1; 4096]).errno, 0);
    let status = client.call(BLOCK_STATUS, 0, 4096, 20_000, &[]);
    assert_eq!(status.extents, [(4096, 3), (4096, 0), (11_808, 3)]);
    let one = client.call(BLOCK_STATUS, 8, 4096, 20_000, &[]);
    assert_eq!(one.extents, [(4096, 3)]);
}

#[test]
fn a_context_that_was_selected_for_another_export_does_not_count() {
    let fixture = Fixture::new();
    let _exports = [fixture.export("one", MIB), fixture.export("two", MIB)];
    let mut client = Client::connect(&fixture.socket());
    client.structured();
    client.set_base_allocation("one");
    client.go("two");
    let status = client.call(BLOCK_STATUS, 0, 0, 4096, &[]);
    assert_eq!(status.errno, 22, "{}", status.message);
}

/// A long name once made the message longer than the protocol allows.
#[test]
fn the_refusal_of_a_long_name_fits_into_a_string() {
    let fixture = Fixture::new();
    let _exports = [fixture.export("one", MIB), fixture.export("two", MIB)];
    let mut client = Client::connect(&fixture.socket());
    for name in ["x".repeat(4096), "ä".repeat(2048), "\n".repeat(4096)] {
        for number in [OPT_GO, OPT_INFO] {
            let replies = client.send_option(number, &named(&name, &[0, 0]));
            let (kind, message) = &replies[0];
            assert_eq!(*kind, REP_ERR_UNKNOWN);
            assert!(message.len() <= 4096, "{} bytes", message.len());
            let message = std::str::from_utf8(message).expect("whole characters");
            assert!(message.starts_with("there is no export"));
        }
    }
}

#[test]
fn options_get_the_replies_of_the_protocol() {
    let fixture = Fixture::new();
    let _exports = [fixture.export("one", MIB), fixture.export("two", MIB)];
    let mut client = Client::connect(&fixture.socket());
    assert_eq!(client.send_option_kind(99, b"anything"), REP_ERR_UNSUP);
    assert_eq!(client.send_option_kind(OPT_LIST, b"x"), REP_ERR_INVALID);
    assert_eq!(client.send_option_kind(OPT_STARTTLS, &[]), REP_ERR_POLICY);
    let query = named("one", &[0; 4]);
    assert_eq!(
        client.send_option_kind(OPT_LIST_META_CONTEXT, &query),
        REP_ERR_INVALID
    );
    assert_eq!(
        client.send_option_kind(OPT_GO, &named("three", &[0, 0])),
        REP_ERR_UNKNOWN
    );
    assert_eq!(
        client.send_option_kind(OPT_GO, &named("", &[0, 0])),
        REP_ERR_UNKNOWN,
        "there are two exports"
    );
    assert_eq!(
        client.send_option_kind(OPT_GO, &named("one", &[0, 9])),
        REP_ERR_INVALID
    );
    assert_eq!(
        client.send_option_kind(OPT_GO, &[0; 20_000]),
        REP_ERR_TOO_BIG
    );
    let listed = client.send_option(OPT_LIST, &[]);
    assert_eq!(listed[0], (REP_SERVER, named("one", b"")));
    assert_eq!(listed[1], (REP_SERVER, named("two", b"")));
    let facts = client.send_option(OPT_INFO, &named("one", &[0, 2, 0, 1, 0, 3]));
    assert_eq!(facts[1].1, [&[0, 1][..], b"one"].concat());
    assert_eq!(facts[2].1, [0, 3, 0, 0, 0, 1, 0, 0, 16, 0, 2, 0, 0, 0]);
    assert_eq!(client.send_option_kind(OPT_ABORT, &[]), REP_ACK);
    assert_eq!(client.closed(), []);
}

#[test]
fn a_list_can_be_forbidden() {
    let fixture = Fixture::with(|_| {}, |listen| listen.list = false);
    let _export = fixture.export("secret", MIB);
    let mut client = Client::connect(&fixture.socket());
    assert_eq!(client.send_option_kind(OPT_LIST, &[]), REP_ERR_POLICY);
    client.go("secret");
}

#[test]
fn export_name_opens_an_export() {
    let fixture = Fixture::new();
    let _export = fixture.export("disk", MIB);
    let mut client = Client::connect(&fixture.socket());
    client.send(&option(OPT_EXPORT_NAME, b"disk"));
    let answer = client.take(10);
    assert_eq!(answer[..8], (MIB as u64).to_be_bytes());
    let mut bytes = request(WRITE, 0, 1, 0, 3);
    bytes.extend(b"abc");
    bytes.extend(request(READ, 0, 2, 1, 2));
    client.send(&bytes);
    assert_eq!(client.take(16)[4..8], [0; 4]);
    assert_eq!(client.take(18)[16..], *b"bc", "a simple reply and its data");
    let mut client = Client::connect(&fixture.socket());
    client.send(&option(OPT_EXPORT_NAME, b"none"));
    assert_eq!(client.closed(), []);
}

#[test]
fn an_error_reply_has_a_message_and_the_connection_continues() {
    let fixture = Fixture::new();
    let misbehavior = Misbehavior {
        damaged: 8192..8193,
        ..Misbehavior::default()
    };
    let _export = fixture.export_with(fixture.options("disk"), 4 * MIB, misbehavior);
    let mut client = fixture.client("disk");
    let reply = client.read(0, 1 << 20);
    assert_eq!(
        (reply.errno, reply.message.as_str()),
        (5, "damaged: on purpose")
    );
    let reply = client.read(4 * MIB as u64 - 1, 2);
    assert_eq!(reply.errno, 22);
    assert!(
        reply.message.contains("exceed the export"),
        "{}",
        reply.message
    );
    let reply = client.write(4 * MIB as u64 - 1, &[1; 2]);
    assert_eq!(reply.errno, 28);
    let reply = client.call(99, 0, 0, 0, &[]);
    assert_eq!(
        (reply.errno, reply.message.as_str()),
        (22, "command 99 is unknown")
    );
    let long = vec![9; 33 << 20];
    let reply = client.write(0, &long);
    assert_eq!(reply.errno, 22, "33 MiB are discarded: {}", reply.message);
    assert_eq!(client.read(4096, 4096).data, [0; 4096]);
}

#[test]
fn a_stopping_export_completes_its_requests_and_flushes() {
    let fixture = Fixture::new();
    let export = fixture.export_with(fixture.options("disk"), MIB, holding());
    let mut client = fixture.client("disk");
    let written = client.start(WRITE, 0, 0, 512, &[5; 512]);
    eventually("the write is in the device", || {
        export.call(|device| device.unanswered()) == Ok(1)
    });
    let handle = export.export();
    let stopper = std::thread::spawn(move || {
        export
            .call(|device| device.misbehavior.holds_completions = false)
            .expect("the export's thread");
        export
            .stop(|device, stopped| (device, stopped))
            .expect("the export's thread")
    });
    let reply = client.reply();
    assert_eq!((reply.cookie, reply.errno), (written, 0));
    let (device, stopped) = stopper.join().expect("no panic");
    assert_eq!(stopped.flushed, Ok(()));
    assert_eq!(device.calls.flushes, 1);
    assert_eq!(device.bytes()[..512], [5; 512]);
    assert_eq!(client.closed(), []);
    assert_eq!(handle.connections(), 0);
    let mut late = Client::connect(&fixture.socket());
    assert_eq!(
        late.send_option_kind(OPT_GO, &named("disk", &[0, 0])),
        REP_ERR_SHUTDOWN
    );
}

/// Otherwise requests that wait for something unavailable would delay the last flush until the
/// stop timeout of 30 s.
#[test]
fn a_stopping_export_fails_requests_that_wait_for_something_unavailable() {
    let fixture = Fixture::new();
    let mut unavailable = holding();
    unavailable.holds_completions = false;
    unavailable.is_unavailable = true;
    let export = fixture.export_with(fixture.options("disk"), MIB, unavailable);
    let mut client = fixture.client("disk");
    let read = client.start(READ, 0, 0, 512, &[]);
    eventually("the read is in the device", || {
        export.call(|device| device.unanswered()) == Ok(1)
    });
    let stopped = export.stop(|device, stopped| (device.calls.flushes, stopped.flushed));
    assert_eq!(stopped.expect("the export's thread"), (1, Ok(())));
    let reply = client.reply();
    assert_eq!((reply.cookie, reply.errno), (read, 5));
}

#[test]
fn requests_to_a_stopping_export_are_refused() {
    let fixture = Fixture::new();
    let mut options = fixture.options("disk");
    options.stop_timeout = std::time::Duration::from_millis(300);
    let export = fixture.export_with(options, MIB, holding());
    let mut client = fixture.client("disk");
    client.start(WRITE, 0, 0, 512, &[5; 512]);
    eventually("the write is in the device", || {
        export.call(|device| device.unanswered()) == Ok(1)
    });
    let stopper = std::thread::spawn(move || export.stop(|_, stopped| stopped));
    // A request before the stop stays without a reply; one after it is refused.
    let mut refused = None;
    for _ in 0..1000 {
        client.start(READ, 0, 0, 512, &[]);
        client
            .stream
            .set_read_timeout(Some(std::time::Duration::from_millis(5)))
            .expect("set");
        let mut magic = [0; 4];
        if std::io::Read::read_exact(&mut client.stream, &mut magic).is_ok() {
            refused = Some(magic);
            break;
        }
    }
    assert_eq!(
        refused,
        Some(0x668e_33ef_u32.to_be_bytes()),
        "an error chunk"
    );
    let stopped = stopper
        .join()
        .expect("no panic")
        .expect("the export's thread");
    assert!(
        matches!(stopped.flushed, Err(IoError::Unavailable(_))),
        "the write never ended"
    );
}

#[test]
fn after_a_failed_batch_no_reply_leaves_and_the_export_is_closed() {
    let fixture = Fixture::new();
    let export = fixture.export("disk", MIB);
    let mut client = fixture.client("disk");
    let bystander = fixture.client("disk");
    export
        .call(|device| device.misbehavior.fails_batch = true)
        .expect("the export's thread");
    client.start(WRITE, 0, 0, 512, &[5; 512]);
    assert_eq!(client.closed(), [], "the write is not acknowledged");
    assert_eq!(bystander.closed(), []);
    let mut late = Client::connect(&fixture.socket());
    let replies = late.send_option(OPT_GO, &named("disk", &[0, 0]));
    let (kind, message) = replies.last().expect("a reply");
    assert_eq!(*kind, REP_ERR_SHUTDOWN);
    assert!(
        String::from_utf8_lossy(message).contains("on purpose"),
        "{message:?}"
    );
}

#[test]
fn a_device_that_cannot_be_made_gives_its_own_error() {
    let fixture = Fixture::new();
    let spawned = ExportThread::<MemoryDevice>::spawn(fixture.options("disk"), |_| Err("no disk"));
    assert!(matches!(spawned.err(), Some(SpawnError::Device("no disk"))));
}

#[test]
fn connections_to_an_export_are_limited_and_places_become_free() {
    let fixture = Fixture::new();
    let mut options = fixture.options("disk");
    options.connections_max = 2;
    let export = fixture.export_with(options, MIB, Misbehavior::default());
    let first = fixture.client("disk");
    let mut second = fixture.client("disk");
    let mut third = Client::connect(&fixture.socket());
    assert_eq!(
        third.send_option_kind(OPT_GO, &named("disk", &[0, 0])),
        REP_ERR_POLICY
    );
    drop(first);
    eventually("the place is free", || export.export().connections() == 1);
    third.go("disk");
    second.start(DISC, 0, 0, 0, &[]);
    assert_eq!(second.closed(), []);
    eventually("the place is free", || export.export().connections() == 1);
}
