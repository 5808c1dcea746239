//! Sockets between processes of one host, and the descriptors that they pass to each other.
//!
//! The process at the other end of a [`Socket`] may be hostile, and may hold a copy of this end. Therefore no call
//! here blocks: each passes `MSG_DONTWAIT`, which applies regardless of the file's flags. A descriptor from another
//! process is used only after its kind is checked. One of an unknown kind is closed on a separate thread. Closing it may
//! block until its file system answers, or until its data is sent. Where no descriptor is expected, none is received: it
//! is closed with its socket, on that thread.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::{Arc, OnceLock, mpsc};

use nix::sys::socket::{UnixCredentials, getsockopt, sockopt::PeerCredentials};
use rustix::cmsg_space;
use rustix::fs::fcntl_get_seals;
use rustix::io::Errno;
use rustix::net::sockopt::{set_socket_passcred, socket_domain, socket_type};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, Shutdown, SocketAddrUnix, SocketFlags,
    SocketType, connect, recvmsg, sendmsg, shutdown, socket_with, socketpair,
};

/// First word of every message: "MIDPLANE" in ASCII, little-endian.
pub(crate) const MAGIC: u64 = u64::from_le_bytes(*b"MIDPLANE");
/// Most descriptors that this side sends with a message.
const SENT: usize = 2;
/// Most descriptors that the system passes with a message.
const PASSED: usize = 253;
/// Most bytes of wake-ups that one read takes: more than a correct process ever has in flight.
const WAKES: usize = 4_096;
/// Most reads in a row from one channel; the rest waits for the next turn.
const ROUNDS: usize = 8;

/// A message of `W` words with its descriptors.
pub(crate) type Message<const W: usize> = ([u64; W], Vec<Passed>);

/// The place of one connection among those of its process. Each descriptor of the connection holds a clone
/// until it is closed.
pub(crate) type Place = Arc<Arc<()>>;

/// A descriptor that a separate thread closes.
#[derive(Debug)]
struct DeferredClose {
    /// `Some` until it is closed.
    file: Option<OwnedFd>,
    place: OnceLock<Place>,
}

/// This process's end of a connection to another process; dropping it ends the connection for both.
#[derive(Debug)]
pub(crate) struct Socket(DeferredClose);

/// Opens a socket that preserves message boundaries, and reports when the other end is closed.
pub(crate) fn seqpacket() -> rustix::io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
}

/// Returns the credentials of the process that made the other end of a socket. Its process number is 0 if that process
/// is outside this process's PID namespace; rustix has no such number.
fn credentials(socket: &impl AsFd) -> rustix::io::Result<UnixCredentials> {
    getsockopt(socket, PeerCredentials).map_err(|error| Errno::from_raw_os_error(error as i32))
}

impl Socket {
    /// Wraps an accepted socket.
    pub(crate) const fn new(socket: OwnedFd) -> Self {
        Self(DeferredClose::new(socket))
    }

    /// Counts this socket, and the descriptors received over it, at `place` from now on.
    pub(crate) fn occupy(&self, place: Place) {
        // This fails only if the socket is counted already.
        let _ = self.0.place.set(place);
    }

    /// Returns the place at which this socket is counted.
    pub(crate) fn place(&self) -> Option<Place> {
        self.0.place.get().cloned()
    }

    /// Connects to the process that listens at `address`.
    pub(crate) fn connect(address: &SocketAddrUnix) -> rustix::io::Result<Self> {
        let socket = Self::new(seqpacket()?);
        connect(&socket, address)?;
        Ok(socket)
    }

