//! Any bytes as a module: both engines take it or neither does, nothing of it reaches the host, and each of
//! its commands ends once. With an even first byte the rest stands for a module that starts (see the
//! generator): then both engines do the same.
#![no_main]

#[path = "../../crates/nicvm/tests/desk/mod.rs"]
mod desk;
#[path = "../../crates/nicvm/tests/generator/mod.rs"]
mod generator;

use desk::Effect;
use libfuzzer_sys::fuzz_target;
use midplane_nicvm::sandbox::Engine;

fuzz_target!(|bytes: &[u8]| {
    let Some((kind, rest)) = bytes.split_first() else { return };
    let generated = kind % 2 == 0;
    let module = if generated { generator::text(rest).into_bytes() } else { rest.to_vec() };
    let traces = Engine::ALL.map(|engine| generator::trace(engine, &module));
    assert_eq!(traces[0].is_some(), traces[1].is_some(), "one engine takes it");
    assert!(!generated || traces[0].is_some(), "what is generated starts");
    // Others may run out of fuel, which the engines count differently.
    assert!(!generated || traces[0] == traces[1], "the engines differ");
    for (effects, _) in traces.iter().flatten() {
        let mut ends = [0; 4];
        for effect in effects {
            if let Effect::Completed(_, done) = effect {
                ends[done.cookie as usize] += 1;
            }
        }
        assert_eq!(ends, [1; 4], "each command ends once");
    }
});
