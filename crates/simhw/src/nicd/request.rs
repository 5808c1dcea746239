//! The messages between a client and a daemon, on one connection for each port.

use std::io;
use std::os::fd::BorrowedFd;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::SocketAddrUnix;

use crate::host::OpenError;
use crate::id::{NodeId, PortId};
use crate::listener::TIMEOUT;
use crate::passing::{MAGIC, Passed, Socket};
use crate::port::PortOptions;

/// Version of the messages, and of the layout of ports.
const VERSION: u64 = 2;
/// Words of a request or an answer.
const WORDS: usize = 8;

/// Returns the address at which the daemon of a node listens.
pub(super) fn address(name: &str, node: NodeId) -> rustix::io::Result<SocketAddrUnix> {
    SocketAddrUnix::new_abstract_name(format!("midplane/{name}/{node}/ports").as_bytes())
}

/// A request of a client.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Request {
    /// Checks that a daemon serves.
    Greet,
    /// Opens a port; at most once on each connection.
    Open(PortOptions),
    /// Requests memory for the port's regions.
    Memory { bytes: usize },
}

/// An answer of the daemon.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Answer {
    Here,
    /// Passes the port's segment, and the client's end of a channel for wake-ups.
    Opened {
        port: PortId,
        epoch: u32,
        depth: usize,
        spin_nanos: u32,
    },
    /// Passes the segment of the memory.
    Arena {
        arena: u32,
    },
    Refused(OpenError),
    /// The client has reached its memory limit, or the system has no memory.
    NoMemory,
}

impl Request {
    fn emit(self) -> [u64; WORDS] {
        let [kind, first, second, third] = match self {
            Self::Greet => [1, 0, 0, 0],
            Self::Open(options) => {
                let number = options.number.map_or(0, |number| u64::from(number.0) + 1);
                let depth = options.depth.unwrap_or(0) as u64;
                [2, number, options.depth.is_some().into(), depth]
            }
            Self::Memory { bytes } => [3, bytes as u64, 0, 0],
        };
        [MAGIC, VERSION, kind, first, second, third, 0, 0]
    }

    fn parse(words: [u64; WORDS]) -> Option<Self> {
        let [MAGIC, VERSION, kind, first, second, third, ..] = words else { return None };
        let size = |word: u64| usize::try_from(word).ok();
        match kind {
            1 => Some(Self::Greet),
            2 => {
                let mut options = PortOptions::default();
                if second != 0 {
                    options = options.depth(size(third)?);
                }
                if let Some(number) = first.checked_sub(1) {
                    options = options.number(PortId(u16::try_from(number).ok()?));
                }
                Some(Self::Open(options))
            }
            3 => Some(Self::Memory { bytes: size(first)? }),
            _ => None,
        }
    }
}

impl Answer {
    fn emit(self) -> [u64; WORDS] {
        let [kind, a, b, c, d] = match self {
            Self::Here => [1, 0, 0, 0, 0],
            Self::Opened { port, epoch, depth, spin_nanos } => {
                [2, port.0.into(), epoch.into(), depth as u64, spin_nanos.into()]
            }
            Self::Arena { arena } => [3, arena.into(), 0, 0, 0],
            Self::NoMemory => [4, 0, 0, 0, 0],
            Self::Refused(OpenError::Stopped(node)) => [5, node.0.into(), 0, 0, 0],
            Self::Refused(OpenError::Exhausted(node)) => [6, node.0.into(), 0, 0, 0],
            Self::Refused(OpenError::Taken(port)) => [7, port.0.into(), 0, 0, 0],
            Self::Refused(OpenError::Depth(depth)) => [8, depth as u64, 0, 0, 0],
            Self::Refused(OpenError::System(_)) => [9, 0, 0, 0, 0],
        };
        [MAGIC, VERSION, kind, a, b, c, d, 0]
    }

