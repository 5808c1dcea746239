//! Tests keys of nodes: pinned names, and nodes that claim them.

use midplane_simhw::seal::PublicKey;
use midplane_simhw::time::Instant;
use midplane_via::session::TransportKind;

use super::chosen;
use super::names::{at, effects, hello};
use crate::member::keys::{MAX_PINS, REFUSED};
use crate::member::{Effect, Hello, Load, Members, Refusal, Stranger, TRIAL, Target};

fn key(byte: u8) -> PublicKey {
    PublicKey::new([byte; 32])
}

/// Returns the description of a node with a key.
fn keyed(id: u64, name: &str, byte: u8, is_kept: bool) -> Hello {
    Hello { key: [byte; 32], is_kept, ..hello(id, id, name) }
}

/// Returns a node with a key, which others have dialed by these links, at ports of the same numbers.
fn members(links: &[u64]) -> Members {
    let mut members = Members::new(&keyed(90, "own", 90, false), None);
    links.iter().for_each(|link| members.handle_accepted(Instant::ZERO, *link, at(*link as u16)));
    effects(&mut members);
    members
}

/// Has a node describe itself over its link and prove the key that it states.
fn describe(members: &mut Members, link: u64, hello: Hello) -> Vec<Effect> {
    let proven = hello.key();
    members.handle_hello(Instant::ZERO, link, hello, proven);
    effects(members)
}

fn refused(members: &mut Members, link: u64, hello: Hello, why: Refusal) {
    let asked = describe(members, link, hello);
    assert_eq!(asked, [Effect::Describe(link), Effect::Wake], "it is notified of the reason");
    assert_eq!((members.refusal_of(link), members.peer_of(link)), (why.number(), None));
    members.handle_timeout(Instant::from_nanos(REFUSED), |_| Load::default());
    assert_eq!(effects(members), [Effect::End(link)]);
}

#[test]
fn a_kept_key_has_its_name_while_its_node_is_down_and_a_restart_is_used_at_once() {
    let mut members = members(&[1, 2, 3]);
    describe(&mut members, 1, keyed(1, "kv", 1, true));
    refused(&mut members, 2, keyed(2, "kv", 2, true), Refusal::Name);
    assert_eq!(chosen(&members), [(1, false)], "the first is not disturbed");
    members.handle_ended(Instant::ZERO, 1);
    members.handle_ended(Instant::ZERO, 2);
    members.handle_accepted(Instant::ZERO, 2, at(1));
    effects(&mut members);
    refused(&mut members, 2, keyed(2, "kv", 2, false), Refusal::Name);
    assert_eq!(chosen(&members), []);
    describe(&mut members, 3, keyed(3, "kv", 1, true));
    assert_eq!(chosen(&members), [(3, false)]);
}

#[test]
fn a_key_for_one_start_has_its_name_as_long_as_its_node_is_alive() {
    let mut members = members(&[1, 2]);
    describe(&mut members, 1, keyed(1, "kv", 1, false));
    let asked = describe(&mut members, 2, keyed(2, "kv", 2, false));
    assert!(asked.contains(&Effect::Describe(1)), "the first node is tested");
    assert_eq!(chosen(&members), [(1, false)], "and is used as before");
    assert_eq!((members.peer_of(2), members.rival_of(2), members.refusal_of(2)), (None, 0, 0));
    members.handle_ended(Instant::ZERO, 1);
    assert_eq!(chosen(&members), [(2, false)], "a restart is used once the former node has ended");
    assert_eq!(members.peer_of(2), Some((2, "kv")));
}

#[test]
fn a_node_that_claims_a_live_nodes_name_is_refused_and_tested_again_at_each_return() {
    let mut members = members(&[1, 2, 3]);
    describe(&mut members, 1, keyed(1, "kv", 1, false));
    // The second time, the node returns before its first link has ended.
    for link in [2, 3] {
        describe(&mut members, link, keyed(2, "kv", 2, true));
        members.handle_timeout(Instant::from_nanos(TRIAL), |_| Load::default());
        assert_eq!(members.refusal_of(link), Refusal::Name.number());
        assert_eq!(chosen(&members), [(1, false)]);
    }
}

