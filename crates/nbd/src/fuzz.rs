//! Entry points for fuzzers: pure functions over bytes. They accept any bytes, and panic if a reply
//! breaks an invariant.

use std::sync::Arc;

use base::codec::Reader;
use world::Wake;
use world::simulated::SimulatedRandom;

use super::connection::Settings;
use super::export::Export;
use super::handshake::{Handshake, HandshakeStep, Offer, TlsPolicy};
use super::options::ClientOption;
use super::request::Header;
use super::script::converse;
use super::wire::{CHUNK_MAGIC, OPTION_REPLY_MAGIC, chunk};
use super::{ExportTable, Limits};
use testkit::memory_device::{MemoryDevice, Misbehavior};

/// Decodes `data` as an option's number and data.
pub fn fuzz_option(data: &[u8]) {
    if let Some((number, rest)) = data.split_first_chunk() {
        let _ = ClientOption::decode(u32::from_be_bytes(*number), rest);
    }
}

/// Handles `data` as a client's handshake, at once and byte by byte.
///
/// # Panics
/// If the two replies differ, or a reply is incomplete.
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

/// The replies to a client that sends `data` in pieces of `piece` bytes, and whether it opened an
/// export.
fn shake_hands(offer: Offer, data: &[u8], piece: usize) -> (Vec<u8>, bool) {
    let mut handshake = Handshake::new(offer);
    let (mut replies, mut unread) = (Vec::new(), Vec::new());
    let (mut arrived, mut used) = (0, 0);
    loop {
        let (count, next) = handshake.advance(&data[used..arrived], &mut unread);
        used += count;
        replies.append(&mut unread);
        match next {
            HandshakeStep::Opened(_) => return (replies, true),
            HandshakeStep::Close(_) => return (replies, false),
            // The next bytes would be TLS.
            HandshakeStep::StartTls => handshake.tls_started(),
            HandshakeStep::Wait if arrived == data.len() && count == 0 => return (replies, false),
            HandshakeStep::Wait => arrived = data.len().min(arrived + piece.max(1)),
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

/// Handles `data` as a client's requests, on a device that is often pending or busy.
///
/// # Panics
/// If a reply is incomplete, or the limits are exceeded.
pub fn fuzz_transmission(data: &[u8]) {
    let Some((&[first, seed], data)) = data.split_first_chunk() else {
        return;
    };
    let settings = Settings {
        structured: first & 1 != 0,
        allocation: first & 3 == 3,
        read_only: first & 4 != 0,
    };
    let misbehavior = Misbehavior {
        pending_one_in: u64::from(first >> 3 & 3),
        busy_one_in: u64::from(first >> 5 & 3) * 2,
        damaged: 70_000..70_001,
        seed: seed.into(),
        ..Misbehavior::default()
    };
    let device = MemoryDevice::new(1 << 20).with(misbehavior, Wake::noop());
    let random = SimulatedRandom::new(seed.into());
    let limits = Limits {
        requests_max: 8,
        bytes_max: 1 << 20,
        operations_max: 16,
    };
    let conversation = converse(device, settings, limits, data.to_vec(), &random);
    assert_eq!(conversation.device.unanswered(), 0);
    if settings.structured {
        check_chunks(&conversation.replies, data.len() / Header::BYTES);
    }
}

/// Checks structured replies, and simple ones to requests other than reads: each is whole, and
/// there are no more of them than requests.
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
        // The server may close the connection within a reply that it cannot finish.
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

    /// Whole requests with random fields, as a fuzzer would find them.
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
    fn random_requests_never_panic() {
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
    fn random_options_never_panic_and_have_the_same_replies_however_they_are_split() {
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
    fn random_bytes_never_panic() {
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
