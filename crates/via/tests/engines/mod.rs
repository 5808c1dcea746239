//! Helpers that drive engines over the carrier in memory.

use midplane_via::message::engine::{Config, Engine};
use midplane_via::message::envelope::{Context, Peer, Tag};
use midplane_via::message::matching::Pattern;
use midplane_via::message::memory::{MemoryConfig, network};
use midplane_via::message::request::{Load, Mode, Operation, Outcome, Request};
use midplane_via::message::transport::Wait;

pub(crate) type Process = Engine;

pub(crate) fn cluster(processes: usize, memory: MemoryConfig, config: Config) -> Vec<Process> {
    let everyone: Vec<_> = (0..processes).map(|peer| Peer(peer as u32)).collect();
    let carriers = network(processes, memory);
    let mut engines: Vec<_> = carriers.into_iter().map(|end| Engine::new(end, config)).collect();
    for engine in &mut engines {
        engine.init().unwrap();
        engine.add_processes(&everyone).unwrap();
    }
    engines
}

pub(crate) fn settle(engines: &mut [Process]) {
    for _ in 0..200 {
        for engine in &mut *engines {
            engine.advance(Wait::Not);
        }
    }
}

pub(crate) fn send(engine: &mut Process, mode: Mode, to: u32, tag: u32, bytes: &[u8]) -> Request {
    let operation = Operation::Send { mode, to: Peer(to), context: Context(0), tag: Tag(tag) };
    let request = engine.build(operation).unwrap();
    engine.start(request, Load::Copy(bytes)).unwrap();
    request
}

pub(crate) fn receive(
    engine: &mut Process,
    source: Option<u32>,
    tag: Option<u32>,
    room: usize,
) -> Request {
    let pattern = Pattern { context: Context(0), source: source.map(Peer), tag: tag.map(Tag) };
    let request = engine.build(Operation::Receive(pattern)).unwrap();
    engine.start(request, Load::Room { room, storage: Vec::new() }).unwrap();
    request
}

pub(crate) fn take(engine: &mut Process, request: Request) -> Option<Outcome> {
    let outcome = engine.requests().take(request)?;
    engine.destroy(request, false);
    Some(outcome)
}

/// Makes a message of at least 8 bytes that shows its sender, its number, and whether it is complete.
pub(crate) fn message(sender: u32, number: u32, length: usize) -> Vec<u8> {
    let block: [u8; 256] = std::array::from_fn(|i| (i as u32 ^ number ^ sender << 4) as u8);
    let mut bytes = block.repeat(length.div_ceil(block.len()));
    bytes.truncate(length);
    bytes[..8].copy_from_slice(&[sender.to_le_bytes(), number.to_le_bytes()].concat());
    bytes
}
