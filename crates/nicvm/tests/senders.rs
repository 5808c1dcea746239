//! However many senders a port hears from, the service remembers a bounded number of them.

use crate::desk::{Desk, memory};
use midplane_nicvm::messages::{self, MESSAGES, Messages};
use midplane_nicvm::unit::Unit;
use midplane_simhw::frame::Header;
use midplane_simhw::id::{NodeId, PortId};

const PORT: PortId = PortId(0);
const MOST: usize = 8;

fn desk(buffers: u64) -> Desk {
    let mut unit = Unit::default();
    unit.install(MESSAGES, Messages::new().streams(MOST)).unwrap();
    let mut desk = Desk::new(unit);
    for cookie in 0..buffers {
        desk.post(PORT, messages::receive(memory(PORT, 100), cookie));
    }
    desk
}

/// The first `length` of ten bytes that are the first message of a sender.
fn first_message(desk: &mut Desk, sender: u16, length: usize) {
    let source = NodeId(sender);
    let (extension, destination) = (MESSAGES, NodeId(1));
    let words = [1, 10];
    let header = Header { extension, source, destination, words, ..Header::default() };
    desk.frame(header, &[7; 10][..length]);
}

fn completions(desk: &mut Desk) -> usize {
    desk.completions().len()
}

#[test]
fn only_the_latest_senders_are_remembered() {
    let mut desk = desk(100);
    for sender in 10..10 + MOST as u16 {
        first_message(&mut desk, sender, 10);
    }
    assert_eq!(completions(&mut desk), MOST);
    first_message(&mut desk, 10, 10);
    assert_eq!(completions(&mut desk), 0, "it has come before");
    for sender in 30..60 {
        first_message(&mut desk, sender, 10);
    }
    assert_eq!(completions(&mut desk), 30);
    first_message(&mut desk, 59, 10);
    assert_eq!(completions(&mut desk), 0, "the latest one is remembered");
    first_message(&mut desk, 10, 10);
    assert_eq!(completions(&mut desk), 1, "the first one is not");
}

#[test]
fn a_message_that_has_begun_is_not_forgotten() {
    let mut desk = desk(100);
    first_message(&mut desk, 10, 5);
    for sender in 20..120 {
        first_message(&mut desk, sender, 10);
    }
    let done = completions(&mut desk);
    assert_eq!(done, 99, "one buffer is the first sender's");
    let (extension, destination) = (MESSAGES, NodeId(1));
    let words = [1 | 5 << 32, 10];
    let header = Header { extension, source: NodeId(10), destination, words, ..Header::default() };
    desk.frame(header, &[7; 5]);
    assert_eq!(completions(&mut desk), 1);
}
