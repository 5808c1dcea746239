//! Instructions: their definition, encoding, checking and execution.

use std::collections::VecDeque;

use thiserror::Error;

use super::{MAX_MEMORY, MAX_PROGRAM, MESSAGE};

/// A range of the program's memory, in bytes.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Range {
    /// First byte.
    pub offset: u32,
    /// Length in bytes.
    pub length: u32,
}

/// A comparison of two unsigned words.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[repr(u8)]
pub enum Condition {
    /// True for any two.
    #[default]
    Always = 0,
    /// The words are equal.
    Equal = 1,
    /// The words differ.
    Different = 2,
    /// The first is less than the second.
    Less = 3,
}

/// One instruction; encoded in 24 bytes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Instruction {
    /// Appends bytes of memory to the message.
    Gather(Range),
    /// Moves bytes from the message's front into memory: the inverse of [`Gather`](Self::Gather).
    Scatter(Range),
    /// Copies within memory; the ranges may overlap.
    Copy {
        /// The source.
        from: Range,
        /// The destination's first byte.
        to: u32,
    },
    /// Compares the word at an offset with a number; a later [`Instruction::Branch`] tests the result.
    Compare {
        /// Offset of the word.
        offset: u32,
        /// The number that it is compared with.
        with: u64,
    },
    /// Jumps to another instruction if the last comparison satisfies the condition.
    Branch {
        /// The condition.
        condition: Condition,
        /// The number of the instruction, from 0; one past the last ends the program.
        to: u16,
    },
    /// Adds a number to the word at an offset.
    Add {
        /// Offset of the word.
        offset: u32,
        /// The addend; the sum wraps around.
        by: u64,
    },
    /// Sends the gathered message to a port of a node, which must have posted a buffer; the message is empty
    /// afterwards. Only messages of up to 97 bytes are reliable.
    Send {
        /// The node.
        node: u16,
        /// Its port.
        port: u16,
    },
    /// Completes a [`WAIT`](super::WAIT) of the program's owner.
    Signal {
        /// The signal's number, which the completion carries.
        cookie: u64,
    },
    /// Adds a number to the counter that a run completes with.
    Count(u64),
    /// Passes another extension a command about a range of memory.
    Call {
        /// The extension.
        extension: u8,
        /// The command's opcode.
        opcode: u8,
        /// The cookie of its completion.
        cookie: u32,
        /// The range of memory.
        range: Range,
    },
}

/// Reason for which a program is refused.
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
#[non_exhaustive]
#[repr(u8)]
pub enum CheckError {
    /// There are no instructions, or more than 256.
    #[error("a program has from 1 to {MAX_PROGRAM} instructions")]
    Length = 1,
    /// The bytes encode no instruction.
    #[error("no such instruction")]
    Unknown = 2,
    /// A range exceeds the program's memory.
    #[error("it exceeds the program's memory")]
    Range = 3,
    /// A branch target is not an instruction of the program.
    #[error("its branch target is not an instruction")]
    Target = 4,
    /// On some path through the program, the message would be longer than [`MESSAGE`] bytes.
    #[error("a message has {MESSAGE} bytes at most")]
    Message = 5,
    /// A word's offset is not a multiple of eight.
    #[error("words lie at multiples of eight bytes")]
    Alignment = 6,
    /// The program's memory has more than 1 MiB.
    #[error("a program works on {MAX_MEMORY} bytes at most")]
    Memory = 7,
}

/// Bytes of an encoded instruction.
const BYTES: usize = 24;

/// Encodes a program.
#[must_use]
pub fn assemble(code: &[Instruction]) -> Vec<u8> {
    code.iter().flat_map(emit).collect()
}

