//! Two endpoints over loopback, with tokio's sockets.

use std::future::{Future, poll_fn};
use std::io::IoSlice;
use std::pin::pin;
use std::sync::Mutex;
use std::task::Poll;
use std::time::Duration;

use futures_util::future::{Either, select};
use midplane_simhw::seal::Key;
use midplane_via::wire::endpoint::{Endpoint, Event, PipeId};
use midplane_via::wire::pipe::{Config, Ended};
use midplane_via::wire::socket::Socket;

/// Polls until `step` returns something; `step` is called after each turn.
async fn drive<T>(
    socket: &mut Socket,
    endpoint: &mut Mutex<Endpoint>,
    mut step: impl FnMut(&mut Endpoint, Option<Event>) -> Option<T>,
) -> T {
    let mut done = None;
    poll_fn(|context| {
        loop {
            if done.is_none() {
                done = step(endpoint.get_mut().unwrap(), None);
            }
            let held = endpoint.get_mut().unwrap();
            while let Some(event) = held.poll_event() {
                done = done.take().or_else(|| step(held, Some(event)));
            }
            let polled =
                socket.poll(context, endpoint).map(|result| result.expect("a live socket"));
            if let Some(done) = done.take() {
                return Poll::Ready(done);
            }
            if polled.is_pending() {
                return Poll::Pending;
            }
        }
    })
    .await
}

fn node(key: Option<&Key>) -> (Socket, Mutex<Endpoint>) {
    node_at("127.0.0.1:0", key)
}

fn node_at(address: &str, key: Option<&Key>) -> (Socket, Mutex<Endpoint>) {
    let socket = Socket::bind(address.parse().unwrap()).unwrap();
    let config = Config::default().socket_bytes(socket.receive_bytes()).key(key.cloned());
    let seed = socket.local_addr().unwrap().port();
    (socket, Mutex::new(Endpoint::new(config, seed.into())))
}

async fn send(socket: &mut Socket, endpoint: &mut Mutex<Endpoint>, id: PipeId, total: u64) {
    let block = vec![0x5a; 64 << 10];
    let mut left = total;
    drive(socket, endpoint, |endpoint, event| {
        if let Some(Event::Ended(_, end)) = event {
            panic!("the pipe was not closed: {end}");
        }
        let pipe = endpoint.pipe(id).unwrap();
        while left > 0 && pipe.room() > 0 {
            let most = left.min(block.len() as u64) as usize;
            left -= pipe.write(&[IoSlice::new(&block[..most])]) as u64;
        }
        (left == 0 && pipe.is_flushed()).then_some(())
    })
    .await;
    println!("{:?}", endpoint.get_mut().unwrap().peek(id).unwrap().stats());
    let now = socket.now();
    endpoint.get_mut().unwrap().pipe(id).unwrap().close(now);
    drive(socket, endpoint, |_, event| matches!(event, Some(Event::Ended(..))).then_some(())).await;
}

async fn receive(socket: &mut Socket, endpoint: &mut Mutex<Endpoint>) -> u64 {
    let mut total = 0;
    drive(socket, endpoint, |endpoint, event| {
        if let Some(Event::Progress(id) | Event::Accepted(id, _)) = event {
            let pipe = endpoint.pipe(id).unwrap();
            while !pipe.readable().is_empty() {
                let bytes = pipe.readable().len();
                assert!(pipe.readable().iter().all(|byte| *byte == 0x5a));
                pipe.consume(bytes);
                total += bytes as u64;
            }
        }
        matches!(event, Some(Event::Ended(..))).then_some(total)
    })
    .await
}

/// Sends a byte, and waits until it is acknowledged.
async fn send_byte(socket: &mut Socket, endpoint: &mut Mutex<Endpoint>, id: PipeId) {
    let mut is_written = false;
    drive(socket, endpoint, |endpoint, _| {
        let pipe = endpoint.pipe(id).unwrap();
        is_written = is_written || pipe.write(&[IoSlice::new(&[0x5a])]) == 1;
        (is_written && pipe.is_flushed()).then_some(())
    })
    .await;
}

/// Runs `work` while a peer lives.
async fn beside<T>(peer: &mut (Socket, Mutex<Endpoint>), work: impl Future<Output = T>) -> T {
    let lives = drive(&mut peer.0, &mut peer.1, |_, _| None::<()>);
    match select(pin!(work), pin!(lives)).await {
        Either::Left((done, _)) => done,
        Either::Right(_) => unreachable!("a peer returns nothing"),
    }
}

