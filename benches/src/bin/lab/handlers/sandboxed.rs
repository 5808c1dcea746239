//! The same handlers as WebAssembly modules.

use std::time::Instant;

use midplane::nicvm::sandbox::{Code, Engine, Limits, Sandbox};
use midplane::nicvm::unit::Unit;
use midplane::simhw::hardware::Firmware as _;
use midplane::simhw::id::PortId;

use crate::handlers::Runaway;
use crate::handlers::void::Void;

/// A module of empty handlers, and one that completes each command.
const TEXT: &str = include_str!("empty.wat");

/// A handler that never returns.
pub(crate) const ENDLESS: &str = include_str!("endless.wat");
/// Units of fuel of a handler.
pub(crate) const FUEL: u64 = 100_000;

/// A kind, its requested effects, and the function that makes its unit.
type Row = (&'static str, &'static str, Box<dyn Fn() -> Unit>);

pub(crate) fn rows() -> Vec<Row> {
    let mut rows: Vec<Row> = Vec::new();
    for (engine, kind) in [(Engine::Compiled, "wasm"), (Engine::Interpreted, "interpreter")] {
        for effects in ["nothing", "a completion"] {
            let make = move || {
                let code = Code::new(engine, TEXT.as_bytes()).expect("a module");
                crate::handlers::unit(Sandbox::new(&code, Limits::default()).expect("it starts"))
            };
            rows.push((kind, effects, Box::new(make)));
        }
    }
    rows
}

#[expect(clippy::disallowed_methods, reason = "it measures time")]
pub(crate) fn runaway() -> Vec<Runaway> {
    let kinds = [(Engine::Compiled, "wasm"), (Engine::Interpreted, "interpreter")];
    kinds
        .into_iter()
        .map(|(engine, kind)| {
            let code = Code::new(engine, ENDLESS.as_bytes()).expect("a module");
            let mut limits = Limits::default();
            limits.fuel(FUEL);
            let stop = |_| {
                let mut unit =
                    crate::handlers::unit(Sandbox::new(&code, limits).expect("it starts"));
                let mut hw = Void::new();
                hw.command.extension = crate::handlers::MINE;
                unit.on_start(&mut hw);
                hw.left = 1;
                let begin = Instant::now();
                unit.on_doorbell(&mut hw, PortId(0));
                let time = begin.elapsed();
                assert_eq!(unit.counters().traps, 1, "it was stopped");
                time.as_secs_f64() * 1e6
            };
            let mut times: Vec<f64> = (0..101).map(stop).collect();
            times.sort_by(f64::total_cmp);
            Runaway { kind, fuel: FUEL, median_us: times[50], p99_us: times[99] }
        })
        .collect()
}
