//! Measures the cost of a message that is not sent: by the gate, and by other ways of sending, whose queue is full.
//!
//! The targets are at most 5 ns for a gate without credit, and 20 times as long for the other ways.

use std::hint::black_box;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use criterion::{BatchSize, Criterion, criterion_group, criterion_main};
use midplane_warp::gate::GateKeeper;
use quinn::rustls::RootCertStore;
use quinn::rustls::pki_types::PrivatePkcs8KeyDer;
use quinn::{ClientConfig, Connection, Endpoint, ServerConfig};

/// Size of a message in bytes.
const MESSAGE: usize = 1_000;
/// Credit of a new gate in bytes: more than any batch of messages takes.
const CREDIT: u64 = 1 << 40;

fn gates(c: &mut Criterion) {
    let mut group = c.benchmark_group("c_send");
    let (_keeper, shut) = GateKeeper::new(1);
    group.bench_function("congested (at most 5 ns)", |b| {
        b.iter(|| shut.c_send(black_box(1_000), || ()));
    });
    group.bench_function("admitted", |b| {
        let gate = || GateKeeper::new(CREDIT);
        b.iter_batched_ref(
            gate,
            |(_, open)| open.c_send(black_box(1), || ()),
            BatchSize::LargeInput,
        );
    });
    group.finish();
}

fn rivals(c: &mut Criterion) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.expect("a runtime");
    let mut group = c.benchmark_group("a full queue");
    let (queue, _receiver) = tokio::sync::mpsc::channel(1);
    queue.try_send([0_u8; 8]).expect("the first fits");
    group.bench_function("tokio mpsc try_send", |b| b.iter(|| queue.try_send(black_box([0; 8]))));
    let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let sink = UdpSocket::bind(any).expect("a socket");
    let socket = UdpSocket::bind(any).expect("a socket");
    socket.set_nonblocking(true).expect("a socket option");
    socket.connect(sink.local_addr().expect("its address")).expect("loopback");
    let payload = [0; MESSAGE];
    group.bench_function("UDP send, non-blocking", |b| b.iter(|| socket.send(black_box(&payload))));
    let connected =
        runtime.block_on(async { tokio::time::timeout(Duration::from_secs(10), connect()).await });
    let (connection, _peer) = connected.expect("loopback answers");
    let _guard = runtime.enter();
    let datagram = Bytes::from_static(&[0; MESSAGE]);
    // No task drives the connection from here on: its queue of 1 MiB fills and stays full.
    (0..2_000).for_each(|_| connection.send_datagram(datagram.clone()).expect("it is queued"));
    group.bench_function("quinn send_datagram", |b| {
        b.iter(|| connection.send_datagram(black_box(datagram.clone())));
    });
    group.finish();
}

/// Makes a connection over loopback. Returns it with its other end.
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

criterion_group!(benches, gates, rivals);
criterion_main!(benches);
