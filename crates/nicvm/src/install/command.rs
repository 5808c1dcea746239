//! What hosts ask of an installer, and why it may not come about.

use midplane_simhw::id::{ExtensionId, NodeId};
use midplane_simhw::port::{Command, Completion, Status};
use midplane_simhw::region::RegionRef;

use super::{Context, INSTALLER};

/// Installs the module in `region` under the number of argument 0, with the [`Policy`] of argument 1;
/// completes when it runs on all members (argument 0: its epoch, 1: how many members), or with
/// [`Status::Refused`] when one has refused (argument 0: which, 1: a [`Refusal`]).
pub const INSTALL: u8 = 1;
/// Goes back to the version before of the number of argument 0, everywhere.
pub const ROLL_BACK: u8 = 2;
/// Takes down what runs under the number of argument 0, everywhere.
pub const QUARANTINE: u8 = 3;
/// Writes what is installed here into `region`: [`Listed`](super::Listed) lines, one after another.
pub const LIST: u8 = 4;

/// What follows when an extension fails on some node.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[repr(u8)]
pub enum Policy {
    /// It stays down there.
    #[default]
    Deactivate = 0,
    /// The cluster goes back to the version before.
    RollBack = 1,
    /// It is started afresh there, after a while that doubles each time, up to eight times.
    Restart = 2,
}

impl Policy {
    pub(super) const fn of(number: u64) -> Option<Self> {
        Some(match number {
            0 => Self::Deactivate,
            1 => Self::RollBack,
            2 => Self::Restart,
            _ => return None,
        })
    }
}

/// Why a change did not come about.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u8)]
#[non_exhaustive]
pub enum Refusal {
    /// The module is none for that node, or has failed its checks.
    Module = 1,
    /// Another change is under way there.
    Busy = 2,
    /// The node is gone.
    Lost = 3,
    /// The version that is to run is not there.
    Absent = 4,
    /// It has run a later version since.
    Late = 5,
}

impl Refusal {
    const ALL: [Self; 5] = [Self::Module, Self::Busy, Self::Lost, Self::Absent, Self::Late];

    pub(super) fn of(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|refusal| *refusal as u8 == number)
    }
}

/// A command that installs a module everywhere.
#[must_use]
pub fn install(number: ExtensionId, policy: Policy, module: RegionRef, cookie: u64) -> Command {
    let args = [number.0.into(), policy as u64, 0];
    let (extension, opcode) = (INSTALLER, INSTALL);
    Command { extension, opcode, region: module, cookie, args, ..Command::default() }
}

/// A command about an installed extension: [`ROLL_BACK`], [`QUARANTINE`].
#[must_use]
pub fn about(opcode: u8, number: ExtensionId, cookie: u64) -> Command {
    let args = [number.0.into(), 0, 0];
    Command { extension: INSTALLER, opcode, cookie, args, ..Command::default() }
}

/// A command that lists what is installed on this node.
#[must_use]
pub fn list(region: RegionRef, cookie: u64) -> Command {
    Command { extension: INSTALLER, opcode: LIST, region, cookie, ..Command::default() }
}

pub(super) fn refuse(nic: &mut Context<'_>, command: &Command, who: NodeId, refusal: Refusal) {
    let args = [who.0.into(), refusal as u64, 0, 0];
    nic.complete(
        command.region.port,
        &Completion { args, ..Completion::of(command, Status::Refused) },
    );
}
