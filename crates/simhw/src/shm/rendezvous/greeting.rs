//! What two NICs say to each other before they share memory.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::cmsg_space;
use rustix::net::sockopt::socket_peercred;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

use super::Refusal;
use crate::id::{Incarnation, NodeId};
use crate::shm::lane::Shape;

/// "MIDPLANE" in ASCII, as a little-endian word.
const MAGIC: u64 = u64::from_le_bytes(*b"MIDPLANE");
/// Version of what is said, and of the directions' layout.
const VERSION: u64 = 1;
/// Words of a greeting.
const WORDS: usize = 8;

/// Which of the two it is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u64)]
pub(super) enum Kind {
    /// With the segment and an event: from who connects.
    Hello = 1,
    /// With an event: from who was connected to.
    Welcome = 2,
}

/// Who somebody is, and what it takes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Greeting {
    pub(super) kind: Kind,
    pub(super) node: NodeId,
    pub(super) incarnation: Incarnation,
    pub(super) shape: Shape,
}

impl Greeting {
    fn emit(&self) -> [u8; WORDS * 8] {
        let Shape { slots, areas, mtu } = self.shape;
        let words = [
            MAGIC,
            VERSION,
            self.kind as u64,
            self.node.0.into(),
            self.incarnation.0.into(),
            slots as u64,
            areas as u64,
            mtu as u64,
        ];
        let mut bytes = [0; WORDS * 8];
        for (chunk, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(words) {
            *chunk = word.to_le_bytes();
        }
        bytes
    }

    fn parse(bytes: &[u8; WORDS * 8]) -> Option<Self> {
        let mut words = [0; WORDS];
        for (word, chunk) in words.iter_mut().zip(bytes.as_chunks::<8>().0) {
            *word = u64::from_le_bytes(*chunk);
        }
        let [MAGIC, VERSION, kind, node, incarnation, slots, areas, mtu] = words else {
            return None;
        };
        let kind = [Kind::Hello, Kind::Welcome].into_iter().find(|known| *known as u64 == kind)?;
        let size = |word: u64| usize::try_from(word).ok();
        Some(Self {
            kind,
            node: NodeId(u16::try_from(node).ok()?),
            incarnation: Incarnation(u32::try_from(incarnation).ok()?),
            shape: Shape { slots: size(slots)?, areas: size(areas)?, mtu: size(mtu)? },
        })
    }
}

/// The user of the process at the other end, as the system knows it.
pub(super) fn user_of(socket: &OwnedFd) -> rustix::io::Result<u32> {
    Ok(socket_peercred(socket)?.uid.as_raw())
}

/// Sends a greeting and at most two descriptors with it.
pub(super) fn send(
    socket: &OwnedFd,
    greeting: &Greeting,
    descriptors: &[BorrowedFd<'_>],
) -> Result<(), Refusal> {
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(2))];
    let mut with = SendAncillaryBuffer::new(&mut space);
    if !with.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(Refusal);
    }
    let bytes = greeting.emit();
    sendmsg(socket, &[IoSlice::new(&bytes)], &mut with, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Receives a greeting with exactly `N` descriptors.
pub(super) fn receive<const N: usize>(
    socket: &OwnedFd,
) -> Result<(Greeting, [OwnedFd; N]), Refusal> {
    let mut bytes = [0; WORDS * 8];
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(2))];
    let mut with = RecvAncillaryBuffer::new(&mut space);
    let received =
        recvmsg(socket, &mut [IoSliceMut::new(&mut bytes)], &mut with, RecvFlags::CMSG_CLOEXEC)?;
    let descriptors: Vec<OwnedFd> = with
        .drain()
        .filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(all) => Some(all),
            _ => None,
        })
        .flatten()
        .collect();
    if received.bytes != bytes.len() {
        return Err(Refusal);
    }
    let greeting = Greeting::parse(&bytes).ok_or(Refusal)?;
    let descriptors = descriptors.try_into().map_err(|_| Refusal)?;
    Ok((greeting, descriptors))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_greeting_survives_and_any_bytes_are_one_or_none(
            node: u16, life: u32, slots: u32, areas: u32, mtu: u32, at in 0_usize..64, byte: u8,
        ) {
            let shape = Shape { slots: slots as usize, areas: areas as usize, mtu: mtu as usize };
            let (node, incarnation) = (NodeId(node), Incarnation(life));
            let greeting = Greeting { kind: Kind::Welcome, node, incarnation, shape };
            let mut bytes = greeting.emit();
            prop_assert_eq!(Greeting::parse(&bytes), Some(greeting));
            bytes[at] = byte;
            if let Some(other) = Greeting::parse(&bytes) {
                prop_assert_eq!(other.emit(), bytes);
            }
        }
    }
}
