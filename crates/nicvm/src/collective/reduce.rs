//! The reduce and all-reduce operations.

use std::collections::BTreeMap;

use midplane_simhw::port::{Command, Status};

use super::{ALL_REDUCE, Context, Group, Progress, REDUCE, SMALL, deliver, taken, tree};

/// The operation that combines words of 8 bytes, position by position.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[repr(u8)]
pub enum Operation {
    /// The sum, modulo 2^64.
    #[default]
    Sum = 0,
    /// The smallest word, unsigned.
    Min = 1,
    /// The greatest word, unsigned.
    Max = 2,
    /// Bitwise and.
    And = 3,
    /// Bitwise or.
    Or = 4,
    /// The sum of 64-bit floating-point numbers, always in the same order.
    SumFloat = 5,
}

impl Operation {
    const ALL: [Self; 6] = [Self::Sum, Self::Min, Self::Max, Self::And, Self::Or, Self::SumFloat];

    fn of(number: u64) -> Option<Self> {
        Self::ALL.get(usize::try_from(number).ok()?).copied()
    }

    /// Combines two words.
    #[must_use]
    #[doc(hidden)]
    pub fn apply(self, a: u64, b: u64) -> u64 {
        match self {
            Self::Sum => a.wrapping_add(b),
            Self::Min => a.min(b),
            Self::Max => a.max(b),
            Self::And => a & b,
            Self::Or => a | b,
            Self::SumFloat => (f64::from_bits(a) + f64::from_bits(b)).to_bits(),
        }
    }

    /// Combines `with` into `into`, word by word, up to the shorter one's end.
    #[doc(hidden)]
    pub fn combine(self, into: &mut [u8], with: &[u8]) {
        for (a, b) in into.chunks_exact_mut(8).zip(with.chunks_exact(8)) {
            let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
            a.copy_from_slice(&self.apply(word(a), word(b)).to_le_bytes());
        }
    }

    /// Combines like [`Self::combine`]. If the lengths differ, `into` becomes a [mismatch](Self::differs), and all
    /// further joins leave it one.
    #[doc(hidden)]
    pub fn join(self, into: &mut Vec<u8>, with: &[u8]) {
        if !into.len().is_multiple_of(8) {
            return;
        }
        if into.len() == with.len() {
            self.combine(into, with);
        } else if with.len().is_multiple_of(8) {
            let both = [into.len(), with.len()].map(|bytes| (bytes as u32).to_le_bytes());
            *into = [both.as_flattened(), &[0]].concat();
        } else {
            *into = with.to_vec();
        }
    }

    /// Returns the length of the words that differ from `bytes` bytes, if the [joined](Self::join) lengths did not all
    /// agree.
    #[must_use]
    #[doc(hidden)]
    pub fn differs(joined: &[u8], bytes: usize) -> Option<usize> {
        let Some((both, [0])) = joined.split_first_chunk::<8>() else {
            return (joined.len() != bytes).then_some(joined.len());
        };
        let (both, _) = both.as_chunks::<4>();
        both.iter().map(|one| u32::from_le_bytes(*one) as usize).find(|one| *one != bytes)
    }
}

/// Most rounds of a group.
const MAX_ROUNDS: u8 = tree::rounds(u16::MAX);

/// Round number of the messages that carry an all-reduce's result down the tree.
const RESULT: u8 = 64;

#[derive(Debug)]
pub(super) struct Reduce {
    to_all: bool,
    own: Option<(Command, Operation)>,
    value: Vec<u8>,
    /// Parts that arrived before they were needed, by round and member.
    parts: BTreeMap<(u8, u16), Vec<u8>>,
    /// Completed rounds.
    round: u8,
    sent: bool,
}

impl Reduce {
    pub(super) fn new(opcode: u8) -> Self {
        let to_all = opcode == ALL_REDUCE;
        let (value, parts) = (Vec::new(), BTreeMap::new());
        Self { to_all, own: None, value, parts, round: 0, sent: false }
    }

