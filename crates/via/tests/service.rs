//! Streams, sinks and services over messages: dropped at every poll, held back, bereft of peers.

mod pair;
mod scenarios;

use std::future::{Future, pending, poll_fn};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures_util::{SinkExt, StreamExt};
use midplane_simhw::host::Host;
use midplane_simhw::id::NodeId;
use midplane_via::message::communicator::Communicator;
use midplane_via::message::engine::{Config, Engine};
use midplane_via::message::envelope::{Peer, Tag};
use midplane_via::message::group::Rank;
use midplane_via::message::memory::MemoryConfig;
use midplane_via::message::process::{MessageError, Process};
use midplane_via::message::progression::Progression;
use midplane_via::message::request::Failure;
use midplane_via::rdma::{RdmaCarrier, RdmaConfig};
use midplane_via::service::{
    CallError, Client, Counters, LaneError, Receiver, Sender, Server, Streams,
};
use scenarios::harness::{Lower, turns, world};
use scenarios::{rank, tag, text};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tower_service::Service;

type World = Communicator<Lower>;
type Program = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Two processes with little room between them.
fn narrow() -> Vec<World> {
    let memory = MemoryConfig::default().depth(3).room(500);
    world(2, memory, Config::default().eager(400).window(4096))
}

/// Runs one program in each of two processes.
fn both<A, B>(
    views: Vec<World>,
    first: impl FnOnce(World) -> A,
    second: impl FnOnce(World) -> B,
) -> Vec<World>
where
    A: Future<Output = ()> + Send + 'static,
    B: Future<Output = ()> + Send + 'static,
{
    let programs: Vec<Program> =
        vec![Box::pin(first(views[0].clone())), Box::pin(second(views[1].clone()))];
    turns(programs, &views);
    views
}

/// Nothing is left over anywhere.
#[track_caller]
fn settled(views: &[World]) {
    for view in views {
        assert!(view.explain().waiting.is_empty(), "{}", view.explain());
        assert_eq!(view.with(|process| process.lower().unexpected_bytes()), 0);
    }
}

/// A future that is polled at most `left` times, then dropped.
async fn at_most<T>(mut left: u32, future: impl Future<Output = T>) -> Option<T> {
    let mut future = pin!(future);
    poll_fn(move |context| {
        if left == 0 {
            return Poll::Ready(None);
        }
        left -= 1;
        match future.as_mut().poll(context) {
            Poll::Ready(done) => Poll::Ready(Some(done)),
            Poll::Pending if left == 0 => Poll::Ready(None),
            Poll::Pending => {
                context.waker().wake_by_ref();
                Poll::Pending
            }
        }
    })
    .await
}

/// Lets the others have their turns.
async fn turns_of_others(count: u32) {
    at_most(count, pending::<()>()).await;
}

/// A service of the test: what becomes of a request, and how many there are at once.
#[derive(Clone, Default)]
struct Handler {
    now: Arc<AtomicU32>,
    most: Arc<AtomicU32>,
    turns: u32,
}

impl Service<Bytes> for Handler {
    type Response = Bytes;
    type Error = String;
    type Future = Pin<Box<dyn Future<Output = Result<Bytes, String>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), String>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Bytes) -> Self::Future {
        let Self { now, most, turns } = self.clone();
        Box::pin(async move {
            let at_once = now.fetch_add(1, Ordering::Relaxed) + 1;
            most.fetch_max(at_once, Ordering::Relaxed);
            turns_of_others(turns).await;
            now.fetch_sub(1, Ordering::Relaxed);
            match &request[..] {
                b"!" => Err("no".into()),
                bytes => Ok(bytes.iter().rev().copied().collect()),
            }
        })
    }
}

fn reversed(mut bytes: Vec<u8>) -> Vec<u8> {
    bytes.reverse();
    bytes
}

async fn ask<P: Progression>(client: &mut Client<P>, request: Vec<u8>) -> Result<Bytes, CallError> {
    poll_fn(|context| client.poll_ready(context)).await?;
    client.call(request.into()).await
}

#[test]
fn bytes_cross_both_ways_and_end() {
    for length in [0, 1, 5_000, 300_000] {
        let views = both(
            narrow(),
            move |world| async move {
                let mut stream = Streams::new(world).accept().await.unwrap();
                assert_eq!(stream.peer(), rank(1));
                let mut got = Vec::new();
                stream.read_to_end(&mut got).await.unwrap();
                assert!(got == text(1, length));
                stream.write_all(&text(2, length)).await.unwrap();
            },
            move |world| async move {
                let mut stream = Streams::new(world).connect(rank(0)).await.unwrap();
                stream.write_all(&text(1, length)).await.unwrap();
                stream.shutdown().await.unwrap();
                assert!(stream.write_all(b"x").await.is_err(), "it is shut down");
                let mut got = Vec::new();
                stream.read_to_end(&mut got).await.unwrap();
                assert!(got == text(2, length));
            },
        );
        settled(&views);
    }
}