#[test]
fn a_silent_node_is_replaced_by_another_key_unless_its_own_is_kept() {
    let mut members = members(&[1, 2]);
    describe(&mut members, 1, keyed(1, "kv", 1, false));
    describe(&mut members, 2, keyed(2, "kv", 2, false));
    let end = Instant::from_nanos(TRIAL);
    members.handle_timeout(end, |link| Load { streams: 1, is_suspected: link == 1 });
    assert!(effects(&mut members).contains(&Effect::End(1)));
    assert_eq!(chosen(&members), [(2, false)]);
}

#[test]
fn of_two_nodes_that_wait_for_a_name_the_first_gets_it() {
    let mut members = members(&[1, 2, 3]);
    describe(&mut members, 1, keyed(1, "kv", 1, false));
    members.handle_hello(Instant::from_nanos(1), 3, keyed(3, "kv", 3, false), Some(key(3)));
    members.handle_hello(Instant::from_nanos(2), 2, keyed(2, "kv", 2, false), Some(key(2)));
    members.handle_goodbye(Instant::from_nanos(3), 1);
    assert_eq!(chosen(&members), [(3, false)]);
    members.handle_timeout(Instant::from_nanos(2 * TRIAL), |_| Load::default());
    assert_eq!(members.refusal_of(2), Refusal::Name.number());
}

#[test]
fn a_node_that_waits_for_a_name_is_refused_once_it_is_pinned_to_another_key() {
    let mut members = members(&[1, 2, 3]);
    describe(&mut members, 1, keyed(1, "kv", 1, false));
    members.handle_hello(Instant::from_nanos(1), 2, keyed(2, "kv", 2, true), Some(key(2)));
    members.handle_hello(Instant::from_nanos(2), 3, keyed(3, "kv", 3, false), Some(key(3)));
    members.handle_goodbye(Instant::from_nanos(3), 1);
    assert_eq!(chosen(&members), [(2, false)]);
    assert_eq!(members.refusal_of(3), Refusal::Name.number());
    members.handle_ended(Instant::from_nanos(4), 2);
    assert_eq!((chosen(&members), members.peer_of(3)), (vec![], None));
}

#[test]
fn no_stream_of_a_node_that_left_is_accepted_once_another_key_has_its_name() {
    let mut members = members(&[1, 2, 3]);
    describe(&mut members, 1, keyed(1, "kv", 1, false));
    members.handle_goodbye(Instant::ZERO, 1);
    assert_eq!(members.peer_of(1), Some((1, "kv")), "it may have opened streams before it left");
    describe(&mut members, 2, keyed(2, "kv", 2, false));
    assert_eq!((members.peer_of(1), members.peer_of(2)), (None, Some((2, "kv"))));
    describe(&mut members, 3, keyed(3, "kv", 3, false));
    members.handle_timeout(Instant::from_nanos(TRIAL), |_| Load::default());
    assert_eq!((members.refusal_of(1), members.refusal_of(3)), (0, Refusal::Name.number()));
    members.handle_ended(Instant::from_nanos(TRIAL), 2);
    assert_eq!((chosen(&members), members.peer_of(1)), (vec![], None));
}

#[test]
fn a_refused_node_that_returns_before_its_link_ends_gets_a_name_freed_meanwhile() {
    let mut members = members(&[1, 2, 3]);
    describe(&mut members, 1, keyed(1, "kv", 1, false));
    describe(&mut members, 2, keyed(2, "kv", 2, false));
    let end = Instant::from_nanos(TRIAL);
    members.handle_timeout(end, |_| Load::default());
    members.handle_ended(end, 1);
    assert_eq!((chosen(&members), members.peer_of(2)), (vec![], None));
    describe(&mut members, 3, keyed(2, "kv", 2, false));
    assert_eq!((members.peer_of(2), members.peer_of(3)), (None, Some((2, "kv"))));
}

