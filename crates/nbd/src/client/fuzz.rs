//! Entry points for fuzzers of the client: a server's bytes. See [`super::super::fuzz`].

use std::time::Duration;

use base::IoError;

use super::super::request::Header;
use super::super::wire::command;
use super::entry::{Entry, Requester};
use super::{ConnectionError, Greeting, Replies, RequestLog, Step};

/// Handles `data` as a server's handshake, at once and byte by byte.
///
/// # Panics
/// If the two results differ.
pub fn fuzz_greeting(data: &[u8]) {
    let Some((&first, data)) = data.split_first() else {
        return;
    };
    let wants_tls = first & 1 != 0;
    let at_once = shake_hands(data, data.len(), wants_tls);
    if !matches!(
        at_once.0,
        Err(ConnectionError::ProtocolViolation(
            super::ProtocolViolation::PlainBytes(_)
        ))
    ) {
        assert_eq!(at_once, shake_hands(data, 1, wants_tls));
    }
}

fn shake_hands(
    data: &[u8],
    piece: usize,
    wants_tls: bool,
) -> (Result<Step, ConnectionError>, Vec<u8>) {
    let mut greeting = Greeting::new("disk", wants_tls);
    let mut sent = Vec::new();
    let (mut arrived, mut used) = (0, 0);
    loop {
        match greeting.advance(&data[used..arrived], &mut sent) {
            Err(error) => return (Err(error), sent),
            Ok((count, Step::StartTls)) => {
                used += count;
                greeting.tls_started(&mut sent);
            }
            Ok((count, Step::Wait)) => {
                used += count;
                if arrived == data.len() {
                    return (Ok(Step::Wait), sent);
                }
                arrived = data.len().min(arrived + piece.max(1));
            }
            Ok((_, step)) => return (Ok(step), sent),
        }
    }
}

/// The result of a request.
#[derive(Debug, PartialEq)]
struct ReceivedResult {
    cookie: u64,
    data: Vec<u8>,
    extents: usize,
    error: Option<IoError>,
}

/// Handles `data` as a server's replies to some requests, at once and in pieces.
///
/// # Panics
/// If the two results differ.
pub fn fuzz_replies(data: &[u8]) {
    let Some((&first, data)) = data.split_first() else {
        return;
    };
    let structured = first & 1 != 0;
    let at_once = answers(data, data.len(), structured);
    let in_pieces = answers(data, 1 + usize::from(first >> 1), structured);
    assert_eq!(at_once, in_pieces);
}

fn answers(
    data: &[u8],
    piece: usize,
    structured: bool,
) -> (Option<ConnectionError>, Vec<ReceivedResult>) {
    let mut log = RequestLog::default();
    log.resume(Duration::ZERO);
    for number in 0..16_u64 {
        let header = Header {
            flags: 0,
            command: [command::READ, command::BLOCK_STATUS, command::FLUSH][number as usize % 3],
            cookie: 0,
            offset: number * 1000,
            length: [512, 4096, 100_000][number as usize / 3 % 3],
        };
        log.push(Entry::new(
            header,
            Vec::new(),
            Requester::Client,
            Duration::ZERO,
        ));
        log.sent(Header::BYTES, Duration::ZERO);
    }
    let mut replies = Replies::new(structured, structured.then_some(7));
    let (mut completed, mut results) = (Vec::new(), Vec::new());
    let mut input = Vec::new();
    for mut piece in data.chunks(piece.max(1)) {
        if input.is_empty()
            && let Some(space) = replies.data_space(&mut log)
        {
            let count = space.len().min(piece.len());
            space[..count].copy_from_slice(&piece[..count]);
            replies.data_received(count, &mut log, &mut completed);
            piece = &piece[count..];
        }
        input.extend_from_slice(piece);
        let advanced = replies.advance(&input, &mut log, &mut completed);
        for cookie in completed.drain(..) {
            let answered = log.take_result(cookie, Duration::ZERO);
            let answered = answered.expect("its reply has arrived");
            results.push(ReceivedResult {
                cookie,
                data: answered.data,
                extents: answered.extents.len(),
                error: answered.error,
            });
        }
        match advanced {
            Ok(used) => drop(input.drain(..used)),
            Err(error) => return (Some(error), results),
        }
    }
    (None, results)
}

