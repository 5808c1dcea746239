//! Modules that need no WebAssembly: the text "native: counter STEP" names the built-in one.

use midplane::nicvm::context::Context;
use midplane::nicvm::extension::{Extension, ImportError};
use midplane::simhw::id::NodeId;
use midplane::simhw::port::{Command, Completion, Status};

/// Loads the extension that a module's bytes stand for.
///
/// # Errors
/// One line that says what is wrong with the module.
pub(crate) fn load(module: &[u8]) -> Result<Box<dyn Extension>, String> {
    let text = std::str::from_utf8(module).ok().and_then(|text| text.strip_prefix("native:"));
    let Some(text) = text else { return load_wasm(module) };
    let words: Vec<&str> = text.split_whitespace().collect();
    match words[..] {
        ["counter", step] => match step.parse() {
            Ok(step) => Ok(Box::new(Counter { step, count: 0 })),
            Err(_) => Err(format!("counter {step}: the step must be a number")),
        },
        _ => Err(format!("{:?} is not built in; try \"native: counter 1\"", text.trim())),
    }
}

#[cfg(feature = "wasm")]
fn load_wasm(module: &[u8]) -> Result<Box<dyn Extension>, String> {
    use midplane::nicvm::install::Loader;
    use midplane::nicvm::sandbox::{Engine, Limits, loader};
    loader(Engine::Compiled, Limits::default()).load(module)
}

#[cfg(not(feature = "wasm"))]
fn load_wasm(_: &[u8]) -> Result<Box<dyn Extension>, String> {
    Err("this node has no WebAssembly: build it with --features wasm, or install \"native: counter 1\"".into())
}

/// Extension that counts: opcode 1 adds its step here and at the node that the command names. Opcode 2 reads the sum, and
/// 3 panics. The sum survives an upgrade.
struct Counter {
    step: u64,
    count: u64,
}

impl Extension for Counter {
    fn on_command(&mut self, nic: &mut Context<'_>, command: Command) {
        assert!(command.opcode != 3, "asked to fail");
        if command.opcode == 1 {
            self.count += self.step;
            // A node that is down misses the step.
            let _ = nic.send_control(command.node, &self.step.to_le_bytes());
        }
        let done = Completion {
            length: self.count,
            args: [self.step, 0, 0, 0],
            ..Completion::of(&command, Status::Done)
        };
        nic.complete(command.region.port, &done);
    }

    fn on_control(&mut self, _: &mut Context<'_>, _: NodeId, message: &[u8]) {
        if let Ok(step) = message.try_into() {
            self.count = self.count.wrapping_add(u64::from_le_bytes(step));
        }
    }

    fn export(&mut self) -> Option<Vec<u8>> {
        Some(self.count.to_le_bytes().to_vec())
    }

    fn import(&mut self, state: &[u8]) -> Result<(), ImportError> {
        let state = state.try_into().map_err(|_| ImportError("a counter has eight bytes"))?;
        self.count = u64::from_le_bytes(state);
        Ok(())
    }
}
