//! Peers that try to make a process keep more than its configuration says.

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use midplane_via::message::communicator::Communicator;
use midplane_via::message::engine::{Config, Engine};
use midplane_via::message::envelope::Tag;
use midplane_via::message::group::Rank;
use midplane_via::message::memory::{MemoryCarrier, MemoryConfig, network};
use midplane_via::message::process::{MessageError, Process};
use midplane_via::message::request::Failure;
use midplane_via::service::{CallError, Client, DeliveryError, Receiver, Server, Streams};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tower_service::Service;

type World = Communicator<Engine<MemoryCarrier>>;

fn pair() -> [World; 2] {
    let worlds = network(2, MemoryConfig::default()).into_iter().map(|carrier| {
        let (process, scope) = Process::new(Engine::new(carrier, Config::default()), 2).unwrap();
        Communicator::world(process, scope)
    });
    <[World; 2]>::try_from(worlds.collect::<Vec<_>>()).expect("there are two")
}

/// Polls `future` often, and moves the messages of both; `None` if it does not end.
fn soon<T>(views: &[World], future: impl Future<Output = T>) -> Option<T> {
    let mut future = pin!(future);
    for _ in 0..2_000 {
        if let Poll::Ready(done) = future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            return Some(done);
        }
        for view in views {
            let _ = view.iprobe(None, None);
        }
    }
    None
}

#[test]
fn a_server_that_never_answers_makes_a_client_keep_no_more_than_its_depth() {
    for length in [100, 1 << 20] {
        let views = pair();
        let mut client = Client::new(views[1].clone(), Rank(0)).depth(4);
        let mut began = 0;
        for _ in 0..50 {
            if soon(&views, client.reserve()).is_none() {
                break;
            }
            drop(client.call(vec![7; length].into()));
            began += 1;
        }
        assert_eq!(began, 4, "calls that are dropped are under way still");
        assert!(views[1].explain().waiting.len() <= 2 * 4, "{}", views[1].explain());

        // Each answer gives one place back, also to a client that waits already.
        let mut reserve = Box::pin(client.reserve());
        assert!(soon(&views, &mut reserve).is_none());
        for _ in 0..4 {
            let request = soon(&views, views[0].receive(None, Tag(0))).unwrap().unwrap();
            let tag = *request.bytes.last_chunk().unwrap();
            let answer = views[0].send(Rank(1), Tag(u32::from_le_bytes(tag)), vec![1, 0]);
            soon(&views, answer).unwrap().unwrap();
        }
        soon(&views, reserve).expect("there is room again");
        assert!(soon(&views, std::future::pending::<()>()).is_none());
        assert_eq!(client.room(), 3);
        assert!(views[1].explain().waiting.is_empty(), "{}", views[1].explain());
    }
}

#[test]
fn a_call_to_a_server_that_is_gone_gives_its_room_back() {
    let [server, client] = pair();
    let mut asking = Client::new(client.clone(), Rank(0)).depth(1);
    let views = [client.clone()];
    soon(&views, asking.reserve()).unwrap();
    drop(asking.call(vec![1; 1 << 20].into()));
    server.with(|process| process.lower_mut().carrier_mut().kill());
    soon(&views, asking.reserve()).expect("nothing is under way any more");
}

#[test]
fn an_answer_that_is_too_long_is_an_error() {
    let views = pair();
    let mut client = Client::new(views[1].clone(), Rank(0)).max_message(1_000);
    soon(&views, client.reserve()).unwrap();
    let too_long = client.call(vec![0; 1_001].into());
    let expected = CallError::TooLong { length: 1_001, most: 1_000 };
    assert_eq!(soon(&views, too_long), Some(Err(expected)));
    soon(&views, client.reserve()).unwrap();
    let call = client.call(vec![0; 1_000].into());
    let request = soon(&views, views[0].receive(None, Tag(0))).unwrap().unwrap();
    let tag = Tag(u32::from_le_bytes(*request.bytes.last_chunk().unwrap()));
    let _sent = views[0].isend(Default::default(), Rank(1), tag, vec![1; 64 << 20]).unwrap();
    let failed = soon(&views, call).unwrap().unwrap_err();
    let length = 64 << 20;
    let truncated = Failure::Truncated { length, room: 1_001 };
    assert_eq!(failed, CallError::Message(MessageError::Failed(truncated)));
}

#[test]
fn a_request_or_an_item_that_is_too_long_is_not_kept() {
    struct Length;
    impl Service<Bytes> for Length {
        type Response = Bytes;
        type Error = String;
        type Future = std::future::Ready<Result<Bytes, String>>;
        fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), String>> {
            Poll::Ready(Ok(()))
        }
        fn call(&mut self, request: Bytes) -> Self::Future {
            std::future::ready(Ok(request.len().to_string().into()))
        }
    }
    let views = pair();
    let server = Server::new(views[0].clone()).max_message(1_000);
    let stop = views[0].receive(Rank(1), Tag(9));
    let mut serving = pin!(server.serve_until(Length, async { drop(stop.await) }));
    let _hostile = views[1].isend(Default::default(), Rank(0), Tag(0), vec![1; 64 << 20]).unwrap();
    let mut client = Client::new(views[1].clone(), Rank(0));
    soon(&views, client.reserve()).unwrap();
    let mut call = client.call(vec![0; 1_000].into());
    assert!(soon(&views, &mut serving).is_none(), "it serves on");
    assert_eq!(soon(&views, &mut call), Some(Ok("1000".into())));
    let _stopped = views[1].isend(Default::default(), Rank(0), Tag(9), vec![]).unwrap();
    assert_eq!(soon(&views, serving).unwrap().unwrap().malformed, 1);

    let mut receiver = Receiver::new(views[0].clone(), Rank(1), Tag(77)).max_message(10);
    let _item = views[1].isend(Default::default(), Rank(0), Tag(77), vec![0; 1 << 20]).unwrap();
    let truncated = Failure::Truncated { length: 1 << 20, room: 11 };
    let failed = DeliveryError::Message(MessageError::Failed(truncated));
    assert_eq!(soon(&views, receiver.receive()), Some(Err(failed)));
}

#[test]
fn a_peer_that_never_ends_its_streams_makes_a_process_keep_no_more_than_its_bound() {
    const MOST: usize = 8;
    let views = pair();
    let accepts = Streams::new(views[0].clone()).dropped(MOST);
    let connects = Streams::new(views[1].clone());
    let mut never_ended = Vec::new();
    for _ in 0..200 {
        let mut stream = soon(&views, connects.connect(Rank(0))).unwrap().unwrap();
        soon(&views, stream.write_all(b"some")).unwrap().unwrap();
        never_ended.push(stream);
        drop(soon(&views, accepts.accept()).unwrap().unwrap());
    }
    // What was dropped is looked at when another one is accepted: one more receive is that one's.
    assert!(soon(&views, accepts.accept()).is_none());
    let waiting = views[0].explain().waiting.len();
    assert!(waiting <= MOST + 1, "{waiting} receives");

    // Other streams of the same peer are served.
    let mut writes = soon(&views, connects.connect(Rank(0))).unwrap().unwrap();
    let mut reads = soon(&views, accepts.accept()).unwrap().unwrap();
    for _ in 0..100 {
        soon(&views, writes.write_all(&[7; 10_000])).unwrap().unwrap();
        soon(&views, reads.read_exact(&mut [0; 10_000])).unwrap().unwrap();
    }
}
