//! Large accesses: the data travels in frames, with retransmission of those that are lost.

use midplane_simhw::frame::{Frame, HEADER_BYTES};
use midplane_simhw::hardware::Source;
use midplane_simhw::id::{Incarnation, NodeId, PortId};
use midplane_simhw::port::Status;
use midplane_simhw::region::{RegionError, RegionRef};
use midplane_simhw::time::Instant;

use super::wire::{Access, Message};
use super::words::RecentWords;
use super::{
    Capability, CapabilityRights, Context, INLINE, Memory, RETRY, RETRY_AFTER, Service, patience,
};
use crate::transmit::Packet;

/// Flag of the frames of reads, which travel to the requester.
pub(super) const OF_READ: u8 = 1;
/// Bytes of a frame: a page.
const CHUNK: u32 = 4 << 10;
/// Least bytes of a frame other than the last. A shorter access needs no frame, and every link that carries control
/// messages carries frames of this size. So an access's table takes at most one byte for each 64 bytes of memory.
const LEAST: u32 = INLINE as u32;

/// Most ticks of [`RETRY_AFTER`] between two requests while no frame arrives; the interval doubles up to this. If the
/// frames are queued for that long, the requests add little to the queue.
const MAX_TICKS: u32 = 128;

/// Most runs of missing frames of an access that are requested at once, by a control message each.
const MAX_RUNS: usize = 16;

/// Frames, from the first missing one on, among which missing frames are searched at once.
const MAX_SEARCHED: usize = 1 << 16;

/// Most frames that are sent at once: 256 MiB. The receiver requests the others as it requests lost ones.
const MAX_SENT: u32 = 1 << 16;

/// Returns the bytes of the frames that this NIC sends.
fn chunk(nic: &Context<'_>) -> u32 {
    CHUNK.min(nic.mtu_bytes() as u32 - HEADER_BYTES as u32)
}

/// Memory that is sent in frames.
#[derive(Clone, Copy, Debug)]
pub(super) struct Outgoing {
    region: RegionRef,
    flags: u8,
}

impl Outgoing {
    pub(super) const fn new(region: RegionRef, flags: u8) -> Self {
        Self { region, flags }
    }

    /// Sends all frames; of more than [`MAX_SENT`], the first ones.
    pub(super) fn send_all(&self, nic: &mut Context<'_>, to: NodeId, number: u32) -> Option<u64> {
        self.send(nic, to, number, 0, u32::MAX)
    }

    /// Sends up to `count` frames, from `first` on, and at most [`MAX_SENT`]. Returns how many it sent, or `None` if the
    /// memory is not registered any more.
    pub(super) fn send(
        &self,
        nic: &mut Context<'_>,
        to: NodeId,
        number: u32,
        first: u32,
        count: u32,
    ) -> Option<u64> {
        nic.read(self.region).ok()?;
        let (chunk, total) = (chunk(nic), self.region.length);
        let frames = total.div_ceil(chunk);
        let end = first.saturating_add(count.min(MAX_SENT)).min(frames);
        let wanted = first.min(frames)..end;
        // A peer that restarts meanwhile has other accesses under the same numbers.
        let incarnation = nic.peer_incarnation(to).unwrap_or(Incarnation::UNKNOWN);
        for index in wanted.clone() {
            let at = index * chunk;
            let part = self.region.part(at, chunk.min(total - at)).expect("within it");
            let words = [u64::from(at) | u64::from(chunk) << 32, total.into()];
            let (flags, sequence, source) = (self.flags, number, Source::Region(part));
            let packet = Packet { incarnation, flags, sequence, words, source, ..Packet::to(to) };
            // A frame that does not leave is requested again.
            let _ = nic.send_packet(&packet);
        }
        Some(wanted.len() as u64)
    }
}

/// Memory that is filled from frames.
#[derive(Debug)]
pub(super) struct Incoming {
    region: RegionRef,
    /// Bytes of a frame; 0 until one has arrived.
    chunk: u32,
    has: Vec<bool>,
    /// Index of a frame before which none is missing.
    whole_before: usize,
    lacks: usize,
    since: Instant,
    /// The right to write, at the memory's owner: it may be revoked before all frames have arrived.
    capability: Option<Capability>,
    /// True once the sender has reported that all frames were sent.
    all_sent: bool,
    /// Ticks since the last new frame or request.
    quiet: u32,
    /// Ticks without a new frame after which the missing frames are requested.
    request_after: u32,
}

impl Incoming {
    pub(super) const fn new(
        region: RegionRef,
        capability: Option<Capability>,
        now: Instant,
    ) -> Self {
        Self {
            region,
            capability,
            chunk: 0,
            has: Vec::new(),
            whole_before: 0,
            lacks: 1,
            since: now,
            all_sent: false,
            quiet: 0,
            request_after: 1,
        }
    }

    pub(super) const fn port(&self) -> PortId {
        self.region.port
    }

    /// Returns whether the requester of this write has ended it by now as [`Status::PeerLost`].
    pub(super) fn is_late(&self, now: Instant) -> bool {
        now >= self.since + patience(self.region)
    }

    pub(super) const fn is_whole(&self) -> bool {
        self.all_sent && self.lacks == 0
    }

    pub(super) const fn is_all_sent(&self) -> bool {
        self.all_sent
    }

    pub(super) const fn on_all_sent(&mut self) {
        self.all_sent = true;
    }

