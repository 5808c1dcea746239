use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::runtime::Builder;
use tokio::time::{sleep, timeout};

use super::*;

/// Runs a test over two connected streams of libfabric's tcp provider, if it is installed.
fn over_tcp(test: impl AsyncFn([Stream; 2])) {
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let choice: Choice = "tcp".parse().unwrap();
        let ends = match [Streams::open(&choice), Streams::open(&choice)] {
            [Ok(first), Ok(second)] => [first, second],
            [Err(error), _] | [_, Err(error)] => {
                assert!(std::env::var_os("MIDPLANE_LIBFABRIC_TESTS").is_none(), "{error}");
                return eprintln!("skipped: {error}");
            }
        };
        let streams = [ends[0].connect(ends[1].name()).unwrap(), ends[1].accept().await.unwrap()];
        timeout(Duration::from_secs(30), test(streams)).await.expect("it hangs");
    });
}

fn heard_at(stream: &Stream) -> Instant {
    stream.shared.with(|state| state.connections[&stream.id].heard_at)
}

/// Makes a stream's end believe that the peer has been silent for some time.
fn age(stream: &Stream, by: Duration) -> Instant {
    stream.shared.with(|state| {
        let heard_at = &mut state.connections.get_mut(&stream.id).unwrap().heard_at;
        *heard_at -= by;
        *heard_at
    })
}

#[test]
fn an_end_that_is_dropped_answers_until_its_last_frames_have_arrived() {
    over_tcp(async |[mut first, mut second]| {
        first.write_all(b"last").await.unwrap();
        for stream in [&mut first, &mut second] {
            stream.shutdown().await.unwrap();
        }
        for (stream, bytes) in [(&mut first, &b""[..]), (&mut second, b"last")] {
            let mut received = Vec::new();
            stream.read_to_end(&mut received).await.unwrap();
            assert_eq!(received, bytes);
        }
        drop(first);
        let aged = age(&second, ASK);
        while heard_at(&second) == aged {
            sleep(PERIOD / 5).await;
        }
    });
}

#[test]
fn the_shutdown_of_a_failed_stream_is_an_error_unless_its_end_was_sent() {
    over_tcp(async |[mut first, mut second]| {
        second.shutdown().await.unwrap();
        for stream in [&first, &second] {
            stream.shared.with(|state| state.on_lost(None));
        }
        let error = first.shutdown().await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
        second.shutdown().await.unwrap();
    });
}

#[test]
fn a_read_into_no_space_returns_at_once() {
    over_tcp(async |[mut first, _second]| assert_eq!(first.read(&mut []).await.unwrap(), 0));
}

#[test]
fn a_pause_of_this_process_is_no_silence_of_its_peers() {
    over_tcp(async |[mut first, mut second]| {
        first.write_all(b"before").await.unwrap();
        let mut received = [0; 6];
        second.read_exact(&mut received).await.unwrap();
        for stream in [&first, &second] {
            age(stream, SILENCE * 2);
            stream.shared.with(|state| state.ticked_at -= SILENCE * 2);
        }
        sleep(PERIOD * 2).await;
        second.write_all(b"behind").await.unwrap();
        first.read_exact(&mut received).await.unwrap();
        assert_eq!(&received, b"behind");
    });
}
