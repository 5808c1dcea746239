//! Who may send how much: credits for the other side's slots, and what is owed for our own.

/// Receive descriptors beside the slots: one for a question, one for an answer.
pub(super) const RESERVED: u16 = 2;

const KIND_SHIFT: u32 = 30;
const CREDITS: u32 = 0xFFFF;

/// What a message is beside the credits that it returns.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Kind {
    Data = 0,
    /// The sender runs out of credits.
    Question = 1,
    /// The answer to one.
    Answer = 2,
}

/// What the immediate data of a message says.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Note {
    pub(super) kind: Kind,
    pub(super) credits: u16,
}

impl Note {
    pub(super) const fn emit(self) -> u32 {
        (self.kind as u32) << KIND_SHIFT | self.credits as u32
    }

    /// `None` if no end of a channel says that.
    #[expect(clippy::cast_possible_truncation, reason = "takes a word apart")]
    pub(super) const fn parse(immediate: u32) -> Option<Self> {
        let kind = match immediate >> KIND_SHIFT {
            0 => Kind::Data,
            1 => Kind::Question,
            2 => Kind::Answer,
            _ => return None,
        };
        if immediate & !(CREDITS | 3 << KIND_SHIFT) != 0 {
            return None;
        }
        Some(Self { kind, credits: immediate as u16 })
    }
}

/// One end's books. A slot of this end is with the other one as a credit, under way to be filled, held
/// by the application, or owed: posted again, and the other end does not know.
///
/// Data travels for a credit and returns what is owed. Who runs low asks, once; the answer comes as
/// soon as there is anything to return. Both travel without a credit, into descriptors that data never
/// takes: one question and one answer are under way at most, in each direction.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ledger {
    slots: u16,
    credits: u16,
    held: u16,
    owed: u16,
    /// Our question has no answer yet; theirs has none.
    asking: bool,
    asked: bool,
}

/// The other end does not follow the rules.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Breach;

impl Ledger {
    /// Both ends have as many slots.
    pub(super) const fn new(slots: u16) -> Self {
        Self { slots, credits: slots, held: 0, owed: 0, asking: false, asked: false }
    }

    pub(super) const fn has_credit(&self) -> bool {
        self.credits > 0
    }

    /// A message with data leaves.
    pub(super) const fn send(&mut self) -> Note {
        self.credits -= 1;
        self.note(Kind::Data)
    }

    /// What is to leave beside data, if anything is.
    pub(super) const fn next_note(&mut self) -> Option<Note> {
        if self.asked && self.owed > 0 {
            self.asked = false;
            return Some(self.note(Kind::Answer));
        }
        // Early enough that the answer is back before the last is spent.
        if !self.asking && self.credits <= self.slots / 4 {
            self.asking = true;
            return Some(self.note(Kind::Question));
        }
        None
    }

    const fn note(&mut self, kind: Kind) -> Note {
        let credits = self.owed;
        self.owed = 0;
        Note { kind, credits }
    }

    /// A message has come.
    pub(super) const fn on_note(&mut self, note: Note) -> Result<(), Breach> {
        if note.credits > self.slots - self.credits {
            return Err(Breach);
        }
        self.credits += note.credits;
        match note.kind {
            Kind::Data if self.held + self.owed >= self.slots => return Err(Breach),
            Kind::Data => self.held += 1,
            Kind::Question if self.asked => return Err(Breach),
            Kind::Question => self.asked = true,
            Kind::Answer if !self.asking => return Err(Breach),
            Kind::Answer => self.asking = false,
        }
        Ok(())
    }

    /// The application has given a slot back, and it is posted again.
    pub(super) const fn on_posted(&mut self) {
        self.held -= 1;
        self.owed += 1;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    const SLOTS: u16 = 6;

    /// Two ends and what is under way from each.
    struct Pair {
        ends: [Ledger; 2],
        wires: [VecDeque<Note>; 2],
    }

    impl Pair {
        fn deliver(&mut self, to: usize) {
            if let Some(note) = self.wires[1 - to].pop_front() {
                self.ends[to].on_note(note).unwrap();
            }
        }

        fn talk(&mut self, from: usize) {
            while let Some(note) = self.ends[from].next_note() {
                self.wires[from].push_back(note);
            }
        }

        /// Every slot of each end is somewhere, once; control takes no more than is kept for it.
        fn check(&self) {
            for owner in 0..2 {
                let (own, other) = (self.ends[owner], self.ends[1 - owner]);
                let to = &self.wires[1 - owner];
                let data = to.iter().filter(|note| note.kind == Kind::Data).count() as u16;
                let back: u16 = self.wires[owner].iter().map(|note| note.credits).sum();
                assert_eq!(other.credits + data + own.held + own.owed + back, SLOTS);
                for kind in [Kind::Question, Kind::Answer] {
                    assert!(to.iter().filter(|note| note.kind == kind).count() <= 1);
                }
            }
        }
    }

    proptest! {
        /// Whatever is sent, held and given back in whatever order: credits are conserved, and once
        /// everything is given back and delivered, both may send again.
        #[test]
        fn credits_are_conserved(steps in proptest::collection::vec((0_u8..4, 0_usize..2), 0..400)) {
            let mut pair = Pair { ends: [Ledger::new(SLOTS); 2], wires: Default::default() };
            for (step, end) in steps {
                match step {
                    0 if pair.ends[end].has_credit() => {
                        let note = pair.ends[end].send();
                        pair.wires[end].push_back(note);
                    }
                    1 => pair.deliver(end),
                    2 if pair.ends[end].held > 0 => pair.ends[end].on_posted(),
                    3 => pair.talk(end),
                    _ => {}
                }
                pair.check();
            }
            for _ in 0..1_000 {
                for end in 0..2 {
                    pair.deliver(end);
                    while pair.ends[end].held > 0 {
                        pair.ends[end].on_posted();
                    }
                    pair.talk(end);
                    pair.check();
                }
            }
            prop_assert!(pair.wires.iter().all(VecDeque::is_empty), "it never comes to rest");
            prop_assert!(pair.ends.iter().all(Ledger::has_credit));
        }

        #[test]
        fn no_note_is_believed_blindly(immediates: Vec<u32>) {
            let mut ledger = Ledger::new(SLOTS);
            for immediate in immediates {
                if let Some(note) = Note::parse(immediate) {
                    prop_assert_eq!(note.emit(), immediate);
                    let _ = ledger.on_note(note);
                }
                prop_assert!(ledger.credits <= SLOTS && ledger.held + ledger.owed <= SLOTS);
                ledger.next_note();
            }
        }
    }
}
