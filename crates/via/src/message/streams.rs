//! A carrier over streams of bytes: one to each process, replaced when it breaks.
//!
//! A packet is its length (4 bytes, little-endian, not counting themselves), its envelope, and its payload. The caller
//! makes the streams: a [`StreamSource`] passes them to the carrier, and the [`StreamFeed`] reports processes that need
//! one. When a stream breaks, packets in flight are lost, so only [`Wires`](super::wires::Wires) can use this carrier.

mod line;
mod ready;
#[cfg(test)]
mod tests;

use std::any::Any;
use std::collections::VecDeque;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use midplane_simhw::region::Payload;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::mpsc;

use super::carrier::{Carrier, Event, Refusal};
use super::envelope::{Envelope, Peer};
use super::transport::InitError;
use line::Line;
use ready::Ready;

/// Maximum payload of a packet, in bytes.
const ROOM: usize = 64 << 10;
/// Estimate for a message over TCP or UDP within one host, with its two wake-ups; networks are rarely faster.
const LATENCY: Duration = Duration::from_micros(30);

/// The caller's end of a [`StreamCarrier`]: makes sources, and reports the processes that need a stream.
#[derive(Debug)]
pub struct StreamFeed<S> {
    events: mpsc::UnboundedSender<PeerEvent<S>>,
    wanted: mpsc::UnboundedReceiver<Peer>,
}

/// An event of a process that a source reports.
#[derive(Debug)]
enum PeerEvent<S> {
    Connected(Peer, S),
    Lost(Peer),
}

/// Passes streams to a carrier; clones pass them to the same one.
#[derive(Debug)]
pub struct StreamSource<S>(mpsc::UnboundedSender<PeerEvent<S>>);

impl<S> Clone for StreamSource<S> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<S> StreamSource<S> {
    /// Passes the carrier a stream to a process; replaces a former one. Returns false if the carrier is closed.
    pub fn connect(&self, peer: Peer, stream: S) -> bool {
        self.0.send(PeerEvent::Connected(peer, stream)).is_ok()
    }

    /// Waits until the carrier is closed.
    ///
    /// # Cancel safety
    /// If dropped, nothing is lost.
    pub async fn closed(&self) {
        self.0.closed().await;
    }

    /// Reports a process as lost, unless it has a stream. Returns false if the carrier is closed.
    pub fn lose(&self, peer: Peer) -> bool {
        self.0.send(PeerEvent::Lost(peer)).is_ok()
    }
}

impl<S> StreamFeed<S> {
    /// Returns a source of streams for the carrier.
    #[must_use]
    pub fn source(&self) -> StreamSource<S> {
        StreamSource(self.events.clone())
    }

    /// Waits for a process to which the carrier has no stream, or whose stream has broken; `None` once the carrier is
    /// closed.
    ///
    /// # Cancel safety
    /// If dropped, nothing is lost.
    pub async fn wanted(&mut self) -> Option<Peer> {
        self.wanted.recv().await
    }
}

/// A change of a stream that the carrier has not reported yet.
#[derive(Debug)]
enum Change<S> {
    Broken(Peer),
    Lost(Peer),
    Connected(Peer, S),
}

/// Carries packets over streams of bytes.
///
/// Closing the carrier drops its streams. A dropped stream must still deliver the bytes that it has taken and flushed, as
/// [`session::Stream`](crate::session::Stream) does; a TCP socket that holds unread bytes does not.
#[derive(Debug)]
pub struct StreamCarrier<S> {
    own: Peer,
    lines: Vec<Line<S>>,
    events: mpsc::UnboundedReceiver<PeerEvent<S>>,
    /// `None` once the carrier is closed.
    wanted: Option<mpsc::UnboundedSender<Peer>>,
    changes: VecDeque<Change<S>>,
    /// A bit for each stream, set by its waker; the last bit is for events of the sources.
    ready: Arc<Ready>,
    /// Buffer for the numbers of the streams that are ready.
    numbers: Vec<usize>,
    /// Lines that may have a packet.
    listed: VecDeque<usize>,
    /// The line of the packet that was returned last, until the next poll.
    current: Option<usize>,
    kept: Option<Box<dyn Any + Send>>,
}

