//! A member between the coordinator and other members: it stops in an orderly way while a change is under way, or the
//! version is taken down before it runs.

use midplane_nicvm::control::Address;
use midplane_nicvm::extension::{Epoch, Extension};
use midplane_nicvm::install::{self, INSTALLER, Installer};
use midplane_nicvm::unit::Unit;
use midplane_simhw::frame::{Header, Kind};
use midplane_simhw::id::NodeId;

use super::tally::{TALLY, Tally};
use crate::harness::{Effect, Harness, Peer};

const MODULE: &[u8] = b"A";
const OFFER: u8 = 1;
const READY: u8 = 3;
const COMMIT: u8 = 5;
const WHAT: u8 = 10;
const WITHDRAW: u8 = 15;
/// Bytes of the messages [`READY`], and of a refusal or an abort.
const READY_BYTES: u16 = 9;
const REFUSED_BYTES: u16 = 12;
/// The first change of the coordinator, node 0.
const CHANGE: [u8; 8] = [0, 0, 1, 0, 1, 0, 0, 0];

/// Node 1 of a cluster of five, in whose tree it stands between the coordinator, node 0, and nodes 3 and 4.
struct Middle {
    harness: Harness,
    coordinator: Peer,
    below: [Peer; 2],
}

impl Middle {
    /// Offers node 1 a change, and its module.
    fn offered() -> Self {
        let loader = |module: &[u8]| {
            let (label, seen) = (module[0], Default::default());
            let (nodes, sent, held, handled) = (5, 0, Vec::new(), 0);
            let tally = Tally { label, nodes, chatty: false, sent, held, handled, seen };
            Ok(Box::new(tally) as Box<dyn Extension>)
        };
        let mut unit = Unit::default();
        unit.install(INSTALLER, Installer::new((0..5).map(NodeId).collect(), loader)).unwrap();
        let (coordinator, below) =
            (Peer::new(NodeId(0)), [3, 4].map(|node| Peer::new(NodeId(node))));
        let mut middle = Self { harness: Harness::new(unit), coordinator, below };
        for peer in &mut middle.below {
            peer.send(&mut middle.harness, installer(), &[WHAT]);
        }
        let length = (MODULE.len() as u32).to_le_bytes();
        let mut members = [0; 32];
        members[0] = 0b1_1111;
        let content = install::hash(MODULE).0;
        let version = [&[TALLY.0, 1, 0][..], &content, &length, &[0], &members].concat();
        middle.send(OFFER, &version);
        let words = [1 << 16 | 1 << 32, 0];
        let header = Header {
            extension: INSTALLER,
            source: NodeId(0),
            destination: NodeId(1),
            words,
            ..Header::default()
        };
        middle.harness.frame(header, MODULE);
        middle.harness.take();
        middle
    }

    /// Sends node 1 a message of the coordinator about the change.
    fn send(&mut self, kind: u8, rest: &[u8]) -> Vec<Effect> {
        let message = [&[kind][..], &CHANGE, rest].concat();
        self.coordinator.send(&mut self.harness, installer(), &message)
    }

    /// Makes the nodes below vote for the change.
    fn vote_below(&mut self) {
        let ready = [&[READY][..], &CHANGE].concat();
        let mut effects = Vec::new();
        for peer in &mut self.below {
            effects.extend(peer.send(&mut self.harness, installer(), &ready));
        }
        effects.extend(self.coordinator.exchange(&mut self.harness));
        assert_eq!(sent(&effects, NodeId(0), READY_BYTES), 1, "node 1 votes");
    }

    /// Stops node 1; returns its effects.
    fn stop(mut self) -> Vec<Effect> {
        self.harness.turn(|unit, hw| unit.deactivate(hw));
        let [third, fourth] = &mut self.below;
        let peers = [&mut self.coordinator, third, fourth];
        peers.into_iter().flat_map(|peer| peer.exchange(&mut self.harness)).collect()
    }
}

const fn installer() -> Address {
    Address { extension: INSTALLER, epoch: Epoch::FIRST }
}

/// Counts the control messages of a length that were sent to a node.
fn sent(effects: &[Effect], to: NodeId, length: u16) -> usize {
    let is_it = |effect: &&Effect| {
        matches!(effect, Effect::Sent(header) if header.kind == Kind::Control
            && header.destination == to && header.length == length)
    };
    effects.iter().filter(is_it).count()
}

/// The coordinator may have committed: only the coordinator decides how the change ends.
#[test]
fn a_member_that_stops_after_its_vote_aborts_the_change_nowhere() {
    let mut middle = Middle::offered();
    middle.vote_below();
    let effects = middle.stop();
    for node in [0, 3, 4].map(NodeId) {
        assert_eq!(sent(&effects, node, REFUSED_BYTES), 0, "{effects:?}");
    }
}

#[test]
fn a_member_that_stops_after_the_commit_aborts_the_change_nowhere() {
    let mut middle = Middle::offered();
    middle.vote_below();
    middle.send(COMMIT, &[]);
    assert_eq!(middle.harness.unit.epoch(TALLY), Some(Epoch(1)));
    let effects = middle.stop();
    for node in [0, 3, 4].map(NodeId) {
        assert_eq!(sent(&effects, node, REFUSED_BYTES), 0, "{effects:?}");
    }
}

#[test]
fn a_member_that_stops_before_its_vote_refuses_the_change() {
    let effects = Middle::offered().stop();
    for node in [0, 3, 4].map(NodeId) {
        assert_eq!(sent(&effects, node, REFUSED_BYTES), 1, "node {node:?}: {effects:?}");
    }
}

/// The notice comes from another member that runs the version already, so it may overtake the commit.
#[test]
fn a_version_that_is_taken_down_before_the_commit_arrives_does_not_run() {
    let mut middle = Middle::offered();
    middle.vote_below();
    let withdraw = [WITHDRAW, TALLY.0, 1, 0];
    middle.below[0].send(&mut middle.harness, installer(), &withdraw);
    middle.send(COMMIT, &[]);
    let unit = &middle.harness.unit;
    assert_eq!(unit.epoch(TALLY), None);
    let installer = unit.extension::<Installer>(INSTALLER).unwrap();
    assert_eq!(installer.installed(TALLY), Some((Epoch(1), install::hash(MODULE))));
}
