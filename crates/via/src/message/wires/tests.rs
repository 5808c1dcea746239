//! Tests in which wires and processes fail and return at any step.

mod cut;

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use midplane_simhw::region::Payload;
use midplane_simhw::rng::Rng;
use proptest::prelude::*;

use super::*;
use crate::message::envelope::{Context, Marks, Tag};
use cut::{Cut, DEPTH, Item, Net};

const HOST: u64 = 7;

/// One process of a test, and counts of its packets to and from each other process.
struct Process {
    wires: Wires,
    /// Number of the process's earlier starts.
    incarnation: u8,
    /// For each other process: how often it returned, and packets sent since then.
    sent: Vec<(u8, u32)>,
    /// For each other process: the next packet's content; `None` if any first packet of a session may arrive.
    due: Vec<Option<(u8, u8, u32)>>,
    received: Vec<u32>,
    /// For each other process: its reported losses, and its ends since this one was started.
    losses: Vec<(u32, u32)>,
}

struct World {
    rng: Rng,
    nets: Vec<Arc<Mutex<Net>>>,
    locals: usize,
    is_clock_steady: bool,
    processes: Vec<Process>,
}

impl World {
    fn new(seed: u64, processes: usize, locals: usize, remotes: usize) -> Self {
        let net = || {
            let queues = vec![VecDeque::new(); processes * processes];
            let works = vec![true; processes * processes];
            Arc::new(Mutex::new(Net { processes, queues, works }))
        };
        let nets: Vec<_> = (0..locals + remotes).map(|_| net()).collect();
        let rng = Rng::new(seed, "wires");
        let mut world = Self { rng, nets, locals, is_clock_steady: true, processes: Vec::new() };
        for own in 0..processes {
            let process = world.start(own, 0, processes);
            world.processes.push(process);
        }
        world
    }

    fn start(&mut self, own: usize, incarnation: u8, processes: usize) -> Process {
        let carrier = |(number, net): (usize, &Arc<Mutex<Net>>)| -> Box<dyn Carrier> {
            Box::new(Cut::new(own, Arc::clone(net), number < self.locals))
        };
        let carriers = self.nets.iter().enumerate().map(carrier).collect();
        // The clock may have been set back.
        let jitter = if self.is_clock_steady { 1_000 } else { 1_500 };
        let identity = 1_000 * u64::from(incarnation) + self.rng.below(jitter);
        let mut wires = Wires::new(identity, HOST, carriers);
        let others: Vec<_> =
            (0..processes).filter(|one| *one != own).map(|one| Peer(one as u32)).collect();
        wires.connect(&others).unwrap();
        Process {
            wires,
            incarnation,
            sent: vec![(0, 0); processes],
            due: vec![None; processes],
            received: vec![0; processes],
            losses: vec![(0, 0); processes],
        }
    }

    fn any(&mut self) -> usize {
        self.rng.below(self.processes.len() as u64) as usize
    }

    /// Draws two different processes.
    fn pair(&mut self) -> (usize, usize) {
        let one = self.any();
        let other = (one + 1 + self.rng.below(self.processes.len() as u64 - 1) as usize)
            % self.processes.len();
        (one, other)
    }

    fn send(&mut self, from: usize, to: usize) -> bool {
        let Process { wires, sent, incarnation, .. } = &mut self.processes[from];
        let (session, number) = &mut sent[to];
        let mut payload = vec![*incarnation, *session];
        payload.extend_from_slice(&number.to_le_bytes());
        let envelope = Envelope {
            length: payload.len() as u32,
            tag: Tag(*number),
            kind: Kind::Eager,
            marks: Marks::NONE,
            source: Peer(from as u32),
            context: Context(0),
            sequence: *number,
            to: 0,
            from: 0,
        };
        let is_sent = wires.post(Peer(to as u32), &envelope, &payload).is_ok();
        *number += u32::from(is_sent);
        is_sent
    }