#[test]
fn what_comes_for_a_stream_that_was_dropped_is_thrown_away() {
    let views = both(
        narrow(),
        |world| async move {
            let streams = Streams::new(world);
            drop(streams.accept().await.unwrap());
            let mut second = streams.accept().await.unwrap();
            let mut got = Vec::new();
            second.read_to_end(&mut got).await.unwrap();
            assert_eq!(got, b"after");
        },
        |world| async move {
            let streams = Streams::new(world);
            let mut first = streams.connect(rank(0)).await.unwrap();
            let mut second = streams.connect(rank(0)).await.unwrap();
            // More than the window: it would block what is behind it.
            first.write_all(&text(1, 20_000)).await.unwrap();
            first.shutdown().await.unwrap();
            assert_eq!(first.read(&mut [0]).await.unwrap(), 0, "it was dropped there");
            second.write_all(b"after").await.unwrap();
            drop(second);
            turns_of_others(100).await;
        },
    );
    settled(&views);
}

/// Whatever is dropped at whichever poll: every item comes once, in order, and all room comes back.
#[test]
fn lanes_that_are_dropped_at_any_poll_lose_nothing() {
    for length in [10, 3_000] {
        let views = both(
            narrow(),
            move |world| async move {
                let mut receiver = Receiver::new(world, rank(1), tag(4));
                for n in 0..30 {
                    for polls in 0.. {
                        let next = async {
                            if n % 2 == 0 {
                                return receiver.next().await.unwrap();
                            }
                            receiver.receive().await.map(Option::unwrap)
                        };
                        if let Some(got) = at_most(polls, next).await {
                            assert!(got.unwrap() == text(n, length), "item {n}");
                            break;
                        }
                    }
                }
                assert_eq!(receiver.next().await, None);
                assert!(receiver.is_ended());
            },
            move |world| async move {
                let mut sender = Sender::new(world, rank(0), tag(4)).depth(2);
                for n in 0..30 {
                    for polls in 0.. {
                        // A permit that is not used has taken nothing.
                        let _ = at_most(polls, sender.reserve()).await;
                        let sent = async {
                            let permit = sender.reserve().await.unwrap();
                            permit.send(&text(n, length)).unwrap();
                        };
                        if at_most(polls, sent).await.is_some() {
                            break;
                        }
                        let _ = at_most(polls, sender.flush()).await;
                        assert!(sender.under_way() <= 2);
                    }
                }
                let mut polls = 0;
                while at_most(polls, sender.close()).await.is_none() {
                    polls += 1;
                }
                assert_eq!(sender.reserve().await.unwrap_err(), LaneError::Closed);
            },
        );
        settled(&views);
    }
}

#[test]
fn streams_that_are_dropped_at_any_poll_lose_nothing() {
    let whole = text(3, 9_000);
    let expected = whole.clone();
    let views = both(
        narrow(),
        move |world| async move {
            let mut stream = Streams::new(world).accept().await.unwrap();
            let (mut got, mut polls) = (Vec::new(), 0);
            loop {
                let mut buffer = [0; 700];
                match at_most(polls % 4, stream.read(&mut buffer)).await {
                    Some(Ok(0)) => break,
                    Some(read) => got.extend_from_slice(&buffer[..read.unwrap()]),
                    None => {}
                }
                polls += 1;
            }
            assert!(got == expected);
        },
        move |world| async move {
            let mut stream = Streams::new(world).connect(rank(0)).await.unwrap();
            let (mut at, mut polls) = (0, 0);
            while at < whole.len() {
                let end = whole.len().min(at + 1 + polls as usize * 37 % 900);
                if let Some(n) = at_most(polls % 4, stream.write(&whole[at..end])).await {
                    at += n.unwrap();
                }
                polls += 1;
            }
        },
    );
    settled(&views);
}

