//! Message futures that are dropped at any poll, and wakes on several runtimes and threads.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll, Waker};

use crate::scenarios::harness::{turns, world};
use crate::scenarios::{ANY, ANY_TAG, rank, room, tag, text};
use futures_util::future::join;
use midplane_simhw::hardware::Firmware;
use midplane_simhw::host::Host;
use midplane_simhw::id::NodeId;
use midplane_simhw::link::LinkProfile;
use midplane_simhw::profile::NicProfile;
use midplane_simhw::sim::World as SimWorld;
use midplane_simhw::switch::{Buffer, SwitchProfile};
use midplane_simhw::time::LineRate;
use midplane_simhw::topology::Topology;
use midplane_via::message::carrier::{Carrier, Event, Refusal};
use midplane_via::message::collective::Operation;
use midplane_via::message::communicator::Communicator;
use midplane_via::message::engine::{Config, Engine};
use midplane_via::message::envelope::{Envelope, Peer};
use midplane_via::message::group::Rank;
use midplane_via::message::memory::{MemoryCarrier, MemoryConfig, network};
use midplane_via::message::process::MessageError;
use midplane_via::message::request::Mode;
use midplane_via::message::transport::InitError;

type Outcome = Result<(), MessageError>;

/// Polls a future at most `left` times, then drops it. Returns its result, if it was ready by then.
async fn at_most<T>(left: u32, future: impl Future<Output = T>) -> Option<T> {
    let mut future = Some(Box::pin(future));
    let mut left = left;
    std::future::poll_fn(move |context| {
        if left == 0 {
            future = None;
        }
        let Some(running) = &mut future else { return Poll::Ready(None) };
        left -= 1;
        match running.as_mut().poll(context) {
            Poll::Ready(done) => Poll::Ready(Some(done)),
            Poll::Pending if left == 0 => {
                future = None;
                Poll::Ready(None)
            }
            Poll::Pending => {
                // Poll again whether the future has woken this task or not.
                context.waker().wake_by_ref();
                Poll::Pending
            }
        }
    })
    .await
}

/// Receives ten messages; tries each receive with one poll more until it gets one. No message is lost, duplicated or
/// reordered.
#[test]
fn a_receive_dropped_at_any_poll_loses_no_message() {
    for length in [10, 3_000, 50_000] {
        for probe in [false, true] {
            let memory = MemoryConfig::default().depth(3).room(500);
            let config = Config::default().eager(400);
            let views = world(2, memory, config);
            let dropped = Arc::new(AtomicU32::new(0));
            let programs: Vec<_> = views
                .clone()
                .into_iter()
                .map(|world| drop_receives(world, length, probe, Arc::clone(&dropped)))
                .collect();
            turns(programs, &views);
            assert!(dropped.load(Ordering::Relaxed) > 10, "some were dropped on the way");
        }
    }
}

async fn drop_receives(world: Communicator, length: usize, probe: bool, dropped: Arc<AtomicU32>) {
    if world.rank() == rank(0) {
        for n in 0..10 {
            world.send(rank(1), tag(1), text(n, length)).await.unwrap();
        }
        world.receive(rank(1), tag(2)).await.unwrap();
        assert!(world.explain().waiting.is_empty());
        return;
    }
    for n in 0..10 {
        for polls in 0.. {
            let receive = async {
                if probe {
                    return world.mprobe(rank(0), tag(1)).await?.receive().await;
                }
                world.receive(ANY, ANY_TAG).await
            };
            match at_most(polls, receive).await {
                Some(got) => {
                    assert!(got.unwrap().bytes == text(n, length), "message {n}");
                    break;
                }
                None => dropped.fetch_add(1, Ordering::Relaxed),
            };
        }
    }
    assert!(world.iprobe(ANY, ANY_TAG).unwrap().is_none());
    world.send(rank(0), tag(2), vec![]).await.unwrap();
    let unexpected = world.with(|process| process.engine().unexpected_bytes());
    assert_eq!(unexpected, 0, "windows are conserved");
}

#[test]
fn a_dropped_receive_from_the_null_rank_leaves_no_request() {
    let world = world(1, MemoryConfig::default(), Config::default()).remove(0);
    let receive = world.ireceive(Rank::NULL, tag(1)).unwrap();
    let request = receive.request().unwrap();
    drop(receive);
    assert_eq!(world.with(|process| process.engine_mut().requests().state(request)), None);
}

/// Checks that a send dropped before its first poll sends nothing, and one dropped later is delivered.
#[test]
fn a_dropped_send_is_sent_only_if_it_was_polled() {
    for length in [10, 50_000] {
        let views = world(2, MemoryConfig::default().depth(2).room(500), Config::default());
        let programs: Vec<_> = views.clone().into_iter().map(|w| drop_sends(w, length)).collect();
        turns(programs, &views);
    }
}

