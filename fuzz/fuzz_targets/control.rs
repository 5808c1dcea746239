#![no_main]

#[path = "../checks/control.rs"]
mod control;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| control::run(bytes));
