//! Two replicas of a set of numbers. Each takes numbers over HTTP, and copies them to the other one.
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::extract::{Path, State};
use axum::routing::{get, put};
use midplane::{Node, time};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

pub type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// Holds the data that survive a crash: all numbers, and those that the other replica may lack.
#[derive(Clone, Default)]
pub struct Disk(Arc<Mutex<[BTreeSet<u32>; 2]>>);

type Replica = (Node, &'static str, Disk);

/// Sends a request to a node, and returns the body of the answer.
pub async fn request(node: &Node, to: &str, head: String) -> Result<String> {
    let mut stream = node.connect(to).await?;
    stream.write_all(format!("{head} HTTP/1.0\r\n\r\n").as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(answer.split_once("\r\n\r\n").ok_or("the answer was cut")?.1.into())
}

/// Copies a number to the other replica, which may take several attempts.
async fn copy((node, other, disk): Replica, number: u32) {
    loop {
        let sent = request(&node, other, format!("PUT /copy/{number}"));
        if let Ok(Ok(_)) = time::timeout(Duration::from_millis(50), sent).await {
            break disk.0.lock().unwrap()[1].retain(|lacking| *lacking != number);
        }
        time::sleep(Duration::from_millis(200)).await;
    }
}

async fn store(State(replica): State<Replica>, Path(number): Path<u32>) {
    replica.2.0.lock().unwrap().iter_mut().for_each(|set| set.extend([number]));
    let _ = time::timeout(Duration::from_millis(50), tokio::spawn(copy(replica, number))).await;
}

/// Serves one replica. The bug: one that `forgets` does not resume its copies after a restart.
pub async fn serve(node: Node, other: &'static str, disk: Disk, forgets: bool) -> Result<()> {
    let listener = node.listen(node.name()).await?;
    let lacking = disk.0.lock().unwrap()[1].clone();
    let replica = (node, other, disk);
    for number in lacking.into_iter().filter(|_| !forgets) {
        tokio::spawn(copy(replica.clone(), number));
    }
    let all = async |State(own): State<Replica>| format!("{:?}", own.2.0.lock().unwrap()[0]);
    let copied = async |State(own): State<Replica>, Path(number)| {
        own.2.0.lock().unwrap()[0].insert(number);
    };
    let routes = Router::new().route("/", get(all)).route("/{number}", put(store));
    let routes = routes.route("/copy/{number}", put(copied)).with_state(replica);
    Ok(axum::serve(listener, routes).await?)
}
