//! Tests rings without a NIC: no frame is lost, doubled or reordered, and waiting tasks are woken. The exit of a
//! process is reported after its last frame.
#![cfg(target_os = "linux")]

use std::future::poll_fn;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;
use std::time::Duration;

use midplane_simhw::id::NodeId;
use midplane_simhw::nic::StartError;
use midplane_simhw::shm::ShmConfig;
use midplane_simhw::shm::lanes::{Lanes, News, PeerRings as _, SendRefused};

/// Only a test that hangs takes so long.
const LIMIT: Duration = Duration::from_secs(30);
const FABRIC: &str = "MIDPLANE_TEST_LANES";

/// Returns the name of a fabric that no other test uses.
fn name(test: &str) -> String {
    static FABRICS: AtomicUsize = AtomicUsize::new(0);
    let number = FABRICS.fetch_add(1, Ordering::Relaxed);
    format!("midplane-{test}-{}-{number}", std::process::id())
}

fn run<T>(work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.unwrap().block_on(work)
}

fn narrow(fabric: &str, node: u16, nodes: u16) -> ShmConfig {
    ShmConfig::new(fabric, NodeId(node), nodes).slots(4).areas(4).mtu(200)
}

fn length(number: u64) -> usize {
    number as usize * 37 % 201
}

fn bytes(from: u16, number: u64) -> Vec<u8> {
    (0..length(number)).map(|at| (number as usize * 31 + at + usize::from(from)) as u8).collect()
}

/// The number that the next frame of each peer must have.
struct Expected(Vec<u64>);

impl Expected {
    /// Takes all pending events; returns the processes that have left.
    fn take(&mut self, lanes: &mut Lanes) -> Vec<NodeId> {
        let mut gone = Vec::new();
        while let Some(news) = lanes.poll() {
            match news {
                News::Left(node) => gone.push(node),
                News::Restarted(_) | News::Returned(_) => panic!("no process returns"),
                News::Shown { .. } => panic!("no process shares memory"),
                News::Frame { from, words, payload } => {
                    let next = &mut self.0[from.index()];
                    assert_eq!(words, [*next, 1, 2, 3, u64::MAX], "in order, each once");
                    assert_eq!(payload.to_vec(), bytes(from.0, *next), "whole");
                    *next += 1;
                }
            }
        }
        gone
    }
}

fn send(lanes: &mut Lanes, to: NodeId, number: u64) -> Result<(), SendRefused> {
    let payload = bytes(lanes.node().0, number);
    lanes.send(to, [number, 1, 2, 3, u64::MAX], &payload)
}

/// Waits until an event may have arrived.
async fn wait(lanes: &mut Lanes) {
    let mut was_armed = false;
    let woken = poll_fn(|context| {
        let is_armed = !was_armed && lanes.arm_wakeup(context.waker());
        was_armed = true;
        if is_armed { Poll::Pending } else { Poll::Ready(()) }
    });
    // Checks the time, because the end of the limit wakes the task as well.
    let began = tokio::time::Instant::now();
    let _ = tokio::time::timeout(LIMIT, woken).await;
    assert!(began.elapsed() < LIMIT, "the wake-up is lost");
}

/// Sends `frames` frames to each other process, and receives as many from each.
async fn flood(config: ShmConfig, frames: u64) -> Lanes {
    let mut lanes = Lanes::open(&config).unwrap();
    let nodes = lanes.nodes();
    let own = lanes.node();
    let others = || (0..nodes).map(NodeId).filter(|other| *other != own);
    let mut expected = Expected(vec![0; usize::from(nodes)]);
    let mut sent = vec![0; usize::from(nodes)];
    loop {
        assert_eq!(expected.take(&mut lanes), []);
        for to in others() {
            let next = &mut sent[to.index()];
            while *next < frames && send(&mut lanes, to, *next).is_ok() {
                *next += 1;
            }
        }
        if others().all(|other| [sent[other.index()], expected.0[other.index()]] == [frames; 2]) {
            return lanes;
        }
        wait(&mut lanes).await;
    }
}

