//! The unit protocol, as unit daemons and hosts read it, and capabilities.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use auth::{Capability, Fence, Scope, SigningKey};
use base::{ClusterId, LineageTag, SegmentId, Slot, UnitId};
use unit::{NOTE_BYTES, Put, SlotRun};
use unit_daemon::{BUDGET_BYTES, Budget, Job, Keeper, KeeperConfig, Session, Step};
use unit_folder::FolderUnit;
use unit_remote::Conversation;
use unit_wire::{
    BODY_BYTES_MAX, Frames, Greeting, HEAD_BYTES, Refusal, Request, Status, put_frame,
};
use world::{Millis, Wake};

const CLUSTER: ClusterId = ClusterId::from_u128(1);
const UNIT: UnitId = UnitId::from_u128(2);
const HOST: [u8; 32] = [3; 32];

fn segment_with_serial(serial: u64) -> SegmentId {
    SegmentId::from_bits(serial).expect("48 bits")
}

fn lease(epoch: u32) -> Vec<u8> {
    let capability = Capability {
        cluster: CLUSTER,
        holder: HOST,
        made: Millis(0),
        ends: Millis(i64::MAX),
        generation: 1,
        scope: Scope::Lease {
            lineage_tag: LineageTag(4),
            fence: Fence(5),
            epoch,
            serials: std::iter::once(0..100).collect(),
        },
    };
    SigningKey::derive(b"fuzz").sign(&capability).0
}

fn greeted(out: &mut Vec<u8>) -> Session {
    let world = super::world();
    let folder = Path::new("/unit");
    let unit = FolderUnit::create(&world, folder, CLUSTER, UNIT).expect("a unit");
    let config = KeeperConfig {
        cluster: CLUSTER,
        keys: vec![SigningKey::derive(b"fuzz").verifying_key()],
        generation: 1,
    };
    let keeper = Keeper::open(&world, unit, folder, config).expect("kept");
    let budget = Budget::new(BUDGET_BYTES);
    let mut session = Session::new(Arc::new(keeper), HOST, &budget, Wake::noop());
    let mut sent = Vec::new();
    Request::Hello {
        version: 1,
        cluster: CLUSTER,
    }
    .encode(1, &mut sent);
    Request::Present(&lease(1)).encode(1, &mut sent);
    session.receive(&sent);
    loop {
        match session.step(out).expect("an open session") {
            Step::Wait => return session,
            Step::Answered => {}
            Step::Job(job) => {
                let tag = job.tag();
                out.extend(job.run());
                session.answered(tag);
            }
        }
    }
}

/// Requests of a host with a lease to a unit daemon. The first byte is the length of the pieces.
pub fn daemon_session(data: &[u8]) {
    let Some((&piece, data)) = data.split_first() else {
        return;
    };
    let mut out = Vec::new();
    let mut session = greeted(&mut out);
    let mut jobs: Vec<Job> = Vec::new();
    'open: for bytes in data.chunks(usize::from(piece) + 1) {
        if !session.has_room() {
            // Outstanding jobs delay later requests.
            for job in jobs.drain(..) {
                let tag = job.tag();
                out.extend(job.run());
                session.answered(tag);
            }
            while let Ok(Step::Answered) = session.step(&mut out) {}
            break;
        }
        session.receive(bytes);
        loop {
            match session.step(&mut out) {
                Ok(Step::Wait) => break,
                Ok(Step::Answered) => {}
                Ok(Step::Job(job)) => jobs.push(job),
                Err(_) => break 'open,
            }
        }
        // Some jobs end after later ones.
        while jobs.len() > usize::from(piece % 4) {
            let job = jobs.swap_remove(0);
            let tag = job.tag();
            out.extend(job.run());
            session.answered(tag);
        }
    }
    for job in jobs {
        let tag = job.tag();
        out.extend(job.run());
        session.answered(tag);
    }
    assert!(session.is_idle());
    let mut frames = Frames::new(BODY_BYTES_MAX);
    frames.extend(&out);
    while let Some(frame) = frames.pop().expect("a whole frame") {
        let status = Status::of(frame.code).expect("a status");
        if status != Status::Done {
            Refusal::decode(status, frame.body).expect("a refusal");
        }
    }
    assert_eq!(frames.buffered_bytes(), 0, "the daemon sends whole frames");
}

