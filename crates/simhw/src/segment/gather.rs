//! Sends datagrams from memory that other parties may be writing; only the system copies the bytes.

use std::io;
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd};

use nix::libc::{MSG_DONTWAIT, iovec, msghdr, sendmsg};
use socket2::SockAddr;

use super::View;

/// Sends one datagram of `head` and the current bytes of `rest` to `to`; never blocks.
///
/// # Errors
/// The error of the operating system; nothing is then sent.
pub(crate) fn send_gathered(
    socket: impl AsFd,
    to: SocketAddr,
    head: &[u8],
    rest: View<'_>,
) -> io::Result<()> {
    let to = SockAddr::from(to);
    let part = |start: *const u8, length: usize| iovec {
        iov_base: start.cast_mut().cast(),
        iov_len: length,
    };
    let mut parts = [part(head.as_ptr(), head.len()), part(rest.start, rest.length)];
    // SAFETY: a message without a name, bytes or control data is all zeroes.
    let mut message: msghdr = unsafe { MaybeUninit::zeroed().assume_init() };
    message.msg_name = to.as_ptr().cast_mut().cast();
    message.msg_namelen = to.len();
    message.msg_iov = parts.as_mut_ptr();
    message.msg_iovlen = parts.len();
    loop {
        // SAFETY: the name and the parts are live until the call returns, and the system only reads them. A party that
        // writes `rest` meanwhile races with the system's copy. The compiler does not see that copy, which reads each
        // byte once, as any other copy does.
        let sent = unsafe { sendmsg(socket.as_fd().as_raw_fd(), &raw const message, MSG_DONTWAIT) };
        if sent >= 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use super::*;
    use crate::segment::Segment;

    #[test]
    fn a_datagram_is_its_parts_one_after_the_other() {
        for ip in ["127.0.0.1:0", "[::1]:0"] {
            let (from, to) = (UdpSocket::bind(ip).unwrap(), UdpSocket::bind(ip).unwrap());
            let memory = Segment::private(9_000);
            memory.store(5, View::from(&[7; 8_000][..])).unwrap();
            let rest = memory.view(5, 8_000).unwrap();
            send_gathered(&from, to.local_addr().unwrap(), b"head", rest).unwrap();
            let mut bytes = [0; 9_000];
            assert_eq!(to.recv(&mut bytes).unwrap(), 8_004);
            assert_eq!(&bytes[..4], b"head");
            assert_eq!(&bytes[4..8_004], &[7; 8_000]);
        }
    }

    #[test]
    fn a_datagram_that_the_system_refuses_is_an_error() {
        let from = UdpSocket::bind("127.0.0.1:0").unwrap();
        let memory = Segment::private(70_000);
        let rest = memory.view(0, 70_000).unwrap();
        let to = from.local_addr().unwrap();
        assert!(send_gathered(&from, to, b"", rest).is_err());
    }
}
