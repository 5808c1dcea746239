//! The scenarios of MPICH's point-to-point tests under their names, written anew, for any engine.
//!
//! Each is a program that all ranks run; a panic is a failure. Sizes above memory's are scaled down.

pub(crate) mod breaking;
pub(crate) mod buffered;
pub(crate) mod cancelling;
pub(crate) mod collective;
pub(crate) mod exchange;
pub(crate) mod failures;
pub(crate) mod harness;
pub(crate) mod list;
pub(crate) mod null;
pub(crate) mod probing;
pub(crate) mod selves;
pub(crate) mod several;
pub(crate) mod volume;
pub(crate) mod windows;

use std::future::Future;
use std::pin::Pin;

use midplane_via::message::communicator::Communicator;
use midplane_via::message::envelope::Tag;
use midplane_via::message::group::Rank;
use midplane_via::message::request::Load;

/// One type for all carriers of packets: for each further type, all scenarios would be compiled again.
pub(crate) type World = Communicator;
/// The program of each process.
pub(crate) type Program = dyn Fn(World) -> Pin<Box<dyn Future<Output = ()> + Send>> + Send + Sync;

pub(crate) const ANY: Option<Rank> = None;
pub(crate) const ANY_TAG: Option<Tag> = None;

pub(crate) fn tag(tag: u32) -> Tag {
    Tag(tag)
}

pub(crate) fn rank(rank: u32) -> Rank {
    Rank(rank)
}

/// Returns bytes that depend on the number of their message.
pub(crate) fn text(number: u32, length: usize) -> Vec<u8> {
    let block: [u8; 256] = std::array::from_fn(|i| (i as u32 * 31 + number * 7) as u8);
    let mut bytes = block.repeat(length.div_ceil(block.len()));
    bytes.truncate(length);
    bytes
}

pub(crate) fn room(room: usize) -> Load<'static> {
    Load::Room { room, storage: Vec::new() }
}