#[test]
fn a_sender_waits_while_nobody_receives() {
    let sent = Arc::new(AtomicU32::new(0));
    let (here, there) = (Arc::clone(&sent), sent);
    let views = both(
        narrow(),
        move |world| async move {
            let mut most = 0;
            let mut receiver = Receiver::new(world, rank(1), tag(4));
            for n in 0..200 {
                if n % 50 == 0 {
                    turns_of_others(300).await;
                    most = most.max(there.load(Ordering::Relaxed) - n);
                }
                assert_eq!(receiver.next().await.unwrap().unwrap(), text(n, 300));
            }
            // A window of 4,096 bytes holds 11 of them; 4 are under way.
            assert!((4..=16).contains(&most), "{most} were on their way");
            assert_eq!(receiver.next().await, None);
        },
        move |world| async move {
            let mut sender = Sender::new(world, rank(0), tag(4)).depth(4);
            for n in 0..200 {
                SinkExt::feed(&mut sender, text(n, 300).into()).await.unwrap();
                here.fetch_add(1, Ordering::Relaxed);
            }
            SinkExt::close(&mut sender).await.unwrap();
        },
    );
    settled(&views);
}

/// A task keeps a stream that it has polled, and waits for something else: another task of the
/// process, which was polled before, still learns of its message.
#[test]
fn a_stream_that_is_kept_and_not_polled_strands_nobody() {
    let views = narrow();
    let flag = Arc::new(AtomicU32::new(0));
    let waker = std::task::Waker::from(Arc::new(Count(Arc::clone(&flag))));
    let mut waits = pin!(views[0].receive(rank(1), tag(9)));
    assert!(waits.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    let mut kept = Receiver::new(views[0].clone(), rank(1), tag(4));
    let mut idle = Context::from_waker(std::task::Waker::noop());
    assert!(kept.poll_next_unpin(&mut idle).is_pending());
    views[1].block_on(views[1].send(rank(0), tag(9), vec![1])).unwrap();
    assert!(flag.load(Ordering::Relaxed) > 0, "it was woken");
    assert!(waits.as_mut().poll(&mut Context::from_waker(&waker)).is_ready());
}

struct Count(Arc<AtomicU32>);

impl std::task::Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn requests_are_answered_each_with_its_own() {
    let handler = Handler { turns: 20, ..Handler::default() };
    let most = Arc::clone(&handler.most);
    let counters = Arc::new(Mutex::new(Counters::default()));
    let place = Arc::clone(&counters);
    let views = both(
        narrow(),
        move |world| async move {
            let stopped = world.duplicate().await.unwrap();
            let stop = async move { drop(stopped.receive(rank(1), tag(0)).await) };
            let served = Server::new(world).depth(3).serve_until(handler, stop).await;
            *place.lock().unwrap() = served.unwrap();
        },
        |world| async move {
            let stop = world.duplicate().await.unwrap();
            let mut client = Client::new(world.clone(), rank(0)).depth(5);
            let mut calls = Vec::new();
            for n in 0..40 {
                client.reserve().await;
                let call = client.call(text(n, 10 * n as usize).into());
                calls.push(Box::pin(async move {
                    let answer = call.await.unwrap();
                    assert!(answer == reversed(text(n, 10 * n as usize)), "answer {n}");
                }) as Program);
                if n % 4 == 3 {
                    for call in calls.drain(..) {
                        call.await;
                    }
                }
            }
            let refused = ask(&mut client, b"!".to_vec()).await;
            assert_eq!(refused, Err(CallError::Service("no".into())));
            // No request: it is passed over.
            world.send(rank(0), tag(0), vec![1, 2]).await.unwrap();
            assert_eq!(ask(&mut client, b"ab".to_vec()).await.unwrap(), b"ba"[..]);
            assert_eq!(client.room(), 5);
            stop.send(rank(0), tag(0), vec![]).await.unwrap();
        },
    );
    settled(&views);
    assert_eq!(*counters.lock().unwrap(), Counters { requests: 42, malformed: 1 });
    assert_eq!(most.load(Ordering::Relaxed), 3, "as many at once as the server handles");
}

/// Calls are dropped at every poll; the client's room and both windows come back, and no answer is
/// taken for another.
#[test]
fn calls_that_are_dropped_at_any_poll_conserve_room() {
    for length in [10, 3_000] {
        let views = both(
            narrow(),
            move |world| async move {
                let stopped = world.duplicate().await.unwrap();
                let stop = async move { drop(stopped.receive(rank(1), tag(0)).await) };
                let handler = Handler { turns: 3, ..Handler::default() };
                Server::new(world).serve_until(handler, stop).await.unwrap();
            },
            move |world| async move {
                let stop = world.duplicate().await.unwrap();
                let mut client = Client::new(world.clone(), rank(0)).depth(2);
                for n in 0..12 {
                    for polls in 0.. {
                        let mut other = client.clone();
                        if let Some(got) = at_most(polls, ask(&mut other, text(n, length))).await {
                            assert!(got.unwrap() == reversed(text(n, length)));
                            break;
                        }
                        drop(other);
                        assert_eq!(client.room(), 2);
                    }
                }
                assert!(ask(&mut client, vec![]).await.unwrap().is_empty());
                // Answers to those that were dropped have all come by now: one more is behind them.
                turns_of_others(200).await;
                assert!(world.explain().waiting.is_empty(), "{}", world.explain());
                stop.send(rank(0), tag(0), vec![]).await.unwrap();
            },
        );
        settled(&views);
    }
}

#[test]
fn a_service_on_tokio_serves_many_clients() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
    runtime.block_on(async {
        let mut views = world(4, MemoryConfig::default(), Config::default()).into_iter();
        let server = Server::new(views.next().unwrap());
        let serving = tokio::spawn(server.serve(Handler::default()));
        let clients: Vec<_> = views
            .map(|view| {
                tokio::spawn(async move {
                    let client = Client::new(view, rank(0)).depth(4);
                    let tasks = (0..8).map(|task| {
                        let mut client = client.clone();
                        tokio::spawn(async move {
                            for n in 0..50 {
                                let request = text(task * 100 + n, 64);
                                let answer = ask(&mut client, request.clone()).await.unwrap();
                                assert!(answer == reversed(request));
                            }
                        })
                    });
                    for task in tasks.collect::<Vec<_>>() {
                        task.await.unwrap();
                    }
                })
            })
            .collect();
        for client in clients {
            client.await.unwrap();
        }
        serving.abort();
    });
}

