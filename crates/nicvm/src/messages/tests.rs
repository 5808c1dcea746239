//! Buffers of messages that are partly received.

use midplane_simhw::id::Incarnation;

use super::*;

const SENDER: NodeId = NodeId(2);

/// Posts a buffer on `port`, and makes a message of [`SENDER`] under flow control take it at `touched`.
fn begin(messages: &mut Messages, port: PortId, touched: u64) {
    messages.buffers_of(port);
    let fragment = Fragment { message: 1, offset: 0, total: 30, tag: 0 };
    let command = receive(RegionRef { port, ..RegionRef::default() }, u64::from(port.0));
    let touched = Instant::from_nanos(touched);
    let buffer = Buffer { command, touched, unwritten: Vec::new() };
    let stream = messages.streams.stream((SENDER, port, true), Incarnation::FIRST, 1);
    stream.open = Some(Assembly::new(fragment, buffer));
}

#[test]
fn a_message_whose_frames_still_arrive_keeps_its_buffer() {
    let mut messages = Messages::new();
    begin(&mut messages, PortId(1), 100);
    begin(&mut messages, PortId(2), 150);
    let mut release = |now, sender| {
        let next = messages.release_controlled(Instant::from_nanos(now), 100, &[sender]);
        (next.map(Instant::as_nanos), messages.free_buffers())
    };
    assert_eq!(release(199, SENDER), (Some(200), 0));
    assert_eq!(release(200, NodeId(3)), (None, 0));
    assert_eq!(release(200, SENDER), (Some(250), 1));
    assert_eq!(release(250, SENDER), (None, 2));
    assert_eq!(messages.counters().incomplete, 2);
}

#[test]
fn a_flooded_port_delays_no_search_on_another() {
    let mut messages = Messages::new();
    begin(&mut messages, PortId(1), 50_000_000);
    begin(&mut messages, PortId(2), 0);
    let now = Instant::from_nanos(nanos(STALLED_AFTER));
    assert_eq!(messages.take_stalled(now, PortId(1)), None);
    assert_eq!(messages.take_stalled(now, PortId(2)).map(|command| command.cookie), Some(2));
}
