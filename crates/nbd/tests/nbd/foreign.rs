//! The server with foreign clients: libnbd, QEMU and fio.

use std::fs;
use std::io::{Read, Write};

use crate::support::{Fixture, MIB, must_run, run};
use testkit::memory_device::Misbehavior;

/// A device that is often pending or busy.
fn difficult() -> Misbehavior {
    Misbehavior {
        pending_one_in: 3,
        busy_one_in: 5,
        seed: 11,
        ..Misbehavior::default()
    }
}

/// A file with data and a hole.
fn image(fixture: &Fixture, bytes: usize) -> String {
    let path = fixture.folder.path().join("image");
    let mut file = fs::File::create(&path).expect("a new file");
    let pattern: Vec<u8> = (0..bytes / 3).map(|at| (at / 7 % 251) as u8).collect();
    file.write_all(&pattern).expect("room");
    file.set_len(bytes as u64).expect("room");
    path.to_str().expect("UTF-8").to_owned()
}

#[test]
fn nbdinfo_shows_the_capabilities() {
    let fixture = Fixture::new();
    let _export = fixture.export("disk", 8 * MIB);
    let info = must_run("nbdinfo", &[&fixture.uri("disk")]);
    for line in [
        "protocol: newstyle-fixed without TLS, using structured packets",
        "export-size: 8388608 (8M)",
        "base:allocation",
        "can_cache: true",
        "can_df: true",
        "can_fast_zero: true",
        "can_flush: true",
        "can_fua: true",
        "can_multi_conn: true",
        "can_trim: true",
        "can_zero: true",
        "block_size_minimum: 1",
        "block_size_preferred: 4096",
        "block_size_maximum: 33554432",
    ] {
        assert!(info.contains(line), "{line} is not in\n{info}");
    }
    let list = must_run("nbdinfo", &["--list", &fixture.uri("")]);
    assert!(list.contains("export=\"disk\""), "{list}");
    assert!(!run("nbdinfo", &[&fixture.uri("none")]).status.success());
}

#[test]
fn nbdcopy_reads_back_what_it_has_written() {
    let fixture = Fixture::new();
    let _plain = fixture.export("plain", 40 * MIB);
    let _hard = fixture.export_with(fixture.options("hard"), 40 * MIB, difficult());
    let image = image(&fixture, 40 * MIB);
    for name in ["plain", "hard"] {
        let uri = fixture.uri(name);
        must_run(
            "nbdcopy",
            &["--connections=4", "--requests=32", "--flush", &image, &uri],
        );
        let back = fixture.folder.path().join(name);
        must_run(
            "nbdcopy",
            &["--connections=4", &uri, back.to_str().expect("UTF-8")],
        );
        let bytes = |path: &str| {
            let mut bytes = Vec::new();
            let mut file = fs::OpenOptions::new()
                .read(true)
                .open(path)
                .expect("the file");
            file.read_to_end(&mut bytes).expect("readable");
            bytes
        };
        assert!(
            bytes(&image) == bytes(back.to_str().expect("UTF-8")),
            "{name}"
        );
    }
    let map = must_run("nbdinfo", &["--map", &fixture.uri("plain")]);
    assert!(map.contains("hole,zero"), "{map}");
}

#[test]
fn every_command_works_with_nbdsh() {
    let fixture = Fixture::new();
    let _plain = fixture.export("plain", 16 * MIB);
    let _hard = fixture.export_with(fixture.options("hard"), 16 * MIB, difficult());
    let script = r#"
import errno, os, nbd
size = h.get_size()
assert size == 16 << 20
assert h.get_structured_replies_negotiated()
assert h.can_meta_context(nbd.CONTEXT_BASE_ALLOCATION)
h.set_strict_mode(0)
# Every alignment, and lengths of several pieces.
for offset, length in [(0, 1), (511, 513), (4095, 2), (4096, 262145), (1, (3 << 20) + 7)]:
    data = os.urandom(length)
    h.pwrite(data, offset, nbd.CMD_FLAG_FUA)
    assert h.pread(length, offset) == data
    assert h.pread(length, offset, nbd.CMD_FLAG_DF) == data
whole = os.urandom(size)
for at in range(0, size, 8 << 20):
    h.pwrite(whole[at : at + (8 << 20)], at)
assert h.pread(size, 0) == whole
h.zero(100000, 1000, nbd.CMD_FLAG_NO_HOLE | nbd.CMD_FLAG_FAST_ZERO)
assert h.pread(100002, 999) == whole[999:1000] + bytes(100000) + whole[101000:101001]
h.trim(1 << 20, 1 << 20, nbd.CMD_FLAG_FUA)
assert h.pread(1 << 20, 1 << 20) == bytes(1 << 20)
h.cache(1 << 20, 0)
h.flush()
extents = []
def extent(context, offset, entries, error):
    extents.extend(entries)
h.block_status(3 << 20, 0, extent)
# From byte 1000 on zeroes were written with NO_HOLE: data.
assert extents == [1 << 20, 0, 1 << 20, 3, 1 << 20, 0], extents
def fails(expected, call, *args):
    try:
        call(*args)
    except nbd.Error as error:
        assert error.errno == expected, (error.errno, expected)
    else:
        raise AssertionError("no error, expected " + expected)
fails("EINVAL", h.pread, 1, size)
fails("ENOSPC", h.pwrite, b"x", size)
fails("ENOSPC", h.zero, 2, size - 1)
fails("EINVAL", h.trim, 2, size - 1)
fails("EINVAL", h.pread, 512, 0, 1 << 9)
assert h.pread(5, 0) == whole[:5]
"#;
    for name in ["plain", "hard"] {
        let connect = format!(
            "h.add_meta_context(nbd.CONTEXT_BASE_ALLOCATION); h.connect_uri(\"{}\")",
            fixture.uri(name)
        );
        must_run("nbdsh", &["-c", "import nbd", "-c", &connect, "-c", script]);
    }
}

