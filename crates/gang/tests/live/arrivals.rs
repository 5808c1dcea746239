//! A job that answers requests from a process outside of all jobs, over Virtual Interfaces, next to one that computes.

use std::process::Child;
use std::time::Duration;

use midplane_gang::live::clock::now;
use midplane_gang::live::rank::enter;
use midplane_simhw::id::NodeId;
use midplane_simhw::nic::LiveHost;
use midplane_simhw::nicd::{Client, ClientConfig};
use midplane_simhw::port::PortOptions;
use midplane_via::attributes::{Address, Discriminator, Reliability, ViAttributes};
use midplane_via::descriptor::Descriptor;
use midplane_via::memory::{Memory, MemoryOptions};
use midplane_via::nic::{Nic, ViId};

use crate::parts::runtime;
use crate::scenes::listing;
use crate::stage::{Stage, said, wait_until};

const SLICE_MS: u32 = 600;
const REQUESTS: u64 = 7;
/// Bytes of a request, and of an answer behind it.
const REQUEST: usize = 8;
/// The request that ends the server.
const LAST: u64 = u64::MAX;
/// The server's end of the connection, and the client's.
const ENDS: [&[u8]; 2] = [b"server", b"client"];

/// One end of the connection between a client and the server.
struct Talker {
    nic: Nic,
    vi: ViId,
    memory: Memory,
}

impl Talker {
    /// Connects `ENDS[own]` with the other end, on the NIC of a node.
    async fn connect(host: &LiveHost, own: usize, other: NodeId) -> Self {
        let mut nic = Nic::open(host, PortOptions::default()).await.unwrap();
        let reliability = Reliability::ReliableDelivery;
        let attributes = ViAttributes { reliability, ..ViAttributes::default() };
        let vi = nic.create_vi(attributes).await.unwrap();
        let memory = nic.register(2 * REQUEST, MemoryOptions::default()).unwrap();
        let mut talker = Self { nic, vi, memory };
        talker.post_receive();
        let [local, discriminator] =
            [own, 1 - own].map(|end| Discriminator::new(ENDS[end]).unwrap());
        let to = Address { node: other, discriminator };
        let ticket = talker.nic.connect_peer(vi, to, local, None).unwrap();
        talker.nic.finish(&ticket).await.unwrap();
        talker
    }

    fn post_receive(&mut self) {
        let segment = self.memory.segment(0, REQUEST).unwrap();
        self.nic.post_receive(self.vi, Descriptor::of(segment)).unwrap();
    }

    async fn receive(&mut self) -> u64 {
        loop {
            if let Some(done) = self.nic.receive_done(self.vi).unwrap() {
                done.outcome.unwrap();
                let mut bytes = [0; REQUEST];
                self.memory.read(0, &mut bytes).unwrap();
                self.post_receive();
                return u64::from_le_bytes(bytes);
            }
            self.nic.progress().await.unwrap();
        }
    }

    async fn send(&mut self, number: u64) {
        self.memory.write(REQUEST, &number.to_le_bytes()).unwrap();
        let segment = self.memory.segment(REQUEST, REQUEST).unwrap();
        self.nic.post_send(self.vi, Descriptor::of(segment)).unwrap();
        while self.nic.send_done(self.vi).unwrap().is_none() {
            self.nic.progress().await.unwrap();
        }
    }
}

/// A rank that answers each request of one client with its number, until the last.
pub(crate) async fn serve() {
    let member = enter().unwrap();
    let client = std::env::var("CLIENT_NODE").unwrap().parse().unwrap();
    let mut talker = Talker::connect(&member.host(), 0, NodeId(client)).await;
    loop {
        let number = talker.receive().await;
        if number == LAST {
            return;
        }
        talker.send(number).await;
    }
}

/// Returns the longest and the median response time.
async fn answers(nic: &str, node: NodeId) -> [Duration; 2] {
    let client = Client::connect(ClientConfig::new(nic, node)).unwrap();
    // The server is on the slot of host 0.
    let mut talker = Talker::connect(&client.host(), 1, NodeId(0)).await;
    let mut waits = Vec::new();
    for number in 0..REQUESTS {
        tokio::time::sleep(Duration::from_millis(170 + 90 * (number % 3))).await;
        let began = now();
        talker.send(number).await;
        assert_eq!(talker.receive().await, number);
        waits.push(now().since(began));
    }
    talker.send(LAST).await;
    waits.sort();
    [waits[waits.len() - 1], waits[waits.len() / 2]]
}

/// Runs a server, woken early or not, and sends it requests from the last host's NIC.
fn ask(stage: &Stage, client: u16, how: &str) -> [Duration; 2] {
    let itself = std::env::current_exe().unwrap();
    let mut server = stage.client_as(1, how, &[itself.to_str().unwrap(), "--vis-serve"]);
    let server: Child = server.env("CLIENT_NODE", client.to_string()).spawn().unwrap();
    let name = stage.path().file_name().unwrap().to_str().unwrap();
    let waits = runtime().block_on(answers(name, NodeId(client)));
    assert_eq!(said(server.wait_with_output().unwrap()), (0, String::new(), String::new()));
    waits
}

/// Requests wake a suspended job before its turn: within one NIC, and between hosts.
pub(crate) fn wake_a_job() {
    for (hosts, network) in [(1, "shm"), (2, "UDP")] {
        let stage = Stage::with_network(hosts, 1, SLICE_MS, network);
        wait_until("all are there", || listing(&stage).hosts.iter().all(|here| *here));
        let itself = std::env::current_exe().unwrap();
        let busy = stage.client(hosts, &[itself.to_str().unwrap(), "--spin", "60"]).spawn();
        let mut busy: Child = busy.unwrap();
        wait_until("it runs", || listing(&stage).jobs.iter().any(|line| line.runs));
        let [waiting, _] = ask(&stage, hosts - 1, "pipes");
        let [longest, median] = ask(&stage, hosts - 1, "woken");
        println!("{network}: longest answer {longest:?} (median {median:?}), in turn {waiting:?}");
        busy.kill().unwrap();
        busy.wait().unwrap();
        assert!(waiting > Duration::from_millis(200), "it was never suspended: {waiting:?}");
        assert!(median < Duration::from_millis(100), "{median:?}");
        assert!(longest < waiting, "{longest:?}");
    }
}
