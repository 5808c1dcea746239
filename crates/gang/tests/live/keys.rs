//! Authentication of hosts: the daemons admit listed hosts and refuse impostors.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use midplane_gang::live::link::{Credentials, Frame, Receiver, Sender, dial};
use midplane_gang::live::message::{Cluster, Hello, Purpose};
use midplane_simhw::id::NodeId;
use midplane_simhw::seal::{Identity, Key, PublicKey, SecretKey};
use rustix::process::{Pid, Signal, kill_process};
use serde::Serialize;

use crate::scenes::listing;
use crate::stage::{Stage, wait_until};

/// Silence after which a connection ends.
const SILENCE: Duration = Duration::from_secs(60);
/// The key of every stage's fabric.
const FABRIC: [u8; 32] = [0x5a; 32];

fn shared() -> Credentials {
    Credentials::Shared(Key::new(1, FABRIC))
}

/// A key for each host.
struct Keys(Vec<SecretKey>);

impl Keys {
    fn new(hosts: u16) -> Self {
        Self((0..hosts).map(|_| SecretKey::generate().unwrap()).collect())
    }

    fn list(&self) -> Vec<PublicKey> {
        self.0.iter().map(SecretKey::public).collect()
    }

    /// Returns the key argument of a host's daemon.
    fn of(&self, host: usize) -> String {
        let list: Vec<String> = self.list().iter().map(PublicKey::to_string).collect();
        let fabric = "5a".repeat(32);
        format!("1:{fabric};{};{}", self.0[host].to_text(), list.join(","))
    }

