//! Sockets between processes of one host, and the descriptors that such processes pass to each other.
//!
//! The other end of a [`Socket`] may be hostile, and may have a copy of this end. So no call here waits for it: each
//! asks not to (`MSG_DONTWAIT`), whatever the flags of the file say, which both may change. Nor is a descriptor of
//! another process ever used, or closed on a thread that has other work, before it is known what it is: closing a file
//! may wait for who serves it, or for data that lingers.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::{OnceLock, mpsc};

use rustix::cmsg_space;
use rustix::fs::fcntl_get_seals;
use rustix::io::Errno;
use rustix::net::sockopt::{socket_domain, socket_peercred, socket_type};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, Shutdown, SocketAddrUnix, SocketFlags, SocketType, connect,
    recvmsg, sendmsg, shutdown, socket_with, socketpair,
};

/// "MIDPLANE" in ASCII, as a little-endian word: how all that is said begins.
pub(crate) const MAGIC: u64 = u64::from_le_bytes(*b"MIDPLANE");
/// Most descriptors that this side sends with a message.
const SENT: usize = 3;
/// Most descriptors that the system passes with a message.
const PASSED: usize = 253;
/// Bytes of wake-ups that are taken at once: more than a correct process has under way.
const WAKES: usize = 4_096;
/// Times that wake-ups are taken in a row: whoever sends faster is not waited for.
const ROUNDS: usize = 8;

/// A message of `W` words with its descriptors.
pub(crate) type Message<const W: usize> = ([u64; W], Vec<Passed>);

/// A descriptor that is closed on a thread of its own.
#[derive(Debug)]
struct Aside(Option<OwnedFd>);

/// This end of a connection to another process; dropping it ends the connection for both.
#[derive(Debug)]
pub(crate) struct Socket(Aside);

/// Opens a socket that keeps messages apart, and tells when the other end is gone.
pub(crate) fn seqpacket() -> rustix::io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
}

impl Socket {
    /// Takes a socket that was accepted.
    pub(crate) const fn new(socket: OwnedFd) -> Self {
        Self(Aside(Some(socket)))
    }

    /// Connects to who listens at `address`.
    pub(crate) fn connect(address: &SocketAddrUnix) -> rustix::io::Result<Self> {
        let socket = Self::new(seqpacket()?);
        connect(&socket, address)?;
        Ok(socket)
    }

    /// Makes a channel for wake-ups: this process's end, and the one to be passed on.
    pub(crate) fn pair() -> rustix::io::Result<(Self, OwnedFd)> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        Ok((Self::new(ours), theirs))
    }

    /// The user of the process at the other end, as the system knows it.
    pub(crate) fn user(&self) -> rustix::io::Result<u32> {
        Ok(socket_peercred(self)?.uid.as_raw())
    }

    /// The process that connected the other end, as the system knows it.
    pub(crate) fn process(&self) -> rustix::io::Result<u32> {
        Ok(socket_peercred(self)?.pid.as_raw_nonzero().get().unsigned_abs())
    }

    /// Sends words, and at most three descriptors with them.
    pub(crate) fn send<const W: usize>(
        &self,
        words: &[u64; W],
        descriptors: &[BorrowedFd<'_>],
    ) -> rustix::io::Result<()> {
        let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(SENT))];
        let mut with = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() && !with.push(SendAncillaryMessage::ScmRights(descriptors)) {
            return Err(Errno::INVAL);
        }
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        sendmsg(self, &[IoSlice::new(&bytes)], &mut with, flags)?;
        Ok(())
    }

    /// Receives exactly `W` words, and what descriptors came with them; `None` at the end, and of
    /// anything else.
    pub(crate) fn receive<const W: usize>(&self) -> rustix::io::Result<Option<Message<W>>> {
        let mut bytes = vec![0; W * 8];
        let (received, descriptors) = self.receive_bytes(&mut bytes)?;
        if received != bytes.len() {
            return Ok(None);
        }
        let mut words = [0; W];
        for (word, chunk) in words.iter_mut().zip(bytes.as_chunks::<8>().0) {
            *word = u64::from_le_bytes(*chunk);
        }
        Ok(Some((words, descriptors)))
    }

    fn receive_bytes(&self, bytes: &mut [u8]) -> rustix::io::Result<(usize, Vec<Passed>)> {
        // Room for all that may come: the system closes at once, and here, what finds none.
        let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(PASSED))];
        let mut with = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::TRUNC | RecvFlags::DONTWAIT;
        let received = recvmsg(self, &mut [IoSliceMut::new(bytes)], &mut with, flags)?;
        let descriptors = with
            .drain()
            .filter_map(|message| match message {
                RecvAncillaryMessage::ScmRights(all) => Some(all),
                _ => None,
            })
            .flatten()
            .map(|file| Passed(Aside(Some(file))))
            .collect();
        Ok((received.bytes, descriptors))
    }

    /// Wakes the process at the other end of a channel.
    pub(crate) fn wake(&self) {
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        // It fails if the other end has not taken as many wake-ups as fit, so that it is woken already; or is gone.
        let _ = rustix::net::send(self, b"w", flags);
    }

    /// Takes the wake-ups that have come; `false` if descriptors came with them, which nobody of ours sends.
    pub(crate) fn take_wakes(&self) -> bool {
        let mut bytes = [0; WAKES];
        for _ in 0..ROUNDS {
            match self.receive_bytes(&mut bytes) {
                Ok((_, descriptors)) if !descriptors.is_empty() => return false,
                Ok((WAKES, _)) => {}
                Ok(_) | Err(_) => break,
            }
        }
        true
    }

    /// Ends the connection: both ends learn so.
    pub(crate) fn hang_up(&self) {
        // It can fail only if the connection has ended already.
        let _ = shutdown(self, Shutdown::Both);
    }
}

