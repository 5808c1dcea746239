//! Tests messages over each transport: order, back-pressure, cancellation, and receivers that restart.

use std::task::{Context as Task, Poll, Waker};
use std::time::Duration;

use midplane::message::MAX_MESSAGE;
use midplane::{ErrorKind, Node, NodeBuilder};

use crate::node::{Over, nodes, over_each};

/// Returns a message of at least 8 bytes, which contains its number and its length.
fn message(number: u32, length: usize) -> Vec<u8> {
    let mut bytes = [number.to_le_bytes(), (length as u32).to_le_bytes()].concat();
    bytes.resize(length.max(8), number as u8);
    bytes
}

/// Checks that a message is complete; returns its number.
#[track_caller]
fn number(bytes: &[u8]) -> u32 {
    let [number, length] =
        [0, 4].map(|at| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()));
    assert!(bytes == message(number, length as usize), "{} of {length} bytes", bytes.len());
    number
}

async fn receiver(builder: &NodeBuilder) -> Node {
    loop {
        // A node's address is free once the node's driver has notified its peers of the end.
        match builder.clone().name("receiver").start().await {
            Ok(node) => return node,
            Err(error) => assert_eq!(error.kind(), ErrorKind::InUse),
        }
        tokio::task::yield_now().await;
    }
}