    /// Polls a process once; returns false if it has nothing to do.
    fn poll(&mut self, own: usize) -> Result<bool, TestCaseError> {
        let Process { wires, due, received, sent, losses, .. } = &mut self.processes[own];
        match wires.poll() {
            None => return Ok(false),
            Some(Event::Packet { from, envelope, payload }) => {
                let bytes = payload.to_vec();
                let number = u32::from_le_bytes([bytes[2], bytes[3], bytes[4], bytes[5]]);
                let content = (bytes[0], bytes[1], number);
                prop_assert_eq!(envelope.tag, Tag(number));
                let from = from.0 as usize;
                match due[from] {
                    Some(due) => prop_assert_eq!(content, due, "{} -> {}", from, own),
                    None => prop_assert_eq!(number, 0, "{} -> {}", from, own),
                }
                due[from] = Some((content.0, content.1, number + 1));
                received[from] += 1;
            }
            Some(Event::Lost(peer) | Event::Restarted(peer)) => {
                due[peer.0 as usize] = None;
                losses[peer.0 as usize].0 += 1;
            }
            Some(Event::Returned(peer)) => {
                let (session, number) = &mut sent[peer.0 as usize];
                (*session, *number) = (*session + 1, 0);
            }
            Some(Event::Broken(_)) => prop_assert!(false, "wires report no breaks"),
            Some(Event::Placed { .. } | Event::Released(_) | Event::Handled) => {}
        }
        Ok(true)
    }

    /// Repairs all wires, and polls until all queues stay empty.
    fn settle(&mut self) -> Result<(), TestCaseError> {
        for net in self.nets.clone() {
            for one in 0..self.processes.len() {
                for other in 0..one {
                    net.lock().unwrap().repair(one, other);
                }
            }
        }
        let mut quiet = 0;
        for _ in 0..10_000 {
            for own in 0..self.processes.len() {
                while self.poll(own)? {}
            }
            let is_empty =
                |net: &Arc<Mutex<Net>>| net.lock().unwrap().queues.iter().all(VecDeque::is_empty);
            quiet = if self.nets.iter().all(is_empty) { quiet + 1 } else { 0 };
            // A packet that found its queue full is posted with the next poll.
            if quiet > 1 {
                return Ok(());
            }
        }
        prop_assert!(false, "control packets are exchanged without end");
        Ok(())
    }

    /// Checks that one packet each way between all processes arrives.
    fn check_all_pairs(&mut self) -> Result<(), TestCaseError> {
        self.settle()?;
        let before: Vec<_> = self.processes.iter().map(|one| one.received.clone()).collect();
        for from in 0..self.processes.len() {
            for to in (0..self.processes.len()).filter(|to| *to != from) {
                prop_assert!(
                    self.send(from, to),
                    "{} can't send to {}: {:?} {:?}",
                    from,
                    to,
                    self.processes[from].wires.state.peers[to],
                    self.processes[to].wires.state.peers[from]
                );
            }
        }
        self.settle()?;
        for (own, before) in before.iter().enumerate() {
            for from in (0..self.processes.len()).filter(|from| *from != own) {
                prop_assert_eq!(
                    self.processes[own].received[from],
                    before[from] + 1,
                    "{} -> {}",
                    from,
                    own
                );
            }
        }
        Ok(())
    }

    /// Ends a process, and starts another one with its number. Each carrier reports that on its own, some only after
    /// the packets that the former process had sent.
    fn kill(&mut self, own: usize) {
        let processes = self.processes.len();
        for net in self.nets.clone() {
            for other in (0..processes).filter(|other| *other != own) {
                let mut net = net.lock().unwrap();
                let (there, here) = (net.at(own, other), net.at(other, own));
                net.queues[here].clear();
                if self.rng.below(2) == 0 {
                    net.queues[there].clear();
                }
                net.queues[there].extend([Item::Lost, Item::Returned]);
                (net.works[there], net.works[here]) = (true, true);
            }
        }
        let incarnation = self.processes[own].incarnation + 1;
        self.processes[own] = self.start(own, incarnation, processes);
        for process in &mut self.processes {
            process.losses[own].1 += 1;
        }
        self.processes[own].losses[own].1 = 0;
    }
}

