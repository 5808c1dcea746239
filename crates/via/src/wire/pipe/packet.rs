//! Packets of the wire, version 1: the layout of datagrams.
//!
//! A datagram is one packet; numbers are little-endian, and the table gives the length of each field in bytes.
//! The first two bytes are the kind and the version.
//!
//! | kind | fields after the first two bytes |
//! |---|---|
//! | 1 dial | sealed 1, identified 1, first window 4, dialer's id 8, cookie 16, socket buffer 8, Noise message (48 or 0), Noise message with the dialer's own key (96 or 0), zeros up to 1,199 bytes, cipher 1 |
//! | 2 cookie | padding 6, dialer's id 8, cookie 16: dial again with this cookie |
//! | 3 accept | cipher 1, padding 1, first window 4, dialer's id 8, acceptor's id 8, socket buffer 8, Noise message (56, 104 with the acceptor's own key, or 0) |
//! | 4 data | padding 6, receiver's id 8, packet number 8, body |
//! | 5 reset | padding 6, the id that the receiver of a data packet does not know 8 |
//! | 6 refuse | reason 1, padding 5, dialer's id 8 |
//! | 7 gossip | sealed 1, padding 5, sender's run 16, number of its datagrams 8, body |
//!
//! A dialer with a key of its own offers both handshakes (`sealing.rs`). An acceptor that does not know the
//! longer one reads it as padding, and answers the other.
//!
//! The cipher is 1 if the dialer's processor has instructions for AES, and in the accept if both have; both then
//! use AES-256-GCM (`cipher.rs`). Earlier versions send 0 and read no cipher.
//!
//! An acceptor of another version answers a dial with *refuse*, reason 2, in its own version: the first 16
//! bytes of dial and refuse are the same in every version.
//!
//! If the endpoint has a key, the body of a data packet is sealed with the packet number as nonce, and 16 bytes
//! longer ([`body`](super::body)). It is a byte of flags and the fields that these require, in this order:
//!
//! | flag | fields |
//! |---|---|
//! | 1 acknowledge | largest number 8, delay in microseconds 4, window 8, ranges less one 1, length of the first range 4; for each further range the gap below the one before 4, its length 4 |
//! | 2 close | offset at which the pipe ends 8 |
//! | 4 probe | zeros up to the end: finds how long datagrams may be |
//! | 8 ping | nothing: requests an acknowledgement |
//! | 32 ask | offset up to which the sender has bytes 8: it requests a window that holds them |
//! | 16 bytes | offset 8; the bytes of the pipe from there up to the end |
//!
//! The body of gossip is a piece of a [message](crate::wire::gossip): the sender's clock in milliseconds since
//! 1970 (8 bytes), the piece's index (1), the index of the last piece (1), bytes. Pieces of one message have
//! consecutive numbers. A sealed body has the run and the number as nonce, and is 16 bytes longer.
//!
//! Packet numbers of a direction start at 0 and never repeat. Lost bytes are sent again in new packets, divided
//! anew. The window is the offset up to which the receiver accepts bytes; it never falls.
//!
//! The packets that make a connection carry the first window plus one. It is 256 KiB, or less: then the
//! receiver grants tokens (`endpoint/tokens.rs`), and the sender must request a window. A 0 in this field means
//! an earlier version: its first window is 256 KiB, it never requests one, and it drops packets that do.

use super::body::flag;
use super::cipher::Cipher;

/// Version of the protocol.
pub(crate) const VERSION: u8 = 1;
/// Bytes before the body of a data packet.
pub(crate) const HEADER_BYTES: usize = 24;
/// Bytes before the payload of a data packet that carries bytes of the pipe and nothing else.
pub(crate) const PLAIN_HEADER_BYTES: usize = HEADER_BYTES + 9;
/// Bytes of an authentication tag behind a sealed body.
pub(crate) const TAG_BYTES: usize = 16;
/// Bytes of a dial: no answer to one is longer, so that forged dials can't amplify a flood.
pub(crate) const DIAL_BYTES: usize = 1_200;
/// Bytes of a cookie.
pub(crate) const COOKIE_BYTES: usize = 16;
/// Bytes of a Noise message of the handshake: a public key and a tag.
pub(crate) const NOISE_BYTES: usize = 48;
/// Bytes of a Noise message that carries its sender's own key: 48 more for that key and another tag.
pub(crate) const IDENTIFIED_BYTES: usize = 96;