async fn drop_sends(world: Communicator, length: usize) {
    if world.rank() == rank(0) {
        for polls in 0..4 {
            let send = world.send_as(Mode::Synchronous, rank(1), tag(1), text(polls, length));
            let _ = at_most(polls, send).await;
        }
        world.send(rank(1), tag(2), vec![]).await.unwrap();
    } else {
        world.receive(rank(0), tag(2)).await.unwrap();
        for polls in 1..4 {
            assert!(world.receive(rank(0), tag(1)).await.unwrap().bytes == text(polls, length));
        }
        assert!(world.iprobe(ANY, ANY_TAG).unwrap().is_none());
    }
}

#[test]
fn a_dropped_collective_abandons_its_communicator_only() {
    let views = world(2, MemoryConfig::default(), Config::default());
    let program = |world: Communicator| async move {
        let other = world.duplicate().await.unwrap();
        if world.rank() == rank(0) {
            assert!(at_most(1, world.barrier()).await.is_none());
            assert_eq!(world.barrier().await, Err(MessageError::Abandoned));
        }
        other.barrier().await.unwrap();
        let peer = rank(1 - world.rank().0);
        world.send_receive((peer, tag(1)), vec![1], peer, tag(1)).await.unwrap();
    };
    turns(views.clone().into_iter().map(program).collect(), &views);
}

/// Exchanges messages with both neighbours and reduces, 20 times.
async fn exchange(world: Communicator) -> Outcome {
    let size = world.size();
    let own = world.rank().0;
    for n in 0..20 {
        let (next, before) = (rank((own + 1) % size), rank((own + size - 1) % size));
        let to = (next, tag(n));
        let got = world.send_receive(to, text(own, 100 * n as usize), before, tag(n)).await?;
        assert_eq!(got.bytes, text(before.0, 100 * n as usize));
        let sum = world.all_reduce(&[own], Operation::Sum).await?;
        assert_eq!(sum, [size * (size - 1) / 2]);
    }
    Ok(())
}

#[test]
fn threads_that_block_are_woken() {
    let views = world(3, MemoryConfig::default().depth(2).room(300), Config::default());
    let threads = views
        .into_iter()
        .map(|world| std::thread::spawn(move || world.block_on(exchange(world.clone())).unwrap()));
    threads.collect::<Vec<_>>().into_iter().for_each(|thread| thread.join().unwrap());
}

#[test]
fn tasks_of_tokio_are_woken() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
    runtime.block_on(async {
        let views = world(3, MemoryConfig::default().depth(2).room(300), Config::default());
        let tasks: Vec<_> = views.into_iter().map(|world| tokio::spawn(exchange(world))).collect();
        for task in tasks {
            task.await.unwrap().unwrap();
        }
    });
}

/// Receives long messages into a slice while another task of the process receives short ones. Bytes that arrive during
/// that task's polls are stored. Receives are dropped at any poll, and lose no byte.
#[test]
fn a_receive_into_a_slice_gets_what_arrives_while_other_tasks_poll() {
    for (length, seed) in [20, 900, 9_000].into_iter().flat_map(|l| (0..4).map(move |s| (l, s))) {
        let memory = MemoryConfig::default().depth(3).room(500).seed(seed);
        let views = world(2, memory, Config::default().eager(400));
        let dropped = Arc::new(AtomicU32::new(0));
        let programs = views.clone().into_iter().map(|world| {
            let dropped = Arc::clone(&dropped);
            async move {
                let other = rank(1 - world.rank().0);
                if world.rank() == rank(0) {
                    for n in 0..10 {
                        let long = world.isend(Mode::Standard, other, tag(1), text(n, length));
                        for n in 0..10 {
                            world.send(other, tag(2), text(n, 700)).await.unwrap();
                        }
                        long.unwrap().await.unwrap();
                    }
                    return;
                }
                let long = async {
                    for n in 0..10 {
                        receive_with_more_polls(&world, &text(n, length), &dropped).await;
                    }
                };
                let short = async {
                    for n in 0..100 {
                        let got = world.receive(other, tag(2)).await.unwrap();
                        assert!(got.bytes == text(n % 10, 700));
                    }
                };
                join(long, short).await;
            }
        });
        turns(programs.collect(), &views);
        assert!(dropped.load(Ordering::Relaxed) > 10, "some were dropped on the way");
    }
}

