#![no_main]

#[path = "../../crates/via/tests/hostile/mod.rs"]
mod hostile;
#[path = "../checks/messages.rs"]
mod messages;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| messages::run(bytes));
