//! The cases: every node runs the function, which defines what each node does.

pub(crate) mod buffers;
pub(crate) mod coordinated;
pub(crate) mod host;
pub(crate) mod messages;
pub(crate) mod ports;

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::Poll;

use midplane::nicvm::coordination::{COORDINATION, COUNTERS};
use midplane::simhw::host::Host;
use midplane::simhw::port::{Command, Completion, Port, Status};
use midplane::simhw::region::{Region, RegionRef};

/// A command that requests counters.
pub(crate) fn ask(cookie: u64) -> Command {
    Command { extension: COORDINATION, opcode: COUNTERS, cookie, ..Command::default() }
}

pub(crate) fn open<H: Host>(host: &H) -> Port {
    host.open_port().expect("the NIC has a port left")
}

pub(crate) async fn next(port: &mut Port) -> Completion {
    port.completion().await.expect("the NIC runs")
}

/// Carries out one command while no other is pending.
pub(crate) async fn carry_out(port: &mut Port, command: &Command) -> Completion {
    port.submit(command).unwrap();
    next(port).await
}

/// Carries out one command that succeeds.
pub(crate) async fn succeed(port: &mut Port, command: &Command) {
    let completion = carry_out(port, command).await;
    assert_eq!((completion.status, completion.cookie), (Status::Done, command.cookie));
}

/// Waits until the NIC has taken all posted commands: it takes a port's commands in order.
pub(crate) async fn settle(port: &mut Port) {
    succeed(port, &ask(u64::MAX)).await;
}

/// Registers `count` buffers and posts each with its index as cookie; the NIC has taken them on return.
pub(crate) async fn post_receives(
    port: &mut Port,
    count: usize,
    bytes: usize,
    receive: fn(RegionRef, u64) -> Command,
) -> Vec<Region> {
    let buffers: Vec<Region> = (0..count).map(|_| port.register(bytes).unwrap()).collect();
    for (cookie, buffer) in (0..).zip(&buffers) {
        port.post(&receive(buffer.whole(), cookie)).unwrap();
    }
    settle(port).await;
    buffers
}

/// Registers memory that holds `bytes`.
pub(crate) fn filled(port: &mut Port, bytes: &[u8]) -> Region {
    let region = port.register(bytes.len()).unwrap();
    region.write(0, bytes).unwrap();
    region
}

pub(crate) fn contents(region: &Region, length: u64) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(length).unwrap()];
    region.read(0, &mut bytes).unwrap();
    bytes
}

/// Returns bytes of which no two sections are equal.
pub(crate) fn pattern(start: u32, length: u32) -> Vec<u8> {
    (start..start + length).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect()
}

/// Polls once.
pub(crate) async fn poll_once<T>(
    mut future: Pin<&mut (impl Future<Output = T> + ?Sized)>,
) -> Poll<T> {
    poll_fn(|context| Poll::Ready(future.as_mut().poll(context))).await
}