/// Each process sends to each other one, with four slots a direction, and waits whenever they are full.
#[test]
fn a_flood_with_few_slots_never_stalls() {
    const NODES: u16 = 3;
    for spin in [Duration::ZERO, Duration::from_micros(20)] {
        let fabric = name("lanes-flood");
        let processes = (0..NODES).map(|node| {
            let config = narrow(&fabric, node, NODES).spin(spin);
            std::thread::spawn(move || run(flood(config, 3_000)))
        });
        // No process leaves before all have received their frames.
        let ended: Vec<_> = processes.collect::<Vec<_>>().into_iter().map(|p| p.join()).collect();
        ended.into_iter().for_each(|lanes| drop(lanes.unwrap()));
    }
}

/// Tests both ways to start the timeout: a send, and `await_node`.
#[test]
fn a_process_that_does_not_connect_in_time_has_left_until_it_connects() {
    let fabric = name("lanes-missing");
    let config = |node| narrow(&fabric, node, 4).join_timeout(Duration::from_millis(60));
    let expect_left = async |lanes: &mut Lanes, node: u16| {
        let mut expected = Expected(vec![0; 4]);
        loop {
            match expected.take(lanes)[..] {
                [] => {}
                ref gone => break assert_eq!(gone, [NodeId(node)]),
            }
            wait(lanes).await;
        }
        assert_eq!(send(lanes, NodeId(node), 0), Err(SendRefused::Gone(NodeId(node))));
    };
    run(async {
        let mut early = Lanes::open(&config(1)).unwrap();
        assert!(early.poll().is_none());
        assert_eq!(send(&mut early, NodeId(2), 0), Err(SendRefused::Full));
        expect_left(&mut early, 2).await;
        early.await_node(NodeId(0));
        expect_left(&mut early, 0).await;
        for node in [0, 2] {
            let mut late = Lanes::open(&config(node)).unwrap();
            loop {
                match early.poll() {
                    Some(News::Returned(returned)) => break assert_eq!(returned, NodeId(node)),
                    Some(other) => panic!("{other:?}"),
                    None => wait(&mut early).await,
                }
            }
            // On a busy machine, the late process may have timed out as well.
            while send(&mut late, NodeId(1), 0).is_err() {
                wait(&mut late).await;
                let _ = late.poll();
            }
            while !matches!(early.poll(), Some(News::Frame { .. })) {
                wait(&mut early).await;
            }
            drop(late);
            while !matches!(early.poll(), Some(News::Left(left)) if left == NodeId(node)) {
                wait(&mut early).await;
            }
        }
        // No timeout was started for this process.
        let mut welcome = Lanes::open(&config(3)).unwrap();
        while send(&mut welcome, NodeId(1), 0) == Err(SendRefused::Full) {
            wait(&mut welcome).await;
            assert!(welcome.poll().is_none());
        }
    });
}

#[test]
fn a_leaving_process_loses_no_sent_frame() {
    let fabric = name("lanes-leaving");
    run(async {
        let mut stays = Lanes::open(&narrow(&fabric, 0, 2)).unwrap();
        let mut leaves = Lanes::open(&narrow(&fabric, 1, 2)).unwrap();
        for number in 0..4 {
            while send(&mut leaves, NodeId(0), number) == Err(SendRefused::Full) {
                assert!(leaves.poll().is_none());
                wait(&mut leaves).await;
            }
        }
        drop(leaves);
        let mut expected = Expected(vec![0; 2]);
        let mut gone = Vec::new();
        while gone.is_empty() {
            gone = expected.take(&mut stays);
            wait(&mut stays).await;
        }
        assert_eq!((gone, expected.0[1]), (vec![NodeId(1)], 4));
        assert_eq!(send(&mut stays, NodeId(1), 0), Err(SendRefused::Gone(NodeId(1))));
        assert_eq!(expected.take(&mut stays), [], "reported once");
    });
}

