//! Words and descriptors that two processes of one host pass to each other.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::cmsg_space;
use rustix::net::sockopt::socket_peercred;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socket_with,
};

/// "MIDPLANE" in ASCII, as a little-endian word: how all that is said begins.
pub(crate) const MAGIC: u64 = u64::from_le_bytes(*b"MIDPLANE");
/// Most descriptors of one message.
const DESCRIPTORS: usize = 3;

/// A message of `W` words with its descriptors.
pub(crate) type Message<const W: usize> = ([u64; W], Vec<OwnedFd>);

/// A socket that keeps messages apart, and tells when the other end is gone.
pub(crate) fn seqpacket() -> rustix::io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
}

/// The user of the process at the other end, as the system knows it.
pub(crate) fn user_of(socket: &OwnedFd) -> rustix::io::Result<u32> {
    Ok(socket_peercred(socket)?.uid.as_raw())
}

/// The process that connected the other end, as the system knows it.
pub(crate) fn process_of(socket: &OwnedFd) -> rustix::io::Result<u32> {
    Ok(socket_peercred(socket)?.pid.as_raw_nonzero().get().unsigned_abs())
}

/// Sends words, and at most three descriptors with them.
pub(crate) fn send<const W: usize>(
    socket: impl AsFd,
    words: &[u64; W],
    descriptors: &[BorrowedFd<'_>],
) -> rustix::io::Result<()> {
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(DESCRIPTORS))];
    let mut with = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !with.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(rustix::io::Errno::INVAL);
    }
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    sendmsg(socket, &[IoSlice::new(&bytes)], &mut with, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Receives exactly `W` words, and what descriptors came with them; `None` at the end, and of
/// anything else.
pub(crate) fn receive<const W: usize>(socket: impl AsFd) -> rustix::io::Result<Option<Message<W>>> {
    let mut bytes = vec![0; W * 8];
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(DESCRIPTORS))];
    let mut with = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::TRUNC;
    let received = recvmsg(socket, &mut [IoSliceMut::new(&mut bytes)], &mut with, flags)?;
    let descriptors: Vec<OwnedFd> = with
        .drain()
        .filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(all) => Some(all),
            _ => None,
        })
        .flatten()
        .collect();
    if received.bytes != bytes.len() {
        return Ok(None);
    }
    let mut words = [0; W];
    for (word, chunk) in words.iter_mut().zip(bytes.as_chunks::<8>().0) {
        *word = u64::from_le_bytes(*chunk);
    }
    Ok(Some((words, descriptors)))
}
