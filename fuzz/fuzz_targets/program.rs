#![no_main]

#[path = "../checks/program.rs"]
mod program;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| program::run(bytes));