#[test]
fn reads_work_with_simple_replies() {
    let fixture = Fixture::new();
    let _hard = fixture.export_with(fixture.options("hard"), 16 * MIB, difficult());
    let connect = format!(
        "h.set_request_structured_replies(False); h.connect_uri(\"{}\")",
        fixture.uri("hard")
    );
    let script = r#"
import os
assert not h.get_structured_replies_negotiated()
data = os.urandom(5 << 20)
h.pwrite(data, 777)
# Several at once: a long simple reply must be contiguous.
buffers = []
for at in range(777, 777 + (5 << 20), 1 << 20):
    buffers.append((nbd.Buffer(1 << 20), at))
    buffers.append((nbd.Buffer(100), at // 3))
commands = [h.aio_pread(buffer, at) for buffer, at in buffers]
while commands:
    commands = [command for command in commands if not h.aio_command_completed(command)]
    if commands:
        h.poll(-1)
whole = bytes(777) + data
for buffer, at in buffers:
    assert buffer.to_bytearray() == whole[at : at + buffer.size()], at
"#;
    must_run("nbdsh", &["-c", "import nbd", "-c", &connect, "-c", script]);
}

#[test]
fn qemu_io_and_qemu_img_map_work() {
    let fixture = Fixture::new();
    let _hard = fixture.export_with(fixture.options("disk"), 16 * MIB, difficult());
    let uri = fixture.uri("disk");
    let mut arguments = vec!["-f", "raw", "-t", "none"];
    for command in [
        "write -P 1 0 64k",
        "write -P 2 64k 3M",
        "write -f -P 3 4095 2",
        "write -z -u 1M 64k",
        "discard 2M 64k",
        "aio_write -P 4 4M 1M",
        "aio_write -P 5 5M 1M",
        "aio_flush",
        "flush",
        "read -P 1 0 4095",
        "read -P 3 4095 2",
        "read -P 2 128k 128k",
        "read -P 0 1M 64k",
        "read -P 0 2M 64k",
        "read -P 4 4M 1M",
        "read -P 5 5M 1M",
    ] {
        arguments.extend(["-c", command]);
    }
    arguments.push(&uri);
    let printed = must_run("qemu-io", &arguments);
    assert!(
        !printed.contains("failed") && !printed.contains("error"),
        "{printed}"
    );
    let map = must_run("qemu-img", &["map", "--output=json", "-f", "raw", &uri]);
    assert!(
        map.contains("\"data\": false") && map.contains("\"data\": true"),
        "{map}"
    );
}

#[test]
fn qemu_img_compare_finds_no_difference_after_convert() {
    let fixture = Fixture::new();
    let _hard = fixture.export_with(fixture.options("disk"), 40 * MIB, difficult());
    let image = image(&fixture, 40 * MIB);
    let uri = fixture.uri("disk");
    must_run(
        "qemu-img",
        &[
            "convert", "-n", "-W", "-m", "8", "-f", "raw", "-O", "raw", &image, &uri,
        ],
    );
    must_run(
        "qemu-img",
        &["compare", "-f", "raw", "-F", "raw", &image, &uri],
    );
}

#[test]
fn fio_verifies_its_writes() {
    let fixture = Fixture::new();
    let _hard = fixture.export_with(fixture.options("disk"), 16 * MIB, difficult());
    let uri = format!("--uri={}", fixture.uri("disk"));
    let printed = must_run(
        "fio",
        &[
            "--name=verify",
            "--ioengine=nbd",
            &uri,
            "--rw=randwrite",
            "--bsrange=512-128k",
            "--blockalign=512",
            "--iodepth=32",
            "--size=16m",
            "--verify=crc32c",
            "--verify_fatal=1",
            "--verify_state_save=0",
            "--fsync=50",
        ],
    );
    assert!(printed.contains("err= 0"), "{printed}");
}
