//! Two NICs of this process over shared memory, and lanes beside them: tasks that park and are woken.

use std::time::Duration;

use midplane_nicvm::unit::Unit;
use midplane_simhw::id::NodeId;
use midplane_simhw::shm::lanes::Lanes;
use midplane_simhw::shm::{ShmConfig, ShmHost, ShmNic};
use midplane_via::VIA;
use midplane_via::direct::Lane;
use midplane_via::firmware::{Via, ViaConfig};
use midplane_via::nic::WorkQueue;

use super::pair::{End, pattern};
use super::{attributes, descriptor};

const ROOM: usize = 100_000;
const MESSAGES: usize = 400;

/// Lengths of both kinds of frames, and of several.
const fn length(number: usize) -> usize {
    number * number * 37 % ROOM
}

async fn sends(mut end: End<ShmHost>) -> End<ShmHost> {
    for number in 0..MESSAGES {
        end.memory.write(0, &pattern(number as u32, length(number))).unwrap();
        end.nic.post_send(end.vi, descriptor(&end, 0, length(number), 30_000)).unwrap();
        let done = end.nic.wait(end.vi, WorkQueue::Send).await.unwrap();
        assert_eq!(done.outcome, Ok(()));
        if number % 16 == 15 {
            // The other side has said that it has taken all so far.
            let told = end.nic.wait(end.vi, WorkQueue::Receive).await.unwrap();
            end.nic.post_receive(end.vi, told.descriptor).unwrap();
        }
    }
    end
}

async fn receives(mut end: End<ShmHost>) -> End<ShmHost> {
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

async fn end(nic: &ShmNic, lanes: Lanes) -> End<ShmHost> {
    let lane = Some(Box::new(lanes) as Box<dyn Lane>);
    let mut end = End::over(nic.host(), attributes(), 20 * ROOM, lane).await;
    for slot in 1..19 {
        end.nic.post_receive(end.vi, descriptor(&end, slot * ROOM, ROOM, 30_000)).unwrap();
    }
    end
}

#[test]
fn messages_pass_between_tasks_that_park() {
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.worker_threads(2).enable_all().build().unwrap();
    let name = format!("midplane-direct-{}", std::process::id());
    runtime.block_on(async {
        let nic = |node| {
            let mut unit = Unit::default();
            unit.install(VIA, Via::new(ViaConfig::default())).unwrap();
            ShmNic::start(ShmConfig::new(&name, NodeId(node), 2), unit).unwrap()
        };
        let lanes =
            |node| Lanes::open(&ShmConfig::new(format!("{name}-lanes"), NodeId(node), 2)).unwrap();
        let nics = [nic(0), nic(1)];
        for nic in &nics {
            nic.meet().await;
        }
        let (mut first, mut second) =
            (end(&nics[0], lanes(0)).await, end(&nics[1], lanes(1)).await);
        let first = tokio::spawn(async move {
            first.connect().await;
            receives(first).await
        });
        let second = tokio::spawn(async move {
            second.serve().await;
            sends(second).await
        });
        let all = async { (first.await.unwrap(), second.await.unwrap()) };
        let ends = tokio::time::timeout(Duration::from_secs(30), all).await;
        drop(ends.expect("nobody waits for ever"));
        for nic in nics {
            nic.shutdown().await;
        }
    });
}
