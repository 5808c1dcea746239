//! 100 hosts that hold keys, and clients that read and write them while hosts crash.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::extract::{Path, State};
use axum::routing::get;
use bytes::Bytes;
use midplane::{Node, Sim, sim, time};

use crate::{Failure, web};

/// Hosts that hold keys.
const HOSTS: u32 = 90;
/// Clients, each with a request every 10 ms.
const CLIENTS: u32 = 10;
const SECONDS: u64 = 10;

/// The keys of a host, which survive its crashes.
type Disk = Arc<Mutex<BTreeMap<u32, u32>>>;

fn name(host: u32) -> String {
    format!("kv-{host}")
}

async fn serve(node: Node, disk: Disk) -> sim::Result {
    let read = |State(disk): State<Disk>, Path(key)| async move {
        disk.lock().unwrap().get(&key).map_or(String::new(), u32::to_string)
    };
    let write = |State(disk): State<Disk>, Path((key, value))| async move {
        disk.lock().unwrap().insert(key, value);
    };
    let routes = Router::new().route("/{key}", get(read)).route("/{key}/{value}", get(write));
    let listener = node.listen(node.name()).await?;
    axum::serve(listener, routes.with_state(disk)).await?;
    Ok(())
}

async fn ask(node: &Node, to: &str, path: String) -> sim::Result<Bytes> {
    web::get(&mut web::open(node.connect(to).await?).await?, &path).await
}

/// Writes keys of its own to all hosts in turn, and reads each back; a host that is down is left out.
async fn client(node: Node, own: u32) -> sim::Result {
    let mut interval = time::interval(Duration::from_millis(10));
    let within = Duration::from_millis(500);
    let start = time::Instant::now();
    let mut number = 0;
    while start.elapsed() < Duration::from_secs(SECONDS) {
        interval.tick().await;
        number += 1;
        let host = name((own * 7 + number) % HOSTS);
        let key = own * 1_000_000 + number;
        let wrote = time::timeout(within, ask(&node, &host, format!("/{key}/{number}"))).await;
        if let Ok(Ok(_)) = wrote
            && let Ok(Ok(text)) = time::timeout(within, ask(&node, &host, format!("/{key}"))).await
        {
            assert_eq!(*text, *number.to_string().as_bytes(), "{host} has lost key {key}");
        }
    }
    Ok(())
}

/// Runs the cluster once.
pub fn run() -> Result<(), Failure> {
    let mut sim = Sim::builder().build();
    for host in 0..HOSTS {
        let disk = Disk::default();
        sim.host(name(host), move |node| serve(node, Arc::clone(&disk)));
    }
    for own in 0..CLIENTS {
        sim.client(move |node| client(node, own));
    }
    for crash in 0..20_u64 {
        let host = name(crash as u32 * 13 % HOSTS);
        sim.at(Duration::from_millis(400 * crash + 200)).crash(&host);
        sim.at(Duration::from_millis(400 * crash + 700)).restart(&host);
    }
    sim.run()?;
    Ok(())
}
