//! Reads how many datagrams the system itself lost, if it reports that.

use std::net::SocketAddr;

/// Returns the datagrams that the system dropped for the socket bound to `address`, for lack of buffer space.
/// Several that a host of the same machine sent in one call count as one, so that it is a lower bound. Returns
/// Reads a file of the system: do not call it for each frame.
#[cfg(target_os = "linux")]
pub(super) fn dropped(address: SocketAddr) -> u64 {
    let table = if address.is_ipv4() { "/proc/net/udp" } else { "/proc/net/udp6" };
    let key = table_key(address);
    let lines = std::fs::read_to_string(table).unwrap_or_default();
    let of_socket = |line: &str| {
        let mut fields = line.split_whitespace();
        (fields.nth(1)? == key).then_some(())?;
        // The count is in the last column.
        fields.last()?.parse::<u64>().ok()
    };
    lines.lines().skip(1).filter_map(of_socket).sum()
}

#[cfg(not(target_os = "linux"))]
pub(super) const fn dropped(_: SocketAddr) -> u64 {
    0
}

/// Returns the address as in the table: words in the machine's byte order, in hexadecimal.
#[cfg(target_os = "linux")]
fn table_key(address: SocketAddr) -> String {
    use std::fmt::Write as _;

    let octets = match address.ip() {
        std::net::IpAddr::V4(ip) => ip.octets().to_vec(),
        std::net::IpAddr::V6(ip) => ip.octets().to_vec(),
    };
    let mut key = String::new();
    for word in octets.as_chunks::<4>().0 {
        let _ = write!(key, "{:08X}", u32::from_ne_bytes(*word));
    }
    let _ = write!(key, ":{:04X}", address.port());
    key
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::net::UdpSocket;

    use super::*;

    #[test]
    fn datagrams_that_found_no_room_are_counted() {
        for ip in ["127.0.0.1:0", "[::1]:0"] {
            let socket = UdpSocket::bind(ip).unwrap();
            socket2::SockRef::from(&socket).set_recv_buffer_size(1).unwrap();
            let address = socket.local_addr().unwrap();
            assert_eq!(dropped(address), 0);
            let sender = UdpSocket::bind((address.ip(), 0)).unwrap();
            for _ in 0..100 {
                sender.send_to(&[0; 1_000], address).unwrap();
            }
            socket.set_nonblocking(true).unwrap();
            let received = (0..100).take_while(|_| socket.recv(&mut [0; 1_000]).is_ok()).count();
            assert!(received < 100);
            assert_eq!(dropped(address), 100 - received as u64);
        }
    }
}
