//! Any packets from processes of one's job: messages neither panic nor pass the memory that they may keep.
#![no_main]

#[path = "../../crates/via/tests/hostile/mod.rs"]
mod hostile;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| hostile::packets::run(&hostile::packets::steps(bytes)));
