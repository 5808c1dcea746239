//! Both processes park while they wait: messages through ports and units, and a Unix socket of tokio's.

use std::time::Duration;

use midplane::nicvm::messages::{receive, send};
use midplane::simhw::host::Host;
use midplane::simhw::id::PortId;
use midplane::simhw::port::Port;
use midplane::simhw::region::Region;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};

use crate::side::{ROUNDS, Side, median};

/// Round trips of one round.
const TRIPS: usize = 20;
/// Bytes of a message.
const BYTES: usize = 64;
/// Cookie of sends.
const SENT: u64 = 1;

pub(crate) fn run(side: &mut Side) {
    side.say("both processes parked, one way of 64 bytes, us (median of rounds in turn)");
    side.say("   cores   Unix socket   through ports and units   ratio   reach");
    for on_one_core in [true, false] {
        side.place(on_one_core);
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(compare(side, on_one_core));
    }
}

async fn compare(side: &mut Side, on_one_core: bool) {
    let mut socket = connect(side).await;
    let nic = side.nic(Duration::ZERO).await;
    let mut mailbox = Mailbox::new(nic.host().open_port().expect("the NIC runs"));
    let (mut theirs, mut ours) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        theirs.push(timed(socket_trips(side, &mut socket)).await / (2.0 * TRIPS as f64));
        ours.push(timed(mailbox.trips(side)).await / (2.0 * TRIPS as f64));
    }
    let (theirs, ours) = (median(theirs) / 1_000.0, median(ours) / 1_000.0);
    let (cores, ratio) = (if on_one_core { "one" } else { "two" }, ours / theirs);
    side.say(&format!("{cores:>8} {theirs:>13.2} {ours:>25.2} {ratio:>7.2}   <= 1.00"));
    nic.shutdown().await;
}

#[expect(clippy::disallowed_methods, reason = "a bench measures real time")]
async fn timed(work: impl Future<Output = ()>) -> f64 {
    let start = std::time::Instant::now();
    work.await;
    start.elapsed().as_nanos() as f64
}

async fn connect(side: &mut Side) -> UnixStream {
    let path = std::env::temp_dir().join(side.next_name().replace(' ', "-"));
    if side.is_first {
        let listener = UnixListener::bind(&path).expect("a fresh path");
        let (stream, _) = listener.accept().await.expect("the other side comes");
        // Both ends are connected: the name is not needed any more.
        std::fs::remove_file(&path).expect("it was made above");
        return stream;
    }
    loop {
        match UnixStream::connect(&path).await {
            Ok(stream) => return stream,
            Err(_) => tokio::time::sleep(Duration::from_millis(5)).await,
        }
    }
}

async fn socket_trips(side: &Side, socket: &mut UnixStream) {
    let mut bytes = [7; BYTES];
    for _ in 0..TRIPS {
        if side.is_first {
            socket.write_all(&bytes).await.expect("the other side reads");
        }
        socket.read_exact(&mut bytes).await.expect("the other side writes");
        if !side.is_first {
            socket.write_all(&bytes).await.expect("the other side reads");
        }
    }
}

/// A port with its send and receive regions.
struct Mailbox {
    port: Port,
    own: Region,
    buffer: Region,
}

impl Mailbox {
    /// Creates a mailbox and posts its buffer.
    fn new(mut port: Port) -> Self {
        let own = port.register(BYTES).expect("within the limits");
        let buffer = port.register(BYTES).expect("within the limits");
        port.submit(&receive(buffer.whole(), 0)).expect("room");
        Self { port, own, buffer }
    }

    async fn trips(&mut self, side: &Side) {
        let mut bytes = [7; BYTES];
        for _ in 0..TRIPS {
            if side.is_first {
                self.send(side, &bytes);
            }
            // The completion is a send's or a receive's.
            while self.port.completion().await.expect("the NIC runs").cookie == SENT {}
            self.buffer.read(0, &mut bytes).expect("as long as the region");
            self.port.post(&receive(self.buffer.whole(), 0)).expect("room");
            if !side.is_first {
                self.send(side, &bytes);
            }
        }
        self.port.ring();
    }

    fn send(&mut self, side: &Side, bytes: &[u8]) {
        self.own.write(0, bytes).expect("as long as the region");
        let message = send(side.other(), PortId(0), self.own.whole(), SENT);
        self.port.submit(&message).expect("room");
    }
}
