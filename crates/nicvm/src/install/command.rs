//! The installer's commands, and the reasons for which it refuses them.

use midplane_simhw::id::{ExtensionId, NodeId};
use midplane_simhw::port::{Command, Completion, Status};
use midplane_simhw::region::RegionRef;

use super::{Context, INSTALLER, Installer, MAX_MODULE, Message, hash};

/// Opcode: installs the module in `region` under the number of argument 0, with the [`Policy`] of argument 1. Completes
/// when it runs on all members (argument 0: its epoch, argument 1: the number of members), or with [`Status::Refused`]
/// if a member has refused (argument 0: the member, argument 1: a [`Refusal`]).
pub(crate) const INSTALL: u8 = 1;
/// Opcode: returns to the previous version of the number of argument 0, on all members.
pub const ROLL_BACK: u8 = 2;
/// Opcode: takes down the extension of the number of argument 0, on all members. It stays down until another version is
/// installed or rolled back to: neither its [`Policy`] nor the restart of a member runs it again. The members remember
/// this in the memory of their NICs, as they do the installed modules: if all members restart, both are lost.
pub const QUARANTINE: u8 = 3;
/// Opcode: writes the list of this node's installed extensions into `region`, as [`Listed`](super::Listed) records.
pub const LIST: u8 = 4;

/// The reaction to an extension's failure on some node.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[repr(u8)]
pub enum Policy {
    /// The extension stays down on that node, until another version is installed or the node restarts.
    #[default]
    Deactivate = 0,
    /// The cluster returns to the previous version, once no other change is under way.
    RollBack = 1,
    /// The node restarts it after a delay that doubles each time, at most eight times.
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

/// Reason for which a change was refused.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u8)]
#[non_exhaustive]
pub enum Refusal {
    /// The module is invalid on that node, or has failed its checks.
    Module = 1,
    /// Another change is under way there.
    Busy = 2,
    /// The node is down.
    Lost = 3,
    /// The version that should run is not present.
    Absent = 4,
    /// The node has run a later version since.
    Late = 5,
}

impl Refusal {
    const ALL: [Self; 5] = [Self::Module, Self::Busy, Self::Lost, Self::Absent, Self::Late];

    pub(super) fn of(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|refusal| *refusal as u8 == number)
    }
}

/// Builds a command that installs a module on all members.
#[must_use]
pub fn install(number: ExtensionId, policy: Policy, module: RegionRef, cookie: u64) -> Command {
    let args = [number.0.into(), policy as u64, 0];
    let (extension, opcode) = (INSTALLER, INSTALL);
    Command { extension, opcode, region: module, cookie, args, ..Command::default() }
}

/// Builds a command about an installed extension: [`ROLL_BACK`] or [`QUARANTINE`].
#[must_use]
#[doc(hidden)]
pub fn about(opcode: u8, number: ExtensionId, cookie: u64) -> Command {
    let args = [number.0.into(), 0, 0];
    Command { extension: INSTALLER, opcode, cookie, args, ..Command::default() }
}

/// Builds a command that lists what is installed on this node.
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

impl Installer {
    /// Handles a host's command to install a module.
    pub(super) fn install(&mut self, nic: &mut Context<'_>, command: Command) {
        let number = ExtensionId(command.args[0] as u8);
        let fits = (1..=MAX_MODULE).contains(&(command.region.length as usize));
        let module = nic.read(command.region).ok().map(|bytes| bytes.to_vec());
        let (Some(module), Some(policy), true) = (module, Policy::of(command.args[1]), fits) else {
            nic.refuse(&command, Status::Invalid);
            return;
        };
        if self.change.is_some() {
            refuse(nic, &command, nic.node(), Refusal::Busy);
            return;
        }
        let (content, length) = (hash(&module), command.region.length);
        self.modules.insert(content, module);
        self.begin(nic, number, (content, length, policy), Some(command));
    }

    /// Begins to roll back the version under a number, for a host's command or without one. Without one, does nothing
    /// while another change is under way.
    pub(super) fn roll_back(
        &mut self,
        nic: &mut Context<'_>,
        number: ExtensionId,
        command: Option<Command>,
    ) {
        let runs = self.versions.get(&number);
        let back = runs.and_then(|version| Some((version.former?, 0, version.policy)));
        match back {
            Some(back) if self.change.is_none() => self.begin(nic, number, back, command),
            _ => {
                let is_busy = self.change.is_some();
                let refusal = if is_busy { Refusal::Busy } else { Refusal::Absent };
                if let Some(command) = command {
                    refuse(nic, &command, nic.node(), refusal);
                }
            }
        }
    }

    /// Takes a version down on all members.
    pub(super) fn quarantine(&mut self, nic: &mut Context<'_>, command: &Command) {
        let number = ExtensionId(command.args[0] as u8);
        let Some(epoch) = self.versions.get(&number).map(|version| version.epoch) else {
            refuse(nic, command, nic.node(), Refusal::Absent);
            return;
        };
        self.send_to_all(nic, &Message::Withdraw { number, epoch });
        self.withdraw(nic, number, epoch);
        nic.complete(command.region.port, &Completion::of(command, Status::Done));
    }
}
