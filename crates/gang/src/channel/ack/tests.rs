use super::*;
use proptest::prelude::*;

/// A frame in the network, in either direction.
#[derive(Clone, Copy, Debug)]
enum Frame {
    There(Transmission),
    Back(Answer),
}

/// A random step.
#[derive(Clone, Copy, Debug)]
enum Op {
    Push,
    Pump,
    /// Delivers one of the frames in transit.
    Deliver(usize),
    Lose(usize),
    Double(usize),
    Wait(u16),
    /// The receiver's process consumes this many messages.
    Consume(usize),
    /// Stops the sender until it is steady, then resumes it.
    Preempt,
    /// The receiver's NIC refuses all messages, or accepts them again.
    Refuse(bool),
}

struct Pair {
    now: Instant,
    sender: Outbound,
    receiver: Inbound,
    frames: Vec<Frame>,
    pushed: u64,
    /// FIFO numbers of the accepted messages.
    taken: Vec<u64>,
    /// Messages in the receiver's buffer.
    held: usize,
    capacity: usize,
    refusing: bool,
    freed: Vec<u64>,
    stopped: bool,
}

impl Pair {
    fn new(capacity: usize) -> Self {
        Self {
            now: Instant::from_nanos(1),
            // The sequence numbers wrap during the test.
            sender: Outbound::resumed(u32::MAX - 2, VecDeque::new()),
            receiver: Inbound::resumed(u32::MAX - 2),
            frames: Vec::new(),
            pushed: 0,
            taken: Vec::new(),
            held: 0,
            capacity,
            refusing: false,
            freed: Vec::new(),
            stopped: false,
        }
    }

    fn pump(&mut self) {
        while let Some(next) = self.sender.poll_transmit(self.now, 8, self.stopped) {
            self.frames.push(Frame::There(next));
        }
    }

    fn deliver(&mut self, frame: Frame) {
        match frame {
            Frame::There(Transmission::Message { round, sequence, slot }) => {
                let room = self.held < self.capacity && !self.refusing;
                match self.receiver.on_message(round, sequence, room) {
                    ReceiveDecision::Accept => {
                        self.taken.push(slot);
                        self.held += 1;
                    }
                    ReceiveDecision::Answer => {}
                    ReceiveDecision::Drop => return,
                }
                self.frames.push(Frame::Back(self.receiver.answer().unwrap()));
            }
            Frame::There(Transmission::Fence { round, sequence }) => {
                if self.receiver.on_fence(round, sequence) {
                    self.frames.push(Frame::Back(self.receiver.answer().unwrap()));
                }
            }
            Frame::Back(answer) => {
                let now = self.now;
                assert!(self.sender.on_answer(now, answer, &mut self.freed));
            }
        }
        self.pump();
    }

    fn wait(&mut self, nanos: u64) {
        self.now = self.now.plus_nanos(nanos);
        self.sender.on_timeout(self.now);
        self.pump();
    }

    /// Stops the sender and delivers its frames, without loss, until it is steady. Frames that were delayed before
    /// must not be accepted afterwards, even if there is room.
    fn preempt(&mut self) {
        self.stopped = true;
        // Delayed frames stay in the network: only new frames are delivered.
        let late = std::mem::take(&mut self.frames);
        let mut rounds = 0;
        while !self.sender.is_steady() {
            match self.frames.pop() {
                Some(frame) => self.deliver(frame),
                None => self.wait(60_000_000),
            }
            rounds += 1;
            assert!(rounds < 10, "not steady: {:?}", self.sender);
        }
        assert_eq!(self.sender.acked(), self.receiver.expected());
        let before = self.taken.len();
        let held = std::mem::take(&mut self.held);
        for frame in late {
            if matches!(frame, Frame::There(_)) {
                self.deliver(frame);
            }
        }
        assert_eq!(self.taken.len(), before, "a late frame was taken after the sender was steady");
        self.held = held;
        self.stopped = false;
        self.pump();
    }

    fn step(&mut self, op: Op) {
        match op {
            Op::Push => {
                self.sender.push(self.pushed);
                self.pushed += 1;
            }
            Op::Pump => self.pump(),
            Op::Deliver(at) if !self.frames.is_empty() => {
                let frame = self.frames.remove(at % self.frames.len());
                self.deliver(frame);
            }
            Op::Lose(at) if !self.frames.is_empty() => {
                self.frames.remove(at % self.frames.len());
            }
            Op::Double(at) if !self.frames.is_empty() => {
                self.frames.push(self.frames[at % self.frames.len()]);
            }
            Op::Wait(nanos) => self.wait(u64::from(nanos) * 100),
            Op::Consume(count) => {
                self.held = self.held.saturating_sub(count);
                if self.held < self.capacity && self.receiver.take_room_wanted() {
                    self.sender.on_room();
                }
            }
            Op::Preempt => self.preempt(),
            Op::Refuse(refusing) => self.refusing = refusing,
            Op::Deliver(_) | Op::Lose(_) | Op::Double(_) => {}
        }
    }

    /// Delivers all frames without loss, and empties the receiver's buffer, until all messages are accepted.
    fn finish(&mut self) {
        self.refusing = false;
        for _ in 0..100_000 {
            self.held = 0;
            self.pump();
            match self.frames.is_empty() {
                false => {
                    let frame = self.frames.remove(0);
                    self.deliver(frame);
                }
                true if self.sender.waiting().next().is_none() => break,
                true => self.wait(60_000_000),
            }
        }
        assert_eq!(self.taken, (0..self.pushed).collect::<Vec<_>>());
        assert_eq!(self.freed, self.taken);
    }
}

fn any_op() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => Just(Op::Push),
        2 => Just(Op::Pump),
        8 => (0_usize..64).prop_map(Op::Deliver),
        1 => (0_usize..64).prop_map(Op::Lose),
        1 => (0_usize..64).prop_map(Op::Double),
        2 => (0_u16..10_000).prop_map(Op::Wait),
        2 => (1_usize..4).prop_map(Op::Consume),
        1 => Just(Op::Preempt),
        1 => any::<bool>().prop_map(Op::Refuse),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    #[test]
    fn nothing_is_lost_doubled_or_reordered_and_steady_is_final(
        capacity in 1_usize..5, ops in proptest::collection::vec(any_op(), 0..200),
    ) {
        let mut pair = Pair::new(capacity);
        for op in ops {
            pair.step(op);
        }
        pair.finish();
    }

    #[test]
    fn any_answer_is_taken_or_refused(
        ops in proptest::collection::vec(any_op(), 0..40), round: u16, expected: Option<u32>,
        seen: u32, refused: bool,
    ) {
        let mut pair = Pair::new(2);
        for op in ops {
            pair.step(op);
        }
        let answer = Answer { round, expected, seen, refused };
        let mut freed = Vec::new();
        let _ = pair.sender.on_answer(pair.now, answer, &mut freed);
        prop_assert!(freed.len() <= pair.pushed as usize);
    }
}

#[test]
fn a_full_stopped_receiver_makes_its_sender_steady_in_one_round_trip() {
    let mut pair = Pair::new(3);
    for _ in 0..8 {
        pair.step(Op::Push);
    }
    pair.pump();
    pair.refusing = true;
    pair.stopped = true;
    // Delivers every frame once, in each direction.
    for _ in 0..2 {
        for frame in std::mem::take(&mut pair.frames) {
            pair.deliver(frame);
        }
    }
    assert!(pair.sender.is_steady());
    assert_eq!(pair.sender.waiting().count(), 8);
}
