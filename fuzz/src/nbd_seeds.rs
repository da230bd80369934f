//! Seeds of the NBD targets: messages of a client and of a server.

/// The bytes of an option.
fn option(number: u32, body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(body.len()).expect("short");
    [
        b"IHAVEOPT",
        &number.to_be_bytes()[..],
        &length.to_be_bytes(),
        body,
    ]
    .concat()
}

const GO: u32 = 7;

fn go() -> Vec<u8> {
    [&3_u32.to_be_bytes()[..], b"one", &[0, 1, 0, 3]].concat()
}

pub fn nbd_option_seeds() -> Vec<Vec<u8>> {
    let contexts = [
        &3_u32.to_be_bytes()[..],
        b"one",
        &[0, 0, 0, 1, 0, 0, 0, 15],
        b"base:allocation",
    ];
    vec![
        [&GO.to_be_bytes()[..], &go()].concat(),
        [&10_u32.to_be_bytes()[..], &contexts.concat()].concat(),
        [&1_u32.to_be_bytes()[..], b"one"].concat(),
        8_u32.to_be_bytes().to_vec(),
    ]
}

pub fn nbd_handshake_seeds() -> Vec<Vec<u8>> {
    // A byte with the server's configuration, then the client's flags.
    let begin = [8, 0, 0, 0, 3];
    vec![
        [&begin[..], &option(8, b""), &option(GO, &go())].concat(),
        [
            &begin[..],
            &option(3, b""),
            &option(6, &go()),
            &option(2, b""),
        ]
        .concat(),
        [&[4, 0, 0, 0, 3][..], &option(5, b""), &option(GO, &go())].concat(),
    ]
}

/// The server's bytes in the handshake, after a byte that decides about TLS.
pub fn nbd_greeting_seeds() -> Vec<Vec<u8>> {
    let reply = |option: u32, kind: u32, data: &[u8]| {
        let words = [option, kind, data.len() as u32].map(u32::to_be_bytes);
        [
            &0x0003_e889_0455_65a9_u64.to_be_bytes(),
            &words.concat()[..],
            data,
        ]
        .concat()
    };
    let greeting = b"NBDMAGICIHAVEOPT\0\x03";
    let export = [&[0, 0][..], &(1_u64 << 20).to_be_bytes(), &[4, 0xff]].concat();
    let blocks = [0_u16, 3, 0, 512, 0, 4096, 512, 0].map(u16::to_be_bytes);
    let new = [
        reply(8, 1, &[]),
        reply(10, 4, b"\0\0\0\x07base:allocation"),
        reply(10, 1, &[]),
        reply(7, 3, &export),
        reply(7, 3, &blocks.concat()[2..]),
        reply(7, 1, &[]),
    ]
    .concat();
    let none = |option| reply(option, 1 << 31 | 1, b"no");
    let old = [&none(8)[..], &none(7), &export[2..], &[0; 124]].concat();
    vec![
        [&[0][..], greeting, &new].concat(),
        [&[0][..], greeting, &old].concat(),
        [&[1][..], greeting, &reply(5, 1, &[])].concat(),
    ]
}

/// Replies to a read, a block status and a flush.
pub fn nbd_replies_seeds() -> Vec<Vec<u8>> {
    let chunk = |flags: u8, kind: u16, cookie: u8, body: &[u8]| {
        [
            &[0x66, 0x8e, 0x33, 0xef, 0, flags][..],
            &kind.to_be_bytes(),
            &[0, 0, 0, 0, 0, 0, 0, cookie],
            &(body.len() as u32).to_be_bytes(),
            body,
        ]
        .concat()
    };
    let simple = |cookie| [&[0x67, 0x44, 0x66, 0x98][..], &[0; 11], &[cookie]].concat();
    let extents = [7, 256, 0, 1 << 20, 3].map(u32::to_be_bytes).concat();
    let structured = [
        chunk(0, 1, 0, &[&[0; 8][..], &[5; 256]].concat()),
        chunk(0, 2, 0, &[0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1, 0]),
        chunk(1, 5, 1, &extents),
        chunk(1, 0, 0, &[]),
        chunk(1, 0x8001, 3, &[0, 0, 0, 5, 0, 1, b'x']),
        simple(2),
    ]
    .concat();
    let plain = [&simple(2)[..], &simple(0), &[9; 512]].concat();
    vec![
        [&[1][..], &structured].concat(),
        [&[41][..], &structured].concat(),
        [&[6][..], &plain].concat(),
    ]
}

pub fn nbd_transmission_seeds() -> Vec<Vec<u8>> {
    let request = |command: u16, flags: u16, offset: u64, length: u32| {
        [
            &0x2560_9513_u32.to_be_bytes()[..],
            &flags.to_be_bytes(),
            &command.to_be_bytes(),
            &offset.to_be_bytes(),
            &offset.to_be_bytes(),
            &length.to_be_bytes(),
        ]
        .concat()
    };
    let write = [request(1, 1, 8192, 4096), vec![5; 4096]].concat();
    let all = [
        write.clone(),
        request(0, 0, 8192, 4096),
        request(3, 0, 0, 0),
        request(4, 0, 4096, 8192),
        request(6, 2, 0, 65536),
        request(7, 0, 0, 65536),
        request(5, 0, 0, 4096),
        request(2, 0, 0, 0),
    ]
    .concat();
    [0, 3, 4, 0b0010_1011]
        .map(|first| [&[first, 1][..], &all].concat())
        .into()
}