/// Bytes of a cookie packet.
pub(crate) const COOKIE_PACKET_BYTES: usize = 32;
const DIAL_FIXED_BYTES: usize = 40;
const ACCEPT_FIXED_BYTES: usize = 32;

const DIAL: u8 = 1;
const COOKIE: u8 = 2;
const ACCEPT: u8 = 3;
const DATA: u8 = 4;
const RESET: u8 = 5;
const REFUSE: u8 = 6;
/// Kind of the datagrams of gossip.
pub(crate) const GOSSIP: u8 = 7;

/// A packet, as it is laid out in a datagram.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Packet<'a> {
    /// Requests a connection.
    Dial(Dial<'a>),
    /// Has the dialer dial again with a cookie.
    Cookie { dialer: u64, cookie: [u8; COOKIE_BYTES] },
    /// Accepts a dial.
    Accept(Accept<'a>),
    /// Carries a body.
    Data { receiver: u64, number: u64 },
    /// Reports that an id is unknown.
    Reset { unknown: u64 },
    /// Refuses a dial.
    Refuse { dialer: u64, reason: u8, version: u8 },
    /// Carries a piece of gossip.
    Gossip,
}

/// The fields of a dial.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Dial<'a> {
    /// Version of the dialer.
    pub(crate) version: u8,
    /// True if the dialer has a key.
    pub(crate) sealed: bool,
    /// The dialer's first window; `None` if it is of an earlier version.
    pub(crate) first_window: Option<u32>,
    /// The dialer's id of the connection.
    pub(crate) dialer: u64,
    /// The cookie that the acceptor has sent, or zeros.
    pub(crate) cookie: [u8; COOKIE_BYTES],
    /// Bytes of the dialer's receive buffer in the system.
    pub(crate) socket_bytes: u64,
    /// The Noise message if sealed, else empty.
    pub(crate) noise: &'a [u8],
    /// The Noise message with the dialer's own key; empty if not sealed, or without such a key.
    pub(crate) identified: &'a [u8],
    /// The cipher that the dialer computes fastest.
    pub(crate) cipher: Cipher,
}

/// The fields of an accept.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Accept<'a> {
    /// The acceptor's first window; `None` if it is of an earlier version.
    pub(crate) first_window: Option<u32>,
    /// The dialer's id of the connection.
    pub(crate) dialer: u64,
    /// The acceptor's id of the connection.
    pub(crate) acceptor: u64,
    /// Bytes of the acceptor's receive buffer in the system.
    pub(crate) socket_bytes: u64,
    /// The cipher of the connection, if it is sealed.
    pub(crate) cipher: Cipher,
    /// The Noise message, or empty.
    pub(crate) noise: &'a [u8],
}

/// Reads 8 bytes at `at`; returns `None` if there are fewer.
pub(crate) fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at.checked_add(8)?)?.try_into().ok()?))
}

/// Returns the receiver of a data packet; `None` for all others.
pub(crate) fn data_receiver(datagram: &[u8]) -> Option<u64> {
    match Packet::parse(datagram) {
        Some(Packet::Data { receiver, .. }) => Some(receiver),
        _ => None,
    }
}

/// Returns the payload of a data packet that is not sealed. `None` if it has another receiver or number, or carries
/// anything but bytes of the pipe from `offset` on.
pub(crate) fn plain_payload(
    datagram: &[u8],
    receiver: u64,
    number: u64,
    offset: u64,
) -> Option<&[u8]> {
    let (header, payload) = datagram.split_first_chunk::<PLAIN_HEADER_BYTES>()?;
    let is_plain = header[..2] == [DATA, VERSION] && header[HEADER_BYTES] == flag::BYTES;
    let fields = [(8, receiver), (16, number), (HEADER_BYTES + 1, offset)];
    let is_expected = fields.into_iter().all(|(at, field)| u64_at(header, at) == Some(field));
    (is_plain && is_expected).then_some(payload)
}