#[test]
fn neither_number_nor_own_name_nor_an_unproven_key_make_a_node_another_one() {
    let mut members = members(&[1, 2, 3, 4, 5]);
    describe(&mut members, 1, keyed(1, "kv", 1, false));
    refused(&mut members, 2, keyed(1, "kv", 2, false), Refusal::Name);
    refused(&mut members, 3, keyed(3, "own", 3, false), Refusal::Name);
    assert_eq!(members.rival(), None, "a node that claims this node's name does not stop it");
    for (link, proven) in [(4, None), (5, Some(key(9)))] {
        members.handle_hello(Instant::ZERO, link, keyed(4, "other", 4, false), proven);
        assert_eq!(members.refusal_of(link), Refusal::Unproven.number());
    }
    assert_eq!(chosen(&members), [(1, false)]);
}

#[test]
fn a_node_with_a_key_of_its_own_believes_no_report_of_a_rival() {
    let mut members = members(&[1]);
    describe(&mut members, 1, Hello { rival: 7, ..keyed(1, "kv", 1, false) });
    assert_eq!((members.rival(), members.peer_of(1)), (None, Some((1, "kv"))));
}

#[test]
fn through_shared_memory_a_node_is_believed_which_key_it_has() {
    let mut members = members(&[]);
    for (link, id, byte) in [(1, 1, 1), (2, 2, 2)] {
        members.handle_accepted(Instant::ZERO, link, TransportKind::Shm);
        members.handle_hello(Instant::ZERO, link, keyed(id, "kv", byte, true), None);
    }
    assert_eq!(chosen(&members), [(1, false)]);
    assert_eq!(members.refusal_of(2), Refusal::Name.number());
}

#[test]
fn a_node_at_a_listed_place_has_the_listed_key() {
    let mut members = members(&[]);
    let TransportKind::Udp(address) = at(7) else { unreachable!() };
    let place = Target::Address(address);
    members.handle_places(Instant::ZERO, &[place].into());
    members.handle_keys([(address, key(6)), (address, key(7))].into());
    for (link, byte, is_refused) in [(1, 7, false), (2, 6, false), (3, 5, true)] {
        members.handle_dialed(Instant::ZERO, place, link, at(7));
        describe(&mut members, link, keyed(link, "kv", byte, false));
        assert_eq!(members.refusal_of(link) != 0, is_refused);
        members.handle_ended(Instant::ZERO, link);
    }
    let stranger = Stranger::Key("kv".into(), Refusal::Place);
    assert_eq!(members.strangers()[&place], stranger);
    members.handle_accepted(Instant::ZERO, 4, at(7));
    effects(&mut members);
    refused(&mut members, 4, hello(4, 4, "kv"), Refusal::Place);
}

#[test]
fn a_node_that_is_refused_reports_it_for_a_while_unless_a_node_of_its_name_says_so() {
    let mut members = members(&[1, 2]);
    let refusing = |name, byte| Hello { refusal: 1, ..keyed(u64::from(byte), name, byte, false) };
    assert_eq!(describe(&mut members, 1, refusing("own", 1)), [Effect::Wake, Effect::End(1)]);
    assert_eq!(members.notice(Instant::ZERO), None);
    assert_eq!(describe(&mut members, 2, refusing("kv", 2)), [Effect::Wake, Effect::End(2)]);
    assert_eq!(members.notice(Instant::ZERO), Some(("kv", Refusal::Name)));
    assert_eq!(members.notice(Instant::from_nanos(30_000_000_001)), None);
}

#[test]
fn names_are_pinned_up_to_a_bound_and_none_of_them_is_forgotten() {
    let mut members = members(&[]);
    let name = |number: usize| format!("node-{number}");
    for number in 0..=MAX_PINS {
        let link = number as u64 + 100;
        members.handle_accepted(Instant::ZERO, link, at(1));
        describe(&mut members, link, keyed(link, &name(number), 1, true));
        members.handle_ended(Instant::ZERO, link);
    }
    effects(&mut members);
    for (number, is_pinned) in [(0, true), (MAX_PINS - 1, true), (MAX_PINS, false)] {
        members.handle_accepted(Instant::ZERO, 1, at(1));
        describe(&mut members, 1, keyed(1, &name(number), 2, false));
        assert_eq!(members.refusal_of(1) != 0, is_pinned, "{number}");
        members.handle_ended(Instant::ZERO, 1);
    }
}
