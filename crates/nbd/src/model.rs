//! Compares a server's replies with a plain array: however bytes are split, and however often the
//! device is pending or busy, each request has the result that the order of requests demands.

use std::collections::HashMap;

use base::codec::Reader;
use world::Wake;
use world::simulated::SimulatedRandom;

use super::Limits;
use super::connection::Settings;
use super::request::Header;
use super::script::converse;
use super::wire::{CHUNK_MAGIC, SIMPLE_REPLY_MAGIC, chunk, command, command_flags as flags};
use testkit::memory_device::{MemoryDevice, Misbehavior};

const SIZE: usize = 3 << 20;

/// The expected result of a request.
#[derive(Debug, Clone, PartialEq)]
enum Expected {
    Done,
    Data(Vec<u8>),
    Failed(u32),
}

/// A client's requests and their expected results.
#[derive(Default)]
struct Plan {
    incoming: Vec<u8>,
    answers: HashMap<u64, (Header, Expected)>,
}

const COMMANDS: [u16; 8] = [
    command::READ,
    command::WRITE,
    command::READ,
    command::WRITE,
    command::WRITE_ZEROES,
    command::TRIM,
    command::FLUSH,
    command::CACHE,
];

const LENGTHS: [u32; 11] = [
    0,
    1,
    100,
    512,
    4096,
    5000,
    65_536,
    262_144,
    262_145,
    700_000,
    1 << 20,
];

fn random_header(random: &SimulatedRandom, cookie: u64, settings: Settings) -> Header {
    let mut header = Header {
        flags: 0,
        command: COMMANDS[random.index(COMMANDS.len())],
        cookie,
        offset: random.below(SIZE as u64),
        length: LENGTHS[random.index(LENGTHS.len())],
    };
    if header.command == command::READ && settings.structured && random.one_in(3) {
        header.flags |= flags::DF;
    }
    if header.command == command::WRITE && random.one_in(3) {
        header.flags |= flags::FUA;
    }
    if random.one_in(3) {
        header.offset &= !4095;
    }
    header
}

/// Carries out a request on the array, and returns its result.
fn carry_out(header: &Header, payload: &[u8], model: &mut [u8], settings: Settings) -> Expected {
    let (from, length) = (header.offset as usize, header.length as usize);
    let fits = from + length <= SIZE;
    let write = matches!(header.command, command::WRITE | command::WRITE_ZEROES);
    match header.command {
        command::FLUSH => Expected::Done,
        _ if settings.read_only && (write || header.command == command::TRIM) => {
            Expected::Failed(1)
        }
        _ if !fits => Expected::Failed(if write { 28 } else { 22 }),
        command::READ => Expected::Data(model[from..from + length].to_vec()),
        command::WRITE => {
            model[from..from + length].copy_from_slice(payload);
            Expected::Done
        }
        command::WRITE_ZEROES => {
            model[from..from + length].fill(0);
            Expected::Done
        }
        command::TRIM => {
            let (first, last) = (from.div_ceil(4096) * 4096, (from + length) / 4096 * 4096);
            if first < last {
                model[first..last].fill(0);
            }
            Expected::Done
        }
        _ => Expected::Done,
    }
}

fn plan(random: &SimulatedRandom, model: &mut [u8], settings: Settings) -> Plan {
    let mut plan = Plan::default();
    for cookie in 0..random.below(60) {
        let header = random_header(random, cookie, settings);
        let payload: Vec<u8> = vec![random.index(256) as u8; header.payload() as usize];
        let answer = carry_out(&header, &payload, model, settings);
        plan.incoming.extend(header.encode());
        plan.incoming.extend(payload);
        plan.answers.insert(cookie, (header, answer));
    }
    let disconnect = Header {
        flags: 0,
        command: command::DISC,
        cookie: u64::MAX,
        offset: 0,
        length: 0,
    };
    plan.incoming.extend(disconnect.encode());
    plan
}

fn number<const N: usize>(reader: &mut Reader<'_>) -> u64 {
    let bytes: [u8; N] = reader.array().expect("replies are whole");
    bytes
        .iter()
        .fold(0, |number, &byte| number << 8 | u64::from(byte))
}