    /// Writes a frame into memory. Returns `None` if it does not fit, and an error if the memory is not registered any
    /// more.
    fn take(
        &mut self,
        nic: &mut Context<'_>,
        words: &mut RecentWords,
        frame: &Frame<'_>,
    ) -> Option<Result<(), RegionError>> {
        let [place, total] = frame.header.words;
        let (at, chunk) = (place as u32, (place >> 32) as u32);
        let length = self.region.length;
        if total != u64::from(length) || chunk < LEAST || !at.is_multiple_of(chunk) || at >= length
        {
            return None;
        }
        if self.chunk == 0 {
            self.chunk = chunk;
            self.lacks = length.div_ceil(chunk) as usize;
            self.has = vec![false; self.lacks];
        }
        let bytes = chunk.min(length - at);
        if chunk != self.chunk || frame.payload.len() != bytes as usize {
            return None;
        }
        let has = self.has.get_mut((at / chunk) as usize)?;
        if !std::mem::replace(has, true) {
            let part = self.region.part(at, bytes)?;
            if let Err(error) = nic.write(part, frame.payload) {
                return Some(Err(error));
            }
            words.overwrite(part, frame.payload);
            self.lacks -= 1;
            (self.quiet, self.request_after) = (0, 1);
        }
        Some(Ok(()))
    }

    /// Counts a tick of [`RETRY_AFTER`]. Returns whether the missing frames are to be requested now: no new one has
    /// arrived for some ticks, so none is under way.
    fn tick(&mut self) -> bool {
        let is_due = self.quiet >= self.request_after;
        if is_due {
            self.request_after = (2 * self.request_after).min(MAX_TICKS);
        }
        self.quiet = if is_due { 1 } else { self.quiet + 1 };
        is_due
    }

    /// Returns the first runs of missing frames, at most [`MAX_RUNS`]: the index and the length of each.
    fn lacking(&mut self) -> Vec<(u32, u32)> {
        if self.chunk == 0 {
            return vec![(0, u32::MAX)];
        }
        let from = self.whole_before;
        let first =
            self.has[from..].iter().position(|has| !has).map_or(self.has.len(), |at| from + at);
        self.whole_before = first;
        let end = self.has.len().min(first + MAX_SEARCHED);
        let runs = self.has[first..end].chunk_by(|one, next| one == next);
        let runs = runs.scan(first, |at, run| {
            let first = *at;
            *at += run.len();
            Some((first as u32, run))
        });
        let missing = runs.filter(|(_, run)| !run[0]);
        missing.map(|(first, run)| (first, run.len() as u32)).take(MAX_RUNS).collect()
    }
}

impl Memory {
    /// Handles a frame of a large access. Returns `None` if it belongs to none that is under way, or does not fit it.
    pub(super) fn on_frame(
        &mut self,
        nic: &mut Context<'_>,
        from: NodeId,
        frame: &Frame<'_>,
    ) -> Option<()> {
        let number = frame.header.sequence;
        if frame.header.flags & OF_READ == 0 {
            if nic.peer_incarnation(from) != Some(frame.header.incarnation) {
                return None;
            }
            let incoming = self.arriving.get_mut(&(from, number))?;
            let capability = incoming.capability;
            let is_revoked = |it| self.table.check(&it, CapabilityRights::WRITE).is_err();
            if capability.is_some_and(is_revoked)
                || incoming.take(nic, &mut self.words, frame)?.is_err()
            {
                self.arriving.remove(&(from, number));
                self.deny(nic, from, number, Status::Region);
            } else if incoming.is_whole() {
                self.end_arriving(nic, from, number);
            }
            return Some(());
        }
        let pending = self.pending.get_mut(&number).filter(|pending| pending.owner == from)?;
        let incoming = pending.incoming.as_mut()?;
        if incoming.take(nic, &mut self.words, frame)?.is_err() {
            self.end(nic, number, Status::Region, 0);
        } else if incoming.is_whole() {
            self.end(nic, number, Status::Done, 0);
        }
        Some(())
    }

    /// Requests the missing frames of large accesses for which no more frames arrive.
    pub(super) fn retry(&mut self, nic: &mut Context<'_>) {
        let waits = |incoming: &&mut Incoming| incoming.is_all_sent() && !incoming.is_whole();
        self.is_retrying = false;
        for (number, pending) in &mut self.pending {
            let incoming = pending.incoming.as_mut().filter(waits);
            let Some(incoming) = incoming else { continue };
            self.is_retrying = true;
            if !incoming.tick() {
                continue;
            }
            let capability = Capability::from_words(pending.command.args);
            let capability = Capability { length: pending.command.region.length, ..capability };
            let (number, access) = (*number, Access::ReadPart);
            for (first, count) in incoming.lacking() {
                let mut inline = [0; 8];
                inline[..4].copy_from_slice(&first.to_le_bytes());
                inline[4..].copy_from_slice(&count.to_le_bytes());
                let ask = Message::Ask { number, access, capability, inline: &inline };
                let _ = nic.send_control(pending.owner, &ask.emit());
            }
        }
        for ((from, number), incoming) in &mut self.arriving {
            let Some(incoming) = Some(incoming).filter(waits) else { continue };
            self.is_retrying = true;
            let runs = if incoming.tick() { incoming.lacking() } else { Vec::new() };
            for (first, count) in runs {
                let lacking = Message::Lacking { number: *number, first, count };
                let _ = nic.send_control(*from, &lacking.emit());
            }
        }
        if self.is_retrying {
            nic.set_timeout(RETRY, Service::Exact, RETRY_AFTER);
        }
    }

    /// Starts the ticks of [`RETRY_AFTER`], unless they run already.
    pub(super) fn start_retrying(&mut self, nic: &mut Context<'_>) {
        if !std::mem::replace(&mut self.is_retrying, true) {
            nic.set_timeout(RETRY, Service::Exact, RETRY_AFTER);
        }
    }
}
