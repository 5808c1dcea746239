//! Rings between the two hosts of a simulated world: in memory, of any depth and MTU.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Waker;

use midplane_simhw::id::NodeId;
use midplane_simhw::peer_rings::{News, PeerRings, SendRefused, WORDS};
use midplane_simhw::region::{Payload, Region, SharedMemory};

pub(crate) type Frame = ([u64; WORDS], Vec<u8>);

#[derive(Debug, Default)]
struct Ring {
    /// Frames, with the node that sent them if that is not the peer.
    frames: VecDeque<(Option<NodeId>, Frame)>,
    shown: VecDeque<([u64; 2], SharedMemory)>,
    receiver: Option<Waker>,
    sender: Option<Waker>,
    is_over: bool,
}

/// One end of the rings: its frames are in the peer's queue at once.
#[derive(Debug)]
pub(crate) struct MemoryRings {
    node: NodeId,
    mtu: usize,
    depth: usize,
    rings: [Arc<Mutex<Ring>>; 2],
    /// The payload of the frame that was returned last.
    current: Vec<u8>,
    has_reported_end: bool,
    was_full: bool,
    /// True while the gate is closed: then no data may be sent.
    is_closed: Arc<AtomicBool>,
}

/// Puts forged frames into a ring, and ends it.
#[derive(Clone, Debug)]
pub(crate) struct Forger(Arc<Mutex<Ring>>);

impl Forger {
    pub(crate) fn send(&self, frame: Frame) {
        self.push(None, frame);
    }

    /// Sends a frame as a process of another node.
    pub(crate) fn send_as(&self, node: NodeId, frame: Frame) {
        self.push(Some(node), frame);
    }

    fn push(&self, node: Option<NodeId>, frame: Frame) {
        let mut ring = self.0.lock().unwrap();
        ring.frames.push_back((node, frame));
        ring.receiver.take().into_iter().for_each(Waker::wake);
    }

    pub(crate) fn end(&self) {
        let mut ring = self.0.lock().unwrap();
        ring.is_over = true;
        ring.receiver.take().into_iter().for_each(Waker::wake);
    }
}

/// Makes two ends, of nodes 0 and 1, and a forger to each.
pub(crate) fn rings(mtu: usize, depth: usize) -> ([Option<Box<dyn PeerRings>>; 2], [Forger; 2]) {
    ends(mtu, depth, Default::default())
}

/// Makes two ends that panic if data is sent while their gate is closed.
pub(crate) fn rings_that(
    mtu: usize,
    depth: usize,
    are_closed: [Arc<AtomicBool>; 2],
) -> [Option<Box<dyn PeerRings>>; 2] {
    ends(mtu, depth, are_closed).0
}

fn ends(
    mtu: usize,
    depth: usize,
    are_closed: [Arc<AtomicBool>; 2],
) -> ([Option<Box<dyn PeerRings>>; 2], [Forger; 2]) {
    let rings = [Arc::<Mutex<Ring>>::default(), Arc::default()];
    let end = |node: usize| {
        let rings = [Arc::clone(&rings[node]), Arc::clone(&rings[1 - node])];
        let own = MemoryRings {
            node: NodeId(node as u16),
            mtu,
            depth,
            rings,
            current: Vec::new(),
            has_reported_end: false,
            was_full: false,
            is_closed: Arc::clone(&are_closed[node]),
        };
        Some(Box::new(own) as Box<dyn PeerRings>)
    };
    ([end(0), end(1)], [Forger(Arc::clone(&rings[0])), Forger(Arc::clone(&rings[1]))])
}

impl PeerRings for MemoryRings {
    fn mtu(&self) -> usize {
        self.mtu
    }

    fn has_peer(&self, node: NodeId) -> bool {
        node.0 == 1 - self.node.0
    }

    fn send_parts(
        &mut self,
        to: NodeId,
        words: [u64; WORDS],
        parts: &[Payload<'_>],
    ) -> Result<(), SendRefused> {
        assert_eq!(to.0, 1 - self.node.0, "there are two nodes");
        let mut ring = self.rings[1].lock().unwrap();
        let bytes: Vec<u8> = parts.iter().flat_map(Payload::to_vec).collect();
        assert!(bytes.len() <= self.mtu, "longer than the MTU");
        let is_data = matches!(words[0] >> 32, 2 | 5);
        assert!(!(is_data && self.is_closed.load(Ordering::Relaxed)), "the gate is closed");
        if self.has_reported_end {
            return Err(SendRefused::Gone(to));
        }
        if ring.frames.len() >= self.depth {
            self.was_full = true;
            return Err(SendRefused::Full);
        }
        self.was_full = false;
        ring.frames.push_back((None, (words, bytes)));
        ring.receiver.take().into_iter().for_each(Waker::wake);
        Ok(())
    }

    fn show(&mut self, to: NodeId, name: [u64; 2], region: &Region) -> Result<(), SendRefused> {
        assert_eq!(to.0, 1 - self.node.0, "there are two nodes");
        let memory = SharedMemory::map(region.file().unwrap(), region.len()).unwrap();
        let mut ring = self.rings[1].lock().unwrap();
        ring.shown.push_back((name, memory));
        ring.receiver.take().into_iter().for_each(Waker::wake);
        Ok(())
    }

    fn poll(&mut self) -> Option<News<'_>> {
        let from = NodeId(1 - self.node.0);
        let mut ring = self.rings[0].lock().unwrap();
        if let Some((name, memory)) = ring.shown.pop_front() {
            return Some(News::Shown { from, name, memory });
        }
        if let Some((node, (words, bytes))) = ring.frames.pop_front() {
            let from = node.unwrap_or(from);
            ring.sender.take().into_iter().for_each(Waker::wake);
            self.current = bytes;
            return Some(News::Frame { from, words, payload: Payload::from(&self.current[..]) });
        }
        if ring.is_over && !self.has_reported_end {
            self.has_reported_end = true;
            return Some(News::Left(from));
        }
        None
    }

    fn arm_wakeup(&mut self, waker: &Waker) -> bool {
        let mut own = self.rings[0].lock().unwrap();
        if !own.frames.is_empty() || !own.shown.is_empty() || own.is_over && !self.has_reported_end
        {
            return false;
        }
        own.receiver = Some(waker.clone());
        drop(own);
        let mut other = self.rings[1].lock().unwrap();
        if self.was_full && other.frames.len() < self.depth {
            self.was_full = false;
            return false;
        }
        other.sender = self.was_full.then(|| waker.clone());
        true
    }
}
