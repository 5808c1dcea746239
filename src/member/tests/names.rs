//! Tests two nodes of one name: a restart, and two live nodes.

use std::net::SocketAddr;

use midplane_simhw::time::Instant;
use midplane_via::session::TransportKind;

use super::chosen;
use crate::member::{
    Effect, Hello, Load, Members, SILENCE, Stranger, TRIAL, Target, Unreadable, VERSION,
};

pub(super) fn hello(id: u64, incarnation: u64, name: &str) -> Hello {
    let services = vec!["kv".into()];
    Hello {
        version: VERSION,
        cluster: "a".into(),
        id,
        incarnation,
        name: name.into(),
        services,
        rival: 0,
        key: [0; 32],
        is_kept: false,
        refusal: 0,
        ofi: Vec::new(),
    }
}

pub(super) fn at(port: u16) -> TransportKind {
    TransportKind::Udp(SocketAddr::from(([10, 0, 0, 1], port)))
}

/// Returns a node that knows node 1 by link 1, at port 1.
pub(super) fn members() -> Members {
    let mut members = Members::new(&hello(9, 50, "client"), None);
    members.handle_accepted(Instant::ZERO, 1, at(1));
    members.handle_hello(Instant::ZERO, 1, hello(1, 10, "kv"), None);
    members
}

pub(super) fn effects(members: &mut Members) -> Vec<Effect> {
    std::iter::from_fn(|| members.poll_effect()).collect()
}

#[test]
fn a_restarted_node_at_the_same_address_replaces_its_former_self_at_once() {
    let mut members = members();
    members.handle_accepted(Instant::ZERO, 2, at(1));
    members.handle_hello(Instant::ZERO, 2, hello(2, 20, "kv"), None);
    assert!(effects(&mut members).contains(&Effect::End(1)));
    assert_eq!(chosen(&members), [(2, false)]);
    members.handle_ended(Instant::ZERO, 1);
    assert_eq!(chosen(&members), [(2, false)]);
    assert_eq!(members.rival_of(2), 0);
}

#[test]
fn a_silent_node_is_replaced_by_the_next_of_its_name() {
    let mut members = members();
    members.handle_accepted(Instant::ZERO, 2, at(2));
    members.handle_hello(Instant::ZERO, 2, hello(2, 20, "kv"), None);
    assert_eq!(chosen(&members), [(1, true), (2, false)], "new streams avoid the first");
    let end = Instant::from_nanos(TRIAL);
    assert_eq!(members.poll_timeout(), Some(end));
    members.handle_timeout(end, |link| Load { streams: 1, is_suspected: link == 1 });
    assert!(effects(&mut members).contains(&Effect::End(1)));
    assert_eq!(chosen(&members), [(2, false)]);
}

#[test]
fn the_later_of_two_live_nodes_of_one_name_is_not_used_until_the_first_leaves() {
    let mut members = members();
    members.handle_accepted(Instant::ZERO, 2, at(2));
    members.handle_hello(Instant::ZERO, 2, hello(2, 20, "kv"), None);
    assert!(effects(&mut members).contains(&Effect::Describe(1)), "the first node is tested");
    members.handle_timeout(Instant::from_nanos(TRIAL), |_| Load::default());
    assert_eq!(effects(&mut members), [Effect::Describe(2), Effect::Wake]);
    assert_eq!((members.rival_of(1), members.rival_of(2)), (0, 1));
    assert_eq!(chosen(&members), [(1, false)]);
    members.handle_goodbye(Instant::from_nanos(TRIAL), 1);
    assert_eq!(chosen(&members), [(2, false)]);
    assert_eq!(members.rival_of(2), 0);
}

#[test]
fn of_two_nodes_freed_by_the_end_of_a_third_with_their_name_the_later_is_not_used() {
    let mut members = members();
    for id in [2, 3] {
        members.handle_accepted(Instant::ZERO, id, at(id as u16));
        members.handle_hello(Instant::ZERO, id, hello(id, 10 * id, "kv"), None);
    }
    members.handle_timeout(Instant::from_nanos(TRIAL), |_| Load::default());
    assert_eq!((members.rival_of(2), members.rival_of(3)), (1, 1));
    members.handle_ended(Instant::from_nanos(TRIAL), 1);
    members.handle_timeout(Instant::from_nanos(2 * TRIAL), |_| Load::default());
    assert_eq!((members.rival_of(2), members.rival_of(3)), (0, 2));
    assert_eq!(chosen(&members), [(2, false)]);
}

#[test]
fn a_node_learns_of_another_with_its_name_from_that_node_or_a_third() {
    let mut members = members();
    assert_eq!(members.rival(), None);
    members.handle_accepted(Instant::ZERO, 2, at(2));
    members.handle_hello(Instant::ZERO, 2, hello(2, 60, "client"), None);
    assert_eq!(members.rival(), None, "it came later: the other one learns of this one");
    members.handle_hello(Instant::ZERO, 1, Hello { rival: 7, ..hello(1, 10, "kv") }, None);
    assert_eq!(members.rival(), Some((7, Some("kv"))));
    members.handle_accepted(Instant::ZERO, 3, at(3));
    members.handle_hello(Instant::ZERO, 3, hello(3, 40, "client"), None);
    assert_eq!(members.rival(), Some((3, None)));
    members.handle_ended(Instant::ZERO, 3);
    members.handle_hello(Instant::ZERO, 1, hello(1, 10, "kv"), None);
    assert_eq!(members.rival(), None);
}

