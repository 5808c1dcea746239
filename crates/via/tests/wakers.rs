//! Wakers that run code of their own when they are woken or dropped.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use futures_util::future::join;
use midplane_via::message::communicator::{Communicator, Pending, block_on, wait_any};
use midplane_via::message::engine::{Config, Engine};
use midplane_via::message::envelope::Tag;
use midplane_via::message::group::Rank;
use midplane_via::message::memory::{MemoryConfig, network};
use midplane_via::message::request::{Load, Mode};
use midplane_via::message::window::Window;

type World = Communicator;

const TAG: Tag = Tag(1);

fn worlds() -> Vec<World> {
    let carriers = network(2, MemoryConfig::default()).into_iter();
    let worlds = carriers
        .map(|carrier| Communicator::world(Engine::new(carrier, Config::default()), 2).unwrap());
    worlds.collect()
}

/// Runs `work` on a thread; fails if it deadlocks, after a minute.
#[track_caller]
fn must_end(work: impl FnOnce() + Send + 'static) {
    let (done, ended) = channel();
    std::thread::spawn(move || {
        work();
        done.send(()).expect("the test waits for it");
    });
    ended.recv_timeout(Duration::from_secs(60)).expect("it neither hangs nor panics");
}

/// A task as in some executors: the waker owns what the task owns, and drops that when it is dropped or woken.
struct Task {
    world: World,
    owned: Mutex<Option<Pending>>,
    woken: Arc<AtomicUsize>,
}

impl Task {
    fn waker(world: &World, woken: &Arc<AtomicUsize>) -> Waker {
        let owned = world.ireceive(Rank(0), Tag(99)).unwrap();
        let (world, woken) = (world.clone(), Arc::clone(woken));
        Waker::from(Arc::new(Self { world, owned: Mutex::new(Some(owned)), woken }))
    }
}

impl Wake for Task {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let owned = self.owned.lock().unwrap().take();
        drop(owned);
        let _ = self.world.iprobe(None, None);
        self.woken.fetch_add(1, Ordering::Relaxed);
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        let _ = self.world.iprobe(None, None);
    }
}

fn poll<F: Future>(future: &mut Pin<Box<F>>, waker: &Waker) -> Poll<F::Output> {
    future.as_mut().poll(&mut Context::from_waker(waker))
}

#[test]
fn a_waker_may_drop_other_requests_of_its_process_when_it_is_woken() {
    must_end(|| {
        let (worlds, woken) = (worlds(), Arc::new(AtomicUsize::new(0)));
        for round in 0..10 {
            let waker = Task::waker(&worlds[1], &woken);
            let mut receive = Box::pin(worlds[1].receive(Rank(0), TAG));
            let mut probe = Box::pin(worlds[1].probe(Rank(0), TAG));
            while poll(&mut probe, &waker).is_ready() {}
            for _ in 0..3 {
                assert!(poll(&mut receive, &waker).is_pending());
            }
            worlds[1].block_on(async { worlds[0].send(Rank(1), TAG, vec![1]).await.unwrap() });
            while poll(&mut receive, &Task::waker(&worlds[1], &woken)).is_pending() {}
            assert!(woken.load(Ordering::Relaxed) > round, "it was woken");
        }
    });
}

#[test]
fn a_waker_may_use_its_process_when_it_is_dropped() {
    must_end(|| {
        let (worlds, woken) = (worlds(), Arc::new(AtomicUsize::new(0)));
        for _ in 0..10 {
            let mut receive = Box::pin(worlds[1].receive(Rank(0), TAG));
            let mut other = Box::pin(worlds[1].receive(Rank(0), Tag(2)));
            let mut probe = Box::pin(worlds[1].probe(Rank(0), TAG));
            // Each poll replaces the last clone of the waker before.
            for _ in 0..4 {
                assert!(poll(&mut receive, &Task::waker(&worlds[1], &woken)).is_pending());
                assert!(poll(&mut other, &Task::waker(&worlds[1], &woken)).is_pending());
                assert!(poll(&mut probe, &Task::waker(&worlds[1], &woken)).is_pending());
            }
            drop(other);
            drop(probe);
            drop(receive);
        }
        drop(worlds);
    });
}

