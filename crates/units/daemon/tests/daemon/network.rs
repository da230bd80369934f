//! Daemons on real sockets, and hosts that reach them.

use std::io::{ErrorKind, Read, Write};
use std::sync::Arc;
use std::time::Duration;

use auth::{Fence, Scope};
use auth::{Kind, Lifetime, ServerTls, client_config};
use base::{ClusterId, LineageTag, Slot, with_causes};
use unit::{Put, SlotRun, Unit, UnitError};
use unit_daemon::{Limits, Server, ServerConfig, Timeouts};
use unit_remote::RemoteUnit;
use unit_remote::{LinkConfig, TlsLink};
use unit_wire::{ALPN, PREFACE};
use world::Endpoint;
use world::real::{Listener, RealRandom};
use world::simulated::SimulatedClock;

use crate::inside::{capability, key, whole_lease};
use crate::site::{
    Party, Site, any_port, by_hand, connect, put, read, segment, unit_called, until, why_not,
};

#[test]
fn a_unit_behind_tls_conforms() {
    let site = Site::new();
    let host = site.host("h1");
    let number = std::cell::Cell::new(0);
    let servers = std::cell::RefCell::new(Vec::new());
    testkit::units::conformance::run(&|| {
        number.set(number.get() + 1);
        let id = unit_called(number.get());
        let server = site.server(id);
        let at = [server.endpoint().clone()];
        servers.borrow_mut().push(server);
        Arc::new(site.unit(&host, id, &at, &[whole_lease(1)]))
    });
}

/// A user, a host of another cluster and a client without a certificate are refused.
#[test]
fn only_hosts_of_the_cluster_are_served() {
    let (site, other) = (Site::new(), Site::new());
    let id = unit_called(1);
    let server = site.server(id);
    let at = [server.endpoint().clone()];
    let host = site.host("h1");
    site.unit(&host, id, &at, &[])
        .probe()
        .expect("it is a host");
    // A user, and a host of another cluster.
    let user = site.party(Kind::User, "alice", &[]);
    why_not(&site.unit(&user, id, &at, &[]));
    let stranger = other.host("h1");
    why_not(&site.unit(&stranger, id, &at, &[]));
    // No certificate.
    let mut config = site.link_config(&host, id, &at);
    let mut tls = client_config(&[site.authority.certificate_pem()], None).expect("usable");
    tls.alpn_protocols = vec![ALPN.to_vec()];
    config.tls = Some(Arc::new(tls));
    why_not(&RemoteUnit::new(String::new(), site.link(config)));
    // A host that takes the daemon for another cluster's, or for another's.
    let mut config = site.link_config(&host, id, &at);
    config.cluster = ClusterId::from_u128(9);
    let why = why_not(&RemoteUnit::new(String::new(), site.link(config)));
    assert!(why.contains("another cluster"), "{why}");
    let why = why_not(&other.unit(&stranger, id, &at, &[]));
    assert!(why.to_lowercase().contains("certificate"), "{why}");
    let why = why_not(&site.unit(&host, unit_called(2), &at, &[]));
    assert!(why.contains("closed"), "{why}");
    site.unit(&host, id, &at, &[])
        .probe()
        .expect("it serves on");
}

/// A daemon with the certificate of another unit is refused.
#[test]
fn a_daemon_serves_only_the_unit_that_its_certificate_names() {
    let site = Site::new();
    let (id, pretended) = (unit_called(1), unit_called(2));
    let daemon = site.party(Kind::Unit, "u1", &[pretended.to_string()]);
    let tls = ServerTls::new(site.authority.certificate_pem(), &[], daemon.credentials());
    let config = ServerConfig {
        tls: Arc::new(tls.expect("usable")),
        others: Arc::new(|_| None),
        limits: Limits::of(4),
    };
    let server = Server::open(&site.world, &any_port(), [site.keeper(id)], config).expect("open");
    let unit = site.unit(&site.host("h1"), id, &[server.endpoint().clone()], &[]);
    let why = why_not(&unit);
    assert!(why.contains("not valid for name"), "{why}");
}

