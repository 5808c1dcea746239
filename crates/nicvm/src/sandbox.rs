//! Untrusted extensions: core WebAssembly modules, metered and bounded.
//!
//! A module exports the handlers of [`Extension`] that it needs, and may use only the functions in the table below: no
//! clock but the unit's, no threads, no floating point. The effects of a handler are carried out when it returns. If it
//! traps or runs out of fuel, they are dropped, and the extension is quarantined. Numbers are 32 bits wide unless
//! marked.
//!
//! | a module exports | meaning |
//! |---|---|
//! | `memory` | its memory, up to [`Limits::memory`] |
//! | global `nicvm` | [`VERSION`] of this interface |
//! | global `mailbox` | address of [`MAILBOX_BYTES`] bytes in which handlers find their message |
//! | `init()`, `deactivate()` | the first and the last handler |
//! | `on_command(ticket, opcode, flags, node, port, length)` | a command: its three arguments and its cookie, 8 bytes each, then up to [`COMMAND_BYTES`] bytes of its region, `length` of them |
//! | `on_control(from, length)` | a control message |
//! | `on_data(from, port, length)` | a data frame: its bytes up to the mailbox's size |
//! | `on_timeout(number)` | a timeout |
//! | globals `state`, `state_bytes` | address and size of the memory that is passed to the next version |
//! | `export()`, `import(length)` | called before the state is read, and after it was written |
//!
//! | a module may import from `nic` | meaning |
//! |---|---|
//! | `send_control(to, address, length)` | sends a control message, to at most 256 nodes in all |
//! | `send_data(to, port, address, length)` | sends a data frame, up to [`MAILBOX_BYTES`] |
//! | `set_timeout(number, coarse, nanoseconds: i64)` | sets a timeout |
//! | `cancel_timeout(number)` | cancels a timeout |
//! | `complete(ticket, status, length: i64, first: i64, second: i64)` | completes a command |
//! | `write(ticket, offset, address, length)` | writes into a command's region |
//! | `now() -> i64`, `node()`, `random() -> i64` | time in ns; this node; random, the same on each engine |
//!
//! Functions with an effect return 0, or -1 if a limit is reached or a right is missing. A ticket names one command and
//! its region until the command is completed; other tickets are refused.
//!
//! Modules run on either of two [`Engine`]s, which agree on all that a module does within its fuel. They count fuel a
//! little differently, by operator or by block of operators. So the time that a handler takes on a simulated NIC is
//! computed from its calls, not from its fuel; after a trap, it is that of all its fuel.

mod engines;
mod state;

use std::sync::Arc;
use std::time::Duration;

use midplane_simhw::frame::Frame;
use midplane_simhw::hardware::Source;
use midplane_simhw::id::{NodeId, PortId};
use midplane_simhw::port::Command;
use midplane_simhw::region::Payload;
use thiserror::Error;

use crate::context::Context;
use crate::control::MAX_MESSAGE;
use crate::extension::{Extension, ImportError, InitError, TimeoutId};
use crate::install::Loader;
use crate::timeout::Service;
use crate::transmit::Packet;
use engines::Machine;
use state::{Effect, State};

pub use engines::{Code, Engine};

/// The version of the interface that modules are built for.
pub const VERSION: i32 = 1;
/// Bytes of a module's mailbox.
pub const MAILBOX_BYTES: usize = 256;
/// Bytes of a command's region that its handler finds in the mailbox.
pub const COMMAND_BYTES: usize = MAILBOX_BYTES - 32;
/// Most bytes of a module.
pub const MAX_MODULE: usize = 1 << 20;
/// Most bytes of state that pass from one version to the next.
pub(crate) const MAX_STATE: usize = 64 << 10;
/// Default fuel of a handler: some microseconds.
pub const DEFAULT_FUEL: u64 = 10_000;
/// Most fuel that a handler may be given.
pub const MAX_FUEL: u64 = 1_000_000;
/// Instructions charged for calling a handler, without the handler's own calls.
const CALL_INSTRUCTIONS: u64 = 100;

/// Resource limits of a module.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Limits {
    fuel: u64,
    memory: usize,
    effects: usize,
    timers: usize,
    commands: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { fuel: DEFAULT_FUEL, memory: 64 << 10, effects: 64, timers: 64, commands: 1_024 }
    }
}