    pub(super) fn begin(
        &mut self,
        nic: &mut Context<'_>,
        group: &mut Group,
        number: u32,
        command: &Command,
    ) -> Progress {
        let value = taken(nic, command);
        let Some(operation) = Operation::of(command.args[1]) else {
            return Progress::Failed(Status::Invalid);
        };
        let Some(value) = value else { return Progress::Failed(Status::Region) };
        let whole = value.len() <= SMALL && value.len().is_multiple_of(8);
        if !whole || command.args[0] >= group.size().into() {
            return Progress::Failed(Status::Invalid);
        }
        self.value = value;
        self.own = Some((*command, operation));
        match self.advance(nic, group, number) {
            // The NIC has this member's words, and waits for the children without the host.
            Progress::Waiting if !self.to_all && command.args[0] != u64::from(group.rank) => {
                Progress::Released
            }
            progress => progress,
        }
    }

    pub(super) fn on_message(&mut self, from: u16, round: u8, body: &[u8]) -> Option<()> {
        let is_round = round < MAX_ROUNDS || round == RESULT;
        if !is_round || body.len() > SMALL || self.parts.contains_key(&(round, from)) {
            return None;
        }
        self.parts.insert((round, from), body.to_vec());
        Some(())
    }

    pub(super) fn advance(
        &mut self,
        nic: &mut Context<'_>,
        group: &mut Group,
        number: u32,
    ) -> Progress {
        let Some((command, operation)) = self.own else { return Progress::Waiting };
        if self.to_all && group.size().is_power_of_two() {
            self.double(nic, group, number, operation, &command)
        } else {
            self.climb(nic, group, number, operation, &command)
        }
    }

    /// Recursive doubling: in round k, exchanges with the member whose rank differs in bit k.
    fn double(
        &mut self,
        nic: &mut Context<'_>,
        group: &mut Group,
        number: u32,
        operation: Operation,
        command: &Command,
    ) -> Progress {
        while self.round < tree::rounds(group.size()) {
            let partner = group.rank ^ 1 << self.round;
            if !self.sent {
                group.send(nic, partner, (ALL_REDUCE, self.round, number), &self.value);
                self.sent = true;
            }
            let Some(part) = self.parts.remove(&(self.round, partner)) else {
                return Progress::Waiting;
            };
            // The lower rank's operand comes first, at both ends.
            if partner < group.rank {
                let own = std::mem::replace(&mut self.value, part);
                operation.join(&mut self.value, &own);
            } else {
                operation.join(&mut self.value, &part);
            }
            self.round += 1;
            self.sent = false;
        }
        self.deliver(nic, command)
    }

    /// Combines up the binomial tree to the root; in an all-reduce, sends the result down again.
    fn climb(
        &mut self,
        nic: &mut Context<'_>,
        group: &mut Group,
        number: u32,
        operation: Operation,
        command: &Command,
    ) -> Progress {
        let (size, root) = (group.size(), command.args[0] as u16);
        let place = tree::place_of(group.rank, root, size);
        let opcode = if self.to_all { ALL_REDUCE } else { REDUCE };
        if !self.sent {
            let children: Vec<u16> = tree::children(place, size).collect();
            let part = |child: &u16| (0, tree::rank_at(*child, root, size));
            if !children.iter().all(|child| self.parts.contains_key(&part(child))) {
                return Progress::Waiting;
            }
            for child in children.iter().rev() {
                let with = self.parts.remove(&part(child)).expect("they are all there");
                operation.join(&mut self.value, &with);
            }
            self.sent = true;
            if place > 0 {
                let parent = tree::rank_at(tree::parent(place), root, size);
                group.send(nic, parent, (opcode, 0, number), &self.value);
                if !self.to_all {
                    return Progress::Done;
                }
            }
        }
        if place > 0 {
            let parent = tree::rank_at(tree::parent(place), root, size);
            let Some(result) = self.parts.remove(&(RESULT, parent)) else {
                return Progress::Waiting;
            };
            self.value = result;
        }
        if self.to_all {
            for child in tree::children(place, size) {
                let rank = tree::rank_at(child, root, size);
                group.send(nic, rank, (opcode, RESULT, number), &self.value);
            }
        }
        self.deliver(nic, command)
    }

    fn deliver(&self, nic: &mut Context<'_>, command: &Command) -> Progress {
        match Operation::differs(&self.value, command.region.length as usize) {
            Some(bytes) => Progress::Differs(bytes),
            None => deliver(nic, command, &self.value),
        }
    }
}
