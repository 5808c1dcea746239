//! Calls from host to host, which the called NIC may answer by a rule, without its host.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use hdrhistogram::Histogram;
use midplane::nicvm::context::Context;
use midplane::nicvm::extension::{Extension, InitError, TimeoutId};
use midplane::simhw::frame::Frame;
use midplane::simhw::host::Host;
use midplane::simhw::id::{ExtensionId, NodeId};
use midplane::simhw::port::{Command, Completion, Port, PortOptions, Status};
use midplane::simhw::region::{Payload, Region, RegionRef};
use midplane::simhw::time::Instant;

use crate::fleet::text;

pub(crate) const CALLS: ExtensionId = ExtensionId(200);
/// Calls `node` with the word in argument 0, and with `region` if argument 1 is 1. Completes with the answer in `region`
/// and its first word as argument 0.
const CALL: u8 = 1;
/// Posts `region` for one call that the rule passes to the host: completes with the caller, the word and the call's
/// number, and the call's other bytes in `region`.
const SERVE: u8 = 2;
/// Answers the call of `node` whose word and number are the arguments: with `region`, or with argument 2.
const ANSWER: u8 = 3;
/// Changes the rule by the arguments and `region`.
const SET: u8 = 4;
/// Calls that a server's host may hold at once, and most calls of a caller that are not answered.
const SLOTS: u64 = 64;
pub(crate) const MAX_CALLS: usize = 1_024;
/// Longest latency that is recorded, in ns; longer ones count as this.
const LONGEST_NS: u64 = 60_000_000_000;

/// Creates a histogram of latencies in nanoseconds.
pub(crate) fn latencies() -> Histogram<u64> {
    Histogram::new_with_max(LONGEST_NS, 3).expect("three digits")
}