/// Returns the beginning of a data packet that carries bytes of the pipe from `offset` on and nothing else.
pub(crate) fn plain_header(receiver: u64, number: u64, offset: u64) -> [u8; PLAIN_HEADER_BYTES] {
    let mut header = [0; PLAIN_HEADER_BYTES];
    header[..2].copy_from_slice(&[DATA, VERSION]);
    header[8..16].copy_from_slice(&receiver.to_le_bytes());
    header[16..24].copy_from_slice(&number.to_le_bytes());
    header[HEADER_BYTES] = flag::BYTES;
    header[HEADER_BYTES + 1..].copy_from_slice(&offset.to_le_bytes());
    header
}

/// Reads a first window, which is at the same offset in dials and accepts.
fn first_window(bytes: &[u8]) -> Option<u32> {
    u32_at(bytes, 4)?.checked_sub(1)
}

/// Encodes a first window.
fn first_window_bytes(window: Option<u32>) -> [u8; 4] {
    window.map_or(0, |window| window.saturating_add(1)).to_le_bytes()
}

pub(super) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at.checked_add(4)?)?.try_into().ok()?))
}

impl<'a> Packet<'a> {
    /// Reads a datagram; `None` if it is no packet of this version.
    pub(crate) fn parse(bytes: &'a [u8]) -> Option<Self> {
        let (&kind, &version) = (bytes.first()?, bytes.get(1)?);
        let id = u64_at(bytes, 8)?;
        match kind {
            DATA if version == VERSION => {
                Some(Self::Data { receiver: id, number: u64_at(bytes, 16)? })
            }
            DIAL => Dial::parse(bytes, version).map(Self::Dial),
            COOKIE if version == VERSION => {
                let cookie = bytes.get(16..COOKIE_PACKET_BYTES)?.try_into().ok()?;
                Some(Self::Cookie { dialer: id, cookie })
            }
            ACCEPT if version == VERSION => Some(Self::Accept(Accept {
                first_window: first_window(bytes),
                dialer: id,
                acceptor: u64_at(bytes, 16)?,
                socket_bytes: u64_at(bytes, 24)?,
                cipher: Cipher::of(bytes[2]),
                noise: bytes.get(ACCEPT_FIXED_BYTES..)?,
            })),
            RESET if version == VERSION => Some(Self::Reset { unknown: id }),
            REFUSE => Some(Self::Refuse { dialer: id, reason: bytes[2], version }),
            GOSSIP if version == VERSION => Some(Self::Gossip),
            _ => None,
        }
    }
}

impl<'a> Dial<'a> {
    fn parse(bytes: &'a [u8], version: u8) -> Option<Self> {
        if bytes.len() < DIAL_BYTES {
            return None;
        }
        let sealed = bytes[2] == 1;
        let noise = if sealed { NOISE_BYTES } else { 0 };
        let identified = if sealed && bytes[3] == 1 { IDENTIFIED_BYTES } else { 0 };
        let (noise, rest) = bytes[DIAL_FIXED_BYTES..].split_at(noise);
        Some(Self {
            version,
            sealed,
            first_window: first_window(bytes),
            dialer: u64_at(bytes, 8)?,
            cookie: bytes[16..32].try_into().ok()?,
            socket_bytes: u64_at(bytes, 32)?,
            noise,
            identified: &rest[..identified],
            cipher: Cipher::of(bytes[DIAL_BYTES - 1]),
        })
    }

    /// Appends the dial.
    pub(crate) fn emit(&self, out: &mut Vec<u8>) {
        let begin = out.len();
        let (sealed, identified) = (u8::from(self.sealed), u8::from(!self.identified.is_empty()));
        out.extend_from_slice(&[DIAL, self.version, sealed, identified]);
        out.extend_from_slice(&first_window_bytes(self.first_window));
        out.extend_from_slice(&self.dialer.to_le_bytes());
        out.extend_from_slice(&self.cookie);
        out.extend_from_slice(&self.socket_bytes.to_le_bytes());
        out.extend_from_slice(self.noise);
        out.extend_from_slice(self.identified);
        out.resize(begin + DIAL_BYTES - 1, 0);
        out.push(self.cipher.byte());
    }
}

