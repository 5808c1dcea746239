//! An extension that reports how many frames the memory of its node has received, in virtual time and live.

use midplane::nicvm::context::Context;
use midplane::nicvm::extension::{Extension, FIRST_USER_EXTENSION};
use midplane::simhw::id::ExtensionId;
use midplane::simhw::port::{Command, Completion, Port, Status};
use midplane::warp::memory::extension::MERMERA;
use midplane_kit::report::Failure;

/// The extension's number.
pub const FRAMES: ExtensionId = ExtensionId(FIRST_USER_EXTENSION.0 + 6);

/// Completes every command with the number of received frames in argument 0.
#[derive(Debug)]
pub struct Frames;

impl Extension for Frames {
    fn on_command(&mut self, nic: &mut Context<'_>, command: Command) {
        let args = [nic.counters(MERMERA).frames, 0, 0, 0];
        let done = Completion { args, ..Completion::of(&command, Status::Done) };
        nic.complete(command.region.port, &done);
    }
}

/// Returns the number of frames that the memory has received on the node of `port`, which has no other commands.
pub async fn count(port: &mut Port) -> Result<u64, Failure> {
    let command = Command { extension: FRAMES, ..Command::default() };
    port.submit(&command).map_err(Failure::of_run)?;
    Ok(port.completion().await.map_err(Failure::of_run)?.args[0])
}
