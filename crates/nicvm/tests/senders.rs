//! The service remembers a bounded number of senders, however many send to a port.

use crate::harness::{Harness, memory};
use midplane_nicvm::messages::{self, MESSAGES, Messages};
use midplane_nicvm::unit::Unit;
use midplane_simhw::frame::Header;
use midplane_simhw::id::{NodeId, PortId};

const PORT: PortId = PortId(0);
const MOST: usize = 8;

fn harness(buffers: u64) -> Harness {
    let mut unit = Unit::default();
    unit.install(MESSAGES, Messages::new().streams(MOST)).unwrap();
    let mut harness = Harness::new(unit);
    for cookie in 0..buffers {
        harness.post(PORT, messages::receive(memory(PORT, 100), cookie));
    }
    harness
}

/// Sends the first `length` of the ten bytes of a sender's first message.
fn first_message(harness: &mut Harness, sender: u16, length: usize) {
    let source = NodeId(sender);
    let (extension, destination) = (MESSAGES, NodeId(1));
    let words = [1, 10];
    let header = Header { extension, source, destination, words, ..Header::default() };
    harness.frame(header, &[7; 10][..length]);
}

fn completions(harness: &mut Harness) -> usize {
    harness.completions().len()
}

#[test]
fn only_the_latest_senders_are_remembered() {
    let mut harness = harness(100);
    for sender in 10..10 + MOST as u16 {
        first_message(&mut harness, sender, 10);
    }
    assert_eq!(completions(&mut harness), MOST);
    first_message(&mut harness, 10, 10);
    assert_eq!(completions(&mut harness), 0, "it has come before");
    for sender in 30..60 {
        first_message(&mut harness, sender, 10);
    }
    assert_eq!(completions(&mut harness), 30);
    first_message(&mut harness, 59, 10);
    assert_eq!(completions(&mut harness), 0, "the latest one is remembered");
    first_message(&mut harness, 10, 10);
    assert_eq!(completions(&mut harness), 1, "the first one is not");
}

#[test]
fn a_message_that_has_begun_is_not_forgotten() {
    let mut harness = harness(100);
    first_message(&mut harness, 10, 5);
    for sender in 20..120 {
        first_message(&mut harness, sender, 10);
    }
    let done = completions(&mut harness);
    assert_eq!(done, 99, "one buffer is the first sender's");
    let (extension, destination) = (MESSAGES, NodeId(1));
    let words = [1 | 5 << 32, 10];
    let header = Header { extension, source: NodeId(10), destination, words, ..Header::default() };
    harness.frame(header, &[7; 5]);
    assert_eq!(completions(&mut harness), 1);
}
