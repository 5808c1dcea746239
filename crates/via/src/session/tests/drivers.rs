//! Drivers, with the runtime that they run on.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};

use midplane_simhw::shm::rings::RingPair;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::RING;
use crate::session::core::{Core, Ended};
use crate::session::wire::Wire;
use crate::session::{Handler, Refusal, Session, Sessions, Stream};

/// Records the events of a driver, and keeps the streams that it receives.
#[derive(Clone, Default)]
pub(in crate::session) struct Recorder(
    Arc<Mutex<Vec<&'static str>>>,
    pub(in crate::session) Arc<Mutex<Vec<Stream>>>,
);

impl Recorder {
    fn events(&self) -> Vec<&'static str> {
        self.0.lock().unwrap().clone()
    }

    async fn until(&self, events: &[&str]) {
        while self.events() != events {
            tokio::task::yield_now().await;
        }
    }
}

impl Handler for Recorder {
    fn on_accepted(&mut self, _: &Arc<Session>) {
        self.0.lock().unwrap().push("accepted");
    }

    fn on_hello(&mut self, _: &Arc<Session>, _: &[u8]) {
        self.0.lock().unwrap().push("hello");
    }

    fn on_stream(&mut self, _: &Arc<Session>, _: &str, stream: Stream) -> Result<(), Refusal> {
        self.0.lock().unwrap().push("stream");
        self.1.lock().unwrap().push(stream);
        Ok(())
    }

    fn on_goodbye(&mut self, _: &Arc<Session>) {
        self.0.lock().unwrap().push("goodbye");
    }

    fn on_ended(&mut self, _: &Arc<Session>, _: Ended) {
        self.0.lock().unwrap().push("ended");
    }
}

#[test]
fn a_driver_handles_no_frame_before_its_process_has_described_itself() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        for is_peer_gone in [false, true] {
            let [one, other] = RingPair::local(RING).unwrap();
            let (sessions, driver) = Sessions::new(None, None).unwrap();
            let recorder = Recorder::default();
            tokio::spawn(driver.run(recorder.clone()));
            let session = sessions.over_rings(one, true).unwrap();
            let mut peer = Some(Core::new(Wire::ring(other), false));
            let core = peer.as_mut().unwrap();
            core.send_hello(b"peer".to_vec());
            core.flush();
            core.open("service");
            core.flush();
            peer.take_if(|_| is_peer_gone);
            for _ in 0..100 {
                tokio::task::yield_now().await;
            }
            assert_eq!(recorder.events(), [""; 0]);
            session.send_hello(b"here".to_vec());
            let events = ["hello", "stream", "ended"];
            recorder.until(&events[..2 + usize::from(is_peer_gone)]).await;
            sessions.close();
        }
    });
}

/// Opens streams between two drivers of the current runtime.
async fn streams<const N: usize>() -> [(Stream, Stream); N] {
    let recorder = Recorder::default();
    let [one, other] = RingPair::local(1 << 20).unwrap();
    let sessions = [(one, true), (other, false)].map(|(pair, is_first)| {
        let (sessions, driver) = Sessions::new(None, None).unwrap();
        tokio::spawn(driver.run(recorder.clone()));
        let session = sessions.over_rings(pair, is_first).unwrap();
        session.send_hello(Vec::new());
        session
    });
    let mut all = Vec::new();
    for _ in 0..N {
        let opened = sessions[0].open("service").unwrap();
        opened.accepted().await.unwrap();
        let accepted = recorder.1.lock().unwrap().pop();
        all.push((opened, accepted.unwrap()));
    }
    all.try_into().unwrap()
}

/// A waker that owns a stream, as those of some executors own their task.
struct Owner(#[expect(dead_code, reason = "it is dropped with the waker")] Stream);

impl Wake for Owner {
    fn wake(self: Arc<Self>) {}
}

#[test]
fn a_replaced_waker_may_drop_a_stream_of_the_same_session() {
    let (done, ended) = std::sync::mpsc::channel();
    // On a thread of its own, since a failure would never end.
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let [(mut stream, _other), (reads, _), (writes, _)] = streams().await;
            let (mut buffer, bytes) = ([0; 8], [0; 4_096]);
            let owner = Waker::from(Arc::new(Owner(reads)));
            for waker in [owner, Waker::noop().clone()] {
                let mut context = Context::from_waker(&waker);
                let mut into = ReadBuf::new(&mut buffer);
                assert!(Pin::new(&mut stream).poll_read(&mut context, &mut into).is_pending());
            }
            let owner = Waker::from(Arc::new(Owner(writes)));
            for waker in [owner, Waker::noop().clone()] {
                let mut context = Context::from_waker(&waker);
                while Pin::new(&mut stream).poll_write(&mut context, &bytes).is_ready() {}
            }
        });
        done.send(()).unwrap();
    });
    ended.recv_timeout(std::time::Duration::from_secs(10)).expect("no lock is held by then");
}

#[test]
fn reads_and_writes_that_are_ready_let_other_tasks_run_in_between() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let [(mut from, mut to)] = streams().await;
        let count = poll_fn(|context| {
            for count in 0..1_000 {
                if Pin::new(&mut from).poll_write(context, &[7]).is_pending() {
                    return Poll::Ready(count);
                }
            }
            Poll::Ready(1_000)
        });
        let count = count.await;
        assert!(count < 1_000, "a task's budget ends before the window of the stream");
        tokio::task::yield_now().await;
        let read = poll_fn(|context| {
            for read in 0..count {
                let mut buffer = [0];
                let mut into = ReadBuf::new(&mut buffer);
                if Pin::new(&mut to).poll_read(context, &mut into).is_pending() {
                    return Poll::Ready(read);
                }
            }
            Poll::Ready(count)
        });
        assert_eq!(read.await, count, "each read had its byte");
        assert!(!tokio::task::coop::has_budget_remaining());
    });
}

#[test]
fn sessions_whose_runtime_is_dropped_end_on_both_sides() {
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let [one, other] = RingPair::local(RING).unwrap();
    let dropped = runtime();
    let session = dropped.block_on(async {
        let (sessions, driver) = Sessions::new(None, None).unwrap();
        tokio::spawn(driver.run(Recorder::default()));
        sessions.over_rings(one, true).unwrap()
    });
    session.send_hello(Vec::new());
    let stream = session.open("service").unwrap();
    runtime().block_on(async {
        let (sessions, driver) = Sessions::new(None, None).unwrap();
        let recorder = Recorder::default();
        tokio::spawn(driver.run(recorder.clone()));
        sessions.over_rings(other, false).unwrap().send_hello(Vec::new());
        recorder.until(&["stream"]).await;
        dropped.shutdown_background();
        let events = recorder.until(&["stream", "ended"]);
        let events = tokio::time::timeout(std::time::Duration::from_secs(10), events).await;
        events.expect("the peer gets the event");
        let error = stream.accepted().await.unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionAborted);
    });
}
