//! The messages between two NICs before they share memory, and when they share more of it.

use std::os::fd::{BorrowedFd, OwnedFd};

use super::Refusal;
use crate::id::{Incarnation, NodeId};
use crate::passing::{MAGIC, Passed, Socket};
use crate::shm::lane::Shape;

/// Version of the messages, and of the directions' layout.
const VERSION: u64 = 2;
/// Words of a greeting.
const WORDS: usize = 8;

/// The kind of a greeting.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u64)]
pub(super) enum Kind {
    /// Sent by the connecting node, with the segment and the end of a channel for wake-ups.
    Hello = 1,
    /// The answer of the listening node.
    Welcome = 2,
}

/// A node's number and incarnation, and the shape of its directions.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Greeting {
    pub(super) kind: Kind,
    pub(super) node: NodeId,
    pub(super) incarnation: Incarnation,
    pub(super) shape: Shape,
}

impl Greeting {
    fn emit(&self) -> [u64; WORDS] {
        let Shape { slots, areas, mtu } = self.shape;
        [
            MAGIC,
            VERSION,
            self.kind as u64,
            self.node.0.into(),
            self.incarnation.0.into(),
            slots as u64,
            areas as u64,
            mtu as u64,
        ]
    }

    fn parse(words: [u64; WORDS]) -> Option<Self> {
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

/// The kind of a message that passes memory.
const MEMORY: u64 = 3;

/// Passes memory of `bytes` bytes, under a name of two words.
pub(in crate::shm) fn pass(
    socket: &Socket,
    [first, second]: [u64; 2],
    bytes: usize,
    file: BorrowedFd<'_>,
) -> rustix::io::Result<()> {
    let words: [u64; WORDS] = [MAGIC, VERSION, MEMORY, first, second, bytes as u64, 0, 0];
    socket.send(&words, &[file])
}

/// Receives passed memory: its name, its bytes and its file.
pub(super) fn take(socket: &Socket) -> Result<([u64; 2], usize, OwnedFd), Refusal> {
    let (words, descriptors) = socket.receive::<WORDS>()?.ok_or(Refusal)?;
    let [MAGIC, VERSION, MEMORY, first, second, bytes, 0, 0] = words else { return Err(Refusal) };
    let [file]: [Passed; 1] = descriptors.try_into().map_err(|_| Refusal)?;
    let file = file.memory().ok_or(Refusal)?;
    Ok(([first, second], usize::try_from(bytes).map_err(|_| Refusal)?, file))
}

/// Sends a greeting with descriptors.
pub(super) fn send(
    socket: &Socket,
    greeting: &Greeting,
    descriptors: &[BorrowedFd<'_>],
) -> Result<(), Refusal> {
    Ok(socket.send(&greeting.emit(), descriptors)?)
}

/// Receives a greeting with exactly `N` descriptors.
pub(super) fn receive<const N: usize>(socket: &Socket) -> Result<(Greeting, [Passed; N]), Refusal> {
    let (words, descriptors) = socket.receive()?.ok_or(Refusal)?;
    let greeting = Greeting::parse(words).ok_or(Refusal)?;
    let descriptors = descriptors.try_into().map_err(|_| Refusal)?;
    Ok((greeting, descriptors))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_greeting_is_parsed_as_emitted_and_changed_words_parse_or_are_refused(
            node: u16, number: u32, slots: u32, areas: u32, mtu: u32, at in 0_usize..WORDS, word: u64,
        ) {
            let shape = Shape { slots: slots as usize, areas: areas as usize, mtu: mtu as usize };
            let (node, incarnation) = (NodeId(node), Incarnation(number));
            let greeting = Greeting { kind: Kind::Welcome, node, incarnation, shape };
            let mut words = greeting.emit();
            prop_assert_eq!(Greeting::parse(words), Some(greeting));
            words[at] = word;
            if let Some(other) = Greeting::parse(words) {
                prop_assert_eq!(other.emit(), words);
            }
        }
    }
}
