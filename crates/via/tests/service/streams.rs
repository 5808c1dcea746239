//! Streams of bytes, as tokio knows them.

use super::*;

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
