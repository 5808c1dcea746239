//! Reads a context from its FIFOs' memory, and writes it back.

use bytes::Bytes;

use crate::channel::Descriptor;
use crate::channel::command::NicState;
use crate::channel::geometry::{CONSUMED, Record, SENT};
use crate::context::{ChannelContext, ReceivedMessage, SentMessage};
use crate::names::Rank;
use crate::wait::{WAIT_BYTES, WAIT_STATE, WaitState};

/// Builds a context from the NIC's part and the FIFOs. Copies all messages' bytes into one buffer.
pub(super) fn read_context(descriptor: &Descriptor, state: &NicState) -> Option<ChannelContext> {
    let Descriptor { memory, geometry, .. } = descriptor;
    let consumed = memory.word(CONSUMED)?;
    let mut lengths = Vec::new();
    let mut image = Vec::new();
    let mut add = |image: &mut Vec<u8>, at: usize, length: usize| {
        let from = image.len();
        image.resize(from + length, 0);
        memory.read(at, &mut image[from..]).ok()?;
        lengths.push(from..from + length);
        Some(())
    };
    // The process may have written any length.
    let fits = |length: u32| (length <= geometry.message).then_some(length as usize);
    let mut untaken: Vec<u64> =
        state.peers.iter().flat_map(|(_, waiting)| waiting.clone()).collect();
    untaken.sort_unstable();
    let mut send_records = Vec::new();
    for number in state.freed..state.sent {
        let record = memory.record(geometry.send_record(number))?;
        let taken = untaken.binary_search(&number).is_err();
        let length = if taken { 0 } else { fits(record.length)? };
        add(&mut image, geometry.send_byte(record.position), length)?;
        send_records.push((record, taken));
    }
    let mut receive_records = Vec::new();
    // The process may have written any count.
    if state.received.checked_sub(consumed)? > u64::from(geometry.receive.messages) {
        return None;
    }
    for number in consumed..state.received {
        let record = memory.record(geometry.receive_record(number))?;
        add(&mut image, geometry.receive_byte(record.position), fits(record.length)?)?;
        receive_records.push(record);
    }
    let image = Bytes::from(image);
    let mut pieces = lengths.into_iter().map(|range| image.slice(range));
    let mut send = Vec::with_capacity(send_records.len());
    for (Record { peer, length, position }, taken) in send_records {
        send.push(SentMessage { to: peer, position, length, taken, bytes: pieces.next()? });
    }
    let mut receive = Vec::with_capacity(receive_records.len());
    for Record { peer, position, .. } in receive_records {
        receive.push(ReceivedMessage { from: peer, position, bytes: pieces.next()? });
    }
    let mut wait = [0; WAIT_BYTES];
    memory.read(WAIT_STATE, &mut wait).ok()?;
    Some(ChannelContext {
        rank: state.rank,
        geometry: *geometry,
        freed: state.freed,
        consumed,
        receive_tail: state.receive_tail,
        peers: state.peers.iter().map(|(peer, _)| *peer).collect(),
        send,
        receive,
        local: Vec::new(),
        full: Vec::new(),
        wait: WaitState::parse(wait),
    })
}

/// Writes both FIFOs of a saved context; `None` if a message lies outside its FIFO.
pub(super) fn write_fifos(descriptor: &Descriptor, saved: &ChannelContext) -> Option<()> {
    let Descriptor { memory, geometry, .. } = descriptor;
    let fits = |position: u64, length: usize, size: u32| {
        position % u64::from(size) + length as u64 <= u64::from(size)
    };
    for (number, message) in (saved.freed..).zip(&saved.send) {
        let SentMessage { to, position, length, ref bytes, .. } = *message;
        let record = Record { peer: to, length, position };
        memory.write(geometry.send_record(number), &record.emit()).ok()?;
        fits(position, bytes.len(), geometry.send.bytes).then_some(())?;
        memory.write(geometry.send_byte(position), bytes).ok()?;
    }
    for (number, message) in (saved.consumed..).zip(&saved.receive) {
        let ReceivedMessage { from, position, ref bytes } = *message;
        let record = Record { peer: from, length: bytes.len() as u32, position };
        memory.write(geometry.receive_record(number), &record.emit()).ok()?;
        fits(position, bytes.len(), geometry.receive.bytes).then_some(())?;
        memory.write(geometry.receive_byte(position), bytes).ok()?;
    }
    memory.write(SENT, &saved.sent().to_le_bytes()).ok()?;
    memory.write(CONSUMED, &saved.consumed.to_le_bytes()).ok()?;
    memory.write(WAIT_STATE, &saved.wait.emit(descriptor.handle)).ok()
}

impl ChannelContext {
    /// Returns the NIC's part of the context.
    pub(super) fn nic_state(&self) -> NicState {
        let waiting = |rank: Rank| self.unacked(rank).map(|(number, _)| number).collect();
        let peers = self.peers.iter().map(|peer| (*peer, waiting(peer.rank)));
        NicState {
            rank: self.rank,
            sent: self.sent(),
            freed: self.freed,
            received: self.received(),
            receive_tail: self.receive_tail,
            peers: peers.collect(),
        }
    }
}
