//! What a message costs that is not sent: the gate against what others do with a full queue.
//!
//! All in one run, in turn, so that the ratios hold on a busy machine: the median over batches, in
//! nanoseconds a call.

#![expect(clippy::disallowed_methods, reason = "a bench reads the clock")]

use std::hint::black_box;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use midplane_warp::gate::GateKeeper;
use quinn::rustls::RootCertStore;
use quinn::rustls::pki_types::PrivatePkcs8KeyDer;
use quinn::{ClientConfig, Connection, Endpoint, ServerConfig};

/// Calls of a batch, and batches of a measurement.
const CALLS: u32 = 2_000;
const BATCHES: usize = 201;
/// Bytes of a message.
const MESSAGE: usize = 1_000;

/// A batch of calls by name: nanoseconds a call.
type Rival<'a> = (&'static str, Box<dyn FnMut() -> f64 + 'a>);

/// A batch of `call`, which is inlined as it is where it is used.
fn batch<'a, T>(mut call: impl FnMut() -> T + 'a) -> Box<dyn FnMut() -> f64 + 'a> {
    Box::new(move || {
        let begin = Instant::now();
        for _ in 0..CALLS {
            black_box(call());
        }
        begin.elapsed().as_nanos() as f64 / f64::from(CALLS)
    })
}

fn main() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.expect("a runtime");
    let (_keeper, shut) = GateKeeper::new(1);
    let (mut keeper, open) = GateKeeper::new(1 << 30);
    let (queue, _receiver) = tokio::sync::mpsc::channel(1);
    queue.try_send([0_u8; 8]).expect("the first fits");
    let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let sink = UdpSocket::bind(any).expect("a socket");
    let socket = UdpSocket::bind(any).expect("a socket");
    socket.set_nonblocking(true).expect("a socket option");
    socket.connect(sink.local_addr().expect("its address")).expect("loopback");
    let connected =
        runtime.block_on(async { tokio::time::timeout(Duration::from_secs(10), connect()).await });
    let (connection, _peer) = connected.expect("loopback answers");
    let _guard = runtime.enter();
    let datagram = Bytes::from_static(&[0; MESSAGE]);
    // Nobody drives the connection from here on: its queue of 1 MiB fills and stays full.
    (0..2_000).for_each(|_| connection.send_datagram(datagram.clone()).expect("it is queued"));
    let payload = [0; MESSAGE];
    let mut rivals: Vec<Rival<'_>> = vec![
        ("c_send, congested", batch(|| shut.c_send(1_000, || ()))),
        ("c_send, admitted", batch(|| open.c_send(1, || ()))),
        ("tokio mpsc try_send, full", batch(|| queue.try_send([0; 8]))),
        ("UDP send, non-blocking", batch(|| socket.send(&payload))),
        ("quinn send_datagram, full", batch(|| connection.send_datagram(datagram.clone()))),
    ];
    let mut samples = vec![Vec::with_capacity(BATCHES); rivals.len()];
    for _ in 0..BATCHES {
        keeper.pour(midplane_simhw::time::Instant::from_nanos(1), 0.0);
        for ((_, call), samples) in rivals.iter_mut().zip(&mut samples) {
            samples.push(call());
        }
    }
    let mut medians = samples.iter_mut().map(|samples| {
        samples.sort_by(f64::total_cmp);
        samples[BATCHES / 2]
    });
    let first = medians.next().expect("the gate is the first");
    println!("{:<28} {first:>8.1} ns  (asked: 5 at most)", rivals[0].0);
    for ((name, _), median) in rivals[1..].iter().zip(medians) {
        println!("{name:<28} {median:>8.1} ns  {:>6.0} times as much", median / first);
    }
}

/// A connection over loopback, and its other end.
async fn connect() -> (Connection, (Connection, Endpoint, Endpoint)) {
    let certificate = rcgen::generate_simple_self_signed(["localhost".to_owned()]);
    let certificate = certificate.expect("a certificate");
    let key = PrivatePkcs8KeyDer::from(certificate.signing_key.serialize_der());
    let chain = vec![certificate.cert.der().clone()];
    let server = ServerConfig::with_single_cert(chain, key.into()).expect("a server's keys");
    let mut roots = RootCertStore::empty();
    roots.add(certificate.cert.der().clone()).expect("a certificate");
    let client = ClientConfig::with_root_certificates(Arc::new(roots)).expect("a client's roots");
    let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let server = Endpoint::server(server, any).expect("a socket");
    let mut endpoint = Endpoint::client(any).expect("a socket");
    endpoint.set_default_client_config(client);
    let address = server.local_addr().expect("its address");
    let dial = endpoint.connect(address, "localhost").expect("a good address");
    let accept = async { server.accept().await.expect("one comes").await };
    let (ours, theirs) = tokio::join!(dial, accept);
    (ours.expect("a connection"), (theirs.expect("a connection"), endpoint, server))
}