/// Decides on the called NIC.
pub(crate) trait Rule: Send + 'static {
    /// Returns the answer to a call, or `None` to pass it to the host, for which `waiting` calls wait.
    fn decide(&mut self, nic: &Context<'_>, word: u64, waiting: usize) -> Option<Vec<u8>>;

    /// Notes the host's answer to a call with this word.
    fn learn(&mut self, nic: &Context<'_>, word: u64, answer: &[u8]);

    /// Changes the rule; returns false if that can't be done.
    fn set(&mut self, nic: &Context<'_>, args: [u64; 3], bytes: &[u8]) -> bool;
}

/// Passes each call to the host.
#[derive(Debug, Default)]
pub(crate) struct Pass;

impl Rule for Pass {
    fn decide(&mut self, _: &Context<'_>, _: u64, _: usize) -> Option<Vec<u8>> {
        None
    }

    fn learn(&mut self, _: &Context<'_>, _: u64, _: &[u8]) {}

    fn set(&mut self, _: &Context<'_>, _: [u64; 3], _: &[u8]) -> bool {
        false
    }
}

/// A call that waits for the host: the caller, the word, the call's number and its other bytes.
type Waiting = (NodeId, u64, u64, Vec<u8>);

/// The extension, with the rule of its question.
#[derive(Debug, Default)]
pub(crate) struct Calls<R> {
    rule: R,
    slots: VecDeque<Command>,
    waiting: VecDeque<Waiting>,
    called: BTreeMap<u64, Command>,
    next: u64,
}

fn message(opcode: u8, number: u64, rest: &[u8]) -> Vec<u8> {
    [&[opcode][..], &number.to_le_bytes(), rest].concat()
}

fn word(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let (word, rest) = bytes.split_first_chunk::<8>()?;
    Some((u64::from_le_bytes(*word), rest))
}

/// Writes as much as fits into a region; returns the number of bytes, or the status of the failure.
fn write(nic: &mut Context<'_>, region: RegionRef, bytes: &[u8]) -> (Status, u64) {
    let length = bytes.len().min(region.length as usize);
    let part = region.part(0, length as u32).expect("no longer than it");
    if length > 0 && nic.write(part, Payload::from(&bytes[..length])).is_err() {
        return (Status::Region, 0);
    }
    (Status::Done, length as u64)
}

impl<R: Rule> Calls<R> {
    /// Hands calls to the host, as far as it has posted slots.
    fn hand_out(&mut self, nic: &mut Context<'_>) {
        while !self.slots.is_empty() && !self.waiting.is_empty() {
            let (slot, call) = (self.slots.pop_front(), self.waiting.pop_front());
            let Some((slot, (node, word, number, rest))) = slot.zip(call) else { return };
            let (status, length) = write(nic, slot.region, &rest);
            let args = [word, number, 0, 0];
            let done = Completion { node, args, length, ..Completion::of(&slot, status) };
            nic.complete(slot.region.port, &done);
        }
    }
}

impl<R: Rule> Extension for Calls<R> {
    fn init(&mut self, _: &mut Context<'_>) -> Result<(), InitError> {
        Ok(())
    }

    fn on_command(&mut self, nic: &mut Context<'_>, command: Command) {
        let Command { opcode, region, node, args, .. } = command;
        let has_bytes = region.length > 0 && (opcode != CALL || args[1] == 1) && opcode != SERVE;
        let bytes = match has_bytes {
            true => nic.read(region).map(|bytes| bytes.to_vec()).unwrap_or_default(),
            false => Vec::new(),
        };
        let status = match opcode {
            SERVE => {
                self.slots.push_back(command);
                return self.hand_out(nic);
            }
            CALL => {
                self.next += 1;
                let call = message(CALL, self.next, &[&args[0].to_le_bytes(), &bytes[..]].concat());
                if nic.send_control(node, &call).is_ok() {
                    self.called.insert(self.next, command);
                    return;
                }
                Status::PeerLost
            }
            ANSWER => {
                let answer = if has_bytes { bytes } else { args[2].to_le_bytes().to_vec() };
                self.rule.learn(nic, args[0], &answer);
                match nic.send_control(node, &message(ANSWER, args[1], &answer)) {
                    Ok(()) => Status::Done,
                    Err(_) => Status::PeerLost,
                }
            }
            SET if self.rule.set(nic, args, &bytes) => Status::Done,
            SET => Status::Refused,
            _ => Status::Invalid,
        };
        nic.complete(region.port, &Completion::of(&command, status));
    }

    fn on_control(&mut self, nic: &mut Context<'_>, from: NodeId, bytes: &[u8]) {
        let Some((opcode, rest)) = bytes.split_first() else { return };
        let Some((number, rest)) = word(rest) else { return };
        if *opcode == CALL {
            let Some((key, rest)) = word(rest) else { return };
            match self.rule.decide(nic, key, self.waiting.len()) {
                // A caller that has disconnected needs no answer.
                Some(answer) => drop(nic.send_control(from, &message(ANSWER, number, &answer))),
                None => self.waiting.push_back((from, key, number, rest.to_vec())),
            }
            self.hand_out(nic);
        } else if let Some(command) = self.called.remove(&number) {
            let (status, length) = match command.args[1] {
                0 => write(nic, command.region, rest),
                _ => (Status::Done, 0),
            };
            let args = [word(rest).map_or(0, |(word, _)| word), 0, 0, 0];
            let done = Completion { length, args, ..Completion::of(&command, status) };
            nic.complete(command.region.port, &done);
        }
    }

    fn on_data(&mut self, _: &mut Context<'_>, _: NodeId, _: &Frame<'_>) {}
    fn on_timeout(&mut self, _: &mut Context<'_>, _: TimeoutId) {}

    fn outstanding_commands(&mut self) -> Vec<Command> {
        let called = std::mem::take(&mut self.called).into_values();
        self.slots.drain(..).chain(called).collect()
    }

    fn deactivate(&mut self, nic: &mut Context<'_>) {
        for command in self.outstanding_commands() {
            nic.refuse(&command, Status::Cancelled);
        }
    }
}

/// A port with a buffer for each of its commands in flight.
struct Buffers {
    port: Port,
    memory: Region,
    bytes: usize,
}

impl Buffers {
    fn open(host: &impl Host, depth: usize, slots: usize, bytes: usize) -> Result<Self, String> {
        let options = PortOptions::default().depth(depth);
        let mut port = host.open_port_with(options).map_err(text)?;
        let memory = port.register((slots * bytes).max(8)).map_err(text)?;
        Ok(Self { port, memory, bytes })
    }

    /// Returns the command with a slot's buffer, or with as much of it as `bytes` take.
    fn command(&self, opcode: u8, slot: usize, bytes: Option<&[u8]>) -> Result<Command, String> {
        let at = slot * self.bytes;
        self.memory.write(at, bytes.unwrap_or_default()).map_err(text)?;
        let length = bytes.map_or(self.bytes, <[u8]>::len);
        let region = self.memory.range(at, length).expect("within it");
        let (extension, cookie) = (CALLS, slot as u64);
        Ok(Command { extension, opcode, cookie, region, ..Command::default() })
    }

    fn read(&self, done: &Completion) -> Result<Vec<u8>, String> {
        if done.status != Status::Done {
            return Err(format!("a call ended as {:?}", done.status));
        }
        let mut bytes = vec![0; done.length as usize];
        self.memory.read(done.cookie as usize * self.bytes, &mut bytes).map_err(text)?;
        Ok(bytes)
    }
}

/// A call that a host serves.
pub(crate) struct Call {
    pub(crate) node: NodeId,
    pub(crate) word: u64,
    pub(crate) bytes: Vec<u8>,
    number: u64,
    slot: usize,
}

/// The host that serves calls.
pub(crate) struct Server(Buffers);

impl Server {
    /// Opens a port, and posts slots for calls and answers of up to `bytes`.
    pub(crate) fn open(host: &impl Host, bytes: usize) -> Result<Self, String> {
        let slots = SLOTS as usize;
        let mut buffers = Buffers::open(host, 4 * slots, slots + 1, bytes)?;
        for slot in 0..slots {
            buffers.port.post(&buffers.command(SERVE, slot, None)?).map_err(text)?;
        }
        buffers.port.ring();
        Ok(Self(buffers))
    }

    /// Starts to change the rule; [`Server::next`] returns `None` when that is done.
    pub(crate) fn change(&mut self, args: [u64; 3], bytes: &[u8]) -> Result<(), String> {
        let set = self.0.command(SET, SLOTS as usize, Some(bytes))?;
        self.0.port.submit(&Command { args, ..set }).map_err(text)
    }

    /// Changes the rule, while there are no calls; returns false if that can't be done.
    pub(crate) async fn set(&mut self, args: [u64; 3]) -> Result<bool, String> {
        self.change(args, &[])?;
        loop {
            let done = self.0.port.completion().await.map_err(text)?;
            if done.opcode == SET {
                return Ok(done.status == Status::Done);
            }
            self.post(&done)?;
        }
    }

    /// Posts the slot of an answer again.
    fn post(&mut self, done: &Completion) -> Result<(), String> {
        if done.opcode == ANSWER {
            let serve = self.0.command(SERVE, done.cookie as usize, None)?;
            self.0.port.submit(&serve).map_err(text)?;
        }
        Ok(())
    }

    /// Waits for the next call, or for the end of a change.
    ///
    /// Cancel safe.
    pub(crate) async fn next(&mut self) -> Result<Option<Call>, String> {
        loop {
            let done = self.0.port.completion().await.map_err(text)?;
            match done.opcode {
                SERVE => {
                    let (slot, bytes) = (done.cookie as usize, self.0.read(&done)?);
                    let [word, number, ..] = done.args;
                    return Ok(Some(Call { node: done.node, word, bytes, number, slot }));
                }
                SET => return Ok(None),
                _ => self.post(&done)?,
            }
        }
    }

    /// Answers a call with bytes, or with a word if there are none.
    pub(crate) fn answer(&mut self, call: &Call, word: u64, bytes: &[u8]) -> Result<(), String> {
        let answer = self.0.command(ANSWER, call.slot, Some(bytes))?;
        let args = [call.word, call.number, word];
        self.0.port.submit(&Command { args, node: call.node, ..answer }).map_err(text)
    }
}

/// A host that calls others.
pub(crate) struct Caller(Buffers);

impl Caller {
    /// Opens a port with `slots` buffers for answers, or for the bytes of calls.
    pub(crate) fn open(host: &impl Host, slots: usize, bytes: usize) -> Result<Self, String> {
        Buffers::open(host, MAX_CALLS, slots, bytes).map(Self)
    }

    /// Calls a node; the answer has the number of the slot.
    fn call(&mut self, node: NodeId, slot: usize, word: u64) -> Result<(), String> {
        let call = self.0.command(CALL, slot, None)?;
        self.0.port.submit(&Command { node, args: [word, 0, 0], ..call }).map_err(text)
    }

    /// Calls a node with these bytes as well; the answer has none.
    pub(crate) fn send(
        &mut self,
        node: NodeId,
        slot: usize,
        word: u64,
        bytes: &[u8],
    ) -> Result<(), String> {
        let call = self.0.command(CALL, slot, Some(bytes))?;
        let sent = Command { node, args: [word, 1, 0], cookie: word, ..call };
        self.0.port.submit(&sent).map_err(text)
    }

    /// Waits for the next answer to a call that was sent; returns the call's word.
    pub(crate) async fn sent(&mut self) -> Result<u64, String> {
        let done = self.0.port.completion().await.map_err(text)?;
        match done.status {
            Status::Done => Ok(done.cookie),
            status => Err(format!("a call ended as {status:?}")),
        }
    }
}

/// A client with a fixed number of calls in flight.
pub(crate) trait Client {
    /// Returns the word of the next call in a slot.
    fn next(&mut self, slot: usize) -> u64;

    /// Takes an answer: its first word and its bytes; returns whether its latency counts.
    fn take(&mut self, slot: usize, word: u64, bytes: &[u8]) -> bool;
}

/// Calls a node until `end`, with `depth` calls in flight and a pause between the calls of a slot; returns the latencies.
pub(crate) async fn call_until(
    host: &impl Host,
    (node, depth, bytes): (NodeId, usize, usize),
    pause: Option<Duration>,
    end: Instant,
    client: &mut impl Client,
) -> Result<Histogram<u64>, String> {
    let mut caller = Caller::open(host, depth, bytes)?;
    let mut since = vec![Instant::ZERO; depth];
    let mut latency = latencies();
    for (slot, since) in since.iter_mut().enumerate() {
        *since = host.now();
        caller.call(node, slot, client.next(slot))?;
    }
    let mut under_way = depth;
    while under_way > 0 {
        let done = caller.0.port.completion().await.map_err(text)?;
        let (slot, bytes) = (done.cookie as usize, caller.0.read(&done)?);
        if client.take(slot, done.args[0], &bytes) {
            latency.saturating_record(host.now().nanos_since(since[slot]));
        }
        if host.now() >= end {
            under_way -= 1;
            continue;
        }
        if let Some(pause) = pause {
            host.sleep_until(since[slot] + pause).await;
        }
        since[slot] = host.now();
        caller.call(node, slot, client.next(slot))?;
    }
    Ok(latency)
}
