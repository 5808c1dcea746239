//! What hosts ask of their NICs' group.

use midplane_simhw::port::Command;
use midplane_simhw::region::RegionRef;

use super::{COLLECTIVES, Operation};

/// Completes when all members have given it.
pub const BARRIER: u8 = 1;
/// Copies the region of the root (argument 0, a rank) to all members' regions of the same length.
pub const BROADCAST: u8 = 2;
/// Combines the words of all members' regions in the root's (argument 0) by an [`Operation`]
/// (argument 1). Where they are not as many it ends as [`Status::Truncated`] for who was to have the result,
/// with the bytes of one that brings others.
///
/// [`Status::Truncated`]: midplane_simhw::port::Status::Truncated
pub const REDUCE: u8 = 3;
/// The same, into everybody's.
pub const ALL_REDUCE: u8 = 4;
/// Collects all members' parts, argument 0 bytes each, the own one in its place in the region.
pub const ALL_GATHER: u8 = 5;

/// Takes the group for the command's port: others' commands are refused until that closes. Arguments 0
/// and 1 are what the host takes for its rank and for the group's size.
pub const HOLD: u8 = 6;
/// Completes when all members hold the group: the next operation is the same at all of them, whatever they
/// did before.
pub const START: u8 = 7;

/// A command that waits for all members.
#[must_use]
pub fn barrier(cookie: u64) -> Command {
    Command { extension: COLLECTIVES, opcode: BARRIER, cookie, ..Command::default() }
}

/// A command that brings the root's bytes to everybody.
#[must_use]
pub fn broadcast(root: u16, region: RegionRef, cookie: u64) -> Command {
    let args = [root.into(), 0, 0];
    Command {
        extension: COLLECTIVES,
        opcode: BROADCAST,
        region,
        cookie,
        args,
        ..Command::default()
    }
}

/// A command that combines everybody's words at the root.
#[must_use]
pub fn reduce(root: u16, operation: Operation, region: RegionRef, cookie: u64) -> Command {
    let args = [root.into(), operation as u64, 0];
    Command { extension: COLLECTIVES, opcode: REDUCE, region, cookie, args, ..Command::default() }
}

/// A command that combines everybody's words everywhere.
#[must_use]
pub fn all_reduce(operation: Operation, region: RegionRef, cookie: u64) -> Command {
    Command { opcode: ALL_REDUCE, ..reduce(0, operation, region, cookie) }
}

/// A command that collects everybody's part of `bytes`.
#[must_use]
pub fn all_gather(bytes: usize, region: RegionRef, cookie: u64) -> Command {
    let args = [bytes as u64, 0, 0];
    Command {
        extension: COLLECTIVES,
        opcode: ALL_GATHER,
        region,
        cookie,
        args,
        ..Command::default()
    }
}

/// A command that takes the group for its port, if the NIC too takes it for member `rank` of `size`.
/// [`Status::Invalid`] if not, [`Status::Refused`] while another port holds it.
///
/// When the port closes, operations that it has not given, or that have not ended here, end with
/// [`Status::PeerLost`] at the others; and as long as it is open, so do all that follow the death of a
/// member. The completion of such an operation has the member's rank as its first argument.
///
/// [`Status::Invalid`]: midplane_simhw::port::Status::Invalid
/// [`Status::Refused`]: midplane_simhw::port::Status::Refused
/// [`Status::PeerLost`]: midplane_simhw::port::Status::PeerLost
#[must_use]
pub fn hold(rank: u16, size: u16, cookie: u64) -> Command {
    let args = [rank.into(), size.into(), 0];
    Command { extension: COLLECTIVES, opcode: HOLD, cookie, args, ..Command::default() }
}

/// A command that waits until all members hold the group; operations follow. It waits for ever for a
/// member that does not: agree beforehand that all have completed [`hold`].
#[must_use]
pub fn start(cookie: u64) -> Command {
    Command { extension: COLLECTIVES, opcode: START, cookie, ..Command::default() }
}