fn emit(instruction: &Instruction) -> [u8; BYTES] {
    let (head, first, second): ([u8; 4], u32, [u64; 2]) = match *instruction {
        Instruction::Gather(range) => ([1, 0, 0, 0], range.offset, [range.length.into(), 0]),
        Instruction::Scatter(range) => ([2, 0, 0, 0], range.offset, [range.length.into(), 0]),
        Instruction::Copy { from, to } => {
            ([3, 0, 0, 0], from.offset, [from.length.into(), to.into()])
        }
        Instruction::Compare { offset, with } => ([4, 0, 0, 0], offset, [with, 0]),
        Instruction::Branch { condition, to } => ([5, condition as u8, 0, 0], to.into(), [0, 0]),
        Instruction::Add { offset, by } => ([6, 0, 0, 0], offset, [by, 0]),
        Instruction::Send { node, port } => ([7, 0, 0, 0], node.into(), [port.into(), 0]),
        Instruction::Signal { cookie } => ([8, 0, 0, 0], 0, [cookie, 0]),
        Instruction::Count(number) => ([9, 0, 0, 0], 0, [number, 0]),
        Instruction::Call { extension, opcode, cookie, range } => {
            let place = u64::from(range.offset) | u64::from(range.length) << 32;
            ([10, extension, opcode, 0], cookie, [place, 0])
        }
    };
    let mut bytes = [0; BYTES];
    bytes[..4].copy_from_slice(&head);
    bytes[4..8].copy_from_slice(&first.to_le_bytes());
    bytes[8..16].copy_from_slice(&second[0].to_le_bytes());
    bytes[16..].copy_from_slice(&second[1].to_le_bytes());
    bytes
}

/// Decodes a program.
///
/// # Errors
/// The index of the first invalid instruction, and what is wrong.
#[doc(hidden)]
pub fn disassemble(bytes: &[u8]) -> Result<Vec<Instruction>, (usize, CheckError)> {
    let (whole, rest) = bytes.as_chunks::<BYTES>();
    if !rest.is_empty() || whole.is_empty() || whole.len() > MAX_PROGRAM {
        return Err((0, CheckError::Length));
    }
    let read = |(at, bytes): (usize, &[u8; BYTES])| {
        // If decoding and encoding do not give the same bytes, some bits have no meaning.
        let read = parse(bytes).filter(|read| emit(read) == *bytes);
        read.ok_or((at, CheckError::Unknown))
    };
    whole.iter().enumerate().map(read).collect()
}

fn parse(bytes: &[u8; BYTES]) -> Option<Instruction> {
    let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
    let first = u32::from_le_bytes(bytes[4..8].try_into().expect("four bytes"));
    let (second, third) = (word(8), word(16));
    let range = |length: u64| Some(Range { offset: first, length: u32::try_from(length).ok()? });
    Some(match bytes[0] {
        1 => Instruction::Gather(range(second)?),
        2 => Instruction::Scatter(range(second)?),
        3 => Instruction::Copy { from: range(second)?, to: u32::try_from(third).ok()? },
        4 => Instruction::Compare { offset: first, with: second },
        5 => {
            let conditions =
                [Condition::Always, Condition::Equal, Condition::Different, Condition::Less];
            let condition = *conditions.get(usize::from(bytes[1]))?;
            Instruction::Branch { condition, to: u16::try_from(first).ok()? }
        }
        6 => Instruction::Add { offset: first, by: second },
        7 => Instruction::Send {
            node: u16::try_from(first).ok()?,
            port: u16::try_from(second).ok()?,
        },
        8 => Instruction::Signal { cookie: second },
        9 => Instruction::Count(second),
        10 => Instruction::Call {
            extension: bytes[1],
            opcode: bytes[2],
            cookie: first,
            range: Range { offset: second as u32, length: (second >> 32) as u32 },
        },
        _ => return None,
    })
}

/// Checks a program for `memory` bytes of memory: the ranges that it touches, its branch targets, and that no path
/// through it gathers too long a message.
///
/// # Errors
/// The index of the first wrong instruction, and what is wrong.
pub fn check(code: &[Instruction], memory: u32) -> Result<(), (usize, CheckError)> {
    if code.is_empty() || code.len() > MAX_PROGRAM {
        return Err((0, CheckError::Length));
    }
    if memory as usize > MAX_MEMORY {
        return Err((0, CheckError::Memory));
    }
    for (at, instruction) in code.iter().enumerate() {
        check_one(instruction, memory, code.len()).map_err(|error| (at, error))?;
    }
    check_message(code).map_err(|at| (at, CheckError::Message))
}