#[test]
fn a_link_reconnects_to_a_daemon_and_presents_its_capabilities_again() {
    let site = Site::new();
    let (id, host) = (unit_called(1), site.host("h1"));
    let server = site.server(id);
    let at = server.endpoint().clone();
    let unit = site.unit(&host, id, std::slice::from_ref(&at), &[whole_lease(1)]);
    put(&unit, 10, 0).expect("put");
    unit.sync(&[segment(10)]).expect("synced");
    put(&unit, 11, 0).expect("put");
    drop(server);
    let gone = put(&unit, 12, 0).expect_err("no daemon runs");
    assert!(matches!(gone, UnitError::Unavailable { .. }), "{gone}");
    let server = site.server_at(&at, id, None);
    // Soon: after the pause.
    let mut tries = 0;
    while let Err(error) = put(&unit, 13, 0) {
        assert!(matches!(error, UnitError::Unavailable { .. }), "{error}");
        tries += 1;
        assert!(tries < 1_000_000, "it stays away: {}", with_causes(&error));
        std::thread::yield_now();
    }
    assert_eq!(read(&unit, 10).expect("it is durable"), [10; 512]);
    let lost = unit.sync(&[segment(11)]).expect_err("of an earlier life");
    assert!(matches!(lost, UnitError::Restarted { .. }), "{lost}");
    // A repair accepts what is there; for the host that put it, the puts still count as lost.
    unit.sync_found(&[segment(11)]).expect("what is there");
    let lost = unit.sync(&[segment(11)]).expect_err("of an earlier life");
    assert!(matches!(lost, UnitError::Restarted { .. }), "{lost}");
    drop(server);
}

/// A host that reaches one daemon reaches the other daemons through it.
#[test]
fn a_connection_for_another_unit_is_forwarded_once() {
    let site = Site::new();
    let (near_id, far_id, host) = (unit_called(1), unit_called(2), site.host("h1"));
    let far = site.server(far_id);
    let known = Some((far_id, far.endpoint().clone()));
    let near = site.server_at(&any_port(), near_id, known);
    let at = [near.endpoint().clone()];
    let unit = site.unit(&host, far_id, &at, &[whole_lease(1)]);
    let large = vec![7; 1 << 20];
    let tags = vec![[6; 16]; large.len() / 4096];
    for serial in 20..28 {
        unit.put(Put {
            lineage_tag: LineageTag::NONE,
            segment: segment(serial),
            slot_bytes: 4096,
            first: Slot(0),
            tags: &tags,
            data: &large,
        })
        .expect("through the other");
    }
    let run = SlotRun {
        segment: segment(27),
        first: Slot(0),
        count: tags.len() as u16,
    };
    let (mut found, mut data) = (vec![[0; 16]; tags.len()], vec![0; large.len()]);
    unit.read(unit::Read {
        run,
        slot_bytes: 4096,
        tags: &mut found,
        data: &mut data,
    })
    .expect("read");
    assert!(found == tags && data == large);
    assert_eq!((near.connections(), far.connections()), (1, 1));
    let direct = site.unit(&host, far_id, &[far.endpoint().clone()], &[]);
    assert_eq!(direct.stat().expect("it exists").segments, 8);
    // The address of the third is unknown.
    why_not(&site.unit(&host, unit_called(3), &at, &[]));
    drop(far);
    why_not(&unit);
}

/// A daemon was unavailable at first, and the host reached its unit through another daemon. When it
/// is back, running requests are answered, and new ones go to it directly.
#[test]
fn a_link_uses_the_direct_connection_as_soon_as_there_is_one() {
    let site = Site::new();
    let (near_id, far_id, host) = (unit_called(1), unit_called(2), site.host("h1"));
    let keeper = site.keeper(far_id);
    let far = site.server_of(&any_port(), Arc::clone(&keeper), None);
    let near = site.server_at(&any_port(), near_id, Some((far_id, far.endpoint().clone())));
    // No daemon listens there yet.
    let own = {
        let taken = Listener::bind(&any_port(), 0o600).expect("a free port");
        taken.endpoint().clone()
    };
    let config = site.link_config(&host, far_id, &[own.clone(), near.endpoint().clone()]);
    let clock = Arc::new(SimulatedClock::default());
    let link = TlsLink::start(config, Arc::clone(&clock) as _).expect("started");
    let link = Arc::new(link);
    site.present(&link, &host, &whole_lease(1));
    let unit = RemoteUnit::new("scree://far".to_owned(), Arc::clone(&link) as _);
    put(&unit, 20, 0).expect("through the other");
    assert_eq!(link.via().as_ref(), Some(near.endpoint()));

    let _server = site.server_of(&own, keeper, None);
    for _ in 0..30 {
        assert_eq!(link.via().as_ref(), Some(near.endpoint()), "it looks later");
        clock.advance(Duration::from_secs(1));
        assert_eq!(read(&unit, 20).expect("answered"), [20; 512]);
    }
    until("it stays the long way", || {
        assert_eq!(read(&unit, 20).expect("answered"), [20; 512]);
        link.via().as_ref() == Some(&own)
    });
    drop((near, far));
    assert_eq!(read(&unit, 20).expect("answered"), [20; 512]);
}