/// Each poll finds a frame of the process that floods.
#[test]
fn joining_and_leaving_are_reported_while_another_process_floods() {
    let fabric = name("lanes-beside");
    run(async {
        let open = |node| Lanes::open(&narrow(&fabric, node, 3)).unwrap();
        let (mut own, mut floods) = (open(0), open(1));
        let (mut number, until) = (0, tokio::time::Instant::now() + LIMIT);
        let mut poll = |own: &mut Lanes| {
            assert!(tokio::time::Instant::now() < until, "it is never reported");
            let _ = floods.poll();
            while send(&mut floods, NodeId(0), number).is_ok() {
                number += 1;
            }
            own.poll().map(|news| matches!(news, News::Left(NodeId(2))))
        };
        while poll(&mut own).is_none() {}
        let third = open(2);
        while send(&mut own, NodeId(2), 0).is_err() {
            assert_eq!(poll(&mut own), Some(false));
        }
        drop(third);
        while poll(&mut own) == Some(false) {}
        assert_eq!(send(&mut own, NodeId(2), 0), Err(SendRefused::Gone(NodeId(2))));
    });
}

#[test]
fn frames_that_cannot_be_sent_are_refused() {
    let fabric = name("lanes-refused");
    run(async {
        let mut lanes = Lanes::open(&narrow(&fabric, 0, 2)).unwrap();
        let mut refused = |to, bytes| lanes.send(NodeId(to), [0; 5], &vec![0; bytes]).unwrap_err();
        assert_eq!(refused(1, 200), SendRefused::Full, "it has not connected");
        assert_eq!(refused(1, 201), SendRefused::TooLong { bytes: 201, mtu: 200 });
        assert_eq!(refused(0, 0), SendRefused::NoRing(NodeId(0)));
        assert_eq!(refused(2, 0), SendRefused::NoRing(NodeId(2)));
        let again = Lanes::open(&narrow(&fabric, 0, 2)).unwrap_err();
        assert!(matches!(again, StartError::Occupied { node: NodeId(0), .. }));
    });
    assert_eq!(Lanes::open(&narrow(&fabric, 0, 2)).unwrap_err(), StartError::NoRuntime);
}

/// Not a test by itself: the process that the next one starts and kills.
#[test]
fn child_that_floods_lanes_until_it_is_killed() {
    let Ok(fabric) = std::env::var(FABRIC) else { return };
    run(async {
        let mut lanes = Lanes::open(&narrow(&fabric, 1, 2)).unwrap();
        let until = tokio::time::Instant::now() + Duration::from_secs(60);
        let mut number = 0;
        while tokio::time::Instant::now() < until {
            number += u64::from(send(&mut lanes, NodeId(0), number).is_ok());
            let _ = lanes.poll();
        }
    });
}

struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        // SIGKILL, which the process cannot handle.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_killed_process_leaves_whole_frames_and_is_reported() {
    for round in 0..3 {
        let fabric = name("lanes-killed");
        run(async {
            let mut lanes = Lanes::open(&narrow(&fabric, 0, 2)).unwrap();
            let mut command = Command::new(std::env::current_exe().unwrap());
            command.args(["--exact", "shm_lanes::child_that_floods_lanes_until_it_is_killed"]);
            let child = command.env(FABRIC, &fabric).stdout(Stdio::null()).spawn().unwrap();
            let mut child = Some(Killed(child));
            let mut expected = Expected(vec![0; 2]);
            let missed = async {
                loop {
                    if !expected.take(&mut lanes).is_empty() {
                        return;
                    }
                    if expected.0[1] > 1_000 + 77 * round {
                        child = None;
                    }
                    wait(&mut lanes).await;
                }
            };
            tokio::time::timeout(LIMIT, missed).await.expect("its exit is reported");
            assert!(child.is_none(), "it was killed, and did not end by itself");
        });
    }
}
