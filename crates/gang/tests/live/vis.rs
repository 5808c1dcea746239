//! A rank that talks to all others of its job over Virtual Interfaces on the daemon's NIC.

use std::time::Duration;

use midplane_gang::live::clock::now;
use midplane_gang::live::rank::{Member, enter};
use midplane_gang::live::snapshot::Snapshots;
use midplane_gang::names::Rank;
use midplane_simhw::port::PortOptions;
use midplane_simhw::wire;
use midplane_via::attributes::{Reliability, ViAttributes};
use midplane_via::descriptor::Descriptor;
use midplane_via::memory::{Memory, MemoryOptions, RemoteMemory};
use midplane_via::nic::{Nic, ViId};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::talk::{Program, Windows};

const LEVELS: [Reliability; 3] =
    [Reliability::Unreliable, Reliability::ReliableDelivery, Reliability::ReliableReception];
/// Bytes of a side message: the places of a rank's memory, or its last message.
const NEWS: usize = 1024;
/// Side messages over each connection: one before all others, one at the end.
const ROUNDS: usize = 2;

fn attributes(reliability: Reliability) -> ViAttributes {
    let rdma_read = reliability.is_reliable();
    ViAttributes { reliability, rdma_write: true, rdma_read, ..ViAttributes::default() }
}

/// A connection with another rank for side messages, next to the traffic under test.
struct Side {
    vi: ViId,
    memory: Memory,
}

impl Side {
    fn send(&self, nic: &mut Nic, round: usize, news: &impl Serialize) {
        let bytes = wire::encode(news).unwrap();
        self.memory.write((ROUNDS + round) * NEWS, &bytes).unwrap();
        let segment = self.memory.segment((ROUNDS + round) * NEWS, bytes.len()).unwrap();
        nic.post_send(self.vi, Descriptor::of(segment)).unwrap();
    }

    /// Waits until the other rank has received all side messages.
    async fn flush(&self, nic: &mut Nic) {
        for _ in 0..ROUNDS {
            loop {
                if let Some(done) = nic.send_done(self.vi).unwrap() {
                    done.outcome.unwrap();
                    break;
                }
                nic.progress().await.unwrap();
            }
        }
    }

    /// Receives the next side message of the other rank.
    async fn receive<T: DeserializeOwned>(&self, nic: &mut Nic) -> T {
        loop {
            if let Some(done) = nic.receive_done(self.vi).unwrap() {
                done.outcome.unwrap();
                let mut bytes = vec![0; done.length];
                self.memory.read(done.descriptor.segments[0].offset(), &mut bytes).unwrap();
                return wire::decode(&bytes).unwrap();
            }
            nic.progress().await.unwrap();
        }
    }
}

async fn side(member: &Member, nic: &mut Nic, peer: u16) -> Side {
    let vi = nic.create_vi(attributes(Reliability::ReliableDelivery)).await.unwrap();
    let memory = nic.register(2 * ROUNDS * NEWS, MemoryOptions::default()).unwrap();
    for round in 0..ROUNDS {
        let segment = memory.segment(round * NEWS, NEWS).unwrap();
        nic.post_receive(vi, Descriptor::of(segment)).unwrap();
    }
    let ticket = member.connect(nic, vi, (Rank(peer), 0)).unwrap();
    nic.finish(&ticket).await.unwrap();
    Side { vi, memory }
}

