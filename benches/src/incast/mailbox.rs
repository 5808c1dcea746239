//! Notes between the nodes of a run: hello, start, measure, and what was sent.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use midplane::nicvm::messages;
use midplane::simhw::host::Host;
use midplane::simhw::id::{NodeId, PortId};
use midplane::simhw::port::{Port, Status};
use midplane::simhw::region::Region;
use midplane::simhw::time::{Instant, nanos};
use midplane::simhw::wire;
use serde::{Deserialize, Serialize};

use crate::nodes::Failure;

/// The first port of every node is its mailbox.
const MAILBOX: PortId = PortId(0);
/// Largest encoded note, in bytes.
const NOTE_BYTES: usize = 128;
/// Notes in flight in each direction.
const SLOTS: usize = 64;
/// Time after which an unanswered note is sent again.
pub const REPEAT: Duration = Duration::from_millis(20);

/// A note between the receiver and one sender.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
pub struct Note {
    /// The run that the note is about, from 0.
    pub round: u32,
    /// Content of the note.
    pub word: Word,
}

/// Content of a note.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
pub enum Word {
    /// A sender has started, for the run of this fingerprint.
    Hello(u64),
    /// The receiver has another run under that number.
    Mismatch,
    /// Start sending, to this port.
    Start(u16),
    /// Messages sent from now on count.
    Measure,
    /// A sender has sent everything.
    Done(Sent),
    /// The receiver confirms `Done`.
    End,
}

/// Counts of a sender.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct Sent {
    /// Messages that count.
    pub messages: u64,
    /// Control messages of its coordination while messages count.
    pub control_messages: u64,
}

/// A node's mailbox for notes.
#[derive(Debug)]
pub struct Mailbox {
    port: Port,
    memory: Region,
    /// Slots of outgoing notes that the NIC does not read.
    free: Vec<usize>,
}

impl Mailbox {
    /// Opens the node's mailbox: its first port.
    pub fn open(host: &impl Host) -> Result<Self, Failure> {
        let mut port = host.open_port().map_err(Failure::stopped)?;
        debug_assert_eq!(port.id(), MAILBOX);
        let memory = port.register(2 * SLOTS * NOTE_BYTES).map_err(Failure::stopped)?;
        let mut mailbox = Self { port, memory, free: (SLOTS..2 * SLOTS).collect() };
        for slot in 0..SLOTS {
            mailbox.lend(slot)?;
        }
        Ok(mailbox)
    }

    fn lend(&mut self, slot: usize) -> Result<(), Failure> {
        let range = self.memory.range(slot * NOTE_BYTES, NOTE_BYTES).expect("within the region");
        let command = messages::receive(range, slot as u64);
        self.port.submit(&command).map_err(Failure::stopped)
    }

    /// Sends a note if there is room for it; the caller repeats notes anyway.
    pub fn send(&mut self, to: NodeId, note: Note) -> Result<(), Failure> {
        let Some(slot) = self.free.pop() else { return Ok(()) };
        let bytes = wire::encode(&note).expect("a note is short");
        let at = slot * NOTE_BYTES;
        self.memory.write(at, &bytes).expect("a note is short");
        let range = self.memory.range(at, bytes.len()).expect("within the region");
        let command = messages::send(to, MAILBOX, range, slot as u64);
        self.port.submit(&command).map_err(Failure::stopped)
    }

    /// Receives the next note, with its sender.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub async fn receive(&mut self) -> Result<(NodeId, Note), Failure> {
        loop {
            let completion = self.port.completion().await.map_err(Failure::stopped)?;
            let slot = usize::try_from(completion.cookie).expect("it was a slot");
            if completion.opcode == messages::SEND {
                self.free.push(slot);
                continue;
            }
            let mut bytes = [0; NOTE_BYTES];
            let length = usize::try_from(completion.length).map_or(0, |n| n.min(NOTE_BYTES));
            let read = self.memory.read(slot * NOTE_BYTES, &mut bytes[..length]);
            self.lend(slot)?;
            // Ignore other messages.
            if completion.status == Status::Done
                && read.is_ok()
                && let Ok(note) = wire::decode(&bytes[..length])
            {
                return Ok((completion.node, note));
            }
        }
    }
}

/// Runs `work` until time `at`; returns `None` if it has not completed by then.
pub async fn by<T>(host: &impl Host, at: Instant, work: impl Future<Output = T>) -> Option<T> {
    let mut work = pin!(work);
    let mut alarm = pin!(host.sleep_until(at));
    poll_fn(|context| {
        if let Poll::Ready(value) = work.as_mut().poll(context) {
            return Poll::Ready(Some(value));
        }
        alarm.as_mut().poll(context).map(|()| None)
    })
    .await
}

/// Waits for the first of two futures; `first` wins if both are ready.
pub async fn either<A, B>(
    first: impl Future<Output = A>,
    second: impl Future<Output = B>,
) -> Either<A, B> {
    let (mut first, mut second) = (pin!(first), pin!(second));
    poll_fn(|context| {
        if let Poll::Ready(value) = first.as_mut().poll(context) {
            return Poll::Ready(Either::First(value));
        }
        second.as_mut().poll(context).map(Either::Second)
    })
    .await
}

/// Result of one of two futures.
#[derive(Debug)]
pub enum Either<A, B> {
    /// Result of the first one.
    First(A),
    /// Result of the second one.
    Second(B),
}

/// Returns the time `after` from now.
pub fn later(host: &impl Host, after: Duration) -> Instant {
    host.now().plus_nanos(nanos(after))
}
