//! Tests peers that break the protocol of calls: each harms its own stream alone.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use midplane_simhw::wire::{decode_value, encode_value};
use midplane_via::session::Stream;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::Notify;
use tokio::time::Instant;
use tower::service_fn;

use super::context::Trace;
use super::frame::{AnswerHeader, RequestHeader, Status};
use super::*;
use crate::error::ErrorKind;
use crate::node::links::Kind;
use crate::node::{Listener, Node};

async fn two(test: &str) -> (Node, Node) {
    let builder = Node::builder().cluster(format!("{test}-{}", std::process::id()));
    (builder.clone().start().await.unwrap(), builder.start().await.unwrap())
}

/// Opens a stream to a service of calls, without a client.
async fn stream(node: &Node) -> Stream {
    let service = Kind::Calls.service("kv").unwrap();
    let until = Instant::now() + Duration::from_secs(10);
    let found = node.find(&service, &mut Default::default(), until, |_| true).await.unwrap();
    node.links().open(&found[0], &service, until).await.unwrap()
}

fn request(value: u32, remaining: Option<Duration>) -> Vec<u8> {
    framed(encode_value(&value).unwrap(), remaining)
}

fn framed(payload: Vec<u8>, remaining: Option<Duration>) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap();
    let header = RequestHeader { length, remaining, trace: Trace::default() };
    [header.emit(), payload].concat()
}

async fn answer(stream: &mut Stream) -> io::Result<(Status, Vec<u8>)> {
    let header = AnswerHeader::read(stream).await?;
    let body = crate::framing::read_body(stream, header.length as usize).await?;
    Ok((header.status, body))
}

/// Serves `kv`: answers each call at once with its number, except 0, which it never answers. Counts the running calls.
fn serve(node: &Node) -> (Serving, Arc<AtomicUsize>, Arc<Notify>) {
    struct Running(Arc<AtomicUsize>, Arc<Notify>);
    impl Drop for Running {
        fn drop(&mut self) {
            self.0.fetch_sub(1, Ordering::SeqCst);
            self.1.notify_one();
        }
    }
    let (running, ended) = (Arc::new(AtomicUsize::new(0)), Arc::new(Notify::new()));
    let (count, end) = (Arc::clone(&running), Arc::clone(&ended));
    let service = service_fn(move |number: u32| {
        count.fetch_add(1, Ordering::SeqCst);
        let running = Running(Arc::clone(&count), Arc::clone(&end));
        async move {
            let _running = running;
            if number == 0 {
                std::future::pending::<()>().await;
            }
            Ok::<_, ()>(number)
        }
    });
    (node.serve_with("kv", service, Limits::default().max_message(1_000)).unwrap(), running, ended)
}

/// Regression: the errors of nodes with a wrong key or a name in use counted as possibly delivered.
#[test]
fn a_call_that_has_failed_at_this_node_is_undelivered() {
    for kind in [ErrorKind::InUse, ErrorKind::Key, ErrorKind::NoService, ErrorKind::Closed] {
        assert!(CallError::<()>::Node(Error::new(kind, "")).is_undelivered());
    }
    assert!(!CallError::<()>::Deadline.is_undelivered());
    assert!(!CallError::<()>::Encode { what: "response" }.is_undelivered());
}

#[tokio::test]
async fn an_invalid_request_ends_its_stream_and_disturbs_no_other() {
    let (service, client) = two("hostile-client").await;
    let (_serving, ..) = serve(&service);
    let good = client.client::<u32, u32, ()>("kv");
    let trace = Trace { parent: "x".repeat(65), state: String::new() };
    let long_trace = RequestHeader { length: 4, remaining: None, trace }.emit();
    let trace = Trace { parent: String::new(), state: "x".repeat(513) };
    let long_state = RequestHeader { length: 4, remaining: None, trace }.emit();
    let bad = [b"GET / HTTP/1.1\r\nHost: kv\r\n\r\n".to_vec(), long_trace, long_state, vec![0; 24]];
    let mut half = stream(&client).await;
    half.write_all(&request(1, None)[..26]).await.unwrap();
    for bytes in bad {
        let mut stream = stream(&client).await;
        stream.write_all(&bytes).await.unwrap();
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest).await;
        assert!(rest.is_empty(), "its stream has ended without an answer");
        assert_eq!(good.call(5).await.unwrap(), 5);
    }
    // The rest of a request that was begun before is still served.
    half.write_all(&request(1, None)[26..]).await.unwrap();
    assert_eq!(answer(&mut half).await.unwrap().0, Status::Response);
}