impl Limits {
    /// Sets the fuel of one handler: about one for each of its operators, plus the prices of its calls. From 1 to
    /// [`MAX_FUEL`]. Default: [`DEFAULT_FUEL`].
    #[must_use]
    pub fn fuel(mut self, fuel: u64) -> Self {
        self.fuel = fuel.clamp(1, MAX_FUEL);
        self
    }

    /// Sets the most bytes of its memory. Default: 65,536.
    #[must_use]
    pub const fn memory(mut self, bytes: usize) -> Self {
        self.memory = bytes;
        self
    }

    /// Sets the most effects that one handler may ask for. Default: 64.
    #[must_use]
    pub const fn effects(mut self, count: usize) -> Self {
        self.effects = count;
        self
    }

    /// Sets the most timeouts that may be set at once. Default: 64.
    #[must_use]
    pub const fn timers(mut self, count: usize) -> Self {
        self.timers = count;
        self
    }

    /// Sets the most commands that it may hold at once; further ones are refused. Default: 1,024.
    #[must_use]
    pub const fn commands(mut self, count: usize) -> Self {
        self.commands = count;
        self
    }
}

/// Reason for which a module can't be loaded.
#[derive(Clone, Debug, Eq, Error, PartialEq)]
#[non_exhaustive]
pub enum LoadError {
    /// The module has more than [`MAX_MODULE`] bytes.
    #[error("a module has at most {MAX_MODULE} bytes, not {0}")]
    TooLong(usize),
    /// The engine does not accept the module.
    #[error("not a valid module for this NIC: {0}")]
    Invalid(String),
    /// It imports a function that is not provided, or its limits are too small to start it.
    #[error("the module can't be started: {0}")]
    Start(String),
    /// It lacks an export, or has it with another type.
    #[error("the module has no export {0:?} of the right type")]
    Export(&'static str),
    /// It was built for another version of the interface.
    #[error("the module is of version {0} of the interface, not {VERSION}")]
    Version(i32),
}

/// Returns a loader for [`install`](crate::install): modules run on `engine` within `limits`. A module is translated
/// once per process and kept.
pub fn loader(engine: Engine, limits: Limits) -> impl Loader {
    move |bytes: &[u8]| {
        let code = engines::translated(engine, bytes).map_err(|error| error.to_string())?;
        let sandbox = Sandbox::new(&code, limits).map_err(|error| error.to_string())?;
        Ok(Box::new(sandbox) as Box<dyn Extension>)
    }
}

/// A running module.
pub struct Sandbox {
    machine: Box<dyn Machine>,
    limits: Limits,
    /// The effects that are being carried out, moved out of the machine.
    effects: Vec<Effect>,
}

impl std::fmt::Debug for Sandbox {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sandbox").field("limits", &self.limits).finish_non_exhaustive()
    }
}

/// The panic payload of a failed handler: it unwinds to the unit without calling the panic hook.
struct Trapped;

impl Sandbox {
    /// Starts a module.
    ///
    /// # Errors
    /// [`LoadError`] says why it can't be started.
    pub fn new(code: &Arc<Code>, limits: Limits) -> Result<Self, LoadError> {
        let machine = code.start(State::new(limits), limits)?;
        Ok(Self { machine, limits, effects: Vec::new() })
    }

    /// Runs one handler and carries out its effects.
    fn call(&mut self, nic: &mut Context<'_>, handler: Handler) {
        let state = self.machine.state();
        state.begin(nic.node(), nic.now());
        let ended = self.machine.call(handler, self.limits.fuel);
        let spent = self.machine.state().spent();
        if ended.is_err() {
            nic.charge(self.limits.fuel);
            std::panic::resume_unwind(Box::new(Trapped));
        }
        nic.charge(CALL_INSTRUCTIONS + spent);
        self.carry_out(nic);
    }

    fn carry_out(&mut self, nic: &mut Context<'_>) {
        std::mem::swap(&mut self.effects, &mut self.machine.state().effects);
        for effect in &self.effects {
            let state = self.machine.state();
            match *effect {
                Effect::Control { to, start, length } => {
                    // The unit counts messages that a full queue refuses.
                    let _ = nic.send_control(to, state.bytes(start, length));
                }
                Effect::Data { to, port, start, length } => {
                    let source = Source::Bytes(Payload::from(state.bytes(start, length)));
                    // Data frames are unreliable: one that does not leave is lost.
                    let _ = nic.send_packet(&Packet { port, source, ..Packet::to(to) });
                }
                Effect::Set { timeout, service, nanos } => {
                    nic.set_timeout(timeout, service, Duration::from_nanos(nanos));
                }
                Effect::Cancel(timeout) => nic.cancel_timeout(timeout),
                Effect::Complete { port, completion } => nic.complete(port, &completion),
                Effect::Write { to, start, length } => {
                    if nic.write(to, Payload::from(state.bytes(start, length))).is_err() {
                        // The memory was deregistered, so no application waits for it.
                    }
                }
            }
        }
        self.effects.clear();
        self.machine.state().settle();
    }

