//! A carrier over streams of bytes: one to each process, replaced when it breaks.
//!
//! A packet is its length (4 bytes, little-endian, without themselves), its envelope, and its payload. The caller makes
//! the streams: its [`StreamFeed`] takes them, and asks for one when one has broken. Packets that were under way are
//! lost then, so this is a carrier for [`Wires`](super::wires::Wires) only.

mod line;
mod ready;
#[cfg(test)]
mod tests;

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

/// Most bytes of a packet's payload.
const ROOM: usize = 64 << 10;
/// 30 us: a message over TCP or UDP of one host, with its two wake-ups; networks are rarely faster.
const LATENCY: Duration = Duration::from_micros(30);

/// Streams and news of processes, for a [`StreamCarrier`].
#[derive(Debug)]
pub struct StreamFeed<S> {
    news: mpsc::UnboundedSender<News<S>>,
    wanted: mpsc::UnboundedReceiver<Peer>,
}

#[derive(Debug)]
enum News<S> {
    Connected(Peer, S),
    Lost(Peer),
}

/// Gives a carrier its streams; clones feed the same one.
#[derive(Debug)]
pub struct StreamSource<S>(mpsc::UnboundedSender<News<S>>);

impl<S> Clone for StreamSource<S> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<S> StreamSource<S> {
    /// Gives the carrier a stream to a process; replaces a former one. Returns false if the carrier is closed.
    pub fn connect(&self, peer: Peer, stream: S) -> bool {
        self.0.send(News::Connected(peer, stream)).is_ok()
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
        self.0.send(News::Lost(peer)).is_ok()
    }
}

impl<S> StreamFeed<S> {
    /// Returns what gives the carrier its streams.
    #[must_use]
    pub fn source(&self) -> StreamSource<S> {
        StreamSource(self.news.clone())
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

/// An event that is not reported yet.
#[derive(Debug)]
enum Change<S> {
    Broken(Peer),
    Lost(Peer),
    Connected(Peer, S),
}

/// Carries packets over streams of bytes.
#[derive(Debug)]
pub struct StreamCarrier<S> {
    own: Peer,
    lines: Vec<Line<S>>,
    news: mpsc::UnboundedReceiver<News<S>>,
    wanted: mpsc::UnboundedSender<Peer>,
    changes: VecDeque<Change<S>>,
    /// Wakers set the bit of their stream, or the last one for news.
    ready: Arc<Ready>,
    numbers: Vec<usize>,
    /// Lines that may have a packet.
    listed: VecDeque<usize>,
    /// The line of the packet that was returned last.
    lent: Option<usize>,
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
        let (give, news) = mpsc::unbounded_channel();
        let (wanted, wants) = mpsc::unbounded_channel();
        let processes = processes as usize;
        let ready = Ready::new(processes + 1);
        ready.set(processes);
        let lines = (0..processes).map(|number| Line::new(ready.waker(number))).collect();
        let carrier = Self {
            own,
            lines,
            news,
            wanted,
            changes: VecDeque::new(),
            ready,
            numbers: Vec::new(),
            listed: VecDeque::new(),
            lent: None,
        };
        (carrier, StreamFeed { news: give, wanted: wants })
    }

    fn disconnect(&mut self, number: usize) {
        let peer = Peer(number as u32);
        self.lines[number].disconnect();
        self.changes.push_back(Change::Broken(peer));
    }

    fn take_news(&mut self) {
        let waker = self.ready.waker(self.lines.len());
        while let Poll::Ready(Some(news)) = self.news.poll_recv(&mut Context::from_waker(&waker)) {
            match news {
                News::Connected(peer, stream) => {
                    let number = peer.0 as usize;
                    if number >= self.lines.len() {
                        continue;
                    }
                    if self.lines[number].is_connected() {
                        // The process has lost the former one.
                        self.disconnect(number);
                    }
                    self.changes.push_back(Change::Connected(peer, stream));
                }
                News::Lost(peer) => {
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
                self.take_news();
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
                    // The feed may have ended with its program.
                    let _ = self.wanted.send(Peer(number as u32));
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
        for peer in peers {
            let _ = self.wanted.send(*peer);
        }
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
        if let Some(number) = self.lent.take() {
            self.lines[number].advance();
            self.list(number);
            // It may hold more than the buffer had room for.
            self.ready.set(number);
        }
        self.pump();
        match self.find()? {
            Found::Event(event) => Some(event),
            Found::Packet(number) => {
                self.lent = Some(number);
                let (envelope, payload) = self.lines[number].packet()?.ok()?;
                let (from, payload) = (Peer(number as u32), Payload::from(payload));
                Some(Event::Packet { from, envelope, payload })
            }
        }
    }

    fn arm_wakeup(&mut self, waker: &Waker) -> bool {
        self.ready.arm(waker);
        let has_event = self.lent.is_some() || self.ready.is_any() || !self.changes.is_empty();
        let has_room = self.lines.iter_mut().any(Line::has_room_again);
        !has_event && !has_room && self.listed.is_empty()
    }

    fn is_flushed(&mut self) -> bool {
        self.pump();
        self.lines.iter().all(Line::is_flushed)
    }

    fn close(&mut self) {
        self.news.close();
        self.lines.iter_mut().for_each(Line::disconnect);
    }
}