impl Drop for Socket {
    /// With the socket the system closes, aside, descriptors that have come and were not received.
    fn drop(&mut self) {
        self.hang_up();
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.file().as_fd()
    }
}

impl AsRawFd for Socket {
    fn as_raw_fd(&self) -> RawFd {
        self.0.file().as_raw_fd()
    }
}

/// A descriptor that another process has passed: anything at all.
#[derive(Debug)]
pub(crate) struct Passed(Aside);

impl Passed {
    /// The file, if it is sealed memory. What else it has to be, `Segment::open` checks.
    pub(crate) fn memory(mut self) -> Option<OwnedFd> {
        // Asks the kind of file alone: of any other it is an error at once.
        fcntl_get_seals(self.0.file()).ok()?;
        self.0.0.take()
    }

    /// The end of a channel for wake-ups, if it is one that the process at the other end of `from` has made.
    pub(crate) fn channel(self, from: &Socket) -> Option<Socket> {
        let file = self.0.file();
        let is_local = socket_domain(file).ok()? == AddressFamily::UNIX;
        let is_stream = is_local && socket_type(file).ok()? == SocketType::STREAM;
        let is_its = is_stream && socket_peercred(file).ok()? == socket_peercred(from).ok()?;
        is_its.then_some(Socket(self.0))
    }
}

impl Aside {
    fn file(&self) -> &OwnedFd {
        self.0.as_ref().expect("it is taken out at its end alone")
    }
}

impl Drop for Aside {
    fn drop(&mut self) {
        self.0.take().into_iter().for_each(close_aside);
    }
}

/// Closes a file on a thread that does nothing else, for as long as that takes.
fn close_aside(file: OwnedFd) {
    static CLOSER: OnceLock<mpsc::Sender<OwnedFd>> = OnceLock::new();
    let closer = CLOSER.get_or_init(|| {
        let (outbox, inbox) = mpsc::channel::<OwnedFd>();
        let close = move || inbox.into_iter().for_each(drop);
        // Without a thread the channel has no other end, and sending fails.
        let _ = std::thread::Builder::new().name("midplane close".into()).spawn(close);
        outbox
    });
    // Where there is no such thread, it is closed here.
    let _ = closer.send(file);
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{EventfdFlags, eventfd};
    use rustix::fs::{OFlags, fcntl_setfl};

    /// Both ends of a connection of this process with itself.
    fn connection() -> (Socket, Socket) {
        let flags = SocketFlags::CLOEXEC;
        let (one, other) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        (Socket::new(one), Socket::new(other))
    }

    fn passed(file: OwnedFd) -> Passed {
        let (from, to) = connection();
        from.send(&[1], &[file.as_fd()]).unwrap();
        to.receive::<1>().unwrap().unwrap().1.pop().unwrap()
    }

    #[test]
    fn a_channel_that_is_full_and_may_block_holds_nobody_up() {
        let (ours, theirs) = Socket::pair().unwrap();
        // As whoever has a copy of either end might.
        for end in [ours.as_fd(), theirs.as_fd()] {
            fcntl_setfl(end, OFlags::empty()).unwrap();
        }
        for _ in 0..100_000 {
            ours.wake();
        }
        assert!(ours.take_wakes(), "nothing has come");
        let theirs = Socket::new(theirs);
        assert!(theirs.take_wakes());
        drop(ours);
        theirs.wake();
        assert!(theirs.take_wakes());
    }

    #[test]
    fn wake_ups_with_descriptors_are_nobodys() {
        let (ours, theirs) = Socket::pair().unwrap();
        let theirs = Socket::new(theirs);
        theirs.send(&[0], &[theirs.as_fd()]).unwrap();
        assert!(!ours.take_wakes());
    }

    #[test]
    fn descriptors_are_what_they_are_said_to_be_or_nothing() {
        let (ours, theirs) = connection();
        let (_, end) = Socket::pair().unwrap();
        assert!(passed(end).channel(&ours).is_some());
        let (_, end) = Socket::pair().unwrap();
        assert!(passed(end).memory().is_none());
        let event = eventfd(0, EventfdFlags::empty()).unwrap();
        let (_, pipe) = std::io::pipe().unwrap();
        let inet = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let strangers = [event, pipe.into(), inet.into(), theirs.0.file().try_clone().unwrap()];
        for stranger in strangers {
            assert!(passed(stranger.try_clone().unwrap()).memory().is_none());
            assert!(passed(stranger).channel(&ours).is_none());
        }
    }
}