/// Receives into a slice, with one poll more each time, until the message has arrived.
async fn receive_with_more_polls(world: &Communicator, expected: &[u8], dropped: &AtomicU32) {
    for polls in 0.. {
        let mut memory = vec![0xEE; expected.len() + 3];
        let receive = world.receive_slice_into(ANY, tag(1), &mut memory);
        if let Some(got) = at_most(polls, receive).await {
            assert_eq!(got, Ok((expected.len(), rank(0))));
            assert!(memory[..expected.len()] == *expected && memory.ends_with(&[0xEE; 3]));
            return;
        }
        dropped.fetch_add(1, Ordering::Relaxed);
    }
}

/// A NIC that does nothing: the test uses only the host's clock and tasks.
struct Nothing;

impl Firmware for Nothing {}

#[test]
fn tasks_in_virtual_time_are_woken() {
    let link = LinkProfile::ethernet(LineRate::mbps(100), std::time::Duration::from_micros(1));
    let star = Topology::star(2, link, SwitchProfile::new(Buffer::Bytes(1 << 15)));
    let mut sim = SimWorld::new(&star, NicProfile::MODERN, 1, |_, _| Nothing);
    let mut views = world(2, MemoryConfig::default(), Config::default()).into_iter();
    let (first, second) = (views.next().unwrap(), views.next().unwrap());
    sim.spawn(NodeId(0), async move {
        first.send(rank(1), tag(1), vec![7]).await.unwrap();
        exchange(first).await.unwrap();
    });
    let host = sim.host(NodeId(1));
    let done = sim.block_on(NodeId(1), async move {
        let before = host.now();
        let timed = second.ireceive_into(rank(0), tag(5), room(9)).unwrap();
        host.sleep_until(before + std::time::Duration::from_micros(50)).await;
        drop(timed);
        assert_eq!(second.receive(rank(0), tag(1)).await.unwrap().bytes, [7]);
        exchange(second).await
    });
    done.expect("it ends").unwrap();
}

/// Drops the future whose waker is armed: another task is woken, and arms its own.
#[test]
fn dropping_the_leading_future_wakes_another_task() {
    let mut views = world(2, MemoryConfig::default(), Config::default()).into_iter();
    let (first, second) = (views.next().unwrap(), views.next().unwrap());
    let flag = Arc::new(Count::default());
    let waker = Waker::from(Arc::clone(&flag));
    let mut stays = Box::pin(first.receive(rank(1), tag(1)));
    let mut leaves = Box::pin(first.receive(rank(1), tag(2)));
    // Each future yields once before it waits.
    for _ in 0..2 {
        assert!(stays.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        assert!(leaves.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    }
    flag.0.store(0, Ordering::Relaxed);
    drop(leaves);
    assert_eq!(flag.0.swap(0, Ordering::Relaxed), 1, "it was woken to arm its waker");
    assert!(stays.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    second.block_on(second.send(rank(0), tag(1), vec![])).unwrap();
    assert!(flag.0.load(Ordering::Relaxed) > 0);
    assert!(stays.as_mut().poll(&mut Context::from_waker(&waker)).is_ready());
}

#[derive(Default)]
pub(crate) struct Count(pub(crate) AtomicU32);

impl std::task::Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// Has each message arrive before the first poll of its receive, so that the task never waits: another task still runs.
#[test]
fn a_task_whose_requests_complete_at_once_still_yields() {
    const MESSAGES: u32 = 500;
    let views = world(2, MemoryConfig::default(), Config::default());
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let others = Arc::new(AtomicU32::new(0));
    let turns = runtime.block_on(async {
        let counted = Arc::clone(&others);
        let other = tokio::spawn(std::future::poll_fn(move |context| {
            counted.fetch_add(1, Ordering::Relaxed);
            context.waker().wake_by_ref();
            Poll::<()>::Pending
        }));
        let busy = tokio::spawn(async move {
            for number in 0..MESSAGES {
                views[0].send(rank(1), tag(1), text(number, 9)).await.unwrap();
                let received = views[1].receive(rank(0), tag(1)).await.unwrap();
                assert_eq!(received.bytes, text(number, 9));
            }
            others.load(Ordering::Relaxed)
        });
        let turns = busy.await.unwrap();
        other.abort();
        turns
    });
    assert!(turns >= 10, "the other task ran {turns} times during {MESSAGES} messages");
}

/// A carrier that counts how often a task arms it to wait.
struct Counting(MemoryCarrier, Arc<Count>);

impl Carrier for Counting {
    fn own(&self) -> Peer {
        self.0.own()
    }

    fn connect(&mut self, peers: &[Peer]) -> Result<(), InitError> {
        self.0.connect(peers)
    }

    fn room(&self) -> usize {
        self.0.room()
    }

    fn post(&mut self, to: Peer, envelope: &Envelope, payload: &[u8]) -> Result<(), Refusal> {
        self.0.post(to, envelope, payload)
    }

    fn poll(&mut self) -> Option<Event<'_>> {
        self.0.poll()
    }

    fn arm_wakeup(&mut self, waker: &Waker) -> bool {
        self.1.0.fetch_add(1, Ordering::Relaxed);
        self.0.arm_wakeup(waker)
    }

    fn close(&mut self) {
        self.0.close();
    }
}

/// A carrier may busy-poll before its thread sleeps: tasks that could run must not wait for that.
#[test]
fn no_task_waits_for_the_carrier_while_other_tasks_can_run() {
    const CALLERS: u32 = 8;
    const CALLS: u32 = 100;
    let waits = Arc::new(Count::default());
    let ends = network(2, MemoryConfig::default()).into_iter();
    let mut sides = ends.map(|end| {
        let engine = Engine::new(Counting(end, Arc::clone(&waits)), Config::default());
        Communicator::world(engine, 2).unwrap()
    });
    let (here, there) = (sides.next().unwrap(), sides.next().unwrap());
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        tokio::spawn(async move {
            loop {
                let call = there.receive(rank(0), ANY_TAG).await.unwrap();
                there.send(rank(0), call.tag, call.bytes).await.unwrap();
            }
        });
        let call = |caller: u32| {
            let here = here.clone();
            tokio::spawn(async move {
                for number in 0..CALLS {
                    here.send(rank(1), tag(caller), text(number, 9)).await.unwrap();
                    let answer = here.receive(rank(1), tag(caller)).await.unwrap();
                    assert_eq!(answer.bytes, text(number, 9));
                }
            })
        };
        let callers: Vec<_> = (0..CALLERS).map(call).collect();
        for caller in callers {
            caller.await.unwrap();
        }
    });
    let waits = waits.0.load(Ordering::Relaxed);
    assert!(waits < CALLERS * CALLS / 10, "{waits} waits for {} calls", CALLERS * CALLS);
}

