//! Streams that move to connections of their own, over real sockets.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use midplane_simhw::rng::Rng;
use midplane_simhw::seal::Key;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, yield_now};

use crate::session::{Ended, Handler, Refusal, Session, Sessions, Stream};
use crate::wire::pipe::{Config, Pipe};
use crate::wire::socket::Socket;
use crate::wire::tcp;

/// Bytes that move a stream.
const LONG: usize = 8 << 20;

/// Accepts all sessions and streams.
#[derive(Clone, Default)]
struct Acceptor(Arc<Mutex<Vec<Stream>>>);

impl Handler for Acceptor {
    fn on_accepted(&mut self, session: &Arc<Session>) {
        session.send_hello(Vec::new());
    }

    fn on_stream(&mut self, _: &Arc<Session>, _: &str, stream: Stream) -> Result<(), Refusal> {
        self.0.lock().unwrap().push(stream);
        Ok(())
    }

    fn on_hello(&mut self, _: &Arc<Session>, _: &[u8]) {}
    fn on_goodbye(&mut self, _: &Arc<Session>) {}
    fn on_ended(&mut self, _: &Arc<Session>, _: Ended) {}
}

/// A process: its sessions over UDP and TCP, or over TCP alone, and the streams that it has received.
struct Process {
    sessions: Sessions,
    received: Acceptor,
    at: SocketAddr,
    tasks: Vec<JoinHandle<()>>,
}

impl Process {
    async fn start(has_udp: bool, config: tcp::Config, key: Option<Key>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at = listener.local_addr().unwrap();
        let udp = has_udp.then(|| (Socket::bind(at).unwrap(), Config::default().key(key)));
        let (sessions, driver) = Sessions::new(udp, Some(config)).unwrap();
        let received = Acceptor::default();
        let driving = tokio::spawn(driver.run(received.clone()));
        let own = sessions.clone();
        let accepting = tokio::spawn(async move {
            loop {
                let (stream, peer) = listener.accept().await.unwrap();
                if let Ok(Some(session)) = own.accept_tcp(stream, peer).await {
                    session.send_hello(Vec::new());
                }
            }
        });
        Self { sessions, received, at, tasks: vec![driving, accepting] }
    }

