//! The constants of the papers' machines, each with its source.

use std::fmt::Debug;
use std::time::Duration;

use midplane::simhw::profile::{
    Attachment, DmaCost, HostProfile, Loopback, Machine, NicProfile, PinCost,
};
use serde::Serialize;

use super::pm::mpi::PACKET_NS;
use crate::kernel_tcp::TcpCosts;

/// The place that a constant's value comes from.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case", tag = "origin", content = "source")]
pub enum Source {
    /// Read in the named place.
    Read(&'static str),
    /// Computed from the named figures.
    Derived(&'static str),
    /// Chosen so that the named numbers of the paper are reproduced.
    Fitted(&'static str),
    /// Assumed, for the named reason.
    Estimated(&'static str),
}
use Source::{Derived, Estimated, Fitted, Read};

/// One constant of a machine.
#[derive(Clone, Debug, Serialize)]
pub struct Constant {
    pub machine: &'static str,
    pub name: &'static str,
    /// Value with its unit.
    pub value: String,
    #[serde(flatten)]
    pub source: Source,
}

/// Sources, each with the names of its constants.
type Sources = &'static [(Source, &'static [&'static str])];

const DVCM: Sources = &[
    (Read("25 MHz, one instruction a cycle at best: FORE, SBA-200E data sheet"), &["instruction"]),
    (Estimated("half of the 256 KiB of the card"), &["receive memory"]),
    (Read("section 3: a kernel handler, 9 us"), &["interrupt"]),
    (Read("section 3: a signal handler, 50 us"), &["signal"]),
    (Read("ForeRunner manual: 2,560 cells at each output"), &["switch"]),
    (
        Derived("SBus: 32 bits a cycle at 25 MHz, half of it sustained"),
        &["gather, a byte", "scatter, a byte"],
    ),
    (Derived("149.76 Mb/s of cells in an OC-3, 100 m of fibre"), &["link"]),
    (Derived("pipelines paper, Table 1: copies by the same processor"), &["copy, a byte"]),
    (Fitted("section 3: 18 us from coprocessor to coprocessor"), &["event", "switch latency"]),
    (Fitted("section 3: 60 us from application to application"), &["doorbell", "completion"]),
    (
        Estimated("no published number determines it"),
        &["gather, setup", "scatter, setup", "transmit slots", "system call", "context switch"],
    ),
];

const PM: Sources = &[
    (Read("section 5: Myrinet, 160 MB/s"), &["link"]),
    (Derived("a LANai at the 33 MHz of the bus"), &["instruction"]),
    (
        Derived("Boden 1995: a switch forwards after the route byte, in 0.5 us"),
        &["switch", "switch latency"],
    ),
    (Fitted("Table 2: 117.6 MB/s through a channel"), &["gather, a byte"]),
    (
        Fitted("Table 2: 7.5 us through a channel"),
        &["event", "gather, setup", "scatter, setup", "completion"],
    ),
    (Fitted("Table 2: 12.0 us of MPI through a channel"), &["MPI, a packet at each end"]),
    (Fitted("Table 3: its second row"), &["copy, a byte"]),
    (
        Estimated("no published number determines it"),
        &[
            "doorbell",
            "receive memory",
            "transmit slots",
            "system call",
            "scatter, a byte",
            "interrupt",
            "signal",
            "context switch",
        ],
    ),
];

const GAM: Sources = &[
    (Read("section 5.2: a LANai of 37.5 MHz"), &["instruction"]),
    (Read("section 5.2: Myrinet, 160 MB/s"), &["link"]),
    (Read("Table 1: stages 0 and 3, the mean of both"), &["copy, setup", "copy, a byte"]),
    (Read("Table 1: stage 1, us per KiB"), &["gather, a byte"]),
    (Derived("Table 1: us per KiB of stage 2, without the link"), &["scatter, a byte"]),
    (
        Derived("Boden 1995: a switch forwards after the route byte, in 0.5 us"),
        &["switch", "switch latency"],
    ),
    (Fitted("Table 1: overheads of stages 1 and 2"), &["event", "gather, setup", "scatter, setup"]),
    (
        Estimated("no published number determines it"),
        &[
            "doorbell",
            "receive memory",
            "transmit slots",
            "system call",
            "interrupt",
            "signal",
            "context switch",
        ],
    ),
];

const MVIA: Sources = &[
    (Read("section 5: processors of 450 MHz"), &["instruction"]),
    (Read("section 5: Fast Ethernet"), &["link"]),
    (Derived("PCI: 32 bits at 33 MHz"), &["gather, a byte"]),
    (Derived("memory of 100 MHz: copies of 150 MB/s"), &["copy, a byte"]),
    (Derived("three copies fit the first-level cache of 16 KiB"), &["loopback, near copies up to"]),
    (
        Fitted("section 2.1: M-VIA, 61 us one way"),
        &["event", "gather, setup", "interrupt", "switch latency"],
    ),
    (
        Fitted("Table 1, local, VIA: every other row, from 1 B on"),
        &[
            "loopback, a frame",
            "loopback, short frames up to",
            "loopback, a longer frame",
            "loopback, near copy, a byte",
            "loopback, far copy, a byte",
        ],
    ),
    (
        Estimated("450 instructions to pin a page; no row registers memory for a message"),
        &["registration", "registration, a page"],
    ),
    (
        Estimated("no published number determines it"),
        &["receive memory", "transmit slots", "system call", "signal", "context switch", "switch"],
    ),
];

const TCP: Sources = &[
    (Read("section 5: processors of 450 MHz"), &["instruction"]),
    (Read("section 5: Fast Ethernet"), &["link"]),
    (Derived("PCI: 32 bits at 33 MHz"), &["gather, a byte"]),
    (Derived("memory of 100 MHz: copies of 150 MB/s"), &["copy, a byte"]),
    (
        Estimated("close to Ethernet's 1,500 bytes less the headers of IP and TCP"),
        &["TCP, segment"],
    ),
    (Read("Linux 2.2: its window"), &["TCP, window"]),
    (
        Fitted("section 2.1: M-VIA, 61 us one way"),
        &["event", "gather, setup", "interrupt", "switch latency"],
    ),
    (
        Fitted("section 2.1: TCP, 100 us one way"),
        &[
            "TCP, a call",
            "TCP, copy of a byte",
            "TCP, a segment out",
            "TCP, a segment in",
            "TCP, an acknowledgement",
        ],
    ),
    (
        Estimated("no published number determines it"),
        &["receive memory", "transmit slots", "system call", "signal", "context switch", "switch"],
    ),
];

const WARP: Sources = &[
    (Read("section 5.3: Ethernet of 10 Mb/s; IEEE 802.3, clause 4.4.2.1"), &["link"]),
    (Derived("25 MHz, one instruction a cycle"), &["instruction"]),
    (
        Estimated(
            "about 0.5 ms for a packet through SunOS at each end; the paper has no number for one message",
        ),
        &[
            "event",
            "gather, setup",
            "gather, a byte",
            "system call",
            "copy, a byte",
            "interrupt",
            "signal",
            "context switch",
        ],
    ),
    (Estimated("no published number determines it"), &["receive memory", "transmit slots"]),
];

/// Returns the constants of a paper's machines that are not zero.
///
/// # Panics
/// Panics if no source is known for a constant.
#[must_use]
pub fn constants(paper: &str) -> Vec<Constant> {
    let machines: &[(Machine, Sources)] = match paper {
        "dvcm" => &[(Machine::DVCM_ATM, DVCM)],
        "score-d" => &[(Machine::PM_MYRINET, PM)],
        "lam-via" => &[(Machine::MVIA_FAST_ETHERNET, MVIA), (Machine::TCP_FAST_ETHERNET, TCP)],
        "pipelines" => &[(Machine::GAM_MYRINET, GAM)],
        _ => &[(Machine::WARP_ETHERNET, WARP)],
    };
    let of = |(machine, sources): &(Machine, Sources)| {
        let (name, sources) = (machine.name, *sources);
        let constant = move |(constant, value): (&'static str, String)| {
            let source = sources.iter().find(|(_, names)| names.contains(&constant));
            let (source, _) = source.unwrap_or_else(|| panic!("{name}: {constant} has no source"));
            Constant { machine: name, name: constant, value, source: *source }
        };
        values(machine).into_iter().map(constant).collect::<Vec<_>>()
    };
    machines.iter().flat_map(of).collect()
}

/// A constant's name, and its value with the unit.
type Value = (&'static str, String);

/// Returns a machine's constants that are not zero.
fn values(machine: &Machine) -> Vec<Value> {
    let mut values = [of_nic(machine.nic), of_host(machine.host)].concat();
    match machine.attachment {
        Attachment::Switched(link, switch) => {
            let whole =
                format!("{:?}, {:?}, {:?}", switch.forwarding, switch.buffer, switch.discard);
            values.extend([
                some("link", link),
                ("switch", whole),
                time("switch latency", switch.latency),
            ]);
        }
        Attachment::Shared(medium) => values.push(some("link", medium)),
        _ => unreachable!("no paper's machine has another network"),
    }
    if *machine == Machine::TCP_FAST_ETHERNET {
        values.extend(of_tcp(TcpCosts::LINUX_2_2));
    }
    if *machine == Machine::PM_MYRINET {
        values.push(unit("MPI, a packet at each end", PACKET_NS, "ns"));
    }
    values.retain(|(_, value)| !value.starts_with("0 "));
    values
}

fn of_nic(nic: NicProfile) -> Vec<Value> {
    let NicProfile {
        instruction_ps,
        event_instructions,
        doorbell,
        gather,
        scatter,
        completion,
        receive_memory,
        transmit_slots,
        // The longest payload of any frame: no machine's own.
        mtu: _,
    } = nic;
    vec![
        unit("instruction", instruction_ps, "ps"),
        unit("event", event_instructions, "instructions"),
        time("doorbell", doorbell),
        unit("gather, setup", gather.setup_ns, "ns"),
        unit("gather, a byte", gather.byte_ps, "ps"),
        unit("scatter, setup", scatter.setup_ns, "ns"),
        unit("scatter, a byte", scatter.byte_ps, "ps"),
        time("completion", completion),
        unit("receive memory", receive_memory, "B"),
        unit("transmit slots", transmit_slots, "frames"),
    ]
}

fn of_host(host: HostProfile) -> Vec<Value> {
    let HostProfile {
        system_call_ns,
        copy: DmaCost { setup_ns, byte_ps },
        pin: PinCost { base_ns, page_ns },
        interrupt_ns,
        signal_ns,
        context_switch_ns,
        loopback,
        // Ways of working, as the papers describe their systems: no costs.
        ringing: _,
        notice: _,
        runs_firmware: _,
    } = host;
    let mut values = vec![
        unit("system call", system_call_ns, "ns"),
        unit("copy, setup", setup_ns, "ns"),
        unit("copy, a byte", byte_ps, "ps"),
        unit("registration", base_ns, "ns"),
        unit("registration, a page", page_ns, "ns"),
        unit("interrupt", interrupt_ns, "ns"),
        unit("signal", signal_ns, "ns"),
        unit("context switch", context_switch_ns, "ns"),
    ];
    values.extend(loopback.into_iter().flat_map(of_loopback));
    values
}

fn of_loopback(loopback: Loopback) -> [Value; 6] {
    let Loopback { frame_ns, short_bytes, long_ns, near_bytes, near_byte_ps, far_byte_ps } =
        loopback;
    [
        unit("loopback, a frame", frame_ns, "ns"),
        unit("loopback, short frames up to", short_bytes, "B"),
        unit("loopback, a longer frame", long_ns, "ns"),
        unit("loopback, near copies up to", near_bytes, "B"),
        unit("loopback, near copy, a byte", near_byte_ps, "ps"),
        unit("loopback, far copy, a byte", far_byte_ps, "ps"),
    ]
}

fn of_tcp(costs: TcpCosts) -> [Value; 7] {
    let TcpCosts { call, copy_byte, segment_out, segment_in, acknowledge, mss, window } = costs;
    [
        unit("TCP, a call", call, "instructions"),
        unit("TCP, copy of a byte", copy_byte, "instructions"),
        unit("TCP, a segment out", segment_out, "instructions"),
        unit("TCP, a segment in", segment_in, "instructions"),
        unit("TCP, an acknowledgement", acknowledge, "instructions"),
        unit("TCP, segment", mss, "B"),
        unit("TCP, window", window, "B"),
    ]
}

fn unit(name: &'static str, value: impl std::fmt::Display, unit: &str) -> Value {
    (name, format!("{value} {unit}"))
}

fn time(name: &'static str, value: Duration) -> Value {
    unit(name, value.as_nanos(), "ns")
}

fn some(name: &'static str, value: impl Debug) -> Value {
    (name, format!("{value:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_constant_has_one_source_and_every_source_a_constant() {
        let papers = [DVCM, PM, GAM, MVIA, TCP, WARP];
        let machines = [
            Machine::DVCM_ATM,
            Machine::PM_MYRINET,
            Machine::GAM_MYRINET,
            Machine::MVIA_FAST_ETHERNET,
            Machine::TCP_FAST_ETHERNET,
            Machine::WARP_ETHERNET,
        ];
        for (machine, sources) in machines.into_iter().zip(papers) {
            let mut named: Vec<&str> =
                sources.iter().flat_map(|(_, names)| *names).copied().collect();
            let mut charged: Vec<&str> =
                values(&machine).into_iter().map(|(name, _)| name).collect();
            named.sort_unstable();
            charged.sort_unstable();
            assert_eq!(named, charged, "{}", machine.name);
        }
    }
}