/// Two daemons forward connections for the same unit to each other.
#[test]
fn a_connection_is_not_forwarded_in_a_loop() {
    let site = Site::new();
    let (lost, host) = (unit_called(9), site.host("h1"));
    let one = site.server(unit_called(1));
    let two = site.server_at(
        &any_port(),
        unit_called(2),
        Some((lost, one.endpoint().clone())),
    );
    let at = one.endpoint().clone();
    drop(one);
    let one = site.server_at(&at, unit_called(1), Some((lost, two.endpoint().clone())));
    let why = why_not(&site.unit(&host, lost, &[at], &[]));
    assert!(why.contains("closed"), "{why}");
    drop((one, two));
}

/// That ends the loop of the test above: the second daemon on the way closes the connection. It
/// tells the host nothing, as it does not serve the unit and has no certificate for it.
#[test]
fn a_forwarded_connection_is_not_forwarded_again() {
    let site = Site::new();
    let (lost, host) = (unit_called(9), site.host("h1"));
    let next = Listener::bind(&any_port(), 0o600).expect("a free port");
    let daemon = site.server_at(
        &any_port(),
        unit_called(1),
        Some((lost, next.endpoint().clone())),
    );
    let connects = |preface: &[u8]| {
        let mut stream = site.begin_by_hand(&host, lost, daemon.endpoint());
        stream.sock.write_all(preface).expect("sent");
        // The host's first message, which names the unit.
        stream.conn.write_tls(&mut stream.sock).expect("sent");
        stream.sock
    };
    let mut forwarded = connects(PREFACE);
    let ended = forwarded.read_to_end(&mut Vec::new());
    assert_eq!(ended.expect("the daemon closes it"), 0);
    let accepted = next.accept().expect("no failure");
    assert!(accepted.is_none(), "it was forwarded again");
    // The same connection of a host is forwarded.
    let _direct = connects(&[]);
    until("it is forwarded", || {
        next.accept().expect("no failure").is_some()
    });
}

#[test]
fn connections_of_other_protocols_are_closed_and_harm_no_one() {
    let site = Site::new();
    let (id, host) = (unit_called(1), site.host("h1"));
    let server = site.server(id);
    let mut random = vec![0; 4000];
    world::Random::fill(&RealRandom, &mut random);
    let oversized = [&[22, 3, 1, 0x40, 0][..], &[1; 40_000]].concat();
    for bytes in [
        &b"GET / HTTP/1.1\r\n\r\n"[..],
        &random,
        &oversized,
        b"scree\xc2\xbb1junk",
    ] {
        let mut stream = connect(server.endpoint());
        // It may hang up before it has read all.
        let _ = stream.write_all(bytes);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        match stream.read_to_end(&mut Vec::new()) {
            Ok(_) => {}
            Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset),
        }
    }
    // A client that sends nothing blocks no others.
    let unresponsive = connect(server.endpoint());
    site.unit(&host, id, &[server.endpoint().clone()], &[])
        .probe()
        .expect("it serves on");
    drop(unresponsive);
}

