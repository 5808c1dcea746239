//! Whole machines, of the papers and of today: hosts, NICs, and the network between them.
//!
//! Each constant's comment says whether it was read in a paper or a manual, derived from such figures, or
//! fitted so that a published result is reproduced. `lab figures` measures those results.

use std::time::Duration;

use crate::frame::MAX_PAYLOAD;
use crate::link::{Framing, LinkProfile};
use crate::medium::MediumProfile;
use crate::profile::{DmaCost, HostProfile, Loopback, NicProfile, Notice, PinCost, Ringing};
use crate::switch::{Buffer, DiscardPolicy, Forwarding, SwitchProfile};
use crate::time::LineRate;
use crate::topology::Topology;

/// The network that connects the hosts.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum Attachment {
    /// Every host has a link to one switch.
    Switched(LinkProfile, SwitchProfile),
    /// All hosts share one cable.
    Shared(MediumProfile),
}

/// A cluster's hardware.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Machine {
    /// Name in reports.
    pub name: &'static str,
    /// The NICs.
    pub nic: NicProfile,
    /// The hosts.
    pub host: HostProfile,
    /// The network that connects the hosts.
    pub attachment: Attachment,
}

impl Machine {
    /// All machines of this module.
    pub const ALL: [Self; 8] = [
        Self::DVCM_ATM,
        Self::PM_MYRINET,
        Self::GAM_MYRINET,
        Self::MVIA_FAST_ETHERNET,
        Self::TCP_FAST_ETHERNET,
        Self::WARP_ETHERNET,
        Self::ETHERNET_25G,
        Self::ETHERNET_100G,
    ];

    /// Returns a topology of `hosts` such hosts on one switch or cable.
    #[must_use]
    pub fn topology(&self, hosts: u16) -> Topology {
        match self.attachment {
            Attachment::Switched(link, switch) => Topology::star(hosts, link, switch),
            Attachment::Shared(medium) => Topology::shared(hosts, medium),
        }
    }

    /// UltraSPARC-I workstations with FORE SBA-200E cards on an ASX-200WG switch (DVCM paper,
    /// section 4.2).
    ///
    /// Read: interrupt 9 us in a kernel handler and 50 us in a signal handler (section 3); the coprocessor's
    /// clock ([`NicProfile::SBA_200E`]); 2,560 cells at each output (ForeRunner manual). Derived: 149.76 Mb/s
    /// of cells in an OC-3; 100 m of fibre; copies as the same processors make them in the pipelines paper,
    /// Table 1. Fitted to 18 us from coprocessor to coprocessor: the switch's latency. Fitted to 60 us from
    /// application to application: doorbell and completion, with the library's work at both ends. Estimated,
    /// without a figure to fit to: system call and context switch of Solaris.
    pub const DVCM_ATM: Self = Self {
        name: "dvcm-atm",
        nic: NicProfile {
            doorbell: Duration::from_nanos(9_500),
            completion: Duration::from_nanos(20_500),
            ..NicProfile::SBA_200E
        },
        host: HostProfile {
            system_call_ns: 5_000,
            copy: DmaCost { setup_ns: 0, byte_ps: 7_050 },
            interrupt_ns: 9_000,
            signal_ns: 50_000,
            context_switch_ns: 20_000,
            ..HostProfile::FREE
        },
        attachment: Attachment::Switched(
            LinkProfile::atm(LineRate::new(149_760_000).unwrap(), Duration::from_nanos(500)),
            SwitchProfile {
                latency: Duration::from_nanos(6_000),
                forwarding: Forwarding::StoreAndForward,
                buffer: Buffer::Cells(2_560),
                discard: DiscardPolicy::Tail,
            },
        ),
    };

    /// PentiumPro PCs of 200 MHz with PM on Myrinet: RWC PC Cluster II (SCore-D paper, Table 2).
    ///
    /// Read: 160 MB/s of the link (section 5). Derived: a LANai of 33 MHz, the bus's clock; a switch that forwards
    /// after the route byte in 0.5 us (Myrinet paper, Boden 1995). Fitted to Table 2's 117.6 MB/s: the gathering DMA's
    /// time per byte. Fitted to Table 2's 7.5 us, through a channel of `midplane-gang` as in the paper through PM's:
    /// instructions of an event, DMA setup, completion. Fitted to Table 3's second row (empty receive buffer, full send
    /// buffer): the processor's copies, as the mean of what 61,200 bytes add to the save, 1.34 ms, and to the restore,
    /// 1.38 ms. That the two are equal says that messages are copied within memory, at 45 MB/s; what the save reads
    /// over PCI is the same for empty buffers. Rows three and four are predicted. Estimated, without a figure to fit
    /// to: doorbell, scattering DMA, receive memory; NetBSD's system call, interrupt, signal and context switch.
    pub const PM_MYRINET: Self = Self {
        name: "pm-myrinet",
        nic: NicProfile {
            instruction_ps: 30_000,
            event_instructions: 12,
            doorbell: Duration::from_nanos(400),
            gather: DmaCost { setup_ns: 300, byte_ps: 8_460 },
            scatter: DmaCost { setup_ns: 300, byte_ps: 8_000 },
            completion: Duration::from_nanos(100),
            receive_memory: 128 << 10,
            transmit_slots: 4,
            mtu: MAX_PAYLOAD,
        },
        host: HostProfile {
            system_call_ns: 2_000,
            copy: DmaCost { setup_ns: 0, byte_ps: 22_222 },
            interrupt_ns: 8_000,
            signal_ns: 20_000,
            context_switch_ns: 10_000,
            ..HostProfile::FREE
        },
        attachment: Attachment::Switched(MYRINET_LINK, MYRINET_SWITCH),
    };