fn moves_all(key: Option<&Key>, total: u64) {
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (address, bound) = std::sync::mpsc::channel();
    #[expect(clippy::disallowed_methods, reason = "it is printed")]
    let begun = std::time::Instant::now();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            runtime().block_on(async {
                let (mut socket, mut endpoint) = node(key);
                address.send(socket.local_addr().unwrap()).unwrap();
                assert_eq!(receive(&mut socket, &mut endpoint).await, total);
            });
        });
        let listens = bound.recv().unwrap();
        scope.spawn(move || {
            runtime().block_on(async {
                let (mut socket, mut endpoint) = node(key);
                let id = endpoint.get_mut().unwrap().dial(socket.now(), listens);
                send(&mut socket, &mut endpoint, id, total).await;
            });
        });
    });
    println!("{:.0} MB/s", total as f64 / begun.elapsed().as_secs_f64() / 1e6);
}

#[test]
fn a_quarter_of_a_gibibyte_crosses_loopback() {
    moves_all(None, 256 << 20);
}

#[test]
fn sealed_bytes_cross_loopback() {
    moves_all(Some(&Key::new(1, [9; 32])), 16 << 20);
}

#[test]
fn a_sender_detects_that_its_peer_has_ended() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let (mut socket, mut endpoint) = node(None);
        // No process has this port any more.
        let (gone, _) = node(None);
        let address = gone.local_addr().unwrap();
        drop(gone);
        endpoint.get_mut().unwrap().dial(socket.now(), address);
        let ended = drive(&mut socket, &mut endpoint, |_, event| match event {
            Some(Event::Ended(_, end)) => Some(end),
            _ => None,
        });
        assert_eq!(ended.await, Ended::Unreachable);
    });
}

#[test]
fn the_exit_of_one_of_two_peers_on_a_host_ends_its_connection_soon() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let (mut socket, mut endpoint) = node(None);
        let mut peers = [node(None), node(None)];
        let ids = [0, 1].map(|at: usize| {
            let address = peers[at].0.local_addr().unwrap();
            endpoint.get_mut().unwrap().dial(socket.now(), address)
        });
        for (peer, id) in peers.iter_mut().zip(ids) {
            beside(peer, send_byte(&mut socket, &mut endpoint, id)).await;
        }
        let [stays, goes] = ids;
        let [mut peer, gone] = peers;
        drop(gone);
        // What is sent to the closed port causes the network's report.
        endpoint.get_mut().unwrap().pipe(goes).unwrap().write(&[IoSlice::new(&[0x5a])]);
        let ended = drive(&mut socket, &mut endpoint, |_, event| match event {
            Some(Event::Ended(id, end)) => Some((id, end)),
            _ => None,
        });
        let ended = tokio::time::timeout(Duration::from_secs(10), beside(&mut peer, ended));
        assert_eq!(ended.await.expect("long before 30 s"), (goes, Ended::Unreachable));
        assert_eq!(endpoint.get_mut().unwrap().peek(stays).unwrap().ended(), None);
    });
}

/// Regression: the answers came from another address of the host, and the dialer did not know it.
#[cfg(target_os = "linux")]
#[test]
fn a_socket_of_all_addresses_answers_from_the_one_that_was_dialed() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let (mut socket, mut endpoint) = node(None);
        let has_v6 = std::net::UdpSocket::bind("[::1]:0").is_ok();
        for any in ["0.0.0.0:0", "[::]:0"].into_iter().take(if has_v6 { 2 } else { 1 }) {
            let mut peer = node_at(any, None);
            let port = peer.0.local_addr().unwrap().port();
            // The system answers from 127.0.0.1, unless another address is asked for.
            let to = std::net::SocketAddr::from(([127, 0, 0, 2], port));
            let id = endpoint.get_mut().unwrap().dial(socket.now(), to);
            let (block, mut accepted) = (vec![0x5a; 64 << 10], None);
            let answer = pin!(drive(&mut peer.0, &mut peer.1, |endpoint, event| {
                if let Some(Event::Accepted(id, _)) = event {
                    accepted = Some(id);
                }
                if let Some(pipe) = accepted.and_then(|id| endpoint.pipe(id)) {
                    while pipe.write(&[IoSlice::new(&block)]) > 0 {}
                }
                None::<()>
            }));
            // So many bytes that long datagrams are among them.
            let mut left = 8_usize << 20;
            let read = pin!(drive(&mut socket, &mut endpoint, |endpoint, _| {
                let pipe = endpoint.pipe(id).unwrap();
                while !pipe.readable().is_empty() {
                    left = left.saturating_sub(pipe.readable().len());
                    pipe.consume(pipe.readable().len());
                }
                (left == 0).then_some(())
            }));
            let both = tokio::time::timeout(Duration::from_secs(9), select(answer, read));
            assert!(both.await.is_ok(), "{any} answers");
        }
    });
}
