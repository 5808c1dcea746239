//! Dials of peers, and answers to datagrams of no connection.
//!
//! A dial makes a connection that is *half open* until the dialer's next packet proves its address. Half-open
//! connections are bounded: in all, by source address, and in time. Above a first bound, the endpoint answers a
//! dial with a cookie, and stores nothing until the source dials again with it. No answer is longer than the
//! dial.

use std::net::{IpAddr, SocketAddr};

use midplane_simhw::time::Instant;

use super::super::pipe::config::{FIRST_WINDOW, reason};
use super::super::pipe::packet::{Accept, Dial, VERSION, emit_cookie, emit_refuse, emit_reset};
use super::super::pipe::sealing::{Cipher, Secrets};
use super::super::pipe::{Pipe, Transmit, sealing};
use super::{Endpoint, Outgoing};

/// Most connections of one endpoint.
const MAX_PIPES: usize = 16_384;
/// Half-open connections, in all and of one address, above which an endpoint requires a cookie.
const FREE_HALF_OPEN: (usize, u32) = (64, 8);
/// Half-open connections, in all and of one address, above which it refuses dials.
const MAX_HALF_OPEN: (usize, u32) = (1_024, 64);
/// Most answers to datagrams of no connection that wait to be sent: more are dropped.
const MAX_REPLIES: usize = 64;

impl Endpoint {
    fn reply(&mut self, to: SocketAddr, emit: impl FnOnce(&mut Vec<u8>)) {
        if self.replies.len() >= MAX_REPLIES {
            self.counters.replies_dropped += 1;
            return;
        }
        let mut bytes = Vec::new();
        emit(&mut bytes);
        self.replies.push_back((to, self.own, bytes));
    }

    /// Appends the next datagram of no connection: an answer to one, or gossip.
    pub(super) fn poll_unconnected(&mut self, out: &mut Vec<u8>) -> Option<Outgoing> {
        let gossip = |endpoint: &mut Self| {
            let (to, datagram) = endpoint.gossip.as_mut()?.poll_transmit()?;
            Some((to, None, datagram))
        };
        let (to, from, datagram) = self.replies.pop_front().or_else(|| gossip(self))?;
        self.has_replied = true;
        out.extend_from_slice(&datagram);
        let transmit = Transmit { bytes: datagram.len(), segment_bytes: datagram.len() };
        Some(Outgoing { to, from, pipe: None, transmit })
    }

    pub(super) fn on_unknown(&mut self, from: SocketAddr, id: u64) {
        self.counters.strangers += 1;
        self.reply(from, |out| emit_reset(id, out));
    }

    fn refuse(&mut self, to: SocketAddr, dialer: u64, reason: u8) {
        self.counters.turned_away += 1;
        self.reply(to, |out| emit_refuse(dialer, reason, out));
    }

    pub(super) fn handle_dial(&mut self, now: Instant, from: SocketAddr, dial: Dial<'_>) {
        let dialer = dial.dialer;
        if dial.version != VERSION {
            return self.refuse(from, dialer, reason::VERSION);
        }
        if let Some(&slot) = self.by_peer.get(&(from, dialer)) {
            if let Some(entry) = &mut self.slots[slot as usize].entry {
                entry.pipe.repeat_accept();
            }
            return self.enqueue(slot);
        }
        if dial.sealed != self.config.key.is_some() {
            return self.refuse(from, dialer, reason::KEY);
        }
        let of_address = self.half_open_of.get(&from.ip()).copied().unwrap_or(0);
        let is_past = |bound: (usize, u32)| self.half_open >= bound.0 || of_address >= bound.1;
        let is_full = !self.is_accepting || self.by_id.len() >= MAX_PIPES;
        if is_full || is_past(MAX_HALF_OPEN) {
            return self.refuse(from, dialer, reason::FULL);
        }
        if is_past(FREE_HALF_OPEN) && !self.cookies.is_good(now, from, dialer, dial.cookie) {
            self.counters.turned_away += 1;
            let cookie = self.cookies.make(now, from, dialer);
            return self.reply(from, |out| emit_cookie(dialer, &cookie, out));
        }
        self.accept(now, from, dial);
    }

    fn accept(&mut self, now: Instant, from: SocketAddr, dial: Dial<'_>) {
        let (local, dialer) = (self.draw_id(), dial.dialer);
        let (seal, cipher, noise) = match self.config.secrets() {
            None => (None, Cipher::ChaCha, Vec::new()),
            Some(secrets) => {
                let own = secrets.own.filter(|_| !dial.identified.is_empty());
                let offer = if own.is_some() { dial.identified } else { dial.noise };
                let cipher = secrets.cipher.with(dial.cipher);
                let secrets = Secrets { own, cipher, ..secrets };
                match sealing::answer(secrets, sealing::DATAGRAMS, dialer, local, offer) {
                    Some((seal, noise)) => (Some(seal), cipher, noise),
                    None => return self.refuse(from, dialer, reason::KEY),
                }
            }
        };
        let first = self.first_window();
        let (socket_bytes, first_window) =
            (self.config.socket_bytes, Some(first.unwrap_or(FIRST_WINDOW) as u32));
        let mut datagram = Vec::new();
        let noise = &noise;
        let accept = Accept { first_window, dialer, acceptor: local, socket_bytes, cipher, noise };
        accept.emit(&mut datagram);
        let ids = (local, dialer);
        let pipe = Pipe::accept(now, &self.config, ids, from, &dial, seal, datagram);
        self.add(pipe, from, first, false);
    }

    /// Counts a connection of this address as half open no longer.
    pub(super) fn count_off(&mut self, ip: IpAddr) {
        self.half_open -= 1;
        if let Some(count) = self.half_open_of.get_mut(&ip) {
            *count -= 1;
            if *count == 0 {
                self.half_open_of.remove(&ip);
            }
        }
    }

    /// Pings the other connections of an address from which a new one comes: its process may have restarted, and have
    /// lost the old ones.
    pub(super) fn ping_others(&mut self, peer: SocketAddr, but: u32) {
        let of_peer = self.by_peer.range((peer, 0)..=(peer, u64::MAX));
        let others: Vec<u32> = of_peer.map(|(_, slot)| *slot).filter(|slot| *slot != but).collect();
        for slot in others {
            if let Some(entry) = &mut self.slots[slot as usize].entry {
                entry.pipe.ping();
            }
            self.enqueue(slot);
        }
    }
}