/// Many threads together put more than the daemon buffers.
#[test]
fn threads_that_put_more_than_is_buffered_wait_and_lose_nothing() {
    let site = Site::new();
    let (id, host) = (unit_called(1), site.host("h1"));
    let server = site.server(id);
    let unit = site.unit(&host, id, &[server.endpoint().clone()], &[whole_lease(1)]);
    let tags = vec![[6; 16]; 256];
    std::thread::scope(|scope| {
        for thread in 0..32_u64 {
            let (unit, tags) = (&unit, &tags);
            scope.spawn(move || {
                let data = vec![thread as u8; 1 << 20];
                for round in 0..4 {
                    let id = segment(100 + thread);
                    unit.put(Put {
                        lineage_tag: LineageTag::NONE,
                        segment: id,
                        slot_bytes: 4096,
                        first: Slot(round * 256),
                        tags,
                        data: &data,
                    })
                    .expect("put");
                }
                unit.sync(&[segment(100 + thread)]).expect("synced");
            });
        }
    });
    for thread in 0..32 {
        let stat = unit.stat_segment(segment(100 + thread)).expect("it exists");
        assert_eq!(stat.slots, 1024);
        let rotten = unit.scrub(segment(100 + thread)).expect("read");
        assert_eq!(rotten, []);
    }
}

/// A daemon that accepts connections and never answers.
#[test]
fn an_unresponsive_daemon_is_unavailable() {
    let site = Site::new();
    let host = site.host("h1");
    #[expect(clippy::disallowed_methods, reason = "it is no daemon")]
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let at = Endpoint::Tcp(listener.local_addr().expect("bound"));
    let unit = site.unit(&host, unit_called(1), &[at], &[]);
    let unavailable = unit.probe().expect_err("the server sends nothing");
    let UnitError::Unavailable { source, .. } = &unavailable else {
        panic!("{unavailable}");
    };
    assert_eq!(source.kind(), ErrorKind::TimedOut);
    // The next request fails at once and not after another timeout.
    assert!(unit.probe().is_err());
}

fn quickly() -> Timeouts {
    Timeouts {
        hello: Duration::from_millis(500),
        idle: Duration::from_millis(300),
        stalled: Duration::from_millis(500),
    }
}

/// The limit was for one connection, not for all of them together.
#[test]
fn hosts_that_put_more_than_a_daemon_buffers_wait_and_lose_nothing() {
    let site = Site::new();
    let id = unit_called(1);
    let limits = Limits {
        held_bytes_max: 3 << 20,
        ..Limits::of(64)
    };
    let server = site.server_within(limits, &any_port(), site.keeper(id), None);
    let at = [server.endpoint().clone()];
    let tags = vec![[6; 16]; 256];
    let hosts: Vec<Party> = (0..4).map(|name| site.host(&format!("h{name}"))).collect();
    std::thread::scope(|scope| {
        for (host, number) in hosts.iter().zip(1..) {
            let own = 100 + number * 10;
            let lease = Scope::Lease {
                lineage_tag: LineageTag(7),
                fence: Fence(number),
                epoch: 1,
                serials: std::iter::once(own..own + 10).collect(),
            };
            let unit = site.unit(host, id, &at, &[lease]);
            let (tags, server) = (&tags, &server);
            scope.spawn(move || {
                std::thread::scope(|scope| {
                    for thread in 0..2 {
                        let (unit, id) = (&unit, segment(own + thread));
                        scope.spawn(move || {
                            let data = vec![thread as u8; 1 << 20];
                            for round in 0..4 {
                                let first = Slot(round * 256);
                                unit.put(Put {
                                    lineage_tag: LineageTag::NONE,
                                    segment: id,
                                    slot_bytes: 4096,
                                    first,
                                    tags,
                                    data: &data,
                                })
                                .expect("put");
                                let held = server.held_bytes();
                                assert!(held < 5 << 20, "{held} bytes");
                            }
                        });
                    }
                });
            });
        }
    });
    until("all is given back", || server.held_bytes() == 0);
}

#[test]
fn an_idle_connection_is_closed_and_established_again_for_the_next_request() {
    let site = Site::new();
    let (id, host) = (unit_called(1), site.host("h1"));
    let limits = Limits {
        timeouts: quickly(),
        ..Limits::of(64)
    };
    let server = site.server_within(limits, &any_port(), site.keeper(id), None);
    let at = [server.endpoint().clone()];
    let unit = site.unit(&host, id, &at, &[whole_lease(1)]);
    for serial in 10..13 {
        put(&unit, serial, 0).expect("the daemon is available, and no request failed");
        until("it stays", || server.connections() == 0);
    }
    // One that says nothing has no place for long.
    let mut unresponsive = connect(server.endpoint());
    until("it has come", || server.connections() == 1);
    until("it stays", || server.connections() == 0);
    let _ = unresponsive.read_to_end(&mut Vec::new());
}

