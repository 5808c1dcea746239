//! Tests QUIC connections under the law through a narrow link, in virtual time: the queue stays
//! near its target, and the link busy.

use std::collections::VecDeque;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use midplane_warp::quinn::WarpFactory;
use quinn::rustls::RootCertStore;
use quinn::rustls::pki_types::PrivatePkcs8KeyDer;
use quinn::{ClientConfig, ServerConfig, TransportConfig};
use quinn_proto::{
    Connection, ConnectionHandle, DatagramEvent, Dir, Endpoint, EndpointConfig, StreamId,
};

/// Bytes that the connection may keep in queues.
const BACKLOG: u64 = 30_000;
/// One-way delay without a queue.
const DELAY: Duration = Duration::from_millis(10);
/// Virtual time in which the law finds the rate, and time that is then measured.
const WARM_UP: Duration = Duration::from_secs(3);
const MEASURED: Duration = Duration::from_secs(4);
/// The most steps of either phase. A step handles a datagram or a timer.
const MAX_STEPS: u64 = 1_000_000;

/// One direction of a link: a line with an unlimited queue.
struct Link {
    bytes_per_s: f64,
    /// When the line has sent all queued datagrams.
    free: Instant,
    flying: VecDeque<(Instant, Vec<u8>)>,
}

impl Link {
    fn new(now: Instant, bytes_per_s: f64) -> Self {
        Self { bytes_per_s, free: now, flying: VecDeque::new() }
    }

    fn send(&mut self, now: Instant, datagram: Vec<u8>) {
        let line = Duration::from_secs_f64(datagram.len() as f64 / self.bytes_per_s);
        self.free = self.free.max(now) + line;
        self.flying.push_back((self.free + DELAY, datagram));
    }

    fn queued(&self, now: Instant) -> f64 {
        self.free.saturating_duration_since(now).as_secs_f64() * self.bytes_per_s
    }

    fn arrived(&mut self, now: Instant) -> Option<Vec<u8>> {
        let is_here = self.flying.front().is_some_and(|(at, _)| *at <= now);
        is_here.then(|| self.flying.pop_front().map(|(_, datagram)| datagram)).flatten()
    }
}

struct Side {
    endpoint: Endpoint,
    connection: Option<(ConnectionHandle, Connection)>,
    /// Address of the other side.
    remote: SocketAddr,
}

impl Side {
    fn new(server: Option<Arc<ServerConfig>>, remote: SocketAddr) -> Self {
        let config = Arc::new(EndpointConfig::default());
        let endpoint = Endpoint::new(config, server, false, Some([7; 32]));
        Self { endpoint, connection: None, remote }
    }

    fn connection(&mut self) -> Option<&mut Connection> {
        self.connection.as_mut().map(|(_, connection)| connection)
    }

    /// Processes a datagram. Returns the endpoint's immediate reply.
    fn handle(&mut self, now: Instant, datagram: &[u8]) -> Vec<u8> {
        let mut answer = Vec::new();
        let event =
            self.endpoint.handle(now, self.remote, None, None, datagram.into(), &mut answer);
        match (event, self.connection()) {
            (Some(DatagramEvent::ConnectionEvent(_, event)), Some(connection)) => {
                connection.handle_event(event);
            }
            (Some(DatagramEvent::NewConnection(incoming)), _) => {
                let accepted = self.endpoint.accept(incoming, now, &mut answer, None);
                self.connection = accepted.ok();
            }
            _ => {}
        }
        answer
    }

    /// Handles due timers, and sends what the connection permits.
    fn pump(&mut self, now: Instant, link: &mut Link) {
        let Some((handle, connection)) = &mut self.connection else { return };
        if connection.poll_timeout().is_some_and(|at| at <= now) {
            connection.handle_timeout(now);
        }
        while connection.poll().is_some() {}
        while let Some(event) = connection.poll_endpoint_events() {
            if let Some(event) = self.endpoint.handle_event(*handle, event) {
                connection.handle_event(event);
            }
        }
        let mut datagram = Vec::new();
        while connection.poll_transmit(now, 1, &mut datagram).is_some() {
            link.send(now, std::mem::take(&mut datagram));
        }
    }
}

/// A client that always has data to send, and a server that reads all of it.
struct Pair {
    now: Instant,
    client: Side,
    server: Side,
    there: Link,
    back: Link,
    sending: Option<StreamId>,
    receiving: Option<StreamId>,
    received: u64,
    /// Integral of the queue over time, in byte seconds.
    queue: f64,
}

