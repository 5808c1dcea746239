//! Any data frames from a peer that has connected: interfaces neither panic nor touch memory that is not
//! open.
#![no_main]

#[path = "../../crates/via/tests/pair/forger.rs"]
#[allow(dead_code, reason = "the test asks for more")]
mod forger;
#[path = "../../crates/via/tests/pair/mod.rs"]
mod pair;

use forger::Forged;
use libfuzzer_sys::fuzz_target;

/// Bytes of the input that make one frame.
const FRAME: usize = 30;

fn forged(bytes: &[u8; FRAME]) -> Forged {
    let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
    let small = |at: usize| u32::from(u16::from_le_bytes([bytes[at], bytes[at + 1]]));
    Forged {
        destination: u16::from(bytes[0]) % 2,
        source: u16::from(bytes[1]) % 3,
        port: u16::from(bytes[2]) % 4,
        flags: bytes[3] % 128,
        sequence: small(4),
        acknowledgement: small(6),
        words: [word(8), word(16)],
        bytes: small(24) as usize % 1_400,
    }
}

fuzz_target!(|bytes: &[u8]| {
    let frames = bytes.as_chunks::<FRAME>().0.iter().map(forged).collect();
    let verdict = forger::run(frames);
    assert!(verdict.untouched, "memory that is not open was written");
    assert_eq!(verdict.traps, 0);
});
