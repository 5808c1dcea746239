//! Reports of the network: no process receives at the address of a datagram that was sent.

use std::io::IoSliceMut;
use std::net::{SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::{AsFd, AsRawFd as _};

use nix::libc::{SO_EE_ORIGIN_ICMP, SO_EE_ORIGIN_ICMP6, sock_extended_err};
use nix::sys::socket::{ControlMessageOwned, MsgFlags, SockaddrStorage, recvmsg};

/// Bytes for the control messages of one report; with all that the system can add, they are fewer.
const CONTROL_BYTES: usize = 256;
/// ICMP's type and code of a report that a datagram is too long.
const TOO_LONG: (u8, u8) = (3, 4);
/// The types of the reports that a destination is unreachable, of ICMP and of ICMPv6.
const UNREACHABLE: (u8, u8) = (3, 1);
/// Their codes if the host is reached, and no process has the port.
const PORT: (u8, u8) = (3, 4);

/// A report of a socket's error queue.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Report {
    /// No process receives at this address, the destination of a datagram that was sent. The port is 0 if the report
    /// concerns the whole host, which may be cut off for a while.
    Unreachable(SocketAddr),
    /// Something else, which concerns no peer.
    Other,
}

/// Takes the next report of a socket; returns `None` if there is none.
pub(super) fn next(socket: &impl AsFd) -> Option<Report> {
    // The datagram itself is not read.
    let mut payload = [];
    let mut parts = [IoSliceMut::new(&mut payload)];
    let mut control = [0; CONTROL_BYTES];
    let flags = MsgFlags::MSG_ERRQUEUE | MsgFlags::MSG_DONTWAIT;
    let socket = socket.as_fd().as_raw_fd();
    let report = recvmsg::<SockaddrStorage>(socket, &mut parts, Some(&mut control), flags).ok()?;
    let scope = report.cmsgs().ok().and_then(|mut all| all.find_map(|one| Scope::of(&one)));
    let destination = report.address.and_then(|address| address_of(&address));
    Some(match (scope, destination) {
        (Some(Scope::Port), Some(destination)) => Report::Unreachable(destination),
        (Some(Scope::Host), Some(mut destination)) => {
            destination.set_port(0);
            Report::Unreachable(destination)
        }
        _ => Report::Other,
    })
}

/// The extent of a report: one port of a host, or the whole host.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Scope {
    Port,
    Host,
}

impl Scope {
    /// Returns what a report says cannot be reached; `None` if it says something else.
    fn of(message: &ControlMessageOwned) -> Option<Self> {
        let (ControlMessageOwned::Ipv4RecvErr(report, _)
        | ControlMessageOwned::Ipv6RecvErr(report, _)) = message
        else {
            return None;
        };
        let &sock_extended_err { ee_origin, ee_type, ee_code, .. } = report;
        let (is_unreachable, port) = match ee_origin {
            SO_EE_ORIGIN_ICMP => {
                (ee_type == UNREACHABLE.0 && (ee_type, ee_code) != TOO_LONG, PORT.0)
            }
            SO_EE_ORIGIN_ICMP6 => (ee_type == UNREACHABLE.1, PORT.1),
            _ => (false, 0),
        };
        is_unreachable.then_some(if ee_code == port { Self::Port } else { Self::Host })
    }
}

fn address_of(address: &SockaddrStorage) -> Option<SocketAddr> {
    let v4 = address.as_sockaddr_in().map(|&address| SocketAddrV4::from(address).into());
    v4.or_else(|| address.as_sockaddr_in6().map(|&address| SocketAddrV6::from(address).into()))
}

#[cfg(test)]
mod tests {
    use std::io::ErrorKind;
    use std::net::UdpSocket;
    use std::time::Duration;

    use quinn_udp::{UdpSockRef, UdpSocketState};

    use super::*;

    fn reported(own: &str) -> (SocketAddr, SocketAddr) {
        let closed = UdpSocket::bind(own).unwrap().local_addr().unwrap();
        let socket = UdpSocket::bind(own).unwrap();
        let state = UdpSocketState::new(UdpSockRef::from(&socket)).unwrap();
        state.enable_transport_errors(UdpSockRef::from(&socket)).unwrap();
        socket.set_nonblocking(false).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        socket.send_to(b"x", closed).unwrap();
        // A report ends a receive call, with this error.
        assert_eq!(socket.recv(&mut [0]).unwrap_err().kind(), ErrorKind::ConnectionRefused);
        match next(&socket) {
            Some(Report::Unreachable(destination)) => (destination, closed),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_report_names_the_port_at_which_no_process_receives() {
        let (destination, closed) = reported("127.0.0.1:0");
        assert_eq!(destination, closed);
        if UdpSocket::bind("[::1]:0").is_ok() {
            let (destination, closed) = reported("[::1]:0");
            assert_eq!(destination, closed);
        }
    }
}
