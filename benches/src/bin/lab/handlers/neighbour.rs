//! The effect of a handler that never returns on its neighbours: one neighbour gets frames at a fixed rate, while the
//! handler is called, stopped, quarantined, and restarted by the policy that restarts it most often.

use std::sync::Arc;
use std::time::Duration;

use midplane::nicvm::context::Context;
use midplane::nicvm::extension::{Extension, InitError, TimeoutId};
use midplane::nicvm::sandbox::{Code, Engine, Limits, Sandbox};
use midplane::nicvm::unit::Unit;
use midplane::simhw::frame::{Frame, Header};
use midplane::simhw::hardware::Firmware as _;
use midplane::simhw::id::{ExtensionId, NodeId, PortId};
use midplane::simhw::port::Command;
use midplane::simhw::region::Payload;
use serde::Serialize;

use crate::handlers::void::Void;
use crate::handlers::{FRAME, MINE, Native};

const RUNAWAY: ExtensionId = ExtensionId(MINE.0 + 1);
const STARTER: ExtensionId = ExtensionId(MINE.0 + 2);
/// Interval between two frames.
const EVERY: Duration = Duration::from_micros(4);
/// Frames of a run.
const FRAMES: u32 = 100_000;
/// Runs with the handler and without, alternating; each number is the median over the runs.
const RUNS: usize = 5;
/// Times of its calls in ms: the first, and one after each restart by the installer's policy.
const CALLED_MS: [u64; 5] = [5, 15, 35, 75, 155];

#[derive(Debug, Serialize)]
pub(crate) struct Neighbour {
    /// Engine that runs the handler.
    kind: &'static str,
    fuel: u64,
    p99_alone_ns: f64,
    p99_beside_ns: f64,
    /// (With the handler - alone) / alone, of the 99th percentiles.
    moved: f64,
}

impl Neighbour {
    pub(crate) fn line(&self) -> String {
        let Self { kind, fuel, p99_alone_ns, p99_beside_ns, moved } = self;
        format!(
            "{kind:<12} beside a handler without end ({fuel} units of fuel): p99 of a neighbour's frames {p99_beside_ns:.0} ns, alone {p99_alone_ns:.0} ns: {:+.1} %\n",
            moved * 100.0
        )
    }
}

/// Restarts the handler, as the installer does.
struct Starter {
    code: Arc<Code>,
    limits: Limits,
}

impl Extension for Starter {
    fn init(&mut self, _: &mut Context<'_>) -> Result<(), InitError> {
        Ok(())
    }

    fn on_command(&mut self, nic: &mut Context<'_>, _: Command) {
        let sandbox = Sandbox::new(&self.code, self.limits).expect("it starts");
        nic.replace(RUNAWAY, nic.epoch(), Box::new(sandbox));
    }

    fn on_control(&mut self, _: &mut Context<'_>, _: NodeId, _: &[u8]) {}
    fn on_data(&mut self, _: &mut Context<'_>, _: NodeId, _: &Frame<'_>) {}
    fn on_timeout(&mut self, _: &mut Context<'_>, _: TimeoutId) {}
    fn deactivate(&mut self, _: &mut Context<'_>) {}
}

/// Measures the effect on each engine.
pub(crate) fn all(text: &str, fuel: u64) -> Vec<Neighbour> {
    let kinds = [(Engine::Compiled, "wasm"), (Engine::Interpreted, "interpreter")];
    kinds.map(|(engine, kind)| measure(engine, kind, text, fuel)).into()
}

fn measure(engine: Engine, kind: &'static str, text: &str, fuel: u64) -> Neighbour {
    let code = Code::new(engine, text.as_bytes()).expect("a module");
    let mut limits = Limits::default();
    limits.fuel(fuel);
    let (mut alone, mut beside) = (Vec::new(), Vec::new());
    for _ in 0..RUNS {
        alone.push(run(&code, limits, &[]));
        beside.push(run(&code, limits, &CALLED_MS));
    }
    let [p99_alone_ns, p99_beside_ns] = [alone, beside].map(|mut times| {
        times.sort_by(f64::total_cmp);
        times[RUNS / 2]
    });
    let moved = p99_beside_ns / p99_alone_ns - 1.0;
    Neighbour { kind, fuel, p99_alone_ns, p99_beside_ns, moved }
}

/// Returns the 99th percentile, in nanoseconds, from when a frame is due until its handler has returned. A frame
/// starts once it is due and the one before it is done, and takes this thread's processor time, so that other work on
/// the machine does not count.
fn run(code: &Arc<Code>, limits: Limits, called_ms: &[u64]) -> f64 {
    let mut unit = Unit::default();
    let sandbox = Sandbox::new(code, limits).expect("it starts");
    unit.install(MINE, Native { completes: false }).expect("the number is free");
    unit.install(RUNAWAY, sandbox).expect("the number is free");
    let starter = Starter { code: Arc::clone(code), limits };
    unit.install(STARTER, starter).expect("the number is free");
    let mut hw = Void::new();
    unit.on_start(&mut hw);
    let bytes = [7; FRAME];
    let header = Header { extension: MINE, length: FRAME as u16, ..Header::default() };
    let mut calls = called_ms.iter().map(|ms| Duration::from_millis(*ms)).peekable();
    let mut times = Vec::with_capacity(FRAMES as usize);
    let mut done = Duration::ZERO;
    for frame in 0..FRAMES {
        let due = EVERY * frame;
        let begun = processor_time();
        if calls.next_if(|call| *call <= due).is_some() {
            // The first call, or a restart before a later one.
            let numbers =
                if unit.counters().traps == 0 { &[RUNAWAY][..] } else { &[STARTER, RUNAWAY] };
            for extension in numbers {
                hw.command.extension = *extension;
                hw.left = 1;
                unit.on_doorbell(&mut hw, PortId(0));
            }
        }
        unit.on_frame(&mut hw, Frame { header, payload: Payload::from(&bytes[..]) });
        done = done.max(due) + processor_time().saturating_sub(begun);
        times.push((done - due).as_nanos() as f64);
    }
    assert_eq!(unit.counters().traps, called_ms.len() as u64);
    times.sort_by(f64::total_cmp);
    times[times.len() * 99 / 100]
}

#[cfg(target_os = "linux")]
fn processor_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Falls back to elapsed time, which includes other work on the machine.
#[cfg(not(target_os = "linux"))]
#[expect(clippy::disallowed_methods, reason = "it measures time")]
fn processor_time() -> Duration {
    static BEGUN: std::sync::OnceLock<std::time::Instant> = std::sync::OnceLock::new();
    BEGUN.get_or_init(std::time::Instant::now).elapsed()
}
