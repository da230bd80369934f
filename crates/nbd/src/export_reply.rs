//! How the server describes an export to a client: its transmission flags and its `INFO` replies.

use super::options::put_reply;
use super::table::ExportInfo;
use super::wire::{PAYLOAD_BYTES_MAX, info, option_reply as reply, transmission_flags as flags};

/// The transmission flags of an export.
pub fn transmission_flags(info: &ExportInfo, structured: bool) -> u16 {
    let can = &info.capabilities;
    let mut set = flags::HAS_FLAGS | flags::SEND_CACHE;
    let mut add = |condition: bool, flag: u16| {
        if condition {
            set |= flag;
        }
    };
    add(info.read_only, flags::READ_ONLY);
    add(can.can_flush, flags::SEND_FLUSH | flags::SEND_FUA);
    add(can.can_trim && !info.read_only, flags::SEND_TRIM);
    // Writing zeroes is never slower than a write, on any device that supports it.
    let zeroes = flags::SEND_WRITE_ZEROES | flags::SEND_FAST_ZERO;
    add(can.can_write_zeroes && !info.read_only, zeroes);
    add(structured, flags::SEND_DF);
    add(can.can_multi_conn, flags::CAN_MULTI_CONN);
    set
}

/// Appends the size and flags of an export, and the further facts that the client requested.
pub fn put_info(
    output: &mut Vec<u8>,
    number: u32,
    about: &ExportInfo,
    info_types: &[u16],
    structured: bool,
) {
    let size = about.size_bytes.to_be_bytes();
    let flags = transmission_flags(about, structured).to_be_bytes();
    let mut put = |kind: u16, parts: &[&[u8]]| {
        let fact = [&kind.to_be_bytes()[..], &parts.concat()].concat();
        put_reply(output, number, reply::INFO, &[&fact]);
    };
    put(info::EXPORT, &[&size, &flags]);
    if info_types.contains(&info::NAME) {
        put(info::NAME, &[about.name.as_bytes()]);
    }
    if info_types.contains(&info::DESCRIPTION) && !about.description.is_empty() {
        put(info::DESCRIPTION, &[about.description.as_bytes()]);
    }
    if info_types.contains(&info::BLOCK_SIZE) {
        let preferred = about.block_bytes.max(about.block_min);
        let words = [about.block_min, preferred, PAYLOAD_BYTES_MAX].map(u32::to_be_bytes);
        put(info::BLOCK_SIZE, &[&words.concat()]);
    }
}