    /// Opens a stream to a peer; returns both ends.
    async fn connect(&self, peer: &Self) -> [Stream; 2] {
        let session = self.sessions.dial(peer.at).unwrap();
        session.send_hello(Vec::new());
        let stream = open(&session).await;
        stream.accepted().await.unwrap();
        let other = peer.received.0.lock().unwrap().pop().unwrap();
        [stream, other]
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

async fn open(session: &Arc<Session>) -> Stream {
    loop {
        if let Ok(stream) = session.open("service") {
            return stream;
        }
        yield_now().await;
    }
}

fn run(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.unwrap().block_on(test);
}

/// Runs a test whose drivers and connections are tasks of other threads.
fn run_in_parallel(test: impl Future<Output = ()>) {
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    runtime.worker_threads(2).enable_all().build().unwrap().block_on(test);
}

fn moving() -> tcp::Config {
    tcp::Config::default().own_connections()
}

async fn pair(has_udp: bool) -> ([Process; 2], [Stream; 2]) {
    let processes = [
        Process::start(has_udp, moving(), None).await,
        Process::start(has_udp, moving(), None).await,
    ];
    let streams = processes[0].connect(&processes[1]).await;
    (processes, streams)
}

fn pattern(bytes: usize, seed: u64) -> Vec<u8> {
    let mut rng = Rng::new(seed, "pattern");
    (0..bytes).map(|_| rng.below(256) as u8).collect()
}

/// Writes `bytes`, in writes of random lengths, and ends the direction.
async fn send(stream: &mut (impl AsyncWriteExt + Unpin), bytes: &[u8], seed: u64) {
    let (mut rest, mut rng) = (bytes, Rng::new(seed, "writes"));
    while !rest.is_empty() {
        let most = 1 + rng.below(300_000) as usize;
        let (now, later) = rest.split_at(rest.len().min(most));
        stream.write_all(now).await.unwrap();
        rest = later;
        if rng.below(4) == 0 {
            yield_now().await;
        }
    }
    stream.shutdown().await.unwrap();
}

async fn receive(stream: &mut (impl AsyncReadExt + Unpin)) -> Vec<u8> {
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).await.unwrap();
    bytes
}

fn moved(stream: &Stream) -> u64 {
    stream.session().stats().moved
}

#[test]
fn long_bytes_of_both_directions_arrive_whole_over_own_connections() {
    for (has_udp, seed) in [(true, 1), (true, 2), (false, 3), (false, 4), (true, 5), (false, 6)] {
        let test = async {
            let (_processes, streams) = pair(has_udp).await;
            let [there, back] = [pattern(LONG, seed), pattern(LONG / 3, seed + 10)];
            let sessions = streams.each_ref().map(|stream| Arc::clone(stream.session()));
            let [one, other] = streams.map(tokio::io::split);
            let ((mut one_read, mut one_write), (mut other_read, mut other_write)) = (one, other);
            let (_, _, received, returned) = tokio::join!(
                send(&mut one_write, &there, seed),
                send(&mut other_write, &back, seed),
                receive(&mut other_read),
                receive(&mut one_read),
            );
            assert!(received == there && returned == back);
            for session in sessions {
                assert_eq!(session.stats().moved, 1);
                let all = (there.len() + back.len()) as u64;
                assert_eq!(session.stats().bytes_sent + session.stats().bytes_received, all);
            }
        };
        if seed > 4 { run_in_parallel(test) } else { run(test) }
    }
}

/// Regressions: bytes of the session that had arrived between two looks were read after those of the own connection,
/// or not at all.
#[test]
fn short_writes_around_the_move_arrive_in_order_while_other_threads_drive() {
    for seed in 0..40 {
        run_in_parallel(async {
            let (_processes, [mut one, mut other]) = pair(seed % 2 == 0).await;
            let bytes = pattern(2 << 20, seed);
            let writing = async {
                for piece in bytes.chunks(1 + 3_000 * (1 + seed as usize % 7)) {
                    one.write_all(piece).await.unwrap();
                }
                one.shutdown().await.unwrap();
            };
            let (_, received) = tokio::join!(writing, receive(&mut other));
            assert!(received == bytes, "seed {seed}");
        });
    }
}

#[test]
fn a_server_s_answers_move_the_stream_that_its_client_has_opened() {
    run(async {
        let (_processes, [mut client, mut server]) = pair(true).await;
        let body = pattern(LONG, 1);
        for _ in 0..3 {
            let mut request = [0; 3];
            let mut answer = vec![0; body.len()];
            let serving = async {
                server.read_exact(&mut request).await.unwrap();
                server.write_all(&body).await.unwrap();
            };
            let asking = async {
                client.write_all(b"get").await.unwrap();
                client.read_exact(&mut answer).await.unwrap();
            };
            tokio::join!(serving, asking);
            assert!(request == *b"get" && answer == body);
        }
        assert_eq!([moved(&client), moved(&server)], [1, 1]);
    });
}

/// Moves a stream by bytes of its first end.
async fn move_by_writes([one, other]: &mut [Stream; 2]) {
    let bytes = pattern(LONG, 1);
    let mut into = vec![0; bytes.len()];
    let (written, read) = tokio::join!(one.write_all(&bytes), other.read_exact(&mut into));
    written.unwrap();
    read.unwrap();
    assert_eq!([moved(one), moved(other)], [1, 1]);
}

#[test]
fn a_stream_that_is_dropped_after_its_last_write_loses_no_bytes() {
    run(async {
        for is_read in [false, true] {
            let (_processes, mut streams) = pair(true).await;
            move_by_writes(&mut streams).await;
            let [mut one, mut other] = streams;
            other.write_all(b"an answer").await.unwrap();
            if is_read {
                one.read_exact(&mut [0; 9]).await.unwrap();
            }
            // As much as the system's buffers hold, so that the write ends before the peer reads.
            let last = pattern(100_000, 2);
            one.write_all(&last).await.unwrap();
            drop(one);
            assert!(receive(&mut other).await == last);
            while other.write_all(b"more").await.is_ok() {
                yield_now().await;
            }
        }
    });
}

#[test]
fn the_clean_end_of_a_stream_whose_process_ends_comes_after_all_bytes() {
    run(async {
        let (processes, mut streams) = pair(true).await;
        move_by_writes(&mut streams).await;
        let [mut one, mut other] = streams;
        one.write_all(&[7; 1_000]).await.unwrap();
        processes[0].sessions.close();
        drop(one);
        let mut bytes = Vec::new();
        let error = loop {
            let mut buffer = [0; 300];
            match other.read(&mut buffer).await {
                Ok(0) => break None,
                Ok(count) => bytes.extend_from_slice(&buffer[..count]),
                Err(error) => break Some(error.kind()),
            }
        };
        // The stream was dropped before the session ended: the end may have been sent.
        assert!(error.is_none_or(|kind| kind == std::io::ErrorKind::ConnectionReset));
        assert!(error.is_some() || bytes == [7; 1_000]);
    });
}

#[test]
fn an_end_without_the_sender_s_word_is_an_error() {
    run(async {
        let (processes, mut streams) = pair(true).await;
        move_by_writes(&mut streams).await;
        let [one, mut other] = streams;
        // The session ends first, so that the stream's end is not sent.
        one.session().end();
        drop(one);
        let error = other.read(&mut [0; 10]).await.unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
        drop(processes);
    });
}

#[test]
fn a_reset_reaches_both_directions_of_a_stream_that_has_moved() {
    run(async {
        let (_processes, mut streams) = pair(true).await;
        move_by_writes(&mut streams).await;
        let [one, other] = streams;
        one.reset();
        let (mut reader, mut writer) = tokio::io::split(other);
        let error = reader.read(&mut [0; 10]).await.unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
        assert!(writer.write(b"more").await.is_err());
    });
}

#[test]
fn a_writer_that_waits_learns_that_its_reader_is_gone() {
    run(async {
        let (_processes, mut streams) = pair(true).await;
        move_by_writes(&mut streams).await;
        let [mut one, other] = streams;
        let writing = tokio::spawn(async move {
            loop {
                if let Err(error) = one.write_all(&[0; 1 << 20]).await {
                    return error.kind();
                }
            }
        });
        for _ in 0..100 {
            yield_now().await;
        }
        drop(other);
        assert_eq!(writing.await.unwrap(), std::io::ErrorKind::BrokenPipe);
    });
}

#[test]
fn streams_stay_where_one_end_has_a_key_or_refuses_own_connections() {
    let key = || Some(Key::new(1, [3; 32]));
    let sealed = || moving().key(key());
    let cases = [
        ([moving(), tcp::Config::default()], None),
        ([tcp::Config::default(), moving()], None),
        ([sealed(), sealed()], key()),
    ];
    for ([dialer, acceptor], key) in cases {
        run(async {
            let dialer = Process::start(true, dialer, key.clone()).await;
            let acceptor = Process::start(true, acceptor, key).await;
            let [mut one, mut other] = dialer.connect(&acceptor).await;
            let bytes = pattern(LONG, 5);
            let (_, received) = tokio::join!(send(&mut one, &bytes, 5), receive(&mut other));
            assert!(received == bytes);
            assert_eq!([moved(&one), moved(&other)], [0, 0]);
        });
    }
}

#[test]
fn strangers_connections_for_streams_are_refused() {
    run(async {
        let (processes, mut streams) = pair(true).await;
        move_by_writes(&mut streams).await;
        let at = processes[1].at;
        for bytes in [[0; 24], [0xff; 24]] {
            let mut stranger = TcpStream::connect(at).await.unwrap();
            stranger.write_all(b"midplane\x03\0\0\0\0\0\0\0").await.unwrap();
            stranger.write_all(&bytes[..16]).await.unwrap();
            let mut answer = Vec::new();
            stranger.read_to_end(&mut answer).await.unwrap();
            assert_eq!(answer, b"midplane\x03\x04\0\0\0\0\0\0");
        }
        let [one, _other] = streams;
        // A second connection for a stream that has one.
        let session = one.session().over_pipe(Pipe::remote).unwrap();
        let refused = tcp::join(at, tcp::Joining { session, stream: 2 }).await;
        assert!(matches!(refused, Err(tcp::Failed::Refused(4))), "{refused:?}");
    });
}
