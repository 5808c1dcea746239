//! A key-value service in a crate of its own: one process serves, others call it.
//!
//! ```text
//! standalone serve             # serves until Ctrl-C
//! standalone color=blue color  # puts a value, and gets it
//! standalone                   # both in one process
//! ```

use std::collections::BTreeMap;
use std::future::{Ready, ready};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use midplane::prelude::*;
use tower_service::Service;

type Fault = Box<dyn std::error::Error + Send + Sync>;

/// Store whose requests are `key=value`, which puts and returns the former value, and `key`, which gets.
#[derive(Clone, Default)]
struct Store(Arc<Mutex<BTreeMap<String, String>>>);

impl Service<String> for Store {
    type Response = Option<String>;
    type Error = String;
    type Future = Ready<Result<Option<String>, String>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), String>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: String) -> Self::Future {
        let mut entries = self.0.lock().expect("no holder panics");
        ready(Ok(match request.split_once('=') {
            Some((key, value)) => entries.insert(key.into(), value.into()),
            None => entries.get(&request).cloned(),
        }))
    }
}

async fn ask(node: &Node, requests: &[String]) -> Result<(), Fault> {
    let client = node.client::<String, Option<String>, String>("kv");
    for request in requests {
        let answer = client.call(request.clone()).await?;
        println!("{request}: {}", answer.as_deref().unwrap_or("nothing"));
    }
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Fault> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let node = Node::builder().start().await?;
    match &words[..] {
        [word] if word == "serve" => {
            let _serving = node.serve("kv", Store::default())?;
            println!("{}: serving, until Ctrl-C", node.name());
            tokio::signal::ctrl_c().await?;
        }
        [] => {
            let _serving = node.serve("kv", Store::default())?;
            let requests = ["color=blue", "color=green", "color"].map(String::from);
            ask(&Node::builder().start().await?, &requests).await?;
        }
        requests => ask(&node, requests).await?,
    }
    node.shutdown().await;
    Ok(())
}
