//! Lanes without a NIC: nothing is lost, doubled or reordered, whoever waits is woken, and the end of a
//! process is learned of after all that it has sent.
#![cfg(target_os = "linux")]

use std::future::poll_fn;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;
use std::time::Duration;

use midplane_simhw::id::NodeId;
use midplane_simhw::nic::StartError;
use midplane_simhw::shm::ShmConfig;
use midplane_simhw::shm::lanes::{Lanes, News, SendRefused};

/// Only what hangs takes so long.
const LIMIT: Duration = Duration::from_secs(30);
const FABRIC: &str = "MIDPLANE_TEST_LANES";

/// A fabric of this process alone.
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

/// What each peer's next frame must be.
struct Expected(Vec<u64>);

impl Expected {
    /// Takes what is there; who has left.
    fn take(&mut self, lanes: &mut Lanes) -> Vec<NodeId> {
        let mut gone = Vec::new();
        while let Some(news) = lanes.poll() {
            match news {
                News::Left(node) => gone.push(node),
                News::Restarted(_) | News::Returned(_) => panic!("nobody returns"),
                News::Shown { .. } => panic!("nobody shows memory"),
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

/// Waits until something may have changed, and is told of it.
async fn wait(lanes: &mut Lanes) {
    let mut was_armed = false;
    let told = poll_fn(|context| {
        let is_armed = !was_armed && lanes.arm_wakeup(context.waker());
        was_armed = true;
        if is_armed { Poll::Pending } else { Poll::Ready(()) }
    });
    // Whatever wakes the task counts as news, the limit's end as well.
    let began = tokio::time::Instant::now();
    let _ = tokio::time::timeout(LIMIT, told).await;
    assert!(began.elapsed() < LIMIT, "nobody waits for ever");
}

/// A process that sends so many frames to each other one, and takes as many of each.
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

/// Everybody sends to everybody, with room for four frames, and waits whenever there is none.
#[test]
fn a_flood_with_little_room_is_never_stuck() {
    const NODES: u16 = 3;
    for spin in [Duration::ZERO, Duration::from_micros(20)] {
        let fabric = name("lanes-flood");
        let processes = (0..NODES).map(|node| {
            let config = narrow(&fabric, node, NODES).spin(spin);
            std::thread::spawn(move || run(flood(config, 3_000)))
        });
        // Nobody leaves before all are done.
        let ended: Vec<_> = processes.collect::<Vec<_>>().into_iter().map(|p| p.join()).collect();
        ended.into_iter().for_each(|lanes| drop(lanes.unwrap()));
    }
}

/// Both ways to wait for somebody.
#[test]
fn who_does_not_come_in_time_is_gone_until_it_comes() {
    let fabric = name("lanes-missing");
    let config = |node| narrow(&fabric, node, 4).join_timeout(Duration::from_millis(60));
    let gone_soon = async |lanes: &mut Lanes, node: u16| {
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
        gone_soon(&mut early, 2).await;
        early.await_node(NodeId(0));
        gone_soon(&mut early, 0).await;
        for node in [0, 2] {
            let mut late = Lanes::open(&config(node)).unwrap();
            loop {
                match early.poll() {
                    Some(News::Returned(returned)) => break assert_eq!(returned, NodeId(node)),
                    Some(other) => panic!("{other:?}"),
                    None => wait(&mut early).await,
                }
            }
            // It may have waited in vain as well, on a busy machine.
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
        // Nobody has asked for it before.
        let mut welcome = Lanes::open(&config(3)).unwrap();
        while send(&mut welcome, NodeId(1), 0) == Err(SendRefused::Full) {
            wait(&mut welcome).await;
            assert!(welcome.poll().is_none());
        }
    });
}

#[test]
fn who_leaves_takes_nothing_with_it() {
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
        assert_eq!(expected.take(&mut stays), [], "it is told once");
    });
}

/// Each look finds a frame of the one that floods.
#[test]
fn who_comes_and_goes_is_seen_while_another_floods() {
    let fabric = name("lanes-beside");
    run(async {
        let open = |node| Lanes::open(&narrow(&fabric, node, 3)).unwrap();
        let (mut own, mut floods) = (open(0), open(1));
        let (mut number, until) = (0, tokio::time::Instant::now() + LIMIT);
        let mut look = |own: &mut Lanes| {
            assert!(tokio::time::Instant::now() < until, "it is never seen");
            let _ = floods.poll();
            while send(&mut floods, NodeId(0), number).is_ok() {
                number += 1;
            }
            own.poll().map(|news| matches!(news, News::Left(NodeId(2))))
        };
        while look(&mut own).is_none() {}
        let comes = open(2);
        while send(&mut own, NodeId(2), 0).is_err() {
            assert_eq!(look(&mut own), Some(false));
        }
        drop(comes);
        while look(&mut own) == Some(false) {}
        assert_eq!(send(&mut own, NodeId(2), 0), Err(SendRefused::Gone(NodeId(2))));
    });
}

#[test]
fn what_can_not_be_sent_is_refused() {
    let fabric = name("lanes-refused");
    run(async {
        let mut lanes = Lanes::open(&narrow(&fabric, 0, 2)).unwrap();
        let mut refused = |to, bytes| lanes.send(NodeId(to), [0; 5], &vec![0; bytes]).unwrap_err();
        assert_eq!(refused(1, 200), SendRefused::Full, "it has not come");
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
        // SIGKILL: it can do nothing about it.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_process_that_is_killed_leaves_whole_frames_and_is_missed() {
    for life in 0..3 {
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
                    if expected.0[1] > 1_000 + 77 * life {
                        child = None;
                    }
                    wait(&mut lanes).await;
                }
            };
            tokio::time::timeout(LIMIT, missed).await.expect("it is missed");
            assert!(child.is_none(), "it was killed, and did not end by itself");
        });
    }
}
