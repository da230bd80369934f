//! Clients of a busy device get equal turns.

use base::{Capabilities, Completion, DeviceGeometry, Op};

use super::*;
use crate::request::Header;
use crate::script::Scripted;
use crate::wire::command;

/// A device that accepts one request between two polls, as a rate limit does.
#[derive(Default)]
struct OneAtATime {
    is_free: bool,
    /// The number of reads of each client's sector.
    reads: [u64; 3],
}

impl BlockDevice for OneAtATime {
    fn geometry(&self) -> DeviceGeometry {
        DeviceGeometry {
            size_bytes: 3 * 512,
            block_bytes: 512,
        }
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::ALL
    }

    fn start(&mut self, request: Request<'_>) -> Started {
        let op = request.op;
        match op {
            Op::Read { offset, .. } => {
                if !std::mem::take(&mut self.is_free) {
                    return Started::Busy;
                }
                self.reads[offset as usize / 512] += 1;
                Started::Done
            }
            Op::Flush | Op::Prefetch { .. } => Started::Done,
            Op::Write { .. } | Op::Trim { .. } | Op::WriteZeroes { .. } | Op::Extents { .. } => {
                Started::Failed(IoError::NotSupported)
            }
        }
    }

    fn end_batch(&mut self) -> Result<(), IoError> {
        Ok(())
    }

    fn poll(&mut self, _: &mut Vec<Completion>) {}
}

fn reads_at(offset: u64, count: u64) -> Vec<u8> {
    let header = |cookie| Header {
        flags: 0,
        command: command::READ,
        cookie,
        offset,
        length: 512,
    };
    (0..count)
        .flat_map(|cookie| header(cookie).encode())
        .collect()
}

/// The device once accepted only requests of the client with many, or of the latest one.
#[test]
fn clients_of_a_busy_device_get_equal_turns_however_many_requests_they_send() {
    let limits = Limits::default();
    let mut service = Service::new(OneAtATime::default(), limits);
    // One client sends many requests at once; two send the next one after a reply.
    let clients = [(0, 1000), (512, 1), (1024, 1)].map(|(offset, count)| {
        let client = Scripted::new(reads_at(offset, count));
        let key = service.open(client.pipe(), Settings::default(), &[], &[]);
        (offset, client, key)
    });
    let mut replied = [0; 3];
    for round in 0..900 {
        // The device is free in every third turn.
        service.state().device.is_free = round % 3 == 0;
        service.turn();
        for ((offset, client, key), replied) in clients.iter().zip(&mut replied) {
            let replies = client.replies();
            if *offset > 0 && replies > *replied {
                client.send(&reads_at(*offset, 1));
            }
            *replied = replies;
            service.ready(Ready {
                key: *key,
                readable: true,
                writable: true,
                hung_up: false,
            });
        }
    }
    let reads = service.state().device.reads;
    assert_eq!(reads.iter().sum::<u64>(), 300);
    assert!(reads.iter().all(|count| *count >= 90), "{reads:?}");
}
