#![no_main]

#[path = "../../crates/via/tests/hostile/mod.rs"]
mod hostile;
#[path = "../checks/interfaces.rs"]
mod interfaces;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| interfaces::run(bytes));