    fn parse(words: [u64; WORDS]) -> Option<Self> {
        let [MAGIC, VERSION, kind, a, b, c, d, _] = words else { return None };
        let number = |word: u64| u16::try_from(word).ok();
        Some(match kind {
            1 => Self::Here,
            2 => Self::Opened {
                port: PortId(number(a)?),
                epoch: u32::try_from(b).ok()?,
                depth: usize::try_from(c).ok()?,
                spin_nanos: u32::try_from(d).ok()?,
            },
            3 => Self::Arena { arena: u32::try_from(a).ok()? },
            4 => Self::NoMemory,
            5 => Self::Refused(OpenError::Stopped(NodeId(number(a)?))),
            6 => Self::Refused(OpenError::Exhausted(NodeId(number(a)?))),
            7 => Self::Refused(OpenError::Taken(PortId(number(a)?))),
            8 => Self::Refused(OpenError::Depth(usize::try_from(a).ok()?)),
            9 => Self::Refused(OpenError::System(io::ErrorKind::Other)),
            _ => return None,
        })
    }
}

/// For the client: sends a request and waits for the answer.
pub(super) fn ask(socket: &Socket, request: Request) -> io::Result<(Answer, Vec<Passed>)> {
    socket.send(&request.emit(), &[])?;
    let mut polled = [PollFd::new(socket, PollFlags::IN)];
    let timeout = Timespec::try_from(TIMEOUT).expect("seconds");
    loop {
        match poll(&mut polled, Some(&timeout)) {
            Ok(0) => return Err(io::ErrorKind::TimedOut.into()),
            Ok(_) => break,
            // A signal's handler has run: the answer is still to come.
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    let (words, descriptors) =
        socket.receive()?.ok_or_else(|| io::Error::from(io::ErrorKind::ConnectionAborted))?;
    let invalid = || io::Error::from(io::ErrorKind::InvalidData);
    let answer = Answer::parse(words).ok_or_else(invalid)?;
    Ok((answer, descriptors))
}

/// For the daemon: receives the next request; `None` if the client has disconnected or the request is invalid.
pub(super) fn next(socket: &Socket) -> Option<Request> {
    // A client passes no descriptors.
    if socket.brings_descriptors() {
        return None;
    }
    Request::parse(socket.receive().ok()??.0)
}

/// For the daemon: sends an answer with descriptors.
pub(super) fn answer(
    socket: &Socket,
    answer: Answer,
    descriptors: &[BorrowedFd<'_>],
) -> rustix::io::Result<()> {
    socket.send(&answer.emit(), descriptors)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn messages_are_parsed_as_emitted_and_changed_words_do_not_panic(
            depth in proptest::option::of(any::<usize>()), number in proptest::option::of(any::<u16>()),
            port: u16, epoch: u32, spin_nanos: u32, at in 0_usize..WORDS, word: u64,
        ) {
            let mut options = PortOptions::default();
            if let Some(depth) = depth {
                options = options.depth(depth);
            }
            if let Some(number) = number {
                options = options.number(PortId(number));
            }
            for request in [Request::Greet, Request::Open(options), Request::Memory { bytes: 7 }] {
                let mut words = request.emit();
                prop_assert_eq!(Request::parse(words), Some(request));
                words[at] = word;
                let _ = Request::parse(words);
            }
            let port = PortId(port);
            let answers = [
                Answer::Here,
                Answer::Opened { port, epoch, depth: 8, spin_nanos },
                Answer::Arena { arena: epoch },
                Answer::NoMemory,
                Answer::Refused(OpenError::Stopped(NodeId(3))),
                Answer::Refused(OpenError::Exhausted(NodeId(3))),
                Answer::Refused(OpenError::Taken(port)),
                Answer::Refused(OpenError::Depth(0)),
                Answer::Refused(OpenError::System(io::ErrorKind::Other)),
            ];
            for answer in answers {
                let mut words = answer.emit();
                prop_assert_eq!(Answer::parse(words), Some(answer));
                words[at] = word;
                let _ = Answer::parse(words);
            }
        }
    }
}