    /// UltraSPARC 170 workstations with M2F Myrinet cards under Generic Active Messages: Berkeley
    /// NOW (pipelines paper, section 5.2).
    ///
    /// Read: LANai of 37.5 MHz, 160 MB/s of the link (section 5.2). The hosts' copies and the host DMA to the
    /// card are stages 0, 3 and 1 of Table 1; the copies are the mean of both ends. Derived: the receiving DMA
    /// is stage 2 minus the link. Fitted to the stages' overheads: instructions of an event and DMA setups. Cables and
    /// switch are part of no stage, since the code that was instrumented runs on the cards.
    pub const GAM_MYRINET: Self = Self {
        name: "gam-myrinet",
        nic: NicProfile {
            instruction_ps: 26_667,
            event_instructions: 90,
            doorbell: Duration::from_nanos(500),
            gather: DmaCost { setup_ns: 2_300, byte_ps: 24_316 },
            scatter: DmaCost { setup_ns: 4_750, byte_ps: 18_066 },
            completion: Duration::ZERO,
            receive_memory: 128 << 10,
            transmit_slots: 4,
            mtu: MAX_PAYLOAD,
        },
        host: HostProfile {
            system_call_ns: 5_000,
            copy: DmaCost { setup_ns: 7_300, byte_ps: 7_373 },
            interrupt_ns: 9_000,
            signal_ns: 50_000,
            context_switch_ns: 20_000,
            ..HostProfile::FREE
        },
        attachment: Attachment::Switched(MYRINET_LINK, MYRINET_SWITCH),
    };

    /// Pentium II PCs of 450 MHz with DC21140 cards under M-VIA, on a Fast Ethernet switch
    /// (LAM-VIA paper, section 5).
    ///
    /// M-VIA's firmware runs on the host, in the kernel: a fast trap rings the doorbell, frames interrupt,
    /// received bytes are copied once. Read: the processor's clock. Derived: 32-bit PCI of 132 MB/s; copies of
    /// 150 MB/s over 100 MHz memory. Fitted to 61 us: the interrupt, the instructions of an event, the DMA's
    /// setup, the switch's latency. Fitted to every other row of the table's local column (1, 4, 16 B and so on, by least
    /// squares of the relative errors), with 64 bytes for LAM's message header: the loopback; the rows between are predicted.
    /// Derived: near copies are those of which all three fit the 16 KiB of the first-level cache. The step, halfway
    /// between the fitted rows of 64 and 256 bytes, is in the table, which gives no reason for it. Estimated: context
    /// switch of Linux 2.2; to register memory, one system call, and 450 instructions to pin each page. No row of the
    /// table registers memory for a message.
    pub const MVIA_FAST_ETHERNET: Self = Self {
        name: "mvia-fast-ethernet",
        nic: DC21140,
        host: HostProfile {
            loopback: Some(MVIA_LOOPBACK),
            pin: PinCost { base_ns: 1_500, page_ns: 1_000 },
            ..PENTIUM_II
        },
        attachment: FAST_ETHERNET,
    };

    /// The same PCs as hosts that run the kernel's TCP as firmware.
    pub const TCP_FAST_ETHERNET: Self = Self {
        name: "tcp-fast-ethernet",
        nic: DC21140,
        host: HostProfile { notice: Notice::Interrupt, ..PENTIUM_II },
        attachment: FAST_ETHERNET,
    };