    fn credentials(&self, host: u16) -> Credentials {
        let secret = self.0[usize::from(host)].clone();
        let identity = Identity::new(NodeId(host), secret, self.list()).unwrap();
        Credentials::Named(identity, Some(Key::new(1, FABRIC)))
    }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

/// Connects with the root by these credentials, and claims to be this host.
async fn claim(root: &str, credentials: &Credentials, host: u16) -> Option<(Sender, Receiver)> {
    let (mut sender, receiver) = dial(root, (0, SILENCE), credentials).await.ok()?;
    let cluster = Cluster { hosts: 2, slots: 1, arity: 2 };
    sender.send(&Frame::message(&Hello { host, purpose: Purpose::Child(cluster) })).await.ok()?;
    Some((sender, receiver))
}

/// Returns all frames that the root sends until it ends the connection.
async fn received(mut receiver: Receiver) -> Vec<Frame> {
    let mut all = Vec::new();
    while let Ok(Some(frame)) = receiver.receive().await {
        all.push(frame);
    }
    all
}

/// Messages of children, with their numbers in the protocol.
#[derive(Serialize)]
#[expect(dead_code, reason = "the first two hold the others' numbers")]
enum Up {
    Report,
    Rank,
    Here(Vec<u16>),
    Gone(Vec<u16>),
    Joined { host: u16, at: u64, bytes: Vec<u8>, is_last: bool },
}

/// Creates the report that a host without jobs was admitted.
fn joined(host: u16) -> Up {
    let jobs: Vec<u32> = Vec::new();
    let bytes = midplane_simhw::wire::encode_long(&(host, jobs)).unwrap();
    Up::Joined { host, at: 0, bytes: bytes.to_vec(), is_last: true }
}

/// Checks that a job with a rank on each host runs to its end.
#[track_caller]
fn both_work(stage: &Stage) {
    let (code, out, error) = stage.run(2, &["sh", "-c", "echo $GANG_HOST"]);
    let mut lines: Vec<&str> = out.lines().collect();
    lines.sort_unstable();
    assert_eq!((code, lines, error.as_str()), (0, vec!["0", "1"], ""));
}

/// An impostor has the fabric's key, but no listed key of a host.
pub(crate) fn impostor() {
    let keys = Keys::new(2);
    let mut stage = Stage::with_keys(&[keys.of(0)], 2);
    let root = stage.addresses[0].clone();
    let strangers = Keys::new(2);
    runtime().block_on(async {
        for credentials in [shared(), strangers.credentials(1)] {
            assert!(claim(&root, &credentials, 1).await.is_none(), "{credentials:?} is admitted");
        }
    });
    assert_eq!(listing(&stage).hosts, [true, false]);
    stage.start(1, &keys.of(1));
    wait_until("host 1 is there", || listing(&stage).hosts == [true, true]);
    both_work(&stage);
}

/// A listed host claims to be another one: in the protocol, because the handshake does not let it.
pub(crate) fn another_host() {
    let keys = Keys::new(3);
    let stage = Stage::with_keys(&[keys.of(0), keys.of(1)], 3);
    let root = stage.addresses[0].clone();
    wait_until("host 1 is there", || listing(&stage).hosts == [true, true, false]);
    let (runtime, credentials) = (runtime(), keys.credentials(2));
    let cluster = Cluster { hosts: 3, slots: 1, arity: 2 };
    runtime.block_on(async {
        let (mut sender, receiver) = dial(&root, (0, SILENCE), &credentials).await.unwrap();
        sender
            .send(&Frame::message(&Hello { host: 1, purpose: Purpose::Child(cluster) }))
            .await
            .unwrap();
        assert_eq!(received(receiver).await, []);
    });
    // It is admitted as itself. Then it reports that host 1 is gone, and that host 1 has joined through it.
    let link = runtime.block_on(async {
        let (mut sender, receiver) = dial(&root, (0, SILENCE), &credentials).await.unwrap();
        sender
            .send(&Frame::message(&Hello { host: 2, purpose: Purpose::Child(cluster) }))
            .await
            .unwrap();
        for up in [Up::Gone(vec![1]), joined(2), joined(1)] {
            sender.send(&Frame::message(&up)).await.unwrap();
        }
        (sender, receiver)
    });
    wait_until("host 2 is there", || listing(&stage).hosts[2]);
    assert_eq!(listing(&stage).hosts, [true, true, true]);
    runtime.block_on(async { drop(link) });
    wait_until("host 2 is gone", || listing(&stage).hosts == [true, true, false]);
    both_work(&stage);
    assert!(stage.errors(0).contains("host 2 says that it is host 1"), "{}", stage.errors(0));
}

/// A process with the only key can claim to be any host, but displaces none that is alive.
pub(crate) fn a_live_host_stays() {
    let mut stage = Stage::tree(2, 1, 20);
    let root = stage.addresses[0].clone();
    wait_until("both are there", || listing(&stage).hosts == [true, true]);
    runtime().block_on(async {
        let (_sender, receiver) = claim(&root, &shared(), 1).await.unwrap();
        assert_eq!(received(receiver).await, [], "it was admitted");
    });
    assert_eq!(listing(&stage).hosts, [true, true]);
    both_work(&stage);
    let errors = stage.errors(0);
    assert!(errors.contains("says that it is host 1, whose own is connected"), "{errors}");
    // Once the host is dead, a daemon that was started again may take its place.
    stage.daemons[1].kill().unwrap();
    stage.daemons[1].wait().unwrap();
    wait_until("it is missed", || listing(&stage).hosts == [true, false]);
    stage.start(1, &format!("1:{}", "5a".repeat(32)));
    wait_until("it is back", || listing(&stage).hosts == [true, true]);
    both_work(&stage);
}

/// A host's connection is still open, but nothing answers on it, as after a power failure.
pub(crate) fn a_silent_host_is_replaced() {
    let mut stage = Stage::tree(2, 1, 20);
    let root = stage.addresses[0].clone();
    wait_until("both are there", || listing(&stage).hosts == [true, true]);
    let pid = Pid::from_child(&stage.daemons[1]);
    kill_process(pid, Signal::STOP).unwrap();
    let runtime = runtime();
    runtime.block_on(async {
        // The root does not know yet that the host is silent.
        let (_sender, receiver) = claim(&root, &shared(), 1).await.unwrap();
        assert_eq!(received(receiver).await, []);
    });
    wait_until("it is missed", || listing(&stage).hosts == [true, false]);
    let link = runtime.block_on(async {
        let (mut sender, receiver) = claim(&root, &shared(), 1).await.unwrap();
        sender.send(&Frame::message(&Up::Here(vec![1]))).await.unwrap();
        (sender, receiver)
    });
    wait_until("another has its place", || listing(&stage).hosts == [true, true]);
    runtime.block_on(async { drop(link) });
    stage.daemons[1].kill().unwrap();
    kill_process(pid, Signal::CONT).unwrap();
}

/// Forwards bytes between a daemon and the root, and records those of the daemon.
fn record(listener: TcpListener, root: String) -> Arc<Mutex<Vec<u8>>> {
    let record = Arc::new(Mutex::new(Vec::new()));
    let kept = Arc::clone(&record);
    std::thread::spawn(move || {
        let (below, _) = listener.accept().unwrap();
        let above = TcpStream::connect(root).unwrap();
        let (mut from_above, mut to_below) =
            (above.try_clone().unwrap(), below.try_clone().unwrap());
        std::thread::spawn(move || std::io::copy(&mut from_above, &mut to_below));
        let (mut below, mut above, mut bytes) = (below, above, [0; 4096]);
        while let Ok(length @ 1..) = below.read(&mut bytes) {
            kept.lock().unwrap().extend_from_slice(&bytes[..length]);
            if above.write_all(&bytes[..length]).is_err() {
                break;
            }
        }
        let _ = above.shutdown(Shutdown::Both);
    });
    record
}

/// Replays a recorded hello, with the fabric's key alone, and with keys of the hosts.
pub(crate) fn a_hello_again() {
    let named = Keys::new(2);
    let key = format!("1:{}", "5a".repeat(32));
    for keys in [[key.clone(), key], [named.of(0), named.of(1)]] {
        let mut stage = Stage::with_keys(&keys[..1], 2);
        let root = stage.addresses[0].clone();
        let between = TcpListener::bind("127.0.0.1:0").unwrap();
        stage.addresses[0] = between.local_addr().unwrap().to_string();
        let record = record(between, root.clone());
        stage.start(1, &keys[1]);
        wait_until("host 1 is there", || listing(&stage).hosts == [true, true]);
        stage.daemons[1].kill().unwrap();
        stage.daemons[1].wait().unwrap();
        wait_until("it is missed", || listing(&stage).hosts == [true, false]);
        let recorded = record.lock().unwrap().clone();
        let mut again = TcpStream::connect(&root).unwrap();
        again.write_all(&recorded).unwrap();
        let mut reply = Vec::new();
        // The root's half of a handshake, and the end of the connection.
        let _ = again.read_to_end(&mut reply);
        assert!(reply.len() <= 48, "{} bytes", reply.len());
        assert_eq!(listing(&stage).hosts, [true, false]);
    }
}
