//! Entry points for fuzzers: pure functions over bytes, which return whatever
//! the bytes are. They panic if an answer breaks what holds of all answers.

use std::sync::Arc;

use base::codec::Reader;
use world::Wake;
use world::simulated::SimulatedRandom;

use super::connection::Settings;
use super::export::Export;
use super::handshake::{Handshake, Next, Offer, TlsPolicy};
use super::options::Asked;
use super::request::Header;
use super::script::converse;
use super::wire::{CHUNK_MAGIC, OPTION_REPLY_MAGIC, chunk};
use super::{ExportTable, Limits};
use crate::memory::{Manners, MemoryDevice};

/// Reads `data` as an option's number and its data.
pub fn fuzz_option(data: &[u8]) {
    if let Some((number, rest)) = data.split_first_chunk() {
        let _ = Asked::decode(u32::from_be_bytes(*number), rest);
    }
}

/// Plays a client that sends `data` in the handshake: all at once, and byte by
/// byte. Both must be answered alike, in whole replies.
pub fn fuzz_handshake(data: &[u8]) {
    let Some((&first, data)) = data.split_first() else {
        return;
    };
    let table = ExportTable::new();
    for name in ["one", "two"].iter().take(1 + usize::from(first & 1)) {
        table.add(Export::unserved(name));
    }
    let offer = Offer {
        exports: Arc::new(table),
        list: first & 2 == 0,
        tls: match first >> 2 & 3 {
            0 => TlsPolicy::Required,
            1 => TlsPolicy::Allowed,
            _ => TlsPolicy::Off,
        },
    };
    let (at_once, opened) = shake_hands(offer.clone(), data, data.len());
    let byte_by_byte = shake_hands(offer, data, 1);
    assert_eq!((&at_once, opened), (&byte_by_byte.0, byte_by_byte.1));
    if !opened {
        check_option_replies(&at_once);
    }
}

/// What a client gets that sends `data` in pieces of `piece` bytes, and
/// whether it got an export.
fn shake_hands(offer: Offer, data: &[u8], piece: usize) -> (Vec<u8>, bool) {
    let mut handshake = Handshake::new(offer);
    let (mut replies, mut unread) = (Vec::new(), Vec::new());
    let (mut arrived, mut used) = (0, 0);
    loop {
        let (count, next) = handshake.advance(&data[used..arrived], &mut unread);
        used += count;
        replies.append(&mut unread);
        match next {
            Next::Opened(_) => return (replies, true),
            Next::Close(_) => return (replies, false),
            // What follows on the wire is no longer the handshake's plain text.
            Next::StartTls => handshake.tls_started(),
            Next::Wait if arrived == data.len() && count == 0 => return (replies, false),
            Next::Wait => arrived = data.len().min(arrived + piece.max(1)),
        }
    }
}

fn check_option_replies(replies: &[u8]) {
    let mut reader = Reader::new(replies);
    while reader.remaining() > 0 {
        let magic = u64::from_be_bytes(reader.array().expect("a whole header"));
        assert_eq!(magic, OPTION_REPLY_MAGIC);
        reader.bytes(8).expect("a whole header");
        let length = u32::from_be_bytes(reader.array().expect("a whole header"));
        reader.bytes(length as usize).expect("whole data");
    }
}

/// Plays a client that sends `data` after the handshake, to a device that is
/// often late or busy.
pub fn fuzz_transmission(data: &[u8]) {
    let Some((&[first, seed], data)) = data.split_first_chunk() else {
        return;
    };
    let settings = Settings {
        structured: first & 1 != 0,
        allocation: first & 3 == 3,
        read_only: first & 4 != 0,
    };
    let manners = Manners {
        pending_one_in: u64::from(first >> 3 & 3),
        busy_one_in: u64::from(first >> 5 & 3) * 2,
        damaged: 70_000..70_001,
        seed: seed.into(),
        ..Manners::default()
    };
    let device = MemoryDevice::new(1 << 20).with(manners, Wake::noop());
    let random = SimulatedRandom::new(seed.into());
    let limits = Limits {
        requests_max: 8,
        bytes_max: 1 << 20,
        operations_max: 16,
    };
    let talk = converse(device, settings, limits, data.to_vec(), &random);
    assert_eq!(talk.device.unanswered(), 0);
    if settings.structured {
        check_chunks(&talk.replies, data.len() / Header::BYTES);
    }
}