    /// Creates a channel for wake-ups: returns this process's end, and the end to pass on.
    pub(crate) fn pair() -> rustix::io::Result<(Self, OwnedFd)> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        Ok((Self::new(ours), theirs))
    }

    /// Returns the user of the process at the other end, as reported by the system.
    pub(crate) fn user(&self) -> rustix::io::Result<u32> {
        Ok(credentials(self)?.uid())
    }

    /// Returns the process that connected the other end, as reported by the system. Processes outside this process's
    /// PID namespace have no number here, and count as one process, 0.
    pub(crate) fn process(&self) -> rustix::io::Result<u32> {
        Ok(credentials(self)?.pid().unsigned_abs())
    }

    /// Sends `words`, and at most two descriptors with them.
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

    /// Receives a message of exactly `W` words and its descriptors; `None` at the end of the connection, and
    /// for a message of any other length.
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
        // Space for as many descriptors as the system passes: without it, this call would close the rest.
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
            .map(|file| Passed(DeferredClose { file: Some(file), place: self.0.place.clone() }))
            .collect();
        Ok((received.bytes, descriptors))
    }

    /// Returns how many of the next bytes fit into `bytes`, and whether they have descriptors. Takes neither.
    fn peek(&self, bytes: &mut [u8]) -> rustix::io::Result<(usize, bool)> {
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        let mut with = RecvAncillaryBuffer::default();
        let next = recvmsg(self, &mut [IoSliceMut::new(bytes)], &mut with, flags)?;
        Ok((next.bytes, next.flags.contains(ReturnFlags::CTRUNC)))
    }

    /// Returns whether the next message has descriptors. Takes none.
    pub(crate) fn brings_descriptors(&self) -> bool {
        self.peek(&mut [0]).is_ok_and(|(_, brings)| brings)
    }

    /// Wakes the process at the other end of a channel.
    pub(crate) fn wake(&self) {
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        // This fails if the channel is full of wake-ups that the other process has yet to take, or if that
        // process has exited.
        let _ = rustix::net::send(self, b"w", flags);
    }

    /// Takes the pending wake-ups. Returns `false` if descriptors came with them: a correct process sends none.
    pub(crate) fn take_wakes(&self) -> bool {
        let mut bytes = [0; WAKES];
        for _ in 0..ROUNDS {
            let Ok((count, brings)) = self.peek(&mut bytes) else { break };
            if brings {
                return false;
            }
            // A peer with a copy of this end may have taken the bytes seen above; then other bytes are
            // received, with their descriptors.
            match self.receive_bytes(&mut bytes[..count]) {
                Ok((_, descriptors)) if !descriptors.is_empty() => return false,
                Ok((WAKES, _)) => {}
                Ok(_) | Err(_) => break,
            }
        }
        true
    }

    /// Returns whether nothing waits to be received after the connection has ended, in particular no descriptor.
    fn is_empty(&self) -> bool {
        // A message without bytes looks like the end of the connection. If credentials are requested but have
        // no space, the system flags each message as it flags descriptors. A stream has no such messages.
        let is_known =
            socket_type(self) == Ok(SocketType::STREAM) || set_socket_passcred(self, true).is_ok();
        self.take_wakes() && is_known && self.peek(&mut [0]) == Ok((0, false))
    }

    /// Shuts the connection down; both ends are notified.
    pub(crate) fn hang_up(&self) {
        // This fails only if the connection has ended already.
        let _ = shutdown(self, Shutdown::Both);
    }
}