#[tokio::test]
async fn a_false_length_is_refused_before_the_body_is_read() {
    let (service, client) = two("hostile-length").await;
    let (_serving, ..) = serve(&service);
    let mut stream = stream(&client).await;
    let header = RequestHeader { length: u32::MAX, remaining: None, trace: Trace::default() };
    stream.write_all(&header.emit()).await.unwrap();
    assert_eq!(answer(&mut stream).await.unwrap().0, Status::RequestTooLarge);
    assert_eq!(stream.read(&mut [0]).await.unwrap(), 0, "the stream has ended");
}

#[tokio::test]
async fn a_request_before_the_answer_to_the_last_one_ends_both() {
    let (service, client) = two("hostile-twice").await;
    let (serving, running, ended) = serve(&service);
    let mut stream = stream(&client).await;
    stream.write_all(&request(0, None)).await.unwrap();
    while running.load(Ordering::SeqCst) == 0 {
        tokio::task::yield_now().await;
    }
    stream.write_all(&request(1, None)).await.unwrap();
    assert!(answer(&mut stream).await.is_err());
    ended.notified().await;
    while serving.calls() > 0 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_service_stops_at_the_deadline_whatever_its_caller_does() {
    let (service, client) = two("deadline-there").await;
    let (_serving, _, ended) = serve(&service);
    let mut stream = stream(&client).await;
    for remaining in [Duration::ZERO, Duration::from_millis(20)] {
        stream.write_all(&request(0, Some(remaining))).await.unwrap();
        assert_eq!(answer(&mut stream).await.unwrap().0, Status::Deadline);
        ended.notified().await;
        // The stream carries further calls; a deadline too large for the clock counts as none.
        stream.write_all(&request(7, Some(Duration::from_micros(u64::MAX - 1)))).await.unwrap();
        let (status, body) = answer(&mut stream).await.unwrap();
        assert_eq!((status, decode_value::<u32>(&body)), (Status::Response, Ok(7)));
        ended.notified().await;
    }
}

/// Answers the calls that arrive at a listener with `answers`, one stream each, and ends each stream.
async fn answer_with(mut listener: Listener, answers: Vec<Vec<u8>>) {
    for bytes in answers {
        let (mut stream, _) = listener.accept().await.unwrap();
        if RequestHeader::read(&mut stream).await.is_ok() {
            stream.read_exact(&mut [0; 4]).await.unwrap();
            stream.write_all(&bytes).await.unwrap();
        }
    }
}

#[tokio::test]
async fn invalid_answers_are_errors_of_their_calls_alone() {
    let (service, client) = two("hostile-service").await;
    let listener = service.offer(Kind::Calls.service("kv").unwrap()).unwrap();
    let head = |status, length| AnswerHeader { status, length, limit: 9 }.emit().to_vec();
    let good = [head(Status::Response, 4), vec![3, 0, 0, 0]].concat();
    let answers = vec![
        b"HTTP/1.1 400 Bad Request".to_vec(),
        head(Status::Response, u32::MAX),
        head(Status::Response, 4),
        Vec::new(),
        [head(Status::Response, 3), vec![3, 0, 0]].concat(),
        [head(Status::Error, 1), vec![1]].concat(),
        // Bytes after the answer: the client does not use the stream again.
        [good.clone(), good.clone()].concat(),
        good,
    ];
    let answering = tokio::spawn(answer_with(listener, answers));
    let kv = client.client::<u32, u32, ()>("kv");
    let CallError::Reset(reset) = kv.call(1).await.unwrap_err() else { panic!("it is no answer") };
    assert!(reset.to_string().contains("no answer of a service of calls"), "{reset}");
    assert!(matches!(kv.call(1).await, Err(CallError::TooLarge { what: "response", .. })));
    for _ in 0..2 {
        assert!(matches!(kv.call(1).await, Err(CallError::Reset(_))));
    }
    assert!(matches!(kv.call(1).await, Err(CallError::Decode { what: "response" })));
    assert!(matches!(kv.call(1).await, Err(CallError::Decode { what: "error" })));
    for _ in 0..2 {
        assert_eq!(kv.call(1).await.unwrap(), 3);
    }
    answering.await.unwrap();
}

#[tokio::test]
async fn a_busy_service_is_passed_over() {
    let builder = Node::builder().cluster(format!("busy-{}", std::process::id()));
    let [busy, free, client] = [(); 3].map(|()| builder.clone().connect_timeout(Duration::ZERO));
    let (busy, client) = (busy.start().await.unwrap(), client.start().await.unwrap());
    let listener = busy.offer(Kind::Calls.service("kv").unwrap()).unwrap();
    let head = AnswerHeader { status: Status::Busy, length: 0, limit: 0 }.emit().to_vec();
    let _answering = tokio::spawn(answer_with(listener, vec![head; 1_000]));
    let kv = client.client::<u32, u32, ()>("kv");
    let error = loop {
        match kv.call(1).await.unwrap_err() {
            // The client has not found the service yet.
            CallError::Node(_) => tokio::task::yield_now().await,
            error => break error,
        }
    };
    assert!(matches!(error, CallError::Busy) && error.is_undelivered());
    let free = free.start().await.unwrap();
    let (_serving, ..) = serve(&free);
    while client.peers().iter().filter(|peer| !peer.services.is_empty()).count() < 2 {
        let _ = kv.call(5).await;
        tokio::task::yield_now().await;
    }
    for _ in 0..20 {
        assert_eq!(kv.call(5).await.unwrap(), 5);
    }
}

#[tokio::test]
async fn a_service_that_panics_loses_that_call_alone() {
    let (service, client) = two("panics").await;
    let service_of = service_fn(|number: u32| async move {
        assert_ne!(number, 13, "a bug of the service");
        Ok::<_, ()>(number)
    });
    let _serving = service.serve("kv", service_of).unwrap();
    let kv = client.client::<u32, u32, ()>("kv");
    for number in 10..16 {
        match kv.call(number).await {
            Ok(answer) => assert_eq!(answer, number),
            Err(CallError::Reset(_)) => assert_eq!(number, 13),
            Err(other) => panic!("{other:?}"),
        }
    }
}

/// Regression: each client left a task for up to 15 s after it was dropped.
#[tokio::test]
async fn a_client_that_is_dropped_leaves_no_task() {
    let (service, client) = two("dropped-clients").await;
    let (_serving, ..) = serve(&service);
    assert_eq!(client.client::<u32, u32, ()>("kv").call(1).await.unwrap(), 1);
    let tasks = tokio::runtime::Handle::current().metrics();
    let before = tasks.num_alive_tasks();
    for number in 1..=1_000 {
        assert_eq!(client.client::<u32, u32, ()>("kv").call(number).await.unwrap(), number);
    }
    let ended = async {
        while tasks.num_alive_tasks() > before {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(5), ended).await.expect("their tasks have ended");
}

/// Serves `kv` on a simulated host: answers each request with its bytes, one call at a time.
#[cfg(feature = "sim")]
async fn echo(node: Node) -> crate::sim::Result {
    let echo = service_fn(|bytes: Vec<u8>| async move { Ok::<_, ()>(bytes) });
    let _serving = node.serve_with("kv", echo, Limits::default().concurrency(1))?;
    std::future::pending().await
}

/// Regression: a call ended before its answer was taken, so that the number of answers in memory was that of the
/// streams.
#[cfg(feature = "sim")]
#[test]
fn unread_answers_count_as_calls() {
    let mut sim = crate::Sim::builder().build();
    sim.host("service", echo);
    sim.client(|node| async move {
        // More than a stream's window.
        let long = framed(encode_value(&vec![7_u8; 900_000])?, None);
        let mut alone = stream(&node).await;
        alone.write_all(&long).await?;
        crate::time::sleep(Duration::from_secs(10)).await;
        assert_eq!(answer(&mut alone).await?.0, Status::Response, "no call waited");
        let mut unread = stream(&node).await;
        unread.write_all(&long).await?;
        crate::time::sleep(Duration::from_secs(1)).await;
        let (start, kv) = (Instant::now(), node.client::<Vec<u8>, Vec<u8>, ()>("kv"));
        assert_eq!(kv.call(vec![5]).await.unwrap(), [5]);
        let waited = start.elapsed();
        assert!(
            waited > Duration::from_millis(500) && waited < Duration::from_secs(3),
            "{waited:?}"
        );
        assert!(answer(&mut unread).await.is_err(), "another call waited");
        Ok(())
    });
    sim.run().unwrap();
}

/// Regression: if a service had one place for long requests, a slow one counted its own as a sign that others waited.
#[cfg(feature = "sim")]
#[test]
fn a_slow_request_alone_is_not_busy() {
    let mut sim = crate::Sim::builder().build();
    sim.host("service", echo);
    sim.client(|node| async move {
        let bytes = framed(encode_value(&vec![7_u8; 200_000])?, None);
        let (first, rest) = bytes.split_at(100_000);
        let mut stream = stream(&node).await;
        stream.write_all(first).await?;
        crate::time::sleep(Duration::from_secs(5)).await;
        stream.write_all(rest).await?;
        let (status, body) = answer(&mut stream).await?;
        assert_eq!((status, body.len()), (Status::Response, 200_008));
        Ok(())
    });
    sim.run().unwrap();
}