/// Structured replies and simple ones of requests that are no reads: whole,
/// and no more of them than requests.
fn check_chunks(replies: &[u8], requests: usize) {
    let mut reader = Reader::new(replies);
    let mut ends = 0;
    while reader.remaining() > 0 {
        let magic = u32::from_be_bytes(reader.array().expect("a whole header"));
        if magic != CHUNK_MAGIC {
            reader.bytes(12).expect("a whole simple reply");
            ends += 1;
            continue;
        }
        let flags = u16::from_be_bytes(reader.array().expect("a whole header"));
        reader.bytes(10).expect("a whole header");
        let length = u32::from_be_bytes(reader.array().expect("a whole header"));
        // A reply that cannot be finished may be cut by the connection's end.
        if reader.bytes(length as usize).is_err() {
            break;
        }
        ends += usize::from(flags & chunk::DONE != 0);
    }
    assert!(ends <= requests, "{ends} replies to {requests} requests");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::OptionHeader;
    use crate::wire::{command, option};

    /// Bytes that a fuzzer would soon find: whole requests with odd fields.
    fn requests(random: &SimulatedRandom) -> Vec<u8> {
        let mut data = vec![random.index(256) as u8, random.index(256) as u8];
        for _ in 0..random.index(40) {
            let length = [0, 1, 511, 4096, 70_000, 300_000, 1 << 20, u32::MAX as usize];
            let header = Header {
                flags: if random.one_in(4) {
                    random.index(64) as u16
                } else {
                    0
                },
                command: random.index(9) as u16,
                cookie: random.next(),
                offset: random.below(1 << 20),
                length: length[random.index(length.len())] as u32,
            };
            data.extend(header.encode());
            if header.command == command::WRITE && !random.one_in(10) {
                let payload = (header.length as usize).min(1 << 20);
                data.resize(data.len() + payload, 7);
            }
        }
        data
    }

    fn options(random: &SimulatedRandom) -> Vec<u8> {
        let mut data = vec![random.index(16) as u8, 0, 0, 0, random.index(4) as u8];
        for _ in 0..random.index(12) {
            let name = ["one", "two", "", "none"][random.index(4)];
            let mut body = Vec::new();
            match random.index(5) {
                0 => {}
                1 => body.extend_from_slice(name.as_bytes()),
                kind => {
                    body.extend_from_slice(&(name.len() as u32).to_be_bytes());
                    body.extend_from_slice(name.as_bytes());
                    if kind == 2 {
                        body.extend_from_slice(&[0, 2, 0, 1, 0, 3]);
                    } else {
                        body.extend_from_slice(&[0, 0, 0, 1, 0, 0, 0, 15]);
                        body.extend_from_slice(b"base:allocation");
                    }
                }
            }
            let header = OptionHeader {
                option: [
                    option::GO,
                    option::STRUCTURED_REPLY,
                    random.index(12) as u32,
                ][random.index(3)],
                length: body.len() as u32,
            };
            data.extend(header.encode());
            data.append(&mut body);
        }
        data
    }

    fn damage(data: &mut [u8], random: &SimulatedRandom) {
        for _ in 0..random.index(4) {
            let at = random.index(data.len());
            data[at] ^= 1 << random.index(8);
        }
    }

    #[test]
    fn any_requests_are_survived() {
        for seed in 0..1500 {
            let random = SimulatedRandom::new(seed);
            let mut data = requests(&random);
            if seed % 2 == 0 {
                damage(&mut data, &random);
            }
            fuzz_transmission(&data);
        }
    }

    #[test]
    fn any_options_are_survived_and_split_bytes_change_nothing() {
        for seed in 0..3000 {
            let random = SimulatedRandom::new(seed);
            let mut data = options(&random);
            if seed % 2 == 0 {
                damage(&mut data, &random);
            }
            fuzz_handshake(&data);
            fuzz_option(&data);
        }
    }

    #[test]
    fn noise_is_survived() {
        for seed in 0..2000 {
            let random = SimulatedRandom::new(seed);
            let length = random.index(300);
            let noise: Vec<u8> = (0..length).map(|_| random.index(256) as u8).collect();
            fuzz_transmission(&noise);
            fuzz_handshake(&noise);
            fuzz_option(&noise);
        }
    }
}