/// Checks that no path through a program gathers more than [`MESSAGE`] bytes, by the longest path (Bellman and Ford). A
/// path may begin at any reachable instruction, since a message has at least 0 bytes there. If no cycle gathers more
/// than it removes, one pass for each instruction finds the longest path. Otherwise the gathers of that cycle grow in
/// the next passes, too.
///
/// # Errors
/// The index of a gather on a path that is too long.
fn check_message(code: &[Instruction]) -> Result<(), usize> {
    // The longest message that may be present before each reachable instruction.
    let mut longest: Vec<Option<usize>> = vec![None; code.len() + 1];
    let mut open = vec![0];
    while let Some(at) = open.pop() {
        if longest[at].replace(0).is_none() && at < code.len() {
            open.extend(successors(code[at], at));
        }
    }
    for pass in 0..2 * code.len() {
        let mut has_grown = false;
        for (at, instruction) in code.iter().enumerate() {
            let Some(length) = longest[at] else { continue };
            let (after, gathers) = match instruction {
                Instruction::Gather(range) => (length + range.length as usize, true),
                Instruction::Scatter(range) => {
                    (length.saturating_sub(range.length as usize), false)
                }
                Instruction::Send { .. } => (0, false),
                _ => (length, false),
            };
            let mut grows = false;
            for next in successors(*instruction, at) {
                grows |= longest[next] < Some(after);
                longest[next] = longest[next].max(Some(after));
            }
            if after > MESSAGE || (grows && gathers && pass >= code.len()) {
                return Err(at);
            }
            has_grown |= grows;
        }
        if !has_grown {
            break;
        }
    }
    Ok(())
}

/// Returns the instructions that may follow the one at `at`; the number of instructions stands for the end.
fn successors(instruction: Instruction, at: usize) -> impl Iterator<Item = usize> {
    let (next, target) = match instruction {
        Instruction::Branch { condition: Condition::Always, to } => (None, Some(to.into())),
        Instruction::Branch { to, .. } => (Some(at + 1), Some(to.into())),
        _ => (Some(at + 1), None),
    };
    next.into_iter().chain(target)
}

fn check_one(instruction: &Instruction, memory: u32, count: usize) -> Result<(), CheckError> {
    let within = |range: Range| {
        let end = range.offset.checked_add(range.length);
        end.filter(|end| *end <= memory).map(|_| ()).ok_or(CheckError::Range)
    };
    match *instruction {
        Instruction::Gather(range)
        | Instruction::Scatter(range)
        | Instruction::Call { range, .. } => within(range),
        Instruction::Copy { from, to } => {
            within(from)?;
            within(Range { offset: to, length: from.length })
        }
        Instruction::Compare { offset, .. } | Instruction::Add { offset, .. } => {
            if !offset.is_multiple_of(8) {
                return Err(CheckError::Alignment);
            }
            within(Range { offset, length: 8 })
        }
        Instruction::Branch { to, .. } if usize::from(to) > count => Err(CheckError::Target),
        Instruction::Branch { .. }
        | Instruction::Send { .. }
        | Instruction::Signal { .. }
        | Instruction::Count(_) => Ok(()),
    }
}

/// An effect of a run outside its memory.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum Effect {
    Send { node: u16, port: u16, bytes: Vec<u8> },
    Signal { cookie: u64 },
    Call { extension: u8, opcode: u8, cookie: u64, range: Range },
}

/// Most effects of one run.
const MAX_EFFECTS: usize = 64;
/// Bytes that a copy, a gather or a scatter moves for the price of one step.
pub(super) const BYTES_PER_STEP: u32 = 256;

