//! Lanes between the two hosts of a simulated world: in memory, as long as they are told to be.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::task::Waker;

use midplane_simhw::id::NodeId;
use midplane_simhw::region::{Payload, Region, SharedMemory};
use midplane_via::direct::{Arrival, Lane, Refused, WORDS};

pub(crate) type Frame = ([u64; WORDS], Vec<u8>);

#[derive(Debug, Default)]
struct Way {
    frames: VecDeque<Frame>,
    shown: VecDeque<([u64; 2], SharedMemory)>,
    receiver: Option<Waker>,
    sender: Option<Waker>,
    is_over: bool,
}

/// One end: what it sends is in the other's queue at once.
#[derive(Debug)]
pub(crate) struct MemoryLane {
    node: NodeId,
    mtu: usize,
    depth: usize,
    ways: [Arc<Mutex<Way>>; 2],
    /// The frame that was handed out last.
    lent: Vec<u8>,
    has_told: bool,
    was_full: bool,
}

/// Puts frames of anybody's making into a lane, and ends it.
#[derive(Clone, Debug)]
pub(crate) struct Forger(Arc<Mutex<Way>>);

impl Forger {
    pub(crate) fn send(&self, frame: Frame) {
        let mut way = self.0.lock().unwrap();
        way.frames.push_back(frame);
        way.receiver.take().into_iter().for_each(Waker::wake);
    }

    pub(crate) fn end(&self) {
        let mut way = self.0.lock().unwrap();
        way.is_over = true;
        way.receiver.take().into_iter().for_each(Waker::wake);
    }
}

/// Two ends, of nodes 0 and 1, and whoever else sends to them.
pub(crate) fn lanes(mtu: usize, depth: usize) -> ([Option<Box<dyn Lane>>; 2], [Forger; 2]) {
    let ways = [Arc::<Mutex<Way>>::default(), Arc::default()];
    let end = |node: usize| {
        let ways = [Arc::clone(&ways[node]), Arc::clone(&ways[1 - node])];
        let lane = MemoryLane {
            node: NodeId(node as u16),
            mtu,
            depth,
            ways,
            lent: Vec::new(),
            has_told: false,
            was_full: false,
        };
        Some(Box::new(lane) as Box<dyn Lane>)
    };
    ([end(0), end(1)], [Forger(Arc::clone(&ways[0])), Forger(Arc::clone(&ways[1]))])
}

impl Lane for MemoryLane {
    fn node(&self) -> NodeId {
        self.node
    }

    fn mtu(&self) -> usize {
        self.mtu
    }

    fn send(
        &mut self,
        to: NodeId,
        words: [u64; WORDS],
        parts: &[Payload<'_>],
    ) -> Result<(), Refused> {
        assert_eq!(to.0, 1 - self.node.0, "there are two");
        let mut way = self.ways[1].lock().unwrap();
        let bytes: Vec<u8> = parts.iter().flat_map(Payload::to_vec).collect();
        assert!(bytes.len() <= self.mtu, "it is cut");
        if self.has_told {
            return Err(Refused::Gone);
        }
        if way.frames.len() >= self.depth {
            self.was_full = true;
            return Err(Refused::Full);
        }
        self.was_full = false;
        way.frames.push_back((words, bytes));
        way.receiver.take().into_iter().for_each(Waker::wake);
        Ok(())
    }

    fn show(&mut self, to: NodeId, name: [u64; 2], region: &Region) -> Result<(), Refused> {
        assert_eq!(to.0, 1 - self.node.0, "there are two");
        let memory = SharedMemory::map(region.file().unwrap(), region.len()).unwrap();
        let mut way = self.ways[1].lock().unwrap();
        way.shown.push_back((name, memory));
        way.receiver.take().into_iter().for_each(Waker::wake);
        Ok(())
    }

    fn poll(&mut self) -> Option<Arrival<'_>> {
        let from = NodeId(1 - self.node.0);
        let mut way = self.ways[0].lock().unwrap();
        if let Some((name, memory)) = way.shown.pop_front() {
            return Some(Arrival::Shown { from, name, memory });
        }
        if let Some((words, bytes)) = way.frames.pop_front() {
            way.sender.take().into_iter().for_each(Waker::wake);
            self.lent = bytes;
            return Some(Arrival::Frame { from, words, payload: Payload::from(&self.lent[..]) });
        }
        if way.is_over && !self.has_told {
            self.has_told = true;
            return Some(Arrival::Left(from));
        }
        None
    }

    fn arm_wakeup(&mut self, waker: &Waker) -> bool {
        let mut own = self.ways[0].lock().unwrap();
        if !own.frames.is_empty() || !own.shown.is_empty() || own.is_over && !self.has_told {
            return false;
        }
        own.receiver = Some(waker.clone());
        drop(own);
        let mut other = self.ways[1].lock().unwrap();
        if self.was_full && other.frames.len() < self.depth {
            return false;
        }
        other.sender = self.was_full.then(|| waker.clone());
        true
    }
}