    /// SPARCstation 1+ workstations on a private Ethernet of 10 Mb/s (Warp paper, section 5.3).
    ///
    /// Read: the cable's rate. Derived: 25 MHz, one instruction a cycle; the cable is
    /// [`MediumProfile::ETHERNET_10`]. Estimated, as the paper gives no figure for one message: everything
    /// else. A packet takes about 0.5 ms through SunOS at each end.
    pub const WARP_ETHERNET: Self = Self {
        name: "warp-ethernet",
        nic: NicProfile {
            instruction_ps: 40_000,
            event_instructions: 5_000,
            doorbell: Duration::ZERO,
            gather: DmaCost { setup_ns: 5_000, byte_ps: 100_000 },
            scatter: DmaCost { setup_ns: 0, byte_ps: 0 },
            completion: Duration::ZERO,
            receive_memory: 128 << 10,
            transmit_slots: 16,
            mtu: MAX_PAYLOAD,
        },
        host: HostProfile {
            system_call_ns: 60_000,
            copy: DmaCost { setup_ns: 0, byte_ps: 100_000 },
            interrupt_ns: 100_000,
            signal_ns: 300_000,
            context_switch_ns: 150_000,
            ringing: Ringing::SystemCall,
            notice: Notice::Interrupt,
            runs_firmware: true,
            ..HostProfile::FREE
        },
        attachment: Attachment::Shared(MediumProfile::ETHERNET_10),
    };

    /// Servers of today on 25 Gb/s. Derived from data sheets, fitted to nothing: a cut-through switch of 0.6 us
    /// with 256 KiB a port, 100 ns of error correction and 10 m of cable.
    pub const ETHERNET_25G: Self = Self::today("ethernet-25g", LineRate::mbps(25_000));

    /// Servers of today on 100 Gb/s; otherwise as [`Machine::ETHERNET_25G`].
    pub const ETHERNET_100G: Self = Self::today("ethernet-100g", LineRate::mbps(100_000));

    const fn today(name: &'static str, rate: LineRate) -> Self {
        let link = LinkProfile {
            rate,
            propagation: Duration::from_nanos(150),
            framing: Framing::Packets { mtu: 8_972, overhead: 66 },
        };
        let switch = SwitchProfile {
            latency: Duration::from_nanos(600),
            forwarding: Forwarding::CutThrough { header: 64 },
            buffer: Buffer::Bytes(256 << 10),
            discard: DiscardPolicy::Tail,
        };
        let host = HostProfile {
            system_call_ns: 150,
            copy: DmaCost { setup_ns: 10, byte_ps: 100 },
            interrupt_ns: 1_500,
            signal_ns: 3_000,
            context_switch_ns: 1_200,
            ..HostProfile::FREE
        };
        Self { name, nic: NicProfile::MODERN, host, attachment: Attachment::Switched(link, switch) }
    }
}

/// Link of 1.28 Gb/s with 25 m of cable.
const MYRINET_LINK: LinkProfile =
    LinkProfile::plain(LineRate::mbps(1_280), Duration::from_nanos(125));

/// Cut-through switch whose links wait where it has no space. Its buffer is estimated.
const MYRINET_SWITCH: SwitchProfile = SwitchProfile {
    latency: Duration::from_nanos(500),
    forwarding: Forwarding::CutThrough { header: 8 },
    buffer: Buffer::Bytes(64 << 10),
    discard: DiscardPolicy::BackPressure,
};

const DC21140: NicProfile = NicProfile {
    instruction_ps: 2_222,
    event_instructions: 3_100,
    doorbell: Duration::ZERO,
    gather: DmaCost { setup_ns: 4_000, byte_ps: 7_576 },
    scatter: DmaCost { setup_ns: 0, byte_ps: 0 },
    completion: Duration::ZERO,
    receive_memory: 128 << 10,
    transmit_slots: 16,
    mtu: MAX_PAYLOAD,
};

const PENTIUM_II: HostProfile = HostProfile {
    system_call_ns: 1_500,
    copy: DmaCost { setup_ns: 0, byte_ps: 6_667 },
    interrupt_ns: 18_000,
    signal_ns: 25_000,
    context_switch_ns: 5_000,
    ringing: Ringing::SystemCall,
    runs_firmware: true,
    ..HostProfile::FREE
};

const MVIA_LOOPBACK: Loopback = Loopback {
    frame_ns: 735,
    short_bytes: 224,
    long_ns: 6_510,
    near_bytes: 5_461,
    near_byte_ps: 2_750,
    far_byte_ps: 3_930,
};

/// Raw Ethernet frames, with the frame header in the place of a protocol's.
const FAST_ETHERNET: Attachment = Attachment::Switched(
    LinkProfile {
        rate: LineRate::mbps(100),
        propagation: Duration::from_nanos(500),
        framing: Framing::Packets { mtu: 1500, overhead: 38 },
    },
    SwitchProfile {
        latency: Duration::from_nanos(8_000),
        forwarding: Forwarding::StoreAndForward,
        buffer: Buffer::Bytes(128 << 10),
        discard: DiscardPolicy::Tail,
    },
);
