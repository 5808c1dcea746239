//! The two engines: one source file serves both, because the parts of their interfaces that it uses are the same.

mod compiled;
mod interpreted;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use super::{Handler, LoadError, MAX_MODULE, State};
use crate::install::{self, Hash};

/// The engine that runs a module.
#[derive(Clone, Copy, Debug, Default, Eq, std::hash::Hash, Ord, PartialEq, PartialOrd)]
#[non_exhaustive]
pub enum Engine {
    /// Wasmtime: translates the module into the processor's own instructions.
    #[default]
    Compiled,
    /// Wasmi: interprets the module. It starts at once, runs everywhere, and serves to check the other engine.
    Interpreted,
}

impl Engine {
    /// Both engines.
    pub const ALL: [Self; 2] = [Self::Compiled, Self::Interpreted];
}

/// A module that is checked and can be started any number of times.
#[derive(Debug)]
pub struct Code(Kind);

#[derive(Debug)]
enum Kind {
    Compiled(compiled::machine::Prepared),
    Interpreted(interpreted::machine::Prepared),
}

impl Code {
    /// Checks and translates a module, in binary or text form.
    ///
    /// # Errors
    /// [`LoadError`] says why it is not valid.
    pub fn new(engine: Engine, bytes: &[u8]) -> Result<Arc<Self>, LoadError> {
        if bytes.len() > MAX_MODULE {
            return Err(LoadError::TooLong(bytes.len()));
        }
        let kind = match engine {
            Engine::Compiled => Kind::Compiled(compiled::machine::prepare(bytes)?),
            Engine::Interpreted => Kind::Interpreted(interpreted::machine::prepare(bytes)?),
        };
        Ok(Arc::new(Self(kind)))
    }

    pub(super) fn start(
        &self,
        state: State,
        limits: super::Limits,
    ) -> Result<Box<dyn Machine>, LoadError> {
        Ok(match &self.0 {
            Kind::Compiled(prepared) => {
                Box::new(compiled::machine::start(prepared, state, limits)?)
            }
            Kind::Interpreted(prepared) => {
                Box::new(interpreted::machine::start(prepared, state, limits)?)
            }
        })
    }
}

/// Modules that are kept translated: more than a cluster runs at once.
const KEPT: usize = 64;

/// Returns a module's code; translates each module once per engine and process.
pub(super) fn translated(engine: Engine, bytes: &[u8]) -> Result<Arc<Code>, LoadError> {
    static CODES: Mutex<BTreeMap<(Engine, Hash), Arc<Code>>> = Mutex::new(BTreeMap::new());
    let key = (engine, install::hash(bytes));
    // The lock is held during translation, so a second caller waits for the result.
    let mut codes = CODES.lock().expect("nothing panics while it is locked");
    if let Some(code) = codes.get(&key) {
        return Ok(Arc::clone(code));
    }
    let code = Code::new(engine, bytes)?;
    if codes.len() >= KEPT {
        codes.pop_first();
    }
    codes.insert(key, Arc::clone(&code));
    Ok(code)
}

/// Error of a handler that did not return: it trapped, or ran out of fuel.
#[derive(Debug)]
pub(super) struct Stopped;

/// A started module on some engine.
pub(super) trait Machine: Send {
    /// Runs a handler. Does nothing if the module does not export it.
    fn call(&mut self, handler: Handler, fuel: u64) -> Result<(), Stopped>;
    fn state(&mut self) -> &mut State;
    /// Returns the memory in which handlers find their message.
    fn mailbox(&mut self) -> &mut [u8];
    /// Returns the memory that is passed to the next version.
    fn kept(&mut self) -> &mut [u8];
}