/// Decodes the results in `replies`, by cookie.
fn decode(replies: &[u8], plan: &Plan) -> HashMap<u64, Expected> {
    let mut reader = Reader::new(replies);
    let mut answers = HashMap::new();
    let mut unfinished: HashMap<u64, Vec<(usize, Vec<u8>)>> = HashMap::new();
    while reader.remaining() > 0 {
        let magic = number::<4>(&mut reader) as u32;
        if magic == SIMPLE_REPLY_MAGIC {
            let errno = number::<4>(&mut reader) as u32;
            let cookie = number::<8>(&mut reader);
            let (header, _) = &plan.answers[&cookie];
            let answer = match (errno, header.command) {
                (0, command::READ) => {
                    let data = reader.bytes(header.length as usize).expect("whole data");
                    Expected::Data(data.to_vec())
                }
                (0, _) => Expected::Done,
                (errno, _) => Expected::Failed(errno),
            };
            assert_eq!(answers.insert(cookie, answer), None, "one reply each");
            continue;
        }
        assert_eq!(magic, CHUNK_MAGIC);
        let done = number::<2>(&mut reader) as u16 & chunk::DONE != 0;
        let kind = number::<2>(&mut reader) as u16;
        let cookie = number::<8>(&mut reader);
        let length = number::<4>(&mut reader) as usize;
        let mut body = Reader::new(reader.bytes(length).expect("a whole chunk"));
        let (header, _) = &plan.answers[&cookie];
        let mut failed = None;
        match kind {
            chunk::OFFSET_DATA => {
                let at = (number::<8>(&mut body) - header.offset) as usize;
                let data = body.bytes(length - 8).expect("whole data").to_vec();
                unfinished.entry(cookie).or_default().push((at, data));
            }
            chunk::ERROR => failed = Some(number::<4>(&mut body) as u32),
            other => assert_eq!(other, chunk::NONE),
        }
        if !done {
            assert_eq!(header.flags & flags::DF, 0, "DF is one chunk");
            continue;
        }
        let mut pieces = unfinished.remove(&cookie).unwrap_or_default();
        pieces.sort();
        let mut data = Vec::new();
        for (at, piece) in pieces {
            assert_eq!(at, data.len(), "pieces cover the range once");
            data.extend(piece);
        }
        let answer = match (failed, header.command) {
            (Some(errno), _) => Expected::Failed(errno),
            (None, command::READ) => Expected::Data(data),
            (None, _) => Expected::Done,
        };
        assert_eq!(answers.insert(cookie, answer), None, "one reply each");
    }
    answers
}

#[test]
fn every_request_has_the_result_that_a_plain_array_gives() {
    for seed in 0..250 {
        let random = SimulatedRandom::new(seed);
        let settings = Settings {
            structured: random.one_in(2),
            allocation: false,
            read_only: random.one_in(8),
        };
        let misbehavior = Misbehavior {
            pending_one_in: random.below(4),
            busy_one_in: 2 * random.below(3),
            seed,
            ..Misbehavior::default()
        };
        let limits = Limits {
            requests_max: 1 + random.index(20),
            bytes_max: 1 + random.index(3 << 20),
            operations_max: 1 + random.index(40),
        };
        let mut model = vec![0; SIZE];
        let plan = plan(&random, &mut model, settings);
        let device = MemoryDevice::new(SIZE).with(misbehavior, Wake::noop());
        let incoming = plan.incoming.clone();
        let conversation = converse(device, settings, limits, incoming, &random);
        let answers = decode(&conversation.replies, &plan);
        assert_eq!(
            answers.len(),
            plan.answers.len(),
            "seed {seed}: each request has a reply"
        );
        for (cookie, (header, expected)) in &plan.answers {
            assert!(answers[cookie] == *expected, "seed {seed}: {header:?}");
        }
        assert!(
            conversation.device.bytes() == model,
            "seed {seed}: the device holds what was written"
        );
    }
}