/// Sends `count` messages to every other rank, takes theirs, and reads their memory as often, at all levels of
/// reliability.
pub(crate) async fn talk(count: u32) {
    let member = enter().unwrap();
    let (host, own) = (member.host(), member.rank().0);
    let mut nic = Nic::open(&host, PortOptions::default()).await.unwrap();
    let others: Vec<u16> = (0..member.ranks()).filter(|peer| *peer != own).collect();
    let mut sides = Vec::new();
    for peer in &others {
        sides.push(side(&member, &mut nic, *peer).await);
    }
    let mut program = Program::new(nic, own, (member.job().0.into(), count, true));
    for peer in &others {
        for level in LEVELS {
            let vi = program.nic.create_vi(attributes(level)).await.unwrap();
            program.add(vi, *peer, level);
            let number = 1 + level as u16;
            let ticket = member.connect(&mut program.nic, vi, (Rank(*peer), number)).unwrap();
            program.nic.finish(&ticket).await.unwrap();
        }
    }
    let windows = program.windows();
    let mut theirs: Vec<Vec<Windows>> = Vec::new();
    for side in &sides {
        side.send(&mut program.nic, 0, &windows);
    }
    for side in &sides {
        theirs.push(side.receive(&mut program.nic).await);
    }
    program.learn(&theirs);
    while let Some(pause) = program.step() {
        // Some ranks busy-poll, some wait.
        if pause % 2 == 0 {
            let news = program.nic.progress();
            let _ = tokio::time::timeout(Duration::from_millis(1), news).await;
        }
    }
    // No rank exits before all have finished.
    for side in &sides {
        side.send(&mut program.nic, 1, &());
    }
    for side in &sides {
        side.receive::<()>(&mut program.nic).await;
        side.flush(&mut program.nic).await;
    }
    println!("{own} has all");
}

/// Prints the number of the NIC's interfaces.
pub(crate) async fn count_left() {
    let member = enter().unwrap();
    let mut nic = Nic::open(&member.host(), PortOptions::default()).await.unwrap();
    println!("{}", nic.query().await.unwrap().vis);
}

/// Takes part in checkpoints, first with an interface, then without.
pub(crate) async fn hand_over() {
    let (member, mut snapshots) = (enter().unwrap(), Snapshots::join().unwrap());
    let mut nic = Nic::open(&member.host(), PortOptions::default()).await.unwrap();
    let mut vi = nic.create_vi(attributes(Reliability::ReliableDelivery)).await.ok();
    loop {
        while !snapshots.is_asked() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        snapshots.save(b"state").unwrap();
        match vi.take() {
            Some(vi) => nic.destroy_vi(vi).await.unwrap(),
            None => return,
        }
    }
}

/// Bytes of a write, and writes under way: more than a NIC carries out while its job is suspended and resumed.
const WRITE: usize = 1 << 20;
const WRITES: usize = 200;

/// Rank 0 writes rank 1's memory as fast as possible. It ends when it has been suspended `stops` times, or has found
/// unfinished writes on its resumption, and prints how often it has found some. NICs are resumed before processes, so on a
/// busy processor all writes may have finished by then.
pub(crate) async fn write_without_end(stops: u32) {
    let member = enter().unwrap();
    let mut nic = Nic::open(&member.host(), PortOptions::default().depth(512)).await.unwrap();
    let own = member.rank().0;
    let side = side(&member, &mut nic, 1 - own).await;
    let vi = nic.create_vi(attributes(Reliability::ReliableDelivery)).await.unwrap();
    let ticket = member.connect(&mut nic, vi, (Rank(1 - own), 1)).unwrap();
    nic.finish(&ticket).await.unwrap();
    let options = MemoryOptions { rdma_write: true, ..MemoryOptions::default() };
    let memory = nic.register(WRITE, options).unwrap();
    side.send(&mut nic, 0, &memory.remote());
    let theirs: RemoteMemory = side.receive(&mut nic).await;
    if own == 0 {
        let (mut stood, mut unfinished, mut under_way) = (0, 0, 0);
        let mut last = now();
        while stood < stops && unfinished == 0 {
            let at = now();
            let mut done = 0;
            while let Some(completed) = nic.send_done(vi).unwrap() {
                completed.outcome.unwrap();
                done += 1;
            }
            if at.nanos_since(last) > 100_000_000 && under_way == WRITES {
                stood += 1;
                unfinished += u32::from(done < WRITES);
            }
            under_way -= done;
            while under_way < WRITES {
                nic.post_send(vi, Descriptor::of(memory.whole()).write(theirs)).unwrap();
                under_way += 1;
            }
            last = now();
        }
        println!("{unfinished}");
    }
    side.send(&mut nic, 1, &());
    side.receive::<()>(&mut nic).await;
    side.flush(&mut nic).await;
}