/// One run of a checked program.
pub(super) struct Machine {
    memory: Vec<u8>,
    written: Vec<Range>,
    message: VecDeque<u8>,
    compared: std::cmp::Ordering,
    effects: Vec<Effect>,
    counted: u64,
    steps: u32,
}

impl Machine {
    pub(super) fn new(memory: Vec<u8>) -> Self {
        Self {
            memory,
            written: Vec::new(),
            message: VecDeque::new(),
            compared: std::cmp::Ordering::Equal,
            effects: Vec::new(),
            counted: 0,
            steps: 0,
        }
    }

    /// Runs to the end. Returns `false` if the program needs more than `most` steps, or asks for too many effects.
    pub(super) fn run(&mut self, code: &[Instruction], most: u32) -> bool {
        let mut at = 0;
        while let Some(instruction) = code.get(at) {
            let copied = match instruction {
                Instruction::Copy { from: range, .. }
                | Instruction::Gather(range)
                | Instruction::Scatter(range) => range.length / BYTES_PER_STEP,
                _ => 0,
            };
            if most - self.steps <= copied || self.effects.len() > MAX_EFFECTS {
                return false;
            }
            self.steps += 1 + copied;
            at = self.step(instruction, at);
        }
        true
    }

    fn step(&mut self, instruction: &Instruction, at: usize) -> usize {
        match *instruction {
            Instruction::Gather(range) => {
                let bytes = self.bytes(range).to_vec();
                self.message.extend(bytes);
            }
            Instruction::Scatter(range) => {
                let length = self.message.len().min(range.length as usize);
                let bytes: Vec<u8> = self.message.drain(..length).collect();
                self.put(range.offset, &bytes);
            }
            Instruction::Copy { from, to } => {
                let bytes = self.bytes(from).to_vec();
                self.put(to, &bytes);
            }
            Instruction::Compare { offset, with } => self.compared = self.word(offset).cmp(&with),
            Instruction::Branch { condition, to } => {
                let goes = match condition {
                    Condition::Always => true,
                    Condition::Equal => self.compared.is_eq(),
                    Condition::Different => self.compared.is_ne(),
                    Condition::Less => self.compared.is_lt(),
                };
                if goes {
                    return to.into();
                }
            }
            Instruction::Add { offset, by } => {
                let sum = self.word(offset).wrapping_add(by);
                self.put(offset, &sum.to_le_bytes());
            }
            Instruction::Send { node, port } => {
                let bytes = std::mem::take(&mut self.message).into();
                self.effects.push(Effect::Send { node, port, bytes });
            }
            Instruction::Signal { cookie } => self.effects.push(Effect::Signal { cookie }),
            Instruction::Count(number) => self.counted = self.counted.wrapping_add(number),
            Instruction::Call { extension, opcode, cookie, range } => {
                let cookie = cookie.into();
                self.effects.push(Effect::Call { extension, opcode, cookie, range });
            }
        }
        at + 1
    }

    fn word(&self, offset: u32) -> u64 {
        let bytes = self.bytes(Range { offset, length: 8 });
        u64::from_le_bytes(bytes.try_into().expect("eight bytes"))
    }

    fn put(&mut self, offset: u32, bytes: &[u8]) {
        let at = offset as usize;
        self.memory[at..at + bytes.len()].copy_from_slice(bytes);
        let range = Range { offset, length: bytes.len() as u32 };
        if !bytes.is_empty() && !self.written.contains(&range) {
            self.written.push(range);
        }
    }

    /// Returns a range of the memory as the run has changed it.
    pub(super) fn bytes(&self, range: Range) -> &[u8] {
        &self.memory[range.offset as usize..(range.offset + range.length) as usize]
    }

    pub(super) fn written(&self) -> &[Range] {
        &self.written
    }

    pub(super) fn effects(&self) -> &[Effect] {
        &self.effects
    }

    pub(super) const fn counted(&self) -> u64 {
        self.counted
    }

    pub(super) const fn steps(&self) -> u32 {
        self.steps
    }
}

#[cfg(test)]
mod tests;
