//! The node of this process, and its streams by number.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::io;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use midplane::{Node, Stream};
use nix::sys::signal::{SigSet, Signal};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt, ReadBuf, ReadHalf, WriteHalf, split};
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::watch;

/// Longest time for which a close waits for the service's end of the stream.
const CLOSE: Duration = Duration::from_secs(10);
/// Bytes that a close reads at once, to discard them.
const DISCARD: usize = 4096;

/// Any error, as text for the caller.
pub(crate) type Failed = String;

/// The node, with its runtime, and its open streams.
struct Bridge {
    node: Node,
    runtime: Runtime,
    streams: BTreeMap<i32, Arc<Halves>>,
    /// The number of the next stream, unless an open one has it. Numbers are not used again until they wrap.
    next: i32,
}

/// The two sides of a stream.
struct Halves {
    receiver: Mutex<ReadHalf<Stream>>,
    sender: Mutex<WriteHalf<Stream>>,
    /// Set by a close, which ends receives of other threads.
    is_closing: watch::Sender<bool>,
}

static BRIDGE: Mutex<Option<Bridge>> = Mutex::new(None);

fn bridge() -> MutexGuard<'static, Option<Bridge>> {
    BRIDGE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Locks a side of a stream. Ignores poisoning, because a panic elsewhere can't leave the side half changed.
fn lock<T>(half: &Mutex<T>) -> MutexGuard<'_, T> {
    half.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Starts the runtime. Its threads block `SIGPIPE`, which would end the program when a peer has closed a TCP connection:
/// C programs don't ignore it, as Rust's do. The write then fails.
fn runtime() -> io::Result<Runtime> {
    let block = || {
        // It fails only for an invalid signal.
        let _ = SigSet::from(Signal::SIGPIPE).thread_block();
    };
    Builder::new_multi_thread()
        .worker_threads(1)
        .thread_name("midplane")
        .on_thread_start(block)
        .enable_all()
        .build()
}

impl Bridge {
    fn start() -> Result<Self, Failed> {
        let runtime = runtime().map_err(|error| format!("no thread for the node: {error}"))?;
        let mut builder = Node::builder();
        if let Ok(places) = std::env::var("MIDPLANE_DISCOVER") {
            builder = builder.discover(places);
        }
        if let Some(path) = std::env::var_os("MIDPLANE_KEY_FILE") {
            builder = builder.key_file(path);
        }
        let node = runtime.block_on(builder.start()).map_err(|error| error.to_string())?;
        Ok(Self { node, runtime, streams: BTreeMap::new(), next: 0 })
    }
}

/// Returns a stream, and the runtime that moves its bytes.
fn find(number: i32) -> Result<(Arc<Halves>, Handle), Failed> {
    let bridge = bridge();
    let found = bridge.as_ref().and_then(|bridge| {
        let halves = bridge.streams.get(&number)?;
        Some((Arc::clone(halves), bridge.runtime.handle().clone()))
    });
    found.ok_or_else(|| format!("there is no stream {number}: it was closed, or never opened"))
}

/// Returns the number that follows a stream's.
fn after(number: i32) -> i32 {
    number.checked_add(1).unwrap_or(0)
}

/// Returns the first number, from `number` on, that no open stream has.
fn unused<T>(streams: &BTreeMap<i32, T>, mut number: i32) -> i32 {
    while streams.contains_key(&number) {
        number = after(number);
    }
    number
}

/// Opens a stream to a service; starts the node first if there is none.
pub(crate) fn connect(service: &str) -> Result<i32, Failed> {
    let (node, runtime) = {
        let mut bridge = bridge();
        if bridge.is_none() {
            *bridge = Some(Bridge::start()?);
        }
        let bridge = bridge.as_ref().expect("it was started");
        (bridge.node.clone(), bridge.runtime.handle().clone())
    };
    let stream = runtime.block_on(node.connect(service)).map_err(|error| error.to_string())?;
    let (receiver, sender) = split(stream);
    let (receiver, sender) = (Mutex::new(receiver), Mutex::new(sender));
    let halves = Halves { receiver, sender, is_closing: watch::Sender::new(false) };
    let mut bridge = bridge();
    let bridge = bridge.as_mut().expect("the node stays until the process ends");
    let number = unused(&bridge.streams, bridge.next);
    bridge.next = after(number);
    bridge.streams.insert(number, Arc::new(halves));
    Ok(number)
}

/// Sends all of the bytes.
pub(crate) fn send(number: i32, bytes: &[u8]) -> Result<(), Failed> {
    let (halves, runtime) = find(number)?;
    let mut sender = lock(&halves.sender);
    runtime
        .block_on(async {
            sender.write_all(bytes).await?;
            sender.flush().await
        })
        .map_err(|error| failed("send", &error))
}

/// Receives some bytes; none at the end of the stream.
pub(crate) fn receive(number: i32, bytes: &mut [MaybeUninit<u8>]) -> Result<usize, Failed> {
    let (halves, runtime) = find(number)?;
    let mut receiver = lock(&halves.receiver);
    let mut buffer = ReadBuf::uninit(bytes);
    let read = poll_fn(|context| Pin::new(&mut *receiver).poll_read(context, &mut buffer));
    let mut is_closing = halves.is_closing.subscribe();
    runtime
        .block_on(async {
            tokio::select! {
                biased;
                done = read => done,
                _ = is_closing.wait_for(|is_closing| *is_closing) => {
                    Err(io::Error::new(io::ErrorKind::NotConnected, "another thread has closed it"))
                }
            }
        })
        .map_err(|error| failed("receive", &error))?;
    Ok(buffer.filled().len())
}

/// Ends this process's side of a stream.
pub(crate) fn finish(number: i32) -> Result<(), Failed> {
    let (halves, runtime) = find(number)?;
    let mut sender = lock(&halves.sender);
    runtime.block_on(sender.shutdown()).map_err(|error| failed("end", &error))
}

/// Closes a stream once the service has ended its side, or after [`CLOSE`].
pub(crate) fn close(number: i32) -> Result<(), Failed> {
    let (halves, runtime) = find(number)?;
    if let Some(bridge) = bridge().as_mut() {
        bridge.streams.remove(&number);
    }
    halves.is_closing.send_replace(true);
    let (mut sender, mut receiver) = (lock(&halves.sender), lock(&halves.receiver));
    let ends = async {
        sender.shutdown().await?;
        let mut rest = [0; DISCARD];
        while receiver.read(&mut rest).await? > 0 {}
        io::Result::Ok(())
    };
    let ended = runtime.block_on(async { tokio::time::timeout(CLOSE, ends).await });
    match ended {
        Ok(ended) => ended.map_err(|error| failed("close", &error)),
        Err(_) => Err(format!(
            "the service has not ended its side of stream {number} within {} s: it may not have read everything",
            CLOSE.as_secs()
        )),
    }
}

fn failed(what: &str, error: &io::Error) -> Failed {
    format!("the stream failed ({what}): {error}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_to_a_closed_connection_sends_the_threads_of_the_node_no_signal() {
        let runtime = runtime().unwrap();
        let mask = runtime.spawn(async { SigSet::thread_get_mask() });
        let mask = runtime.block_on(mask).unwrap().unwrap();
        assert!(mask.contains(Signal::SIGPIPE));
    }

    #[test]
    fn the_numbers_of_streams_that_stay_open_are_skipped_after_all_were_used() {
        let open = BTreeMap::from([(0, ()), (1, ()), (i32::MAX, ())]);
        assert_eq!(unused(&open, i32::MAX), 2);
        assert_eq!((unused(&open, after(2)), after(i32::MAX)), (3, 0));
    }
}
