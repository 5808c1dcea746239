//! What one run is: the parameters that every result repeats.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use clap::ValueEnum;
use midplane::nicvm::coordination::{DEFAULT_RESERVE, Lead};
use midplane::simhw::frame::HEADER_BYTES;
use midplane::simhw::id::NodeId;
use midplane::simhw::link::{CELL_BYTES, LinkProfile};
use midplane::simhw::switch::{Buffer, DiscardPolicy, SwitchProfile};
use midplane::simhw::time::LineRate;
use midplane::warp::firmware::WarpConfig;
use serde::{Deserialize, Serialize};

use super::scenario::{BACKGROUND_BYTES, RECEIVER};

/// What the nodes are joined by.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Fabric {
    /// NICs, links and a switch in virtual time.
    Sim,
    /// Real sockets, straight from process to process.
    Udp,
    /// Real sockets, through a switch in software.
    Switch,
}

/// Who decides when a sender may send.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// Nobody.
    None,
    /// Who holds the link's token, until its last bit has left.
    Token,
    /// The same, the token released early (ETR).
    TokenEtr,
    /// Each at the rate that the delay of its own messages allows.
    Warp,
    /// Tokens released early, and what leaves under them paced by Warp where others share the way.
    TokenWarp,
}

/// The service that carries messages.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Service {
    /// At once.
    Messages,
    /// When the token is there.
    Coordination,
    /// As the rate allows.
    Warp,
}

impl Mode {
    /// The service by which its senders send.
    pub const fn service(self) -> Service {
        match self {
            Self::None => Service::Messages,
            Self::Token | Self::TokenEtr | Self::TokenWarp => Service::Coordination,
            Self::Warp => Service::Warp,
        }
    }
}

/// What a full buffer does.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Discard {
    /// Drops what does not fit.
    Tail,
    /// ... and the rest of its message (partial packet discard).
    Ppd,
    /// Refuses whole messages from four fifths on (early packet discard).
    Epd,
}

/// How early a token is released.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum EtrLead {
    /// As the hand-overs that were seen tell.
    Auto,
    /// So many cells before the end.
    Cells(u32),
}

impl FromStr for EtrLead {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            _ => match text.parse() {
                Ok(cells @ 0..=100_000) => Ok(Self::Cells(cells)),
                _ => Err("it is \"auto\" or a number of cells from 0 to 100000".into()),
            },
        }
    }
}

impl fmt::Display for EtrLead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Cells(cells) => cells.fmt(f),
        }
    }
}

impl Serialize for EtrLead {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for EtrLead {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        String::deserialize(from)?.parse().map_err(serde::de::Error::custom)
    }
}

/// The parameters of one run.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Setting {
    /// What the nodes are joined by.
    pub fabric: Fabric,
    /// Who decides when a sender may send.
    pub mode: Mode,
    /// How many send to node 0.
    pub senders: u16,
    /// Bytes of each message.
    pub message_bytes: u32,
    /// Rate of every link, in 10^6 bit/s.
    pub link_mbps: u32,
    /// Bytes that each port of the switch holds.
    pub buffer_bytes: u32,
    /// Cells that it holds, where links carry cells.
    pub buffer_cells: Option<u32>,
    /// What it does when it is full.
    pub discard: Discard,
    /// How early tokens are released in mode `token-etr`.
    pub etr_lead: EtrLead,
    /// Traffic of one more node that takes part in nothing, in 10^6 bit/s.
    pub background_mbps: u32,
    /// Seconds of the measured part.
    pub seconds: f64,
    /// Whether frames are sealed with a key; if not, the network is trusted.
    pub sealed: bool,
    /// What everything random is drawn from.
    pub seed: u64,
}

impl Setting {
    /// Every link's model: cells where the buffer counts cells, else Ethernet.
    pub fn link(&self) -> LinkProfile {
        let (rate, propagation) = (self.rate(), Duration::from_micros(1));
        match self.buffer_cells {
            Some(_) => LinkProfile::atm(rate, propagation),
            None => LinkProfile::ethernet(rate, propagation),
        }
    }