/// Records that a task was woken.
struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A task that is polled only after it was woken.
struct Polled<F> {
    future: Pin<Box<F>>,
    flag: Arc<Flag>,
}

impl<F: Future> Polled<F> {
    fn new(future: F) -> Self {
        Self { future: Box::pin(future), flag: Arc::new(Flag(AtomicBool::new(true))) }
    }

    /// Polls it while it is woken; returns whether it has ended.
    fn run(&mut self) -> bool {
        let waker = Waker::from(Arc::clone(&self.flag));
        while self.flag.0.swap(false, Ordering::Relaxed) {
            if poll(&mut self.future, &waker).is_ready() {
                return true;
            }
        }
        false
    }
}

/// Lets two tasks of rank 1 wait, beside what `leave` leaves there, which nothing polls. The task that waited last gets
/// its message first.
fn each_message_wakes_its_task<T>(leave: impl FnOnce(&[World]) -> T) {
    let worlds = worlds();
    let send =
        |tag| drop(block_on(worlds[0].isend(Mode::Standard, Rank(1), tag, vec![1]).unwrap()));
    let left = leave(&worlds);
    let [mut first, mut last] = [2, 3].map(|tag| Polled::new(worlds[1].receive(Rank(0), Tag(tag))));
    assert!(!first.run() && !last.run());
    send(Tag(3));
    assert!(last.run(), "it was woken");
    assert!(!first.run());
    send(Tag(2));
    assert!(first.run(), "it was woken");
    drop(left);
}

#[test]
fn a_window_that_is_no_longer_served_holds_up_no_other_task() {
    each_message_wakes_its_task(|worlds| {
        let both = join(Window::<u32>::create(&worlds[0], 1), Window::<u32>::create(&worlds[1], 1));
        let (first, second) = block_on(both);
        let second = second.unwrap();
        assert!(!Polled::new(second.serve()).run());
        (first, second)
    });
}

#[test]
fn a_dropped_wait_for_a_persistent_request_holds_up_no_other_task() {
    each_message_wakes_its_task(|worlds| {
        let mut receive = worlds[1].receive_init(Rank(0), Tag(9)).unwrap();
        receive.start(Load::anything()).unwrap();
        assert!(!Polled::new(receive.wait()).run());
        receive
    });
}

#[test]
fn requests_that_were_waited_for_together_hold_up_no_other_task() {
    each_message_wakes_its_task(|worlds| {
        let mut receives = [8, 9].map(|tag| worlds[1].ireceive(Rank(0), Tag(tag)).unwrap());
        assert!(!Polled::new(wait_any(&mut receives)).run());
        receives
    });
}

/// Runs a task that never has to wait; returns how often it yielded.
fn yields(task: impl Future<Output = ()>) -> u32 {
    let (mut task, mut yields) = (Box::pin(task), 0);
    let counted = poll_fn(|context| {
        let polled = task.as_mut().poll(context);
        yields += u32::from(polled.is_pending());
        polled
    });
    assert!(Polled::new(counted).run(), "a task that yields wakes itself");
    yields
}

const MESSAGES: u32 = 10_000;

#[test]
fn a_task_whose_persistent_receives_complete_at_once_still_yields() {
    let worlds = worlds();
    let mut receive = worlds[1].receive_init(Rank(0), TAG).unwrap();
    let count = yields(async {
        for _ in 0..MESSAGES {
            receive.start(Load::anything()).unwrap();
            block_on(worlds[0].send(Rank(1), TAG, vec![1])).unwrap();
            let (_, result) = receive.wait().await.expect("it was started");
            result.unwrap();
        }
    });
    assert!(count >= MESSAGES / 32, "it yielded {count} times");
}

#[test]
fn a_task_whose_probes_find_a_message_at_once_still_yields() {
    let worlds = worlds();
    let count = yields(async {
        for _ in 0..MESSAGES {
            block_on(worlds[0].send(Rank(1), TAG, vec![1])).unwrap();
            let message = worlds[1].mprobe(Rank(0), TAG).await.unwrap();
            message.receive().await.unwrap();
        }
    });
    assert!(count >= MESSAGES / 32, "it yielded {count} times");
}
