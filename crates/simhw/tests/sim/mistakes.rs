//! Tests that a mistake in a topology, a profile or a script of faults ends the run with a text that names it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use midplane_simhw::fault::{Fault, FaultKind, Faults, Incident};
use midplane_simhw::frame::MAX_PAYLOAD;
use midplane_simhw::id::NodeId;
use midplane_simhw::link::{Framing, LinkProfile};
use midplane_simhw::profile::NicProfile;
use midplane_simhw::sim::World;
use midplane_simhw::time::Instant;
use midplane_simhw::topology::{LinkId, MediumId, SwitchId, Topology};

use crate::sim::harness::{A, Probe, RATE, ROOMY, star};

const LINK: LinkProfile = LinkProfile::plain(RATE, Duration::ZERO);
const NO_NODE: NodeId = NodeId(9);

/// Returns the text of the panic in which `mistake` ends.
#[track_caller]
fn text_of<T>(mistake: impl FnOnce() -> T) -> String {
    let Err(panic) = catch_unwind(AssertUnwindSafe(mistake)) else { panic!("it has no effect") };
    match panic.downcast::<String>() {
        Ok(text) => *text,
        Err(panic) => panic.downcast::<&str>().expect("a panic has a text").to_string(),
    }
}

fn world() -> World<Probe> {
    World::new(&star(2), NicProfile::FREE, 1, |_, _| Probe::idle())
}

fn schedule(fault: Fault) -> String {
    let incident = Incident { at: Instant::ZERO, lasts: Duration::from_secs(1), fault };
    text_of(|| world().schedule(incident))
}

#[test]
fn a_node_that_the_topology_lacks_is_named_by_every_call() {
    let expected = "no node 9: the topology has 2, numbered from 0";
    assert_eq!(text_of(|| world().host(NO_NODE)), expected);
    assert_eq!(text_of(|| world().spawn(NO_NODE, async {})), expected);
    assert_eq!(text_of(|| world().block_on(NO_NODE, async {})), expected);
    assert_eq!(text_of(|| world().crash(NO_NODE)), expected);
    assert_eq!(text_of(|| world().restart(NO_NODE)), expected);
    assert_eq!(text_of(|| world().cut(A, NO_NODE)), expected);
    assert_eq!(text_of(|| world().is_up(NO_NODE)), expected);
    assert_eq!(text_of(|| world().open_ports(NO_NODE)), expected);
    let world = world();
    assert_eq!(text_of(|| _ = world.firmware(NO_NODE)), expected);
}

#[test]
fn an_incident_at_a_place_that_the_topology_lacks_is_refused() {
    let crash = schedule(Fault::Crash { node: NO_NODE });
    assert_eq!(crash, "the fault names node 9; the topology has numbers 0 to 1");
    let partition = schedule(Fault::Partition { from: A, to: NO_NODE });
    assert_eq!(partition, crash);
    let flap = schedule(Fault::Flap { link: LinkId(4), period: Duration::from_millis(1) });
    assert_eq!(flap, "the fault names link 4; the topology has numbers 0 to 3");
    let stuck = schedule(Fault::PortStuck { link: LinkId(0) });
    let begins = "link that begins at a switch; link 0 begins elsewhere";
    assert_eq!(stuck, format!("the fault PortStuck needs a {begins}"));
    let reboot = schedule(Fault::SwitchReboot { switch: SwitchId(1) });
    assert_eq!(reboot, "the fault names switch 1; the topology has switch 0 only");
}

#[test]
fn a_probability_above_one_is_refused_in_virtual_time_too() {
    let burst = schedule(Fault::BurstLoss { link: LinkId(0), enter: 0.5, leave: f64::NAN });
    assert_eq!(burst, "the probability of \"burst-loss\" is NaN; it must be 0 to 1");
    let loss = text_of(|| world().set_faults(Faults { loss: 1.5, ..Faults::NONE }));
    assert_eq!(loss, "the probability of \"loss\" is 1.5; it must be 0 to 1");
}

#[test]
fn a_period_of_zero_is_refused() {
    let spurious = schedule(Fault::InterruptSpurious { node: A, every: Duration::ZERO });
    assert!(spurious.starts_with("the fault InterruptSpurious repeats every 0 s"), "{spurious}");
    let flap = schedule(Fault::Flap { link: LinkId(0), period: Duration::ZERO });
    assert!(flap.starts_with("the fault Flap repeats every 0 s"), "{flap}");
}

#[test]
fn an_incident_at_a_place_of_the_topology_is_accepted_whatever_its_kind() {
    let chaos = midplane_simhw::fault::Chaos {
        kinds: FaultKind::ALL.to_vec(),
        incidents: 400,
        within: Duration::from_secs(1),
        longest: Duration::from_millis(10),
        delay: Duration::from_micros(10),
        ppm: 100,
    };
    let shared = Topology::shared(2, midplane_simhw::medium::MediumProfile::ETHERNET_10);
    for topology in [star(2), shared] {
        let mut world = World::new(&topology, NicProfile::FREE, 1, |_, _| Probe::idle());
        chaos.script(&topology, 1).into_iter().for_each(|incident| world.schedule(incident));
    }
}

#[test]
fn a_switch_host_link_or_medium_that_does_not_exist_is_named() {
    let no_switch = "no switch 3: the topology has 1, and `add_switch` adds one";
    assert_eq!(text_of(|| star(2).add_host(SwitchId(3), LINK)), no_switch);
    assert_eq!(text_of(|| star(2).add_trunk(SwitchId(0), SwitchId(3), LINK)), no_switch);
    let no_medium = "no medium 0: the topology has 0, and `add_medium` adds one";
    assert_eq!(text_of(|| star(2).add_host_on(MediumId(0))), no_medium);
    let no_host = "no host 9: the topology has 2, numbered from 0";
    assert_eq!(text_of(|| star(2).downlink(NO_NODE)), no_host);
    assert_eq!(text_of(|| star(2).uplink(NO_NODE)), no_host);
    let no_link = "no link 4: the topology has 4, numbered from 0";
    assert_eq!(text_of(|| star(2).link_name(LinkId(4))), no_link);
}

#[test]
fn a_profile_with_which_no_frame_could_leave_is_refused() {
    let start = |link: LinkProfile, nic| {
        text_of(move || World::new(&Topology::star(2, link, ROOMY), nic, 1, |_, _| Probe::idle()))
    };
    let no_slots = NicProfile { transmit_slots: 0, ..NicProfile::FREE };
    assert!(start(LINK, no_slots).starts_with("`NicProfile::transmit_slots` is 0"));
    let too_long = NicProfile { mtu: MAX_PAYLOAD + 1, ..NicProfile::FREE };
    assert!(start(LINK, too_long).starts_with("`NicProfile::mtu` is 65401"));
    let framing = Framing::Packets { mtu: 0, overhead: 66 };
    let packets = start(LinkProfile { framing, ..LINK }, NicProfile::FREE);
    assert!(packets.contains("an `mtu` of 0"), "{packets}");
}
