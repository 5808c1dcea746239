#![no_main]

#[path = "../checks/header.rs"]
mod header;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| header::run(bytes));
