//! A stream that nobody reads stops no other stream, no call and no collective operation.

use std::convert::Infallible;
use std::future::{Future, Ready, poll_fn, ready};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll};

use crate::scenarios::harness::{Lower, turns, world};
use crate::scenarios::{rank, tag, text};
use bytes::Bytes;
use midplane_via::message::communicator::Communicator;
use midplane_via::message::engine::Config;
use midplane_via::message::memory::MemoryConfig;
use midplane_via::service::{Client, Server, Streams};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tower_service::Service;

type World = Communicator<Lower>;
type Program = Pin<Box<dyn Future<Output = ()> + Send>>;

const ROUNDS: u32 = 30;

#[derive(Clone)]
struct Echo;

impl Service<Bytes> for Echo {
    type Response = Bytes;
    type Error = Infallible;
    type Future = Ready<Result<Bytes, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Bytes) -> Self::Future {
        ready(Ok(request))
    }
}

/// Writes until the stream takes nothing more for a while.
async fn fill(stream: &mut (impl tokio::io::AsyncWrite + Unpin)) -> usize {
    let (mut written, mut idle) = (0, 0);
    while idle < 200 {
        let mut write = pin!(stream.write(&[7; 900]));
        let polled = poll_fn(|context| Poll::Ready(write.as_mut().poll(context))).await;
        match polled {
            Poll::Ready(count) => (written, idle) = (written + count.unwrap(), 0),
            Poll::Pending => idle += 1,
        }
        yield_now().await;
    }
    written
}

async fn yield_now() {
    let mut yielded = false;
    poll_fn(move |context| {
        if std::mem::replace(&mut yielded, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// Both sides of everything that goes on beside the unread streams.
async fn everything(all: World, streams: Streams<Lower>, calls: World) {
    let own = all.rank();
    let other = rank(1 - own.0);
    for round in 0..ROUNDS {
        let mut stream = match own.0 {
            0 => streams.accept().await.unwrap(),
            _ => streams.connect(other).await.unwrap(),
        };
        let (ours, theirs) = (text(own.0, 5_000), text(other.0, 5_000));
        // A long write is done once it is read: one side reads first.
        let mut got = Vec::new();
        if own.0 == 0 {
            stream.read_to_end(&mut got).await.unwrap();
        }
        stream.write_all(&ours).await.unwrap();
        stream.shutdown().await.unwrap();
        if own.0 == 1 {
            stream.read_to_end(&mut got).await.unwrap();
        }
        assert!(got == theirs, "round {round}");
        all.barrier().await.unwrap();
        let gathered = all.all_gather(ours.clone()).await.unwrap();
        assert_eq!(gathered.len(), 2);
        if own.0 == 1 {
            let mut client = Client::new(calls.clone(), other);
            client.reserve().await;
            let answer = client.call(Bytes::from(ours)).await.unwrap();
            assert_eq!(answer.len(), 5_000);
        }
    }
}

/// However many streams nobody reads: each alone, or together more than the window.
#[test]
fn unread_streams_stop_nothing_else() {
    for unread in [1, 3, 20] {
        let memory = MemoryConfig::default().depth(4).room(1000);
        let views = world(2, memory, Config::default().eager(900).window(16_384));
        let done = Arc::new(AtomicU32::new(0));
        let programs: Vec<Program> = views
            .iter()
            .map(|view| {
                let (view, done) = (view.clone(), Arc::clone(&done));
                Box::pin(side(view, done, unread)) as Program
            })
            .collect();
        turns(programs, &views);
        assert_eq!(done.load(Ordering::Relaxed), 2, "{unread} unread");
    }
}

async fn side(view: World, done: Arc<AtomicU32>, unread: u32) {
    let (all, calls) = (view.duplicate().await.unwrap(), view.duplicate().await.unwrap());
    let streams = Streams::new(view.duplicate().await.unwrap());
    let mut kept = Vec::new();
    for _ in 0..unread {
        let mut stream = match view.rank().0 {
            0 => streams.accept().await.unwrap(),
            _ => streams.connect(rank(0)).await.unwrap(),
        };
        if view.rank().0 == 1 {
            let written = fill(&mut stream).await;
            assert!(written > 0, "it was written to");
        }
        kept.push(stream);
    }
    if view.rank().0 == 0 {
        let stop = view.clone();
        let stop = async move { drop(stop.receive(rank(1), tag(1)).await) };
        let server = Server::new(calls.clone());
        let serving = pin!(server.serve_until(Echo, stop));
        let working = pin!(everything(all, streams, calls));
        let (_, counters) = futures_util::future::join(working, serving).await;
        assert_eq!(counters.unwrap().requests, u64::from(ROUNDS));
    } else {
        everything(all, streams, calls).await;
        view.send(rank(0), tag(1), vec![]).await.unwrap();
    }
    done.fetch_add(1, Ordering::Relaxed);
    // The unread ones are read at last.
    for stream in &mut kept {
        if view.rank().0 == 0 {
            let mut got = Vec::new();
            stream.read_to_end(&mut got).await.unwrap();
            assert!(got.iter().all(|byte| *byte == 7) && !got.is_empty());
        } else {
            stream.shutdown().await.unwrap();
        }
    }
}