#[cfg(test)]
mod tests {
    use world::simulated::SimulatedRandom;

    use super::*;

    /// Bytes that a fuzzer would soon find: whole chunks with violation fields.
    fn chunks(random: &SimulatedRandom) -> Vec<u8> {
        let mut data = vec![random.index(256) as u8];
        for _ in 0..random.index(24) {
            let cookie = random.below(17);
            let length: u64 = [512, 4096, 100_000][cookie as usize / 3 % 3];
            let from = cookie * 1000 + random.below(3) * 256;
            let kind = [0, 1, 2, 5, 0x8001, 0x8002, 9][random.index(7)];
            let body = match kind {
                1 => [
                    &from.to_be_bytes()[..],
                    &vec![3; random.index(length as usize)],
                ]
                .concat(),
                2 => [&from.to_be_bytes()[..], &[0, 0, 1, 0]].concat(),
                5 => [7, 256, 0, 1 << 20, 3].map(u32::to_be_bytes).concat(),
                0x8001 => vec![0, 0, 0, 5, 0, 2, b'n', b'o'],
                0x8002 => vec![0, 0, 0, 5, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1],
                _ => Vec::new(),
            };
            if random.one_in(6) {
                data.extend_from_slice(&[0x67, 0x44, 0x66, 0x98, 0, 0, 0, random.index(2) as u8]);
                data.extend_from_slice(&cookie.to_be_bytes());
                continue;
            }
            data.extend_from_slice(&[0x66, 0x8e, 0x33, 0xef, 0, random.index(2) as u8]);
            data.extend_from_slice(&(kind as u16).to_be_bytes());
            data.extend_from_slice(&cookie.to_be_bytes());
            data.extend_from_slice(&(body.len() as u32).to_be_bytes());
            data.extend_from_slice(&body);
        }
        data
    }

    #[test]
    fn random_replies_never_panic_and_are_decoded_alike_however_they_are_split() {
        for seed in 0..3000 {
            let random = SimulatedRandom::new(seed);
            let mut data = chunks(&random);
            if seed % 2 == 0 {
                for _ in 0..random.index(4) {
                    let at = random.index(data.len());
                    data[at] ^= 1 << random.index(8);
                }
            }
            fuzz_replies(&data);
            fuzz_greeting(&data);
        }
    }

    #[test]
    fn random_greetings_never_panic_and_are_decoded_alike_however_they_are_split() {
        for seed in 0..3000 {
            let random = SimulatedRandom::new(seed);
            let mut data = vec![random.index(2) as u8];
            data.extend_from_slice(b"NBDMAGICIHAVEOPT\0\x03");
            for option in [5_u32, 8, 10, 7, 1] {
                for _ in 0..random.index(3) {
                    let kind = [1, 3, 4, 1 << 31 | 1, 1 << 31 | 6][random.index(5)];
                    let body = match random.index(4) {
                        0 => Vec::new(),
                        1 => [&[0, 0][..], &(1_u64 << 20).to_be_bytes(), &[0, 1]].concat(),
                        2 => [0_u16, 3, 0, 1, 0, 4096, 512, 0]
                            .map(u16::to_be_bytes)
                            .concat(),
                        _ => b"\0\0\0\x07base:allocation".to_vec(),
                    };
                    data.extend_from_slice(&0x0003_e889_0455_65a9_u64.to_be_bytes());
                    for word in [option, kind, body.len() as u32] {
                        data.extend_from_slice(&word.to_be_bytes());
                    }
                    data.extend_from_slice(&body);
                }
            }
            for _ in 0..random.index(3) {
                let at = random.index(data.len());
                data[at] ^= 1 << random.index(8);
            }
            fuzz_greeting(&data);
        }
    }
}