over_each! {
    async fn messages_arrive_once_in_the_order_of_each_sender(over) {
        const EACH: u32 = 300;
        let (service, client) = nodes("order", over);
        let receiver = receiver(&service).await;
        let mut senders = Vec::new();
        for name in ["a", "b", "c"] {
            let node = client.clone().name(name).start().await.unwrap();
            senders.push(tokio::spawn(async move {
                for number in 0..EACH {
                    let length = [8, 100, 5_000, 70_000][number as usize % 4];
                    node.send("receiver", message(number, length)).await.unwrap();
                }
                node.send("receiver", vec![0; MAX_MESSAGE]).await.unwrap();
                // Shutdown waits until the messages have arrived.
                node.shutdown().await;
            }));
        }
        let mut next = std::collections::BTreeMap::new();
        for _ in 0..3 * (EACH + 1) {
            let (from, bytes) = receiver.receive().await.unwrap();
            let next = next.entry(from.name).or_insert(0);
            if *next == EACH {
                assert_eq!(bytes.len(), MAX_MESSAGE);
            } else {
                assert_eq!(number(&bytes), *next);
            }
            *next += 1;
        }
        assert_eq!(next.into_iter().collect::<Vec<_>>(), ["a", "b", "c"].map(|name| (name.into(), EACH + 1)));
        for sender in senders {
            sender.await.unwrap();
        }
    }

    async fn a_sender_waits_while_its_receiver_does_not_receive(over) {
        let (service, client) = nodes("pressure", over);
        let receiver = receiver(&service).await;
        let client = client.start().await.unwrap();
        let (first, _) = tokio::join!(receiver.receive(), client.send("receiver", message(0, 10)));
        assert_eq!(number(&first.unwrap().1), 0);
        let mut sent = 1;
        loop {
            let sending = client.send("receiver", message(sent, 100_000));
            // Only a receive ends this wait.
            let Ok(done) = tokio::time::timeout(Duration::from_secs(2), sending).await else { break };
            done.unwrap();
            sent += 1;
            assert!(sent < 300, "a sender that is not received from has sent 30 MB");
        }
        assert!(sent > 2, "a sender waits before its receiver's buffer is full");
        for expected in 1..sent {
            assert_eq!(number(&receiver.receive().await.unwrap().1), expected);
        }
        // Whether the dropped send has sent its message or not, the next ones arrive whole and in order.
        let (done, ()) = tokio::join!(client.send("receiver", message(1_000, 10)), async {
            let next = number(&receiver.receive().await.unwrap().1);
            if next == sent {
                assert_eq!(number(&receiver.receive().await.unwrap().1), 1_000);
            } else {
                assert_eq!(next, 1_000);
            }
        });
        done.unwrap();
    }

    async fn a_send_that_is_dropped_at_any_poll_has_sent_a_whole_message_or_none(over) {
        let (service, client) = nodes("whole", over);
        let receiver = receiver(&service).await;
        let client = client.start().await.unwrap();
        let dropped = tokio::spawn(async move {
            for number in 0..40 {
                let mut send = Box::pin(client.send("receiver", message(number, 900_000)));
                for _ in 0..number {
                    if send.as_mut().poll(&mut Task::from_waker(Waker::noop())).is_ready() {
                        break;
                    }
                    tokio::task::yield_now().await;
                }
                drop(send);
            }
            client.send("receiver", message(99, 10)).await.unwrap();
            client
        });
        let mut last = None;
        loop {
            let number = number(&receiver.receive().await.unwrap().1);
            assert!(last.is_none_or(|last| last < number), "{last:?} before {number}");
            last = Some(number);
            if number == 99 {
                break;
            }
        }
        dropped.await.unwrap();
    }

    async fn a_receive_that_is_dropped_at_any_poll_takes_no_message(over) {
        const COUNT: u32 = 200;
        let (service, client) = nodes("taken", over);
        let receiver = receiver(&service).await;
        let client = client.start().await.unwrap();
        let sends = tokio::spawn(async move {
            for number in 0..COUNT {
                client.send("receiver", message(number, 100)).await.unwrap();
            }
            client
        });
        for expected in 0..COUNT {
            let mut received = None;
            for _ in 0..expected % 4 {
                let mut receive = Box::pin(receiver.receive());
                for _ in 0..expected % 5 {
                    let polled = receive.as_mut().poll(&mut Task::from_waker(Waker::noop()));
                    if let Poll::Ready(message) = polled {
                        received = Some(message);
                        break;
                    }
                    tokio::task::yield_now().await;
                }
                drop(receive);
                if received.is_some() {
                    break;
                }
            }
            let received = match received {
                Some(received) => received,
                None => receiver.receive().await,
            };
            assert_eq!(number(&received.unwrap().1), expected);
        }
        sends.await.unwrap();
    }

    async fn a_restart_of_the_receiver_is_an_error_of_the_next_send(over) {
        let (service, client) = nodes("again", over);
        let first = receiver(&service).await;
        let client = client.name("client").start().await.unwrap();
        let (received, sent) = tokio::join!(first.receive(), client.send("receiver", "one"));
        sent.unwrap();
        let (peer, bytes) = received.unwrap();
        assert_eq!((peer.name.as_str(), &bytes[..]), ("client", &b"one"[..]));
        // Answers the node that has sent, by its identity.
        let (answer, sent) = tokio::join!(client.receive(), first.send(&peer, "answer"));
        sent.unwrap();
        let (first_name, bytes) = answer.unwrap();
        assert_eq!(bytes, "answer");
        drop(first);
        let second = receiver(&service).await;
        let received = tokio::spawn(async move { (second.receive().await.unwrap(), second) });
        // The client is notified of the first receiver's end before this send, or by it.
        let error = loop {
            if let Err(error) = client.send("receiver", "lost").await {
                break error;
            }
            tokio::task::yield_now().await;
        };
        assert_eq!(error.kind(), ErrorKind::Reset, "{error}");
        client.send("receiver", "two").await.unwrap();
        let ((_, bytes), _second) = received.await.unwrap();
        assert_eq!(bytes, "two");
        // The first receiver never returns.
        for _ in 0..2 {
            let error = client.send(&first_name, "three").await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Reset);
        }
    }

    async fn a_receiver_that_shuts_down_waits_neither_for_an_idle_sender_nor_for_one_that_waits(over) {
        let (service, client) = nodes("leaves", over);
        let receiver = receiver(&service).await;
        let idle = client.clone().start().await.unwrap();
        let (first, sent) = tokio::join!(receiver.receive(), idle.send("receiver", message(0, 10)));
        sent.unwrap();
        assert_eq!(number(&first.unwrap().1), 0);
        let sender = client.start().await.unwrap();
        let sending = tokio::spawn(async move {
            loop {
                if let Err(error) = sender.send("receiver", message(1, 500_000)).await {
                    return error;
                }
            }
        });
        assert_eq!(number(&receiver.receive().await.unwrap().1), 1);
        // The sender now waits, because no message is received any longer.
        tokio::time::sleep(Duration::from_millis(200)).await;
        let within = midplane::DEFAULT_DRAIN / 2;
        tokio::time::timeout(within, receiver.shutdown()).await.expect("it waits for no sender");
        assert_eq!(sending.await.unwrap().kind(), ErrorKind::Reset);
    }

    async fn messages_that_can_not_be_sent_are_errors_that_say_why(over) {
        let (service, client) = nodes("refused", over);
        let receiver = receiver(&service).await;
        let client = client.connect_timeout(Duration::ZERO).start().await.unwrap();
        let error = client.send("receiver", vec![0; MAX_MESSAGE + 1]).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TooLarge);
        let error = client.send("nobody", "hello").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NoService);
        let text = error.to_string();
        assert!(text.starts_with("no node is called \"nobody\"; asked "), "{text}");
        assert!(!text.contains("\"messages\""), "{text}");
        // The receiver has never called `receive`.
        let error = client.send("receiver", "hello").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NoService);
        let receiving = tokio::spawn({ let receiver = receiver.clone(); async move { receiver.receive().await } });
        tokio::task::yield_now().await;
        receiver.shutdown().await;
        assert_eq!(receiving.await.unwrap().unwrap_err().kind(), ErrorKind::Closed);
    }
}