/// A carrier whose peer has exited and returned once the count is above 0: the number of reports that polls have yet to
/// return.
struct Unreported(MemoryCarrier, Arc<Count>);

impl Carrier for Unreported {
    fn own(&self) -> Peer {
        self.0.own()
    }

    fn connect(&mut self, peers: &[Peer]) -> Result<(), InitError> {
        self.0.connect(peers)
    }

    fn room(&self) -> usize {
        self.0.room()
    }

    fn post(&mut self, to: Peer, envelope: &Envelope, payload: &[u8]) -> Result<(), Refusal> {
        match self.1.0.load(Ordering::Relaxed) {
            0 => self.0.post(to, envelope, payload),
            _ => Err(Refusal::Lost),
        }
    }

    fn poll(&mut self) -> Option<Event<'_>> {
        let reports = self.1.0.load(Ordering::Relaxed);
        self.1.0.store(reports.saturating_sub(1), Ordering::Relaxed);
        match reports {
            0 => self.0.poll(),
            1 => Some(Event::Returned(Peer(1))),
            _ => Some(Event::Restarted(Peer(1))),
        }
    }

    fn arm_wakeup(&mut self, waker: &Waker) -> bool {
        self.0.arm_wakeup(waker)
    }

    fn close(&mut self) {
        self.0.close();
    }
}

/// A send that the carrier refuses completes without a poll of the carrier: the next send polls it.
#[test]
fn a_program_that_only_sends_learns_that_its_peer_has_returned() {
    let reports = Arc::new(Count::default());
    let ends = network(2, MemoryConfig::default()).into_iter();
    let mut sides = ends.map(|end| {
        let engine = Engine::new(Unreported(end, Arc::clone(&reports)), Config::default());
        Communicator::world(engine, 2).unwrap()
    });
    let (here, there) = (sides.next().unwrap(), sides.next().unwrap());
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let _there = runtime.block_on(async {
        let receives = tokio::spawn(async move {
            there.receive(rank(0), ANY_TAG).await.unwrap();
            there
        });
        here.send(rank(1), tag(1), vec![7; 100]).await.unwrap();
        receives.await.unwrap()
    });
    reports.0.store(2, Ordering::Relaxed);
    let mut context = Context::from_waker(Waker::noop());
    let mut is_refused = || {
        let mut send = pin!(here.send(rank(1), tag(1), vec![7; 100]));
        matches!(send.as_mut().poll(&mut context), Poll::Ready(Err(_)))
    };
    assert!(is_refused(), "the former process has exited");
    assert!((0..3).any(|_| !is_refused()), "the peer has returned");
}
