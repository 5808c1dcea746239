//! Time, tasks and random streams.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use midplane::simhw::host::Host;
use midplane::simhw::id::{NodeId, PortId};
use midplane::simhw::time::Instant;
use tokio::sync::{Mutex, oneshot};

use super::{open, poll_once};
use crate::conformance::fabrics::{NODES, Site};

const SHORT: Duration = Duration::from_micros(300);

pub(crate) async fn hosts_know_their_nodes<H: Host>(site: Site<H>) {
    let places: Vec<bool> = (0..NODES).map(|node| site.is(node)).collect();
    assert_eq!(places.iter().filter(|is| **is).count(), 1);
    assert_eq!(site.host.clone().node(), site.host.node());
    assert!(site.host.node() < NodeId(NODES));
}

pub(crate) async fn time_never_goes_back<H: Host>(site: Site<H>) {
    let mut last = site.host.now();
    for turn in 0..200_u64 {
        if turn % 10 == 0 {
            site.host.sleep_until(last.plus_nanos(turn * 100)).await;
        }
        let now = site.host.now();
        assert!(now >= last, "{now} came after {last}");
        last = now;
    }
}

pub(crate) async fn a_sleep_is_never_early<H: Host>(site: Site<H>) {
    for nanos in [1, 999, 50_000, 1_000_001, 3_500_000] {
        let at = site.host.now().plus_nanos(nanos);
        site.host.sleep_until(at).await;
        assert!(site.host.now() >= at);
    }
}

pub(crate) async fn sleeps_until_past_instants_end_at_once<H: Host>(site: Site<H>) {
    site.host.sleep_until(site.host.now() + SHORT).await;
    for at in [Instant::ZERO, site.host.now()] {
        let sleep = pin!(site.host.sleep_until(at));
        assert!(poll_once(sleep).await.is_ready());
    }
}

pub(crate) async fn a_dropped_sleep_delays_no_task<H: Host>(site: Site<H>) {
    for _ in 0..20 {
        let sleep = pin!(site.host.sleep_until(Instant::FAR_FUTURE));
        assert!(poll_once(sleep).await.is_pending());
    }
    let at = site.host.now() + SHORT;
    site.host.sleep_until(at).await;
    assert!(site.host.now() >= at);
}

pub(crate) async fn a_random_stream_repeats<H: Host>(site: Site<H>) {
    let draw = |host: &H| -> [u64; 8] {
        let mut rng = host.rng("repeats");
        std::array::from_fn(|_| rng.next_u64())
    };
    let first = draw(&site.host);
    site.host.rng("another").next_u64();
    drop(open(&site.host));
    assert_eq!(draw(&site.host), first);
    assert_eq!(draw(&site.host.clone()), first);
}

pub(crate) async fn random_streams_differ_by_name_and_node<H: Host>(site: Site<H>) {
    let draw = |name: &str| site.host.rng(name).next_u64();
    assert_ne!(draw("one"), draw("two"));
    assert_ne!(draw(""), draw(" "));
    // Port numbers convey the drawn values to the other nodes.
    let own = PortId((draw("node") >> 48) as u16);
    let mut drawn = site.learn_ports(own).await;
    drawn.sort_unstable();
    assert!(drawn.windows(2).all(|two| two[0] != two[1]), "{drawn:?}");
}

pub(crate) async fn spawned_tasks_run<H: Host>(site: Site<H>) {
    let sum = Arc::new(Mutex::new(0));
    let tasks: Vec<_> = (0..10_u64)
        .map(|number| {
            let (host, sum) = (site.host.clone(), Arc::clone(&sum));
            start(&site.host, async move {
                host.sleep_until(host.now().plus_nanos(number * 10_000)).await;
                *sum.lock().await += number;
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(*sum.lock().await, 45);
}

pub(crate) async fn a_spawned_task_outlives_the_task_that_spawned_it<H: Host>(site: Site<H>) {
    let (end, ended) = oneshot::channel();
    let host = site.host.clone();
    let parent = start(&site.host, async move {
        let child = host.clone();
        host.spawn(async move {
            child.sleep_until(child.now() + SHORT).await;
            end.send(child.node()).unwrap();
        });
    });
    parent.await.unwrap();
    assert_eq!(ended.await, Ok(site.host.node()));
}

pub(crate) async fn sleeps_end_in_the_order_of_their_instants<H: Host>(site: Site<H>) {
    let ended = Arc::new(Mutex::new(Vec::new()));
    let begin = site.host.now();
    let tasks: Vec<_> = [3_u64, 1, 2]
        .map(|place| {
            let (host, ended) = (site.host.clone(), Arc::clone(&ended));
            start(&site.host, async move {
                // The instants are so far apart that late hosts keep their order.
                host.sleep_until(begin + SHORT * 100 * place as u32).await;
                ended.lock().await.push(place);
            })
        })
        .into();
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(*ended.lock().await, [1, 2, 3]);
}

/// Spawns `task`; the returned receiver ends with it.
fn start<H: Host>(
    host: &H,
    task: impl Future<Output = ()> + Send + 'static,
) -> oneshot::Receiver<()> {
    let (end, ended) = oneshot::channel();
    host.spawn(async move {
        task.await;
        let _ = end.send(());
    });
    ended
}
