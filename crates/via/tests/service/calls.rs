//! Requests and their answers.

use super::*;
use crate::pair;

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
                        assert!(client.room() <= 2);
                    }
                }
                assert!(ask(&mut client, vec![]).await.unwrap().is_empty());
                let mut other = client.clone();
                client.reserve().await;
                other.reserve().await;
                assert_eq!(client.room(), 0, "both places came back, and no more");
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
        assert_eq!(reserve, DeliveryError::Message(lost));
        assert_eq!(next, Some(Err(DeliveryError::Message(lost))));
        assert_eq!(answer, Err(CallError::Message(lost)));
        assert_eq!(client.room(), 1);
        place.lock().unwrap().push(survivor.now());
    });
    world.run_until(pair::at(300_000_000));
    world.crash(NodeId(1));
    world.run_until(pair::at(300_000_000) + Duration::from_secs(2));
    assert_eq!(ended.lock().unwrap().len(), 1, "everything has ended");
}
