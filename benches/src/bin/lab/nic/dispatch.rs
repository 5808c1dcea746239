//! Measures one call of an extension's handler, from the unit's entry point: a frame of 64 bytes a turn, with
//! containment of failures and all work of a turn. The NIC below does nothing.

use std::hint::black_box;
use std::time::Duration;

use midplane::nicvm::context::Context;
use midplane::nicvm::extension::{Extension, FIRST_USER_EXTENSION};
use midplane::nicvm::unit::Unit;
use midplane::simhw::frame::{Frame, Header};
use midplane::simhw::hardware::Firmware as _;
use midplane::simhw::id::{ExtensionId, NodeId};
use midplane::simhw::port::Command;
use midplane::simhw::region::Payload;

use super::void::Void;
use super::{BYTES, now};

/// The number of the extension whose handler is called.
const EXTENSION: ExtensionId = FIRST_USER_EXTENSION;
/// Calls between two readings of the clock.
const BATCH: u32 = 1_000;

/// A native extension of empty handlers.
struct Native;

impl Extension for Native {
    fn on_command(&mut self, _: &mut Context<'_>, _: Command) {}

    fn on_data(&mut self, _: &mut Context<'_>, _: NodeId, frame: &Frame<'_>) {
        black_box(frame.payload.len());
    }
}

fn unit(extension: impl Extension + 'static) -> Unit {
    let mut unit = Unit::default();
    unit.install(EXTENSION, extension).expect("the number is free");
    unit
}

/// Returns the nanoseconds of a call of a native handler.
pub(crate) fn native_ns(time: Duration) -> f64 {
    call_ns(unit(Native), time)
}

/// Returns the nanoseconds of a call of a compiled WebAssembly handler.
#[cfg(feature = "wasm")]
pub(crate) fn sandboxed_ns(time: Duration) -> f64 {
    use midplane::nicvm::sandbox::{Code, Engine, Limits, Sandbox};

    /// A module of empty handlers.
    const TEXT: &str = include_str!("empty.wat");
    let code = Code::new(Engine::Compiled, TEXT.as_bytes()).expect("a module");
    call_ns(unit(Sandbox::new(&code, Limits::default()).expect("it starts")), time)
}

fn call_ns(mut unit: Unit, time: Duration) -> f64 {
    let mut hw = Void;
    unit.on_start(&mut hw);
    let bytes = [7; BYTES];
    let header = Header { extension: EXTENSION, length: BYTES as u16, ..Header::default() };
    per_call_ns(time, || {
        let frame = Frame { header: black_box(header), payload: Payload::from(&bytes[..]) };
        unit.on_frame(&mut hw, frame);
    })
}

/// Returns the nanoseconds of one call, as the mean over `time` after a first batch.
fn per_call_ns(time: Duration, mut call: impl FnMut()) -> f64 {
    let mut batch = || (0..BATCH).for_each(|_| call());
    batch();
    let (begin, mut calls) = (now(), 0_u32);
    while calls == 0 || begin.elapsed() < time {
        batch();
        calls += BATCH;
    }
    begin.elapsed().as_nanos() as f64 / f64::from(calls)
}
