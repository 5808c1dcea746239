//! The two engines: one source over both, for their interfaces are the same where it counts.

mod compiled;
mod interpreted;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use super::{Handler, LoadError, MAX_MODULE, State};
use crate::install::{self, Hash};

/// What runs a module.
#[derive(Clone, Copy, Debug, Default, Eq, std::hash::Hash, Ord, PartialEq, PartialOrd)]
#[non_exhaustive]
pub enum Engine {
    /// Translated into the processor's own instructions.
    #[default]
    Compiled,
    /// Interpreted: it is there at once, runs everywhere, and checks the other one.
    Interpreted,
}

impl Engine {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Compiled, Self::Interpreted];
}

/// A module that is checked and ready to be started, any number of times.
#[derive(Debug)]
pub struct Code(Kind);

#[derive(Debug)]
enum Kind {
    Compiled(compiled::machine::Prepared),
    Interpreted(interpreted::machine::Prepared),
}

impl Code {
    /// Checks and translates a module, in binary or in text.
    ///
    /// # Errors
    /// [`LoadError`] says why it is none.
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

/// A module's code: of each content and engine once in this process.
pub(super) fn translated(engine: Engine, bytes: &[u8]) -> Result<Arc<Code>, LoadError> {
    static CODES: Mutex<BTreeMap<(Engine, Hash), Arc<Code>>> = Mutex::new(BTreeMap::new());
    let key = (engine, install::hash(bytes));
    // Held while it is translated: whoever wants the same waits for it.
    let mut codes = CODES.lock().expect("nobody panics with it");
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

/// A handler has not returned.
#[derive(Debug)]
pub(super) struct Stopped;

/// A started module on some engine.
pub(super) trait Machine: Send {
    /// Runs a handler; one that the module does not have does nothing.
    fn call(&mut self, handler: Handler, fuel: u64) -> Result<(), Stopped>;
    fn state(&mut self) -> &mut State;
    /// Where handlers find their message.
    fn mailbox(&mut self) -> &mut [u8];
    /// What goes over to the next version.
    fn kept(&mut self) -> &mut [u8];
}