/// The faults of a test.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Trouble {
    /// Wires break and work again; no process ends.
    Breaks,
    /// Processes end and are replaced.
    Ends,
    /// Processes end, running processes may be reached by no wire, and clocks are set back.
    All,
}

impl World {
    /// Takes one random step: a fault, a repair, a send or a poll.
    fn step(&mut self, trouble: Trouble) -> Result<(), TestCaseError> {
        let (what, (one, other)) = (self.rng.below(40), self.pair());
        match (what, trouble) {
            (0..2, Trouble::Breaks) => {
                // Shared memory fails only with its process.
                let remotes = self.nets.len() - self.locals;
                let net = self.locals + self.rng.below(remotes as u64) as usize;
                self.nets[net].lock().unwrap().cut(one, other, &Item::Broken);
            }
            (2..4, Trouble::Breaks) => {
                let net = self.rng.below(self.nets.len() as u64) as usize;
                self.nets[net].lock().unwrap().repair(one, other);
            }
            (0, Trouble::Ends | Trouble::All) => self.kill(one),
            (1, Trouble::All) => {
                for net in &self.nets[self.locals..] {
                    net.lock().unwrap().cut(one, other, &Item::Lost);
                }
            }
            (2..4, Trouble::All) => {
                for net in &self.nets {
                    net.lock().unwrap().repair(one, other);
                }
            }
            (4..18, _) => {
                self.send(one, other);
            }
            _ => {
                self.poll(one)?;
            }
        }
        Ok(())
    }
}

/// A seed, processes, local and remote wires, and steps.
type Run = (u64, usize, usize, usize, usize);

fn check(
    (seed, processes, locals, remotes, steps): Run,
    trouble: Trouble,
) -> Result<(), TestCaseError> {
    let mut world = World::new(seed, processes, locals, remotes);
    world.is_clock_steady = trouble != Trouble::All;
    for _ in 0..steps {
        world.step(trouble)?;
    }
    world.check_all_pairs()?;
    for (own, process) in world.processes.iter().enumerate() {
        for (from, (losses, ends)) in
            process.losses.iter().enumerate().filter(|(from, _)| *from != own)
        {
            match trouble {
                Trouble::Breaks => {
                    prop_assert_eq!(process.received[from], world.processes[from].sent[own].1);
                    prop_assert_eq!(*losses, 0);
                }
                Trouble::Ends => {
                    prop_assert!(losses <= ends, "{} lost {} without reason", own, from)
                }
                Trouble::All => {}
            }
        }
    }
    Ok(())
}

#[test]
fn a_late_loss_on_an_old_wire_does_not_lose_a_process_reached_by_a_local_one() {
    check((11_948_165_992_052_476_140, 3, 1, 1, 239), Trouble::Ends).unwrap();
}

#[test]
fn wires_are_not_armed_once_they_have_posted_the_last_repeated_packet() {
    let mut world = World::new(1, 2, 0, 1);
    world.settle().unwrap();
    assert!(world.send(0, 1) && world.send(0, 1));
    let net = Arc::clone(&world.nets[0]);
    net.lock().unwrap().cut(0, 1, &Item::Broken);
    net.lock().unwrap().repair(0, 1);
    let is_open = |world: &World| {
        let wires = world.processes[0].wires.state.peers[1].as_ref().unwrap();
        wires.open().is_some()
    };
    for _ in 0..100 {
        if !is_open(&world) {
            break;
        }
        world.poll(0).unwrap();
    }
    assert!(!is_open(&world), "the connection is cut");
    for _ in 0..100 {
        if is_open(&world) {
            break;
        }
        world.poll(1).unwrap();
        world.poll(0).unwrap();
    }
    assert!(is_open(&world), "the connection is repaired");
    // The next poll would repeat both packets: the wire is full.
    net.lock().unwrap().queues[1].resize(DEPTH, Item::Returned);
    world.poll(0).unwrap();
    assert!(!world.send(0, 1), "the lost packets come first");
    assert!(world.processes[0].wires.arm_wakeup(Waker::noop()));
    net.lock().unwrap().queues[1].clear();
    assert!(!world.processes[0].wires.arm_wakeup(Waker::noop()));
    assert!(world.send(0, 1));
}