/// The result of a poll.
enum Found {
    Packet(usize),
    Event(Event<'static>),
}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> StreamCarrier<S> {
    /// Makes a carrier of the process `own`, one of `processes`, and its feed.
    #[must_use]
    pub fn new(own: Peer, processes: u32) -> (Self, StreamFeed<S>) {
        let (sender, events) = mpsc::unbounded_channel();
        let (wanted, wants) = mpsc::unbounded_channel();
        let processes = processes as usize;
        let ready = Ready::new(processes + 1);
        ready.set(processes);
        let lines = (0..processes).map(|number| Line::new(ready.waker(number))).collect();
        let carrier = Self {
            own,
            lines,
            events,
            wanted: Some(wanted),
            changes: VecDeque::new(),
            ready,
            numbers: Vec::new(),
            listed: VecDeque::new(),
            current: None,
            kept: None,
        };
        (carrier, StreamFeed { events: sender, wanted: wants })
    }

    /// Keeps a value, such as a lease of the process's number, and drops it with the carrier; replaces a former one.
    pub fn keep(&mut self, value: impl Any + Send) {
        self.kept = Some(Box::new(value));
    }

    /// Reports a process that needs a stream. The program may have dropped the feed.
    fn want(&self, peer: Peer) {
        let _ = self.wanted.as_ref().is_some_and(|wanted| wanted.send(peer).is_ok());
    }

    fn disconnect(&mut self, number: usize) {
        let peer = Peer(number as u32);
        self.lines[number].disconnect();
        self.changes.push_back(Change::Broken(peer));
    }

    fn take_events(&mut self) {
        let waker = self.ready.waker(self.lines.len());
        while let Poll::Ready(Some(event)) = self.events.poll_recv(&mut Context::from_waker(&waker))
        {
            match event {
                PeerEvent::Connected(peer, stream) => {
                    let number = peer.0 as usize;
                    if number >= self.lines.len() {
                        continue;
                    }
                    if self.lines[number].is_connected() {
                        // A new stream means that the process has lost the former one.
                        self.disconnect(number);
                    }
                    self.changes.push_back(Change::Connected(peer, stream));
                }
                PeerEvent::Lost(peer) => {
                    let has_stream = self.lines.get(peer.0 as usize).is_none_or(Line::is_connected);
                    let is_new = |change: &Change<S>| matches!(change, Change::Connected(new, _) if *new == peer);
                    if !has_stream && !self.changes.iter().any(is_new) {
                        self.changes.push_back(Change::Lost(peer));
                    }
                }
            }
        }
    }

    /// Reads and writes the streams that are ready, once each.
    fn pump(&mut self) {
        let mut numbers = std::mem::take(&mut self.numbers);
        self.ready.take(&mut numbers);
        for number in numbers.drain(..) {
            let Some(line) = self.lines.get_mut(number) else {
                self.take_events();
                continue;
            };
            if line.pump() {
                self.ready.set(number);
            }
            self.list(number);
        }
        self.numbers = numbers;
    }

    fn list(&mut self, number: usize) {
        if !std::mem::replace(&mut self.lines[number].is_listed, true) {
            self.listed.push_back(number);
        }
    }

    fn find(&mut self) -> Option<Found> {
        loop {
            match self.changes.pop_front() {
                None => {}
                Some(Change::Broken(peer)) => return Some(Found::Event(Event::Broken(peer))),
                Some(Change::Lost(peer)) => return Some(Found::Event(Event::Lost(peer))),
                Some(Change::Connected(peer, stream)) => {
                    self.lines[peer.0 as usize].connect(stream);
                    self.ready.set(peer.0 as usize);
                    return Some(Found::Event(Event::Returned(peer)));
                }
            }
            let number = self.listed.pop_front()?;
            let line = &mut self.lines[number];
            line.is_listed = false;
            match line.packet() {
                Some(Ok(_)) => return Some(Found::Packet(number)),
                None if !line.has_ended() => {}
                None | Some(Err(_)) => {
                    self.disconnect(number);
                    self.want(Peer(number as u32));
                }
            }
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> Carrier for StreamCarrier<S> {
    fn own(&self) -> Peer {
        self.own
    }

    fn connect(&mut self, peers: &[Peer]) -> Result<(), InitError> {
        if let Some(unknown) = peers.iter().find(|peer| peer.0 as usize >= self.lines.len()) {
            return Err(InitError::Unknown(*unknown));
        }
        peers.iter().for_each(|peer| self.want(*peer));
        Ok(())
    }

    fn wire_to(&self, _peer: Peer) -> Option<&'static str> {
        Some("stream")
    }

    fn latency(&self, _to: Peer) -> Duration {
        LATENCY
    }

    fn room(&self) -> usize {
        ROOM
    }

    fn post(&mut self, to: Peer, envelope: &Envelope, payload: &[u8]) -> Result<(), Refusal> {
        self.lines.get_mut(to.0 as usize).ok_or(Refusal::Lost)?.post(envelope, payload)
    }

    fn poll(&mut self) -> Option<Event<'_>> {
        if let Some(number) = self.current.take() {
            self.lines[number].advance();
            self.list(number);
            // The stream may hold more bytes than the buffer had room for.
            self.ready.set(number);
        }
        self.pump();
        match self.find()? {
            Found::Event(event) => Some(event),
            Found::Packet(number) => {
                self.current = Some(number);
                let (envelope, payload) = self.lines[number].packet()?.ok()?;
                let (from, payload) = (Peer(number as u32), Payload::from(payload));
                Some(Event::Packet { from, envelope, payload })
            }
        }
    }

    fn arm_wakeup(&mut self, waker: &Waker) -> bool {
        self.ready.arm(waker);
        let has_event = self.current.is_some() || self.ready.is_any() || !self.changes.is_empty();
        let has_room = self.lines.iter_mut().any(Line::has_room_again);
        !has_event && !has_room && self.listed.is_empty()
    }

    fn is_flushed(&mut self) -> bool {
        self.pump();
        self.lines.iter().all(Line::is_flushed)
    }

    fn close(&mut self) {
        self.wanted = None;
        self.events.close();
        // Drops the streams that came last.
        while self.events.try_recv().is_ok() {}
        self.changes.clear();
        self.lines.iter_mut().for_each(Line::disconnect);
    }
}
