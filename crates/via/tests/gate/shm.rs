//! Two NICs of this process over shared memory, whose hosts bypass them: tasks that park and are woken.

use std::future::Future;
use std::time::Duration;

use midplane_nicvm::unit::Unit;
use midplane_simhw::id::NodeId;
use midplane_simhw::nic::LiveHost;
use midplane_simhw::shm::{ShmConfig, ShmNic};
use midplane_via::VIA;
use midplane_via::attributes::ViAttributes;
use midplane_via::firmware::{Via, ViaConfig};
use midplane_via::memory::RemoteMemory;
use midplane_via::nic::{ConnectFailed, WorkQueue};
use midplane_via::outcome::ConnectError;

use super::pair::{End, address, pattern};
use super::{attributes, descriptor};

const ROOM: usize = 100_000;
const MESSAGES: usize = 400;

/// Returns the length of a message, of one frame or several.
const fn length(number: usize) -> usize {
    number * number * 37 % ROOM
}

async fn sends(mut end: End<LiveHost>) -> End<LiveHost> {
    for number in 0..MESSAGES {
        end.memory.write(0, &pattern(number as u32, length(number))).unwrap();
        end.nic.post_send(end.vi, descriptor(&end, 0, length(number), 30_000)).unwrap();
        let done = end.nic.wait(end.vi, WorkQueue::Send).await.unwrap();
        assert_eq!(done.outcome, Ok(()));
        if number % 16 == 15 {
            // The other side reports that it has received all messages so far.
            let report = end.nic.wait(end.vi, WorkQueue::Receive).await.unwrap();
            end.nic.post_receive(end.vi, report.descriptor).unwrap();
        }
    }
    end
}

async fn receives(mut end: End<LiveHost>) -> End<LiveHost> {
    for number in 0..MESSAGES {
        let done = end.nic.wait(end.vi, WorkQueue::Receive).await.unwrap();
        assert_eq!(done.length, length(number));
        let begin = done.descriptor.segments[0].offset();
        assert_eq!(end.bytes(begin, done.length), pattern(number as u32, done.length));
        end.nic.post_receive(end.vi, done.descriptor).unwrap();
        if number % 16 == 15 {
            end.nic.post_send(end.vi, descriptor(&end, 0, 1, 1)).unwrap();
        }
    }
    end
}

/// Writes messages, each with its number, to the memory from which the other side reads them.
async fn writes(mut end: End<LiveHost>, to: RemoteMemory) -> End<LiveHost> {
    for number in 0..MESSAGES {
        end.memory.write(0, &pattern(number as u32, length(number))).unwrap();
        let slot = to.at((number % 16 * ROOM) as u32).unwrap();
        let write = descriptor(&end, 0, length(number), 30_000).write(slot);
        end.nic.post_send(end.vi, write.immediate(number as u32)).unwrap();
        let done = end.nic.wait(end.vi, WorkQueue::Send).await.unwrap();
        assert_eq!(done.outcome, Ok(()));
        if number % 16 == 15 {
            // The other side reports that it has read all messages so far.
            let report = end.nic.wait(end.vi, WorkQueue::Receive).await.unwrap();
            end.nic.post_receive(end.vi, report.descriptor).unwrap();
        }
    }
    end
}

async fn reads(mut end: End<LiveHost>) -> End<LiveHost> {
    for number in 0..MESSAGES {
        let done = end.nic.wait(end.vi, WorkQueue::Receive).await.unwrap();
        assert_eq!((done.length, done.immediate), (length(number), Some(number as u32)));
        let written = end.bytes(number % 16 * ROOM, done.length);
        assert!(written == pattern(number as u32, done.length), "message {number}");
        end.nic.post_receive(end.vi, done.descriptor).unwrap();
        if number % 16 == 15 {
            end.nic.post_send(end.vi, descriptor(&end, 19 * ROOM, 1, 1)).unwrap();
        }
    }
    end
}

async fn end(nic: &ShmNic) -> End<LiveHost> {
    let attributes = ViAttributes { rdma_write: true, ..attributes() };
    let mut end = End::new(nic.host(), attributes, 20 * ROOM).await;
    for slot in 1..19 {
        end.nic.post_receive(end.vi, descriptor(&end, slot * ROOM, ROOM, 30_000)).unwrap();
    }
    end
}

/// Connects two ends, each in a task of its own, and runs a program at each.
fn meet<F: Future<Output = End<LiveHost>> + Send + 'static>(
    what: &str,
    first: impl FnOnce(End<LiveHost>) -> F + Send + 'static,
    second: impl AsyncFnOnce(End<LiveHost>, RemoteMemory) -> End<LiveHost>,
) {
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.worker_threads(2).enable_all().build().unwrap();
    let name = format!("midplane-direct-{what}-{}", std::process::id());
    runtime.block_on(async {
        let nic = |node| {
            let mut unit = Unit::default();
            unit.install(VIA, Via::new(ViaConfig::default())).unwrap();
            ShmNic::start(ShmConfig::new(&name, NodeId(node), 2), unit).unwrap()
        };
        let nics = [nic(0), nic(1)];
        for nic in &nics {
            nic.meet().await;
        }
        let (mut client, mut server) = (end(&nics[0]).await, end(&nics[1]).await);
        let memory = client.memory.remote();
        let first = tokio::spawn(async move {
            client.connect().await;
            first(client).await
        });
        let all = async {
            server.serve().await;
            (second(server, memory).await, first.await.unwrap())
        };
        let ends = tokio::time::timeout(Duration::from_secs(30), all).await;
        drop(ends.expect("both programs end"));
        for nic in nics {
            nic.shutdown().await;
        }
    });
}

#[test]
fn messages_pass_between_tasks_that_park() {
    meet("messages", receives, async |end, _| sends(end).await);
}

#[test]
fn writes_pass_between_tasks_that_park() {
    meet("writes", reads, writes);
}

#[test]
fn a_refused_second_connection_leaves_the_first_one() {
    let first = async |mut end: End<LiveHost>, _| {
        let again = end.nic.connect(end.vi, address(NodeId(1), "service"), None).await;
        assert_eq!(again, Err(ConnectFailed::Connect(ConnectError::InvalidState)));
        sends(end).await
    };
    meet("again", receives, first);
}
