//! The parameters of a run, which every result repeats.

use std::time::Duration;

use clap::ValueEnum;
use midplane::nicvm::coordination::Lead;
use midplane::simhw::id::NodeId;
use midplane::simhw::link::{CELL_BYTES, LinkProfile};
use midplane::simhw::switch::{Buffer, DiscardPolicy, SwitchProfile};
use midplane::simhw::time::LineRate;
use midplane::warp::firmware::WarpConfig;
use serde::Serialize;

use super::scenario::RECEIVER;
use crate::nodes::Fabric;

/// Control of the times at which senders may send.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// No control.
    None,
    /// The holder of the link's token sends; it keeps the token until its last bit has left.
    Token,
    /// The same as `Token`, with early token release (ETR).
    TokenEtr,
    /// Each sender paces itself by the delay of its own messages (Warp).
    Warp,
    /// Early token release; messages under a token are paced by Warp where other traffic shares the link.
    TokenWarp,
}

/// The service that carries messages.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Service {
    /// Sends at once.
    Messages,
    /// Sends when the sender holds the token.
    Coordination,
    /// Sends at Warp's rate.
    Warp,
}

impl Mode {
    /// Returns the service that senders use.
    pub const fn service(self) -> Service {
        match self {
            Self::None => Service::Messages,
            Self::Token | Self::TokenEtr | Self::TokenWarp => Service::Coordination,
            Self::Warp => Service::Warp,
        }
    }
}

/// Links of ATM cells, and the protocol of senders on them.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Atm {
    /// Cells that each port of the switch holds.
    pub buffer_cells: u32,
    /// True if the switch drops the rest of a message once it has dropped a cell: what the paper calls early packet discard.
    pub discards_rest: bool,
    /// True if a sender passes the token on after each message, as in the paper (section 4.2); if false, after the time of
    /// 48 hand-overs.
    pub passes_each: bool,
    /// Cells before a message's end at which mode `token-etr` releases the token (section 4.3).
    pub etr_lead: u32,
    /// Cells of a message that are sent before the token arrives: the paper's other way to release early.
    pub ahead: u32,
}

/// The parameters of one run.
#[derive(Clone, Debug, Serialize)]
pub struct Setting {
    /// The fabric between the nodes.
    pub fabric: Fabric,
    /// Control of the times at which senders may send.
    pub mode: Mode,
    /// Number of senders to node 0.
    pub senders: u16,
    /// Bytes of each message.
    pub message_bytes: u32,
    /// Rate of every link, in 10^6 bit/s.
    pub link_mbps: u32,
    /// Bytes that each port of the switch holds.
    pub buffer_bytes: u32,
    /// Cells and the DVCM paper's protocol; `None` for Ethernet and our own protocol.
    #[serde(flatten)]
    pub atm: Option<Atm>,
    /// Seconds of the measured part.
    pub seconds: f64,
    /// True if frames are sealed with a key; if false, the network is trusted.
    pub sealed: bool,
    /// Seed of all random numbers.
    pub seed: u64,
}

impl Setting {
    /// Returns the model of every link: cells if the buffer counts cells, else Ethernet.
    pub fn link(&self) -> LinkProfile {
        let (rate, propagation) = (self.rate(), Duration::from_micros(1));
        match self.atm {
            Some(_) => LinkProfile::atm(rate, propagation),
            None => LinkProfile::ethernet(rate, propagation),
        }
    }

    /// Returns the switch's model.
    pub fn switch(&self) -> SwitchProfile {
        let cells = |atm: Atm| Buffer::Cells(atm.buffer_cells);
        let discard = match self.atm {
            Some(Atm { discards_rest: true, .. }) => DiscardPolicy::Partial,
            _ => DiscardPolicy::Tail,
        };
        let buffer = self.atm.map_or(Buffer::Bytes(self.buffer_bytes), cells);
        SwitchProfile { discard, ..SwitchProfile::new(buffer) }
    }

    /// Returns the lead of the token release; `None` in modes without one.
    pub fn lead(&self) -> Option<Lead> {
        match (self.mode, self.atm) {
            (Mode::None | Mode::Warp, _) => None,
            (Mode::Token, _) => Some(Lead::Off),
            (Mode::TokenEtr | Mode::TokenWarp, None) => Some(Lead::Adaptive),
            (Mode::TokenEtr | Mode::TokenWarp, Some(atm)) => {
                let nanos = self.rate().nanos_for(u64::from(atm.etr_lead) * u64::from(CELL_BYTES));
                Some(Lead::Fixed(Duration::from_nanos(nanos)))
            }
        }
    }

    /// Returns Warp's configuration for `node`; `None` in modes without Warp.
    pub fn warp(&self, node: NodeId) -> Option<WarpConfig> {
        let to: &[NodeId] = if node == RECEIVER { &[] } else { &[RECEIVER] };
        // Half of the buffer is the target queue; the other half takes bursts. A token holder is alone, and its own
        // NIC's queue counts, too: some messages of the largest frame.
        let (queue, sharers) = match self.mode {
            Mode::TokenWarp => (self.buffer_bytes.max(4 * self.message_bytes), 1),
            _ => ((self.buffer_bytes / 2).max(1), self.senders),
        };
        let mut config = WarpConfig::new(to, self.rate(), queue, sharers);
        match self.mode {
            Mode::Warp => Some(config),
            Mode::TokenWarp => {
                // Few stamps suffice: with one owner at a time there is no queue to detect.
                let span = Duration::from_nanos(self.rate().nanos_for(u64::from(queue)) * 4);
                // Each owner finds an empty queue, so draining it is unnecessary.
                config = config.paces_others(true).span(span).drain_every(Duration::MAX);
                Some(config)
            }
            Mode::None | Mode::Token | Mode::TokenEtr => None,
        }
    }

    /// Returns the rate of every link.
    pub const fn rate(&self) -> LineRate {
        LineRate::mbps(self.link_mbps as u64)
    }

    /// Returns the number of nodes: receiver and senders.
    pub const fn nodes(&self) -> u16 {
        1 + self.senders
    }

    /// Returns the nanoseconds of one message of `bytes` on a link.
    pub fn message_nanos(&self, bytes: u32) -> u64 {
        let link = self.link();
        link.rate.nanos_for(u64::from(link.framing.wire_bytes(bytes)))
    }

    /// Returns the time of a message's first packet on a link: jitter up to this reorders nothing.
    pub fn piece_time(&self) -> Duration {
        let link = self.link();
        let bytes = link.framing.piece_bytes(self.message_bytes, 0);
        Duration::from_nanos(link.rate.nanos_for(u64::from(bytes)))
    }
}
