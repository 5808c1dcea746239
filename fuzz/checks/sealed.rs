//! Any datagrams to a node with a key: each is opened or refused, and a session outlives them.

use midplane_simhw::id::NodeId;
use midplane_simhw::seal::{Envelope, Key, Opened, RETRY, SILENCE, Seals, Verdict};
use midplane_simhw::time::Instant;

struct Pair {
    nodes: [Seals; 2],
    now: Instant,
    record: Vec<(usize, Vec<u8>)>,
    plain: Vec<u8>,
}

impl Pair {
    fn new() -> Self {
        let keys = || vec![Key::new(1, [7; 32])];
        let node = |id| Seals::new(NodeId(id), 2, keys()).expect("one key");
        let now = Instant::from_nanos(1);
        Self { nodes: [node(0), node(1)], now, record: Vec::new(), plain: vec![0; 65_536] }
    }

    /// Hands a datagram to a node, and all that follows from it to whom it is for.
    fn deliver(&mut self, to: usize, datagram: &[u8]) -> Option<usize> {
        let (envelope, body) = Envelope::parse(datagram).ok()?;
        let opened = self.nodes[to].open(self.now, &envelope, body, &mut self.plain);
        self.drain(to);
        match opened {
            Ok(Opened::Frame(length)) => Some(length),
            _ => None,
        }
    }

    fn drain(&mut self, node: usize) {
        let mut out = Vec::new();
        while let Some((to, _)) = self.nodes[node].poll_transmit(&mut out) {
            self.record.push((to.index(), std::mem::take(&mut out)));
        }
    }

    fn send(&mut self, from: usize, frame: &[u8]) {
        let to = NodeId(1 - from as u16);
        let mut out = Vec::new();
        match self.nodes[from].seal(to, (1, false), frame, &mut out) {
            Verdict::Sealed => self.record.push((1 - from, out)),
            Verdict::Hold => {
                self.nodes[from].hold(self.now, to, false, frame.to_vec());
                self.drain(from);
            }
        }
    }
}

pub(crate) fn run(data: &[u8]) {
    let mut pair = Pair::new();
    for chunk in data.chunks(64) {
        let (&choice, rest) = chunk.split_first().expect("chunks are not empty");
        let to = usize::from(choice & 1);
        pair.now = pair.now.plus_nanos(RETRY / 7);
        match choice >> 1 & 3 {
            0 => pair.send(to, rest),
            // What was sent, damaged where the input says so.
            1 if !pair.record.is_empty() => {
                let at = usize::from(choice >> 3) % pair.record.len();
                let (to, mut datagram) = pair.record[at].clone();
                for damage in rest.chunks_exact(2) {
                    let length = datagram.len();
                    datagram[usize::from(damage[0]) % length] ^= damage[1];
                }
                pair.deliver(to, &datagram);
            }
            2 => drop(pair.deliver(to, rest)),
            _ => {
                pair.nodes[to].handle_timeout(pair.now);
                pair.drain(to);
            }
        }
    }
    // Whatever that was, the two find to each other.
    let mut heard = false;
    for _ in 0..20 {
        pair.now = pair.now.plus_nanos(SILENCE / 2);
        pair.nodes.iter_mut().for_each(|node| node.handle_timeout(pair.now));
        (0..2).for_each(|node| pair.drain(node));
        pair.record.clear();
        pair.send(0, b"still here");
        let mut next = 0;
        while let Some((to, datagram)) = pair.record.get(next).cloned() {
            heard |= pair.deliver(to, &datagram) == Some(10) && to == 1;
            next += 1;
        }
    }
    assert!(heard);
}