#[test]
fn a_peer_that_changes_its_identity_ends_its_link_alone() {
    let mut members = members();
    members.handle_accepted(Instant::ZERO, 2, at(2));
    members.handle_hello(Instant::ZERO, 2, hello(2, 20, "other"), None);
    effects(&mut members);
    members.handle_hello(Instant::ZERO, 2, hello(1, 10, "kv"), None);
    assert_eq!(effects(&mut members), [Effect::End(2)]);
    members.handle_accepted(Instant::ZERO, 3, at(3));
    members.handle_unreadable(3, Unreadable::Version(7));
    assert!(effects(&mut members).contains(&Effect::End(3)));
    assert_eq!(chosen(&members), [(1, false)]);
}

#[test]
fn a_node_of_another_cluster_is_reported_by_the_one_that_has_dialed_it_which_ends_the_link() {
    let other = || Hello { cluster: "b".into(), ..hello(2, 20, "other") };
    let mut members = members();
    members.handle_accepted(Instant::ZERO, 2, at(2));
    effects(&mut members);
    members.handle_hello(Instant::ZERO, 2, other(), None);
    assert_eq!(effects(&mut members), [], "its node receives this one's description, and ends it");
    let TransportKind::Udp(address) = at(3) else { unreachable!() };
    let place = Target::Address(address);
    members.handle_places(Instant::ZERO, &[place].into());
    members.handle_dialed(Instant::ZERO, place, 3, at(3));
    effects(&mut members);
    members.handle_hello(Instant::ZERO, 3, other(), None);
    assert_eq!(effects(&mut members), [Effect::End(3)]);
    assert_eq!(members.strangers()[&place], Stranger::Cluster("b".into()));
    assert_eq!(chosen(&members), [(1, false)]);
    members.handle_hello(
        Instant::ZERO,
        1,
        Hello { cluster: "b".into(), ..hello(1, 10, "kv") },
        None,
    );
    assert_eq!(effects(&mut members), [Effect::End(1)], "a node stays of its cluster");
    members.handle_timeout(Instant::from_nanos(SILENCE), |_| Load::default());
    assert_eq!(effects(&mut members), [Effect::End(2)], "a link that stays mute ends");
}

/// Of 200 places, all but the last are of hosts that are down: the last is dialed after a few rounds.
#[test]
fn silent_places_do_not_keep_others_from_being_dialed() {
    let second = |at: u64| Instant::from_nanos(at * 1_000_000_000);
    let place = |port| Target::Address(SocketAddr::from(([10, 0, 0, 2], port)));
    let found: std::collections::BTreeSet<_> = (1..=200).map(place).collect();
    let mut members = Members::new(&hello(9, 50, "client"), None);
    members.handle_places(second(1), &found);
    members.seek(second(1), second(1_000));
    let mut dialed = std::collections::BTreeSet::new();
    for round in 0..5 {
        let mut links = Vec::new();
        for effect in effects(&mut members) {
            let Effect::Dial(target) = effect else { continue };
            dialed.insert(target);
            let link = round * 1_000 + links.len() as u64;
            members.handle_dialed(second(1 + 10 * round), target, link, at(1));
            links.push(link);
        }
        let now = second(11 + 10 * round);
        links.into_iter().for_each(|link| drop(members.handle_ended(now, link)));
        members.handle_timeout(now, |_| Load::default());
    }
    assert_eq!(dialed, found);
}

/// Of 65 nodes of this host, all but the last are suspended: the last is dialed once the dials of the others no longer
/// count.
///
/// Regression: the links of the others ended then, and each further dial filled the queue of a suspended node.
#[test]
fn stopped_nodes_of_this_host_do_not_keep_others_from_being_dialed() {
    let second = |at: u64| Instant::from_nanos(at * 1_000_000_000);
    let found: std::collections::BTreeSet<_> = (1..=65).map(Target::Local).collect();
    let mut members = Members::new(&hello(99, 50, "client"), None);
    members.handle_places(second(1), &found);
    members.seek(second(1), second(1_000));
    let dials = effects(&mut members);
    assert_eq!(dials.len(), 64);
    for (effect, link) in dials.into_iter().zip(1..) {
        assert_eq!(effect, Effect::Dial(Target::Local(link)));
        members.handle_dialed(second(1), Target::Local(link), link, TransportKind::Shm);
    }
    effects(&mut members);
    assert_eq!(members.poll_timeout(), Some(second(4)));
    members.handle_timeout(second(4), |_| Load::default());
    assert_eq!(effects(&mut members), [Effect::Dial(Target::Local(65))]);
    members.handle_dialed(second(4), Target::Local(65), 65, TransportKind::Shm);
    assert_eq!(members.poll_timeout(), Some(second(31)));
}