impl Accept<'_> {
    /// Appends the accept.
    pub(crate) fn emit(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&[ACCEPT, VERSION, self.cipher.byte(), 0]);
        out.extend_from_slice(&first_window_bytes(self.first_window));
        out.extend_from_slice(&self.dialer.to_le_bytes());
        out.extend_from_slice(&self.acceptor.to_le_bytes());
        out.extend_from_slice(&self.socket_bytes.to_le_bytes());
        out.extend_from_slice(self.noise);
    }
}

/// Appends a cookie packet.
pub(crate) fn emit_cookie(dialer: u64, cookie: &[u8; COOKIE_BYTES], out: &mut Vec<u8>) {
    out.extend_from_slice(&[COOKIE, VERSION, 0, 0, 0, 0, 0, 0]);
    out.extend_from_slice(&dialer.to_le_bytes());
    out.extend_from_slice(cookie);
}

/// Appends a reset.
pub(crate) fn emit_reset(unknown: u64, out: &mut Vec<u8>) {
    out.extend_from_slice(&[RESET, VERSION, 0, 0, 0, 0, 0, 0]);
    out.extend_from_slice(&unknown.to_le_bytes());
}

/// Appends a refusal.
pub(crate) fn emit_refuse(dialer: u64, reason: u8, out: &mut Vec<u8>) {
    out.extend_from_slice(&[REFUSE, VERSION, reason, 0, 0, 0, 0, 0]);
    out.extend_from_slice(&dialer.to_le_bytes());
}

/// Appends the header of a data packet.
pub(crate) fn emit_header(receiver: u64, number: u64, out: &mut Vec<u8>) {
    out.extend_from_slice(&[DATA, VERSION, 0, 0, 0, 0, 0, 0]);
    out.extend_from_slice(&receiver.to_le_bytes());
    out.extend_from_slice(&number.to_le_bytes());
}

#[cfg(test)]
mod tests {
    use super::super::body::{Acknowledgement, Body, flag};
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_bytes_of_version_1_never_change() {
        let mut out = Vec::new();
        let dial = Dial {
            version: 1,
            sealed: true,
            first_window: None,
            dialer: 0x0102,
            cookie: [3; COOKIE_BYTES],
            socket_bytes: 0x0405,
            noise: &[6; NOISE_BYTES],
            identified: &[],
            cipher: Cipher::ChaCha,
        };
        dial.emit(&mut out);
        let mut golden = vec![1, 1, 1, 0, 0, 0, 0, 0, 2, 1, 0, 0, 0, 0, 0, 0];
        golden.extend([3; 16]);
        golden.extend([5, 4, 0, 0, 0, 0, 0, 0]);
        golden.extend([6; 48]);
        golden.resize(1_200, 0);
        assert_eq!(out, golden);
        assert_eq!(Packet::parse(&out), Some(Packet::Dial(dial)));

        out.clear();
        let dial = Dial { identified: &[7; IDENTIFIED_BYTES], ..dial };
        dial.emit(&mut out);
        golden[3] = 1;
        golden[88..184].fill(7);
        assert_eq!(out, golden);
        assert_eq!(Packet::parse(&out), Some(Packet::Dial(dial)));
        // Without the cluster's key, no peer proves a key of its own.
        out[2] = 0;
        let Some(Packet::Dial(dial)) = Packet::parse(&out) else { panic!() };
        assert_eq!((dial.noise.len(), dial.identified.len()), (0, 0));

        out.clear();
        let accept = Accept {
            first_window: None,
            dialer: 1,
            acceptor: 2,
            socket_bytes: 3,
            cipher: Cipher::ChaCha,
            noise: &[4],
        };
        accept.emit(&mut out);
        let golden = [3_u8, 1, 0, 0, 0, 0, 0, 0]
            .into_iter()
            .chain([1_u8, 2, 3].into_iter().flat_map(|field| u64::from(field).to_le_bytes()));
        assert_eq!(out, golden.chain([4]).collect::<Vec<u8>>());
        assert_eq!(Packet::parse(&out), Some(Packet::Accept(accept)));

        out.clear();
        emit_header(7, 8, &mut out);
        assert_eq!(out, [4, 1, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0]);

        out.clear();
        let ranges = [(18, 20), (5, 6)];
        Acknowledgement::new(ranges.into_iter(), 9, 10).unwrap().emit(&mut out);
        let golden = [
            19, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 10, 0, 0, 0, 0, 0, 0, 0, 1, 2, 0, 0, 0, 12, 0, 0,
            0, 1, 0, 0, 0,
        ];
        assert_eq!(out, golden);
    }