    /// The switch's model.
    pub fn switch(&self) -> SwitchProfile {
        let buffer = self.buffer_cells.map_or(Buffer::Bytes(self.buffer_bytes), Buffer::Cells);
        let discard = match self.discard {
            Discard::Tail => DiscardPolicy::Tail,
            Discard::Ppd => DiscardPolicy::Partial,
            Discard::Epd => DiscardPolicy::EARLY,
        };
        SwitchProfile { discard, ..SwitchProfile::new(buffer) }
    }

    /// How early the firmware releases tokens; `None` where there are none.
    pub fn lead(&self) -> Option<Lead> {
        match (self.mode, self.etr_lead) {
            (Mode::None | Mode::Warp, _) => None,
            (Mode::Token, _) => Some(Lead::Off),
            (Mode::TokenEtr | Mode::TokenWarp, EtrLead::Auto) => Some(Lead::Steered),
            (Mode::TokenEtr | Mode::TokenWarp, EtrLead::Cells(cells)) => {
                let nanos = self.rate().nanos_for(u64::from(cells) * u64::from(CELL_BYTES));
                Some(Lead::Fixed(Duration::from_nanos(nanos)))
            }
        }
    }

    /// How the firmware of `node` finds its rate; `None` where it does not.
    pub fn warp(&self, node: NodeId) -> Option<WarpConfig> {
        let to: &[NodeId] = if node == RECEIVER { &[] } else { &[RECEIVER] };
        // Half of the buffer stands full; the other half takes the bursts. Who holds the token is
        // alone, and what waits at its own NIC counts, too: some messages of the largest frame.
        let (queue, sharers) = match self.mode {
            Mode::TokenWarp => (self.buffer_bytes.max(4 * self.message_bytes), 1),
            _ => ((self.buffer_bytes / 2).max(1), self.senders),
        };
        let mut config = WarpConfig::new(to, self.rate(), queue, sharers);
        match self.mode {
            Mode::Warp => Some(config),
            Mode::TokenWarp => {
                // A stamp now and then: with one owner at a time there is no queue to look for.
                let span = Duration::from_nanos(self.rate().nanos_for(u64::from(queue)) * 4);
                // ... and each finds the way empty: nobody has to ask for that.
                config.paces_others(true).span(span).drain_every(Duration::MAX);
                Some(config)
            }
            Mode::None | Mode::Token | Mode::TokenEtr => None,
        }
    }

    /// The rate of every link.
    pub const fn rate(&self) -> LineRate {
        LineRate::mbps(self.link_mbps as u64)
    }

    /// Thousandths of the time that coordinated messages take, to be left for what is sent beside
    /// them: the share of the background on the wire, and what is left free in any case.
    pub fn reserve(&self) -> u16 {
        let frame = BACKGROUND_BYTES + HEADER_BYTES as u32;
        let beside = self.message_nanos(frame) * u64::from(self.background_mbps);
        // That message comes once in so many nanoseconds times its rate in 10^6 bit/s.
        let whole = u64::from(BACKGROUND_BYTES) * 8_000;
        let share = beside * 1_000 / whole.saturating_sub(beside).max(1);
        u16::try_from(share).unwrap_or(u16::MAX).saturating_add(DEFAULT_RESERVE)
    }

    /// Nodes that take part: the receiver, the senders, and who makes the background.
    pub fn nodes(&self) -> u16 {
        1 + self.senders + u16::from(self.background_mbps > 0)
    }

    /// Nanoseconds that one message of `bytes` takes on a link.
    pub fn message_nanos(&self, bytes: u32) -> u64 {
        let link = self.link();
        link.rate.nanos_for(u64::from(link.framing.wire_bytes(bytes)))
    }

    /// What the first piece of a message takes on a link: its jitter may be that, and none overtakes.
    pub fn piece_time(&self) -> Duration {
        let link = self.link();
        let bytes = link.framing.piece_bytes(self.message_bytes, 0);
        Duration::from_nanos(link.rate.nanos_for(u64::from(bytes)))
    }

    /// A number by which nodes tell whether they were started for the same run.
    pub fn fingerprint(&self) -> u64 {
        let text = serde_json::to_string(self).expect("plain data");
        text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        })
    }
}