/// The input of [`daemon_session`] with these requests.
fn session_of(requests: &[Request<'_>]) -> Vec<u8> {
    let mut bytes = vec![200];
    for (request, tag) in requests.iter().zip(1..) {
        request.encode(tag, &mut bytes);
    }
    bytes
}

pub(super) fn daemon_session_seeds() -> Vec<Vec<u8>> {
    let (tags, data) = ([[6; 16]; 2], [7; 1024]);
    let segment = segment_with_serial(10);
    let put = |first| {
        Request::Put(Put {
            segment,
            lineage_tag: LineageTag::NONE,
            slot_bytes: 512,
            first: Slot(first),
            tags: &tags,
            data: &data,
        })
    };
    let read = |first, count| Request::Read {
        run: SlotRun {
            segment,
            first: Slot(first),
            count,
        },
        slot_bytes: 512,
    };
    let free = Request::Free {
        segment,
        closed: true,
        slots: vec![Slot(0), Slot(3)],
    };
    let list = Request::List {
        serials: 0..100,
        after: 0,
        limit: 9,
    };
    vec![
        session_of(&[put(0), put(2), read(0, 4), read(3, 1), free.clone()]),
        session_of(&[
            put(0),
            Request::Stat(segment),
            Request::Scrub(segment),
            list,
        ]),
        session_of(&[
            Request::Present(&lease(2)),
            put(0),
            Request::Delete(segment),
        ]),
        session_of(&[
            Request::WriteNote(&[5; NOTE_BYTES]),
            Request::ReadNote,
            Request::Probe,
            Request::UnitStat,
        ]),
        session_of(&[
            Request::Sync {
                incarnation: 0,
                segments: vec![segment],
            },
            free,
        ]),
    ]
}

/// Answers of a unit daemon to a host.
pub fn daemon_answer(data: &[u8]) {
    let mut out = Vec::new();
    let mut conversation = Conversation::begin(UNIT, CLUSTER, &mut out);
    let mut hello = Vec::new();
    put_frame(&mut hello, 0, 1, |body| greeting().encode(body));
    assert!(conversation.receive(&hello).is_ok());
    let completed = Arc::new(AtomicUsize::new(0));
    let requests = 5;
    for tag in 2..2 + requests as u64 {
        let completed = Arc::clone(&completed);
        let done: unit_remote::Done = Box::new(move |_| {
            completed.fetch_add(1, Ordering::Relaxed);
        });
        conversation.expect(tag, Duration::ZERO, done);
    }
    let _ = conversation.receive(data);
    assert!(conversation.waiting() + completed.load(Ordering::Relaxed) == requests);
    conversation.lose(&Arc::new(std::io::Error::other("over")));
    assert_eq!(
        completed.load(Ordering::Relaxed),
        requests,
        "each request completes once"
    );
    // The other parts of answers.
    let body = data.get(HEAD_BYTES..).unwrap_or_default();
    let _ = Greeting::decode(body);
    let _ = unit_wire::decode_segments(body);
    let _ = unit_wire::decode_slots(body);
    let _ = unit_wire::decode_unit_stat(body);
    let _ = unit_wire::decode_stat(segment_with_serial(1), body);
    for status in Status::ALL {
        let _ = Refusal::decode(status, body);
    }
}

fn greeting() -> Greeting {
    Greeting {
        version: 1,
        body_bytes_max: 1 << 20,
        unit: UNIT,
        incarnation: 1,
        now_ms: 0,
        held_bytes_max: 1 << 24,
    }
}

pub(super) fn daemon_answer_seeds() -> Vec<Vec<u8>> {
    let mut done = Vec::new();
    for tag in [2, 3, 6] {
        put_frame(&mut done, 0, tag, |body| greeting().encode(body));
    }
    let mut refused = Vec::new();
    for (tag, status) in (2..).zip(&Status::ALL[1..6]) {
        Refusal::new(*status, "why").encode(tag, &mut refused);
    }
    vec![done, refused]
}

/// A capability with a valid signature.
pub fn capability(data: &[u8]) {
    let key = SigningKey::derive(b"fuzz");
    let _ = key.verifying_key().verify(data);
    if let Ok(capability) = key.verifying_key().verify(&key.sign_bytes(data).0) {
        assert_eq!(
            key.verifying_key().verify(&key.sign(&capability).0),
            Ok(capability)
        );
    }
}

pub(super) fn capability_seeds() -> Vec<Vec<u8>> {
    let signed = lease(1);
    let bytes = signed.len() - auth::SIGNATURE_BYTES;
    vec![signed[..bytes].to_vec(), signed]
}