    #[test]
    fn first_windows_and_requests_are_in_fields_that_earlier_versions_ignore() {
        let accept = Accept {
            first_window: Some(1_024),
            dialer: 1,
            acceptor: 2,
            socket_bytes: 3,
            cipher: Cipher::ChaCha,
            noise: &[],
        };
        let mut out = Vec::new();
        accept.emit(&mut out);
        assert_eq!(out[..9], [3, 1, 0, 0, 1, 4, 0, 0, 1]);
        assert_eq!(Packet::parse(&out), Some(Packet::Accept(accept)));
        let mut dial = vec![0; DIAL_BYTES];
        dial[..8].copy_from_slice(&[1, 1, 0, 0, 1, 0, 0, 0]);
        let Some(Packet::Dial(read)) = Packet::parse(&dial) else { panic!() };
        assert_eq!(read.first_window, Some(0));
        out.clear();
        read.emit(&mut out);
        assert_eq!(out, dial);

        let body = [48, 5, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 7];
        let read = Body::parse(&body).unwrap();
        assert_eq!((read.ask, read.bytes), (Some(5), Some((2, &[7][..]))));
        assert!(read.asks_for_acknowledgement());
        assert_eq!(Body::parse(&body[..8]), None);
    }

    #[test]
    fn ciphers_are_in_fields_that_earlier_versions_ignore() {
        let mut golden = vec![0; DIAL_BYTES];
        golden[..8].copy_from_slice(&[1, 1, 0, 0, 1, 0, 0, 0]);
        golden[1_199] = 1;
        let Some(Packet::Dial(dial)) = Packet::parse(&golden) else { panic!() };
        let mut out = Vec::new();
        dial.emit(&mut out);
        assert_eq!((dial.cipher, &out), (Cipher::Aes, &golden));
        let mut golden = vec![0; ACCEPT_FIXED_BYTES];
        golden[..8].copy_from_slice(&[3, 1, 1, 0, 1, 0, 0, 0]);
        let Some(Packet::Accept(accept)) = Packet::parse(&golden) else { panic!() };
        out.clear();
        accept.emit(&mut out);
        assert_eq!((accept.cipher, out), (Cipher::Aes, golden));
    }

    #[test]
    fn a_dial_of_another_version_is_still_read() {
        let mut dial = vec![0; DIAL_BYTES];
        dial[..2].copy_from_slice(&[1, 9]);
        dial[8] = 5;
        let read = Packet::parse(&dial);
        assert!(matches!(read, Some(Packet::Dial(Dial { version: 9, dialer: 5, .. }))), "{read:?}");
    }

    proptest! {
        #[test]
        fn an_acknowledgement_is_read_as_it_was_written(
            steps in proptest::collection::vec((1_u64..1_000, 1_u64..1_000), 1..40),
            delay: u32,
            window: u64,
        ) {
            let mut end = 1_000_000;
            let ranges: Vec<(u64, u64)> = steps.iter().map(|(gap, length)| {
                let range = (end - gap - length, end - gap);
                end = range.0;
                range
            }).collect();
            let written = Acknowledgement::new(ranges.into_iter(), delay, window).unwrap();
            let mut out = vec![flag::ACKNOWLEDGE];
            written.emit(&mut out);
            let read = Body::parse(&out).unwrap().acknowledgement.and_then(Acknowledgement::parse);
            prop_assert_eq!(read, Some((written, out.len() - 1)));
            for length in 0..out.len() {
                prop_assert!(Body::parse(&out[..length]).is_none());
            }
        }

        #[test]
        fn no_bytes_make_a_reader_panic(mut bytes in proptest::collection::vec(any::<u8>(), 0..200), kind in 0_u8..8) {
            let _ = Body::parse(&bytes);
            if bytes.len() > 1 {
                bytes[..2].copy_from_slice(&[kind, 1]);
            }
            let _ = Packet::parse(&bytes);
        }
    }
}