/// Regression: a task that retried a send to a node that had ended kept all others from running.
#[tokio::test]
async fn sends_that_fail_in_a_loop_let_other_tasks_run() {
    let (service, client) = nodes("loop", Over::Shm);
    let receiver = receiver(&service).await;
    let client = client.name("client").start().await.unwrap();
    let (received, sent) = tokio::join!(client.receive(), receiver.send("client", "hello"));
    sent.unwrap();
    let (peer, _) = received.unwrap();
    receiver.shutdown().await;
    // While the session with the node that has ended is still open, the first message to it fails with `NoService`.
    while client.send(&peer, "lost").await.map_err(|error| error.kind()) != Err(ErrorKind::Reset) {}
    let other = tokio::spawn(async {
        for _ in 0..5 {
            tokio::task::yield_now().await;
        }
    });
    for _ in 0..1_000 {
        assert_eq!(client.send(&peer, "lost").await.unwrap_err().kind(), ErrorKind::Reset);
    }
    assert!(other.is_finished());
}

/// Regression: a send whose future was dropped while it reported a loss made the next one succeed.
#[tokio::test]
async fn a_send_that_is_dropped_leaves_the_loss_to_the_next_one() {
    let (service, client) = nodes("dropped", Over::Shm);
    let first = receiver(&service).await;
    let client = client.start().await.unwrap();
    let (received, sent) = tokio::join!(first.receive(), client.send("receiver", "hello"));
    sent.and(received).unwrap();
    first.shutdown().await;
    let is_reported = {
        let mut sending = std::pin::pin!(client.send("receiver", "lost"));
        let polled = sending.as_mut().poll(&mut Task::from_waker(Waker::noop()));
        matches!(polled, Poll::Ready(Err(_)))
    };
    let second = receiver(&service).await;
    let (received, sent) = tokio::join!(
        tokio::time::timeout(Duration::from_secs(1), second.receive()),
        client.send("receiver", "again")
    );
    assert!(
        is_reported || sent.is_err_and(|error| error.kind() == ErrorKind::Reset),
        "{received:?}"
    );
}

/// A program may use a node in runtimes that end sooner than the one in which it was started.
#[test]
fn a_node_receives_after_the_runtime_of_its_first_receiver_has_ended() {
    let runtime = || tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let main = runtime();
    let (receiver, sender) = main.block_on(async {
        let (service, client) = nodes("runtimes", Over::Udp);
        (receiver(&service).await, client.name("sender").start().await.unwrap())
    });
    let brief = runtime();
    let wait = async { tokio::time::timeout(Duration::from_millis(1), receiver.receive()).await };
    assert!(brief.block_on(wait).is_err());
    drop(brief);
    let (_, bytes) = main.block_on(async {
        sender.send("receiver", message(1, 9)).await.unwrap();
        receiver.receive().await.unwrap()
    });
    assert_eq!(number(&bytes), 1);
}

/// Regression: the rest of a message that had begun was dropped with the caller's runtime, and later ones were lost.
#[test]
fn a_message_that_has_begun_arrives_after_the_runtime_of_its_sender_has_ended() {
    let main =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    for over in [Over::Shm, Over::Udp, Over::Tcp] {
        let (receiver, sender) = main.block_on(async {
            let (service, client) = nodes("brief", over);
            let receiver = receiver(&service).await;
            let sender = client.name("sender").start().await.unwrap();
            let (first, sent) =
                tokio::join!(receiver.receive(), sender.send("receiver", message(0, 10)));
            sent.unwrap();
            assert_eq!(number(&first.unwrap().1), 0);
            (receiver, sender)
        });
        let brief = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let begun = brief.block_on(async {
            for number in 1..40 {
                let sending = sender.send("receiver", message(number, MAX_MESSAGE));
                // The receiver holds one message, and the stream a part of the others.
                let Ok(sent) = tokio::time::timeout(Duration::from_secs(2), sending).await else {
                    return number;
                };
                sent.unwrap();
            }
            panic!("a sender that is not received from has sent 39 MiB");
        });
        drop(brief);
        main.block_on(async {
            let last = sender.send("receiver", message(begun + 1, 10));
            let receive = async {
                for expected in 1..=begun + 1 {
                    assert_eq!(number(&receiver.receive().await.unwrap().1), expected);
                }
            };
            let both = async { tokio::join!(last, receive).0.unwrap() };
            tokio::time::timeout(Duration::from_secs(20), both).await.expect("all arrive");
        });
    }
}
