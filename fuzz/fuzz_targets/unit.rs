#![no_main]

#[path = "../checks/unit.rs"]
mod unit;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| unit::run(bytes));
