//! The commands of the collective operations.

use midplane_simhw::port::Command;
use midplane_simhw::region::RegionRef;

use super::{COLLECTIVES, Operation};

/// Opcode: completes when all members have posted it.
pub(crate) const BARRIER: u8 = 1;
/// Opcode: copies the region of the root (argument 0, a rank) to all members' regions of the same length.
pub const BROADCAST: u8 = 2;
/// Opcode: combines the words of all members' regions in the root's region (argument 0: its rank) by an [`Operation`]
/// (argument 1). If the members' lengths differ, it ends as [`Status::Truncated`] at the members that receive the
/// result; the completion's length is that of a member that differs.
///
/// [`Status::Truncated`]: midplane_simhw::port::Status::Truncated
pub(crate) const REDUCE: u8 = 3;
/// Opcode: as [`REDUCE`], but the result goes into all members' regions.
pub(crate) const ALL_REDUCE: u8 = 4;
/// Opcode: collects all members' parts, of argument 0 bytes each; part r lies at offset r times that length in every
/// member's region.
pub(crate) const ALL_GATHER: u8 = 5;

/// Opcode: reserves the group for the command's port: other ports' commands are refused until it closes. Arguments 0
/// and 1 are the rank and the group size that the host expects.
pub const HOLD: u8 = 6;
/// Opcode: completes when all members hold the group. The next operation has the same number at all of them, whatever
/// they did before.
pub const START: u8 = 7;

/// Builds a command that waits for all members.
#[must_use]
pub fn barrier(cookie: u64) -> Command {
    Command { extension: COLLECTIVES, opcode: BARRIER, cookie, ..Command::default() }
}

/// Builds a command that copies the root's bytes to all members.
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

/// Builds a command that combines all members' words at the root.
#[must_use]
pub fn reduce(root: u16, operation: Operation, region: RegionRef, cookie: u64) -> Command {
    let args = [root.into(), operation as u64, 0];
    Command { extension: COLLECTIVES, opcode: REDUCE, region, cookie, args, ..Command::default() }
}

/// Builds a command that combines all members' words at every member.
#[must_use]
pub fn all_reduce(operation: Operation, region: RegionRef, cookie: u64) -> Command {
    Command { opcode: ALL_REDUCE, ..reduce(0, operation, region, cookie) }
}

/// Builds a command that collects every member's part of `bytes` bytes.
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

/// Builds a command that reserves the group for its port, if the NIC is configured as member `rank` of `size`.
/// Otherwise it ends as [`Status::Invalid`], and while another port holds the group, as [`Status::Refused`].
///
/// When the port closes, operations that it has not posted, or that have not ended here, end with [`Status::PeerLost`]
/// at the other members. While the port is open, so do all operations that follow the death of a member. The completion
/// of such an operation has the lost member's rank as its first argument.
///
/// [`Status::Invalid`]: midplane_simhw::port::Status::Invalid
/// [`Status::Refused`]: midplane_simhw::port::Status::Refused
/// [`Status::PeerLost`]: midplane_simhw::port::Status::PeerLost
#[must_use]
pub fn hold(rank: u16, size: u16, cookie: u64) -> Command {
    let args = [rank.into(), size.into(), 0];
    Command { extension: COLLECTIVES, opcode: HOLD, cookie, args, ..Command::default() }
}

/// Builds a command that waits until all members hold the group; operations may follow. It waits forever for a member
/// that does not hold it, so the hosts must agree beforehand that all have completed [`hold`].
#[must_use]
pub fn start(cookie: u64) -> Command {
    Command { extension: COLLECTIVES, opcode: START, cookie, ..Command::default() }
}