    fn mail(&mut self, at: usize, bytes: Payload<'_>) -> usize {
        let length = bytes.len().min(MAILBOX_BYTES - at);
        let mailbox = self.machine.mailbox();
        bytes.slice(0..length).map_or(0, |part| part.copy_to(&mut mailbox[at..at + length]))
    }
}

/// A handler of a module, with its arguments.
#[derive(Clone, Copy, Debug)]
enum Handler {
    Init,
    Command([i32; 6]),
    Control(i32, i32),
    Data(i32, i32, i32),
    Timeout(i32),
    Deactivate,
    Export,
    Import(i32),
}

impl Extension for Sandbox {
    fn init(&mut self, nic: &mut Context<'_>) -> Result<(), InitError> {
        self.machine.state().seed(nic.node(), nic.extension());
        self.call(nic, Handler::Init);
        Ok(())
    }

    fn on_command(&mut self, nic: &mut Context<'_>, command: Command) {
        let mut head = [0; 32];
        let words = command.args.iter().chain([&command.cookie]);
        for (place, word) in head.chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        self.mail(0, Payload::from(&head[..]));
        let length = match nic.read(command.region) {
            Ok(bytes) if command.region.length > 0 => self.mail(head.len(), bytes),
            _ => 0,
        };
        let Some(ticket) = self.machine.state().admit(&command) else {
            nic.refuse(&command, midplane_simhw::port::Status::Refused);
            return;
        };
        let Command { opcode, flags, node, port, .. } = command;
        let arguments =
            [ticket, opcode.into(), flags.into(), node.0.into(), port.0.into(), length as i32];
        self.call(nic, Handler::Command(arguments));
    }

    fn on_control(&mut self, nic: &mut Context<'_>, from: NodeId, message: &[u8]) {
        let length = self.mail(0, Payload::from(message));
        self.call(nic, Handler::Control(from.0.into(), length as i32));
    }

    fn on_data(&mut self, nic: &mut Context<'_>, from: NodeId, frame: &Frame<'_>) {
        let length = self.mail(0, frame.payload);
        let port = frame.header.port.0.into();
        self.call(nic, Handler::Data(from.0.into(), port, length as i32));
    }

    fn on_timeout(&mut self, nic: &mut Context<'_>, timeout: TimeoutId) {
        self.machine.state().on_timeout(timeout);
        self.call(nic, Handler::Timeout(timeout.0 as i32));
    }

    fn on_port_closed(&mut self, _: &mut Context<'_>, port: PortId) {
        self.machine.state().forget(port);
    }

    fn outstanding_commands(&mut self) -> Vec<Command> {
        self.machine.state().abandon()
    }

    fn export(&mut self) -> Option<Vec<u8>> {
        self.machine.state().close();
        if self.machine.call(Handler::Export, self.limits.fuel).is_err() {
            std::panic::resume_unwind(Box::new(Trapped));
        }
        let state = self.machine.kept();
        (!state.is_empty()).then(|| state.to_vec())
    }

    fn import(&mut self, state: &[u8]) -> Result<(), ImportError> {
        let room = self.machine.kept();
        if room.len() < state.len() {
            return Err(ImportError("the module keeps fewer bytes of state"));
        }
        room[..state.len()].copy_from_slice(state);
        self.machine.state().close();
        let ended = self.machine.call(Handler::Import(state.len() as i32), self.limits.fuel);
        ended.map_err(|_| ImportError("the module trapped on it"))
    }

    fn deactivate(&mut self, nic: &mut Context<'_>) {
        self.call(nic, Handler::Deactivate);
        for command in self.machine.state().abandon() {
            nic.refuse(&command, midplane_simhw::port::Status::Cancelled);
        }
    }
}

const _: () = assert!(MAX_MESSAGE <= MAILBOX_BYTES);