/// Such a host kept its answers in the daemon's memory forever.
#[test]
fn a_host_that_does_not_read_answers_or_does_not_end_a_request_is_disconnected() {
    let site = Site::new();
    let (id, host) = (unit_called(1), site.host("h1"));
    let limits = Limits {
        timeouts: Timeouts {
            idle: Duration::from_secs(600),
            ..quickly()
        },
        ..Limits::of(64)
    };
    let server = site.server_within(limits, &any_port(), site.keeper(id), None);
    let at = server.endpoint().clone();
    {
        let unit = site.unit(&host, id, std::slice::from_ref(&at), &[whole_lease(1)]);
        let (tags, data) = (vec![[6; 16]; 512], vec![7; 2 << 20]);
        unit.put(Put {
            lineage_tag: LineageTag::NONE,
            segment: segment(20),
            slot_bytes: 4096,
            first: Slot(0),
            tags: &tags,
            data: &data,
        })
        .expect("put");
    }
    until("the link is gone", || server.connections() == 0);
    let mut stream = by_hand(&site, &host, id, &at);
    let signed = key()
        .sign(&capability(host.fingerprint.0, whole_lease(1)))
        .0;
    let mut asked = Vec::new();
    unit_wire::Request::Present(&signed).encode(2, &mut asked);
    let run = SlotRun {
        segment: segment(20),
        first: Slot(0),
        count: 512,
    };
    for tag in 3..40 {
        let slot_bytes = 4096;
        unit_wire::Request::Read { run, slot_bytes }.encode(tag, &mut asked);
    }
    stream.write_all(&asked).expect("sent");
    until("it holds answers", || server.held_bytes() > 1 << 20);
    until("it is waited for", || server.connections() == 0);
    until("it keeps its room", || server.held_bytes() == 0);
    drop(stream);

    let mut stream = by_hand(&site, &host, id, &at);
    let head = [&(1_u32 << 20).to_le_bytes()[..], &[3, 0, 0, 0], &[9; 8]].concat();
    stream.write_all(&head).expect("sent");
    until("its room is kept", || server.held_bytes() > 1 << 20);
    until("it is waited for", || server.connections() == 0);
    until("it keeps its room", || server.held_bytes() == 0);
}

#[test]
fn a_host_that_connects_repeatedly_blocks_no_others() {
    let site = Site::new();
    let (id, host) = (unit_called(1), site.host("h1"));
    let server = site.server_within(Limits::of(6), &any_port(), site.keeper(id), None);
    let at = server.endpoint().clone();
    let many: Vec<_> = (0..12)
        .map(|_| {
            let stream = by_hand(&site, &host, id, &at);
            until("its oldest one ends", || server.connections() <= 4);
            stream
        })
        .collect();
    site.unit(&site.host("h2"), id, &[at], &[])
        .probe()
        .expect("there is room for others");
    drop(many);
}

/// A connection stayed open although its host's certificate had expired.
#[test]
fn a_connection_ends_when_the_hosts_certificate_expires_and_continues_with_the_next_one() {
    let site = Site::new();
    let id = unit_called(1);
    let short = Lifetime {
        now: site.world.clock.wall(),
        term: Duration::from_secs(10),
    };
    let host = site.party_for(short, Kind::Host, "h1", &[]);
    let server = site.server(id);
    let at = [server.endpoint().clone()];
    let config = site.link_config(&host, id, &at);
    let link = site.link(config.clone());
    let unit = RemoteUnit::new("scree://there".to_owned(), Arc::clone(&link) as _);
    unit.probe().expect("it holds");
    assert_eq!(server.connections(), 1);
    until("it is closed", || server.connections() == 0);
    why_not(&unit);
    let next = site.host("h1");
    link.set_config(LinkConfig {
        tls: site.link_config(&next, id, &at).tls,
        ..config.clone()
    });
    unit.probe().expect("with the next one");
    // Also while the old one holds.
    let another = site.host("h1");
    link.set_config(LinkConfig {
        tls: site.link_config(&another, id, &at).tls,
        ..config
    });
    until("the old one ends", || server.connections() == 0);
    unit.probe().expect("with the one after that");
}
