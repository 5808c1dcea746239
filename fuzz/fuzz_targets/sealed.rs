#![no_main]

#[path = "../checks/sealed.rs"]
mod sealed;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| sealed::run(bytes));