impl Drop for Socket {
    /// Closes the socket. If descriptors wait in it, the closing thread closes it with them; otherwise this
    /// thread does.
    fn drop(&mut self) {
        self.hang_up();
        if self.is_empty() {
            self.0.file = None;
        }
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

/// A descriptor of any kind, received from another process.
#[derive(Debug)]
pub(crate) struct Passed(DeferredClose);

impl Passed {
    /// Returns the file if it can be sealed; `Segment::open` checks the rest.
    pub(crate) fn memory(mut self) -> Option<OwnedFd> {
        // This fails at once for a file of any other kind, without a call to its file system.
        fcntl_get_seals(self.0.file()).ok()?;
        self.0.file.take()
    }

    /// Returns the descriptor as a wake-up channel, if it is one and the process at the other end of `from`
    /// made it.
    pub(crate) fn channel(self, from: &Socket) -> Option<Socket> {
        let file = self.0.file();
        let is_local = socket_domain(file).ok()? == AddressFamily::UNIX;
        let is_stream = is_local && socket_type(file).ok()? == SocketType::STREAM;
        let is_its = is_stream && credentials(file).ok()? == credentials(from).ok()?;
        is_its.then_some(Socket(self.0))
    }
}

impl DeferredClose {
    const fn new(file: OwnedFd) -> Self {
        Self { file: Some(file), place: OnceLock::new() }
    }

    fn file(&self) -> &OwnedFd {
        self.file.as_ref().expect("the file is taken only when its owner ends")
    }
}

impl Drop for DeferredClose {
    fn drop(&mut self) {
        if let Some(file) = self.file.take() {
            close_deferred(file, self.place.take());
        }
    }
}

/// Closes a file, where that may block, on a separate thread; the place is released afterwards.
fn close_deferred(file: OwnedFd, place: Option<Place>) {
    static CLOSER: OnceLock<mpsc::Sender<(OwnedFd, Option<Place>)>> = OnceLock::new();
    let closer = CLOSER.get_or_init(|| {
        let (outbox, inbox) = mpsc::channel::<(OwnedFd, Option<Place>)>();
        let close = move || inbox.into_iter().for_each(drop);
        // Without a thread the channel has no receiver, and sending fails.
        let _ = std::thread::Builder::new().name("midplane close".into()).spawn(close);
        outbox
    });
    // If the system refused the thread, the file is closed here.
    let _ = closer.send((file, place));
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{EventfdFlags, eventfd};
    use rustix::fs::{OFlags, fcntl_setfl};

    /// Returns both ends of a connection of this process to itself.
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
    fn a_full_channel_whose_flags_say_block_blocks_no_call() {
        let (ours, theirs) = Socket::pair().unwrap();
        // A process with a copy of either end can do this.
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
    fn wake_ups_with_descriptors_are_reported() {
        let (ours, theirs) = Socket::pair().unwrap();
        let theirs = Socket::new(theirs);
        theirs.send(&[0], &[theirs.as_fd()]).unwrap();
        assert!(!ours.take_wakes());
    }

    #[test]
    fn both_ends_of_a_connection_know_the_other_process_and_its_user() {
        let (ours, theirs) = connection();
        for end in [ours, theirs] {
            assert_eq!(end.process(), Ok(std::process::id()));
            assert_eq!(end.user(), Ok(rustix::process::getuid().as_raw()));
        }
    }

    #[test]
    fn a_descriptor_of_another_kind_is_refused() {
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

    /// Returns a descriptor whose closing blocks until the returned stream is dropped.
    fn closed_late() -> (OwnedFd, std::net::TcpStream) {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let mut ours = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (theirs, _) = listener.accept().unwrap();
        ours.set_nonblocking(true).unwrap();
        while std::io::Write::write(&mut ours, &[0; 1 << 16]).is_ok() {}
        let hour = Some(std::time::Duration::from_secs(3_600));
        rustix::net::sockopt::set_socket_linger(&ours, hour).unwrap();
        ours.set_nonblocking(false).unwrap();
        (ours.into(), theirs)
    }

    /// Waits until `place` is released, for at most a minute of the machine's clock.
    fn wait_until_free(place: &Place) {
        for _ in 0..60_000_000 / 100 {
            if Arc::strong_count(place) == 1 {
                return;
            }
            crate::nicd::tests::pause();
        }
        panic!("a socket is not closed");
    }

    #[test]
    fn a_descriptor_that_blocks_on_close_delays_only_its_sender() {
        let (hostile, honest) = (Place::default(), Place::default());
        let (late, reader) = closed_late();
        let (from, to) = connection();
        to.occupy(Arc::clone(&hostile));
        from.send(&[1], &[late.as_fd()]).unwrap();
        drop(late);
        assert!(to.brings_descriptors());
        drop((from, to));
        for _ in 0..100 {
            let (from, to) = connection();
            let (ours, theirs) = Socket::pair().unwrap();
            for socket in [&to, &ours] {
                socket.occupy(Arc::clone(&honest));
            }
            Socket::new(theirs).wake();
            drop((from, to, ours));
            assert_eq!(Arc::strong_count(&honest), 1, "nothing waits to be closed");
        }
        assert_eq!(Arc::strong_count(&hostile), 2, "it is counted for as long as it is open");
        drop(reader);
        wait_until_free(&hostile);
    }

    #[test]
    fn messages_without_bytes_hide_no_descriptor_from_the_end_of_a_socket() {
        let (place, (late, reader)) = (Place::default(), closed_late());
        let (from, to) = connection();
        to.occupy(Arc::clone(&place));
        for _ in 0..4 {
            from.send::<0>(&[], &[]).unwrap();
        }
        from.send::<0>(&[], &[late.as_fd()]).unwrap();
        drop((late, from, to));
        drop(reader);
        wait_until_free(&place);
    }
}