type RealWorld = Communicator<Engine<RdmaCarrier>>;

async fn join(host: &impl Host, own: u16) -> RealWorld {
    let nodes = [NodeId(0), NodeId(1)];
    let config = RdmaConfig::default();
    let carrier = RdmaCarrier::open(host, Peer(own.into()), &nodes, config).await.unwrap();
    let (process, scope) = Process::new(Engine::new(carrier, Config::default()), 2).unwrap();
    Communicator::world(process, scope)
}

/// The peer's node crashes while everything waits for it: each operation ends with that, within two
/// seconds where silence for half a second is death.
#[test]
fn the_death_of_a_peer_ends_every_operation() {
    let mut world = pair::world(pair::Setting::default());
    let (survivor, victim) = (world.host(NodeId(0)), world.host(NodeId(1)));
    world.spawn(NodeId(1), async move {
        let all = join(&victim, 1).await;
        let streams = Streams::new(all.clone());
        let _stream = streams.accept().await.unwrap();
        all.send(Rank(0), Tag(99), vec![]).await.unwrap();
        pending::<()>().await;
    });
    let ended = Arc::new(Mutex::new(Vec::new()));
    let place = Arc::clone(&ended);
    world.spawn(NodeId(0), async move {
        let all = join(&survivor, 0).await;
        let mut stream = Streams::new(all.clone()).connect(Rank(1)).await.unwrap();
        let other = all.clone();
        all.receive(Rank(1), Tag(99)).await.unwrap();
        let (mut reader, mut writer) = tokio::io::split(&mut stream);
        let mut sender = Sender::new(other.clone(), Rank(1), Tag(0x10_0000));
        let mut receiver = Receiver::new(other.clone(), Rank(1), Tag(0x10_0001));
        let mut client = Client::new(other, Rank(1)).depth(1);
        client.reserve().await;
        let call = client.call(Bytes::from_static(b"never answered"));
        let read = async { reader.read(&mut [0]).await.map_err(|error| error.kind()).map(drop) };
        let write = async {
            loop {
                if let Err(error) = writer.write_all(&[1; 100_000]).await {
                    return Err::<(), _>(error.kind());
                }
            }
        };
        let reserve = async {
            loop {
                match sender.reserve().await {
                    Ok(permit) => permit.send(&[2; 50_000]).unwrap(),
                    Err(error) => return error,
                }
            }
        };
        let (read, write, reserve, next, answer) =
            futures_util::future::join5(read, write, reserve, receiver.next(), call).await;
        let lost = MessageError::Failed(Failure::PeerLost(Peer(1)));
        assert_eq!(read, Err(std::io::ErrorKind::ConnectionReset));
        assert_eq!(write, Err(std::io::ErrorKind::ConnectionReset));
        assert_eq!(reserve, LaneError::Message(lost));
        assert_eq!(next, Some(Err(LaneError::Message(lost))));
        assert_eq!(answer, Err(CallError::Message(lost)));
        assert_eq!(client.room(), 1);
        place.lock().unwrap().push(survivor.now());
    });
    world.run_until(pair::at(300_000_000));
    world.crash(NodeId(1));
    world.run_until(pair::at(300_000_000) + Duration::from_secs(2));
    assert_eq!(ended.lock().unwrap().len(), 1, "everything has ended");
}