impl Pair {
    fn new(bytes_per_s: f64) -> Self {
        let certificate = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let key = PrivatePkcs8KeyDer::from(certificate.signing_key.serialize_der());
        let chain = vec![certificate.cert.der().clone()];
        let server = ServerConfig::with_single_cert(chain, key.into()).unwrap();
        let mut roots = RootCertStore::empty();
        roots.add(certificate.cert.der().clone()).unwrap();
        let mut config = ClientConfig::with_root_certificates(Arc::new(roots)).unwrap();
        let mut transport = TransportConfig::default();
        transport.congestion_controller_factory(Arc::new(WarpFactory::new(BACKLOG)));
        config.transport_config(Arc::new(transport));
        let [first, second] =
            [1, 2].map(|host| SocketAddr::from((Ipv4Addr::new(10, 0, 0, host), 4_433)));
        let (mut client, server) =
            (Side::new(None, second), Side::new(Some(Arc::new(server)), first));
        #[expect(clippy::disallowed_methods, reason = "where virtual time begins")]
        let now = Instant::now();
        client.connection = client.endpoint.connect(now, config, second, "localhost").ok();
        let (there, back) = (Link::new(now, bytes_per_s), Link::new(now, 1e9));
        let (sending, receiving) = (None, None);
        Self { now, client, server, there, back, sending, receiving, received: 0, queue: 0.0 }
    }

    /// Runs for `time`. Returns the bytes received a second, and the mean queue in bytes.
    fn run(&mut self, time: Duration) -> (f64, f64) {
        let until = self.now + time;
        (self.received, self.queue) = (0, 0.0);
        let mut steps = 0;
        while self.now < until {
            self.step();
            steps += 1;
            assert!(steps < MAX_STEPS, "virtual time does not advance");
        }
        (self.received as f64 / time.as_secs_f64(), self.queue / time.as_secs_f64())
    }

    fn step(&mut self) {
        let now = self.now;
        while let Some(datagram) = self.there.arrived(now) {
            let answer = self.server.handle(now, &datagram);
            if !answer.is_empty() {
                self.back.send(now, answer);
            }
        }
        while let Some(datagram) = self.back.arrived(now) {
            self.client.handle(now, &datagram);
        }
        self.write();
        self.read();
        self.client.pump(now, &mut self.there);
        self.server.pump(now, &mut self.back);
        let timers = [&mut self.client, &mut self.server]
            .map(|side| side.connection().and_then(|connection| connection.poll_timeout()));
        let next = timers.into_iter().flatten();
        let links = [&self.there, &self.back];
        let next =
            next.chain(links.into_iter().filter_map(|link| link.flying.front().map(|it| it.0)));
        let next = next.min().expect("a connection always has a timer").max(now);
        // The queue empties evenly until the next step.
        let seconds = (next - now).as_secs_f64();
        let (before, after) = (self.there.queued(now), self.there.queued(next));
        self.queue += seconds * (before + after) / 2.0;
        self.now = next.max(now + Duration::from_nanos(1));
    }

    fn write(&mut self) {
        let Some(connection) = self.client.connection() else { return };
        if self.sending.is_none() {
            self.sending = connection.streams().open(Dir::Uni);
        }
        let Some(stream) = self.sending else { return };
        while connection.send_stream(stream).write(&[7; 4_096]).is_ok() {}
    }

    fn read(&mut self) {
        let Some(connection) = self.server.connection() else { return };
        if self.receiving.is_none() {
            self.receiving = connection.streams().accept(Dir::Uni);
        }
        let Some(stream) = self.receiving else { return };
        let mut stream = connection.recv_stream(stream);
        let Ok(mut chunks) = stream.read(true) else { return };
        while let Ok(Some(chunk)) = chunks.next(usize::MAX) {
            self.received += chunk.bytes.len() as u64;
        }
        let _ = chunks.finalize();
    }
}

#[test]
fn a_quic_connection_keeps_its_backlog_in_the_queue_and_the_link_busy() {
    for mbps in [10.0, 50.0] {
        let bytes_per_s = mbps * 1e6 / 8.0;
        let mut pair = Pair::new(bytes_per_s);
        pair.run(WARM_UP);
        let (goodput, queue) = pair.run(MEASURED);
        let of_link = goodput / bytes_per_s;
        println!("{mbps} Mb/s: {of_link:.3} of the link, {queue:.0} bytes queued");
        assert!((0.9..=1.0).contains(&of_link), "{mbps} Mb/s: {of_link} of the link");
        let of_target = queue / BACKLOG as f64;
        assert!((0.5..=1.5).contains(&of_target), "{mbps} Mb/s: {queue} of {BACKLOG} bytes");
    }
}