#[test]
fn a_receiver_that_takes_back_an_acknowledgement_is_lost() {
    for count in [6, 0] {
        let mut world = World::new(1, 2, 0, 1);
        world.settle().unwrap();
        for _ in 0..6 {
            assert!(world.send(0, 1));
            world.settle().unwrap();
        }
        let net = Arc::clone(&world.nets[0]);
        net.lock().unwrap().cut(0, 1, &Item::Broken);
        net.lock().unwrap().repair(0, 1);
        let begin = loop {
            world.poll(0).unwrap();
            let queue = net.lock().unwrap().queues[1].clone();
            let begin = queue.into_iter().find_map(|item| match item {
                Item::Packet(envelope, payload) => {
                    let control = Control::parse(&envelope, Payload::from(&payload[..]))?;
                    (control.operation == control::Operation::Begin).then_some(control)
                }
                _ => None,
            });
            match begin {
                Some(begin) => break begin,
                // Process 1 answers the probe.
                None => world.poll(1).unwrap(),
            };
        };
        let operation = control::Operation::Go;
        let go = Control { operation, from: begin.to, to: begin.from, count, ..begin };
        let (envelope, payload) = go.to_packet(Peer(1));
        net.lock().unwrap().queues[2].push_front(Item::Packet(envelope, payload.to_vec()));
        for _ in 0..4 {
            world.poll(0).unwrap();
        }
        assert_eq!(world.processes[0].losses[1].0, u32::from(count == 0));
    }
}

proptest! {
    #[test]
    fn packets_arrive_once_and_in_order_whatever_happens(
        seed: u64, processes in 2_usize..4, locals in 0_usize..2, remotes in 1_usize..4, steps in 0_usize..400,
        trouble in prop::sample::select(vec![Trouble::Breaks, Trouble::Ends, Trouble::All]),
    ) {
        check((seed, processes, locals, remotes, steps), trouble)?;
    }

    #[test]
    fn invalid_control_packets_of_a_process_do_not_affect_others(
        packets in prop::collection::vec((0_u32..9, 1_u64..6, 0_u64..6, any::<u32>(), any::<u64>(), 0_usize..18), 0..60),
    ) {
        let mut world = World::new(1, 3, 1, 1);
        for (operation, from, to, sequence, count, length) in packets {
            let (own, envelope) = (world.processes[0].wires.identity, Envelope {
                length: length as u32,
                tag: Tag(operation),
                kind: Kind::Wire,
                marks: Marks::NONE,
                source: Peer(1),
                context: Context(0),
                sequence: sequence % 4,
                to,
                from,
            });
            let envelope = Envelope { to: if to == 0 { own } else { to }, ..envelope };
            let mut payload = count.to_le_bytes().to_vec();
            payload.resize(length, 7);
            let mut net = world.nets[1].lock().unwrap();
            let at = net.at(1, 0);
            net.queues[at].push_back(Item::Packet(envelope, payload));
            drop(net);
            world.poll(0)?;
            world.poll(2)?;
            prop_assert!(world.processes[0].wires.state.news.len() < 4);
        }
        for round in 0..200 {
            prop_assert!(round < 199, "process 2 can't be reached");
            if world.send(0, 2) && world.send(2, 0) {
                break;
            }
            world.poll(0)?;
            world.poll(2)?;
        }
    }
}
