//! Streams, sinks and services over messages: dropped at every poll, held back, bereft of peers.

mod calls;
mod lanes;
mod streams;

use std::future::{Future, pending, poll_fn};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use crate::scenarios::harness::{Lower, turns, world};
use crate::scenarios::{rank, tag, text};
use bytes::Bytes;
use futures_util::{SinkExt, StreamExt};
use midplane_simhw::host::Host;
use midplane_simhw::id::NodeId;
use midplane_via::message::communicator::Communicator;
use midplane_via::message::engine::{Config, Engine};
use midplane_via::message::envelope::{Peer, Tag};
use midplane_via::message::group::Rank;
use midplane_via::message::memory::MemoryConfig;
use midplane_via::message::process::{MessageError, Process};
use midplane_via::message::request::Failure;
use midplane_via::message::transport::Transport;
use midplane_via::rdma::{RdmaCarrier, RdmaConfig};
use midplane_via::service::{
    CallError, Client, Counters, DeliveryError, Receiver, Sender, Server, Streams,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tower_service::Service;

type World = Communicator<Lower>;
type Program = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Two processes with little room between them.
fn narrow() -> Vec<World> {
    let memory = MemoryConfig::default().depth(3).room(500);
    world(2, memory, Config::default().eager(400).window(4096))
}

/// Runs one program in each of two processes.
fn both<A, B>(
    views: Vec<World>,
    first: impl FnOnce(World) -> A,
    second: impl FnOnce(World) -> B,
) -> Vec<World>
where
    A: Future<Output = ()> + Send + 'static,
    B: Future<Output = ()> + Send + 'static,
{
    let programs: Vec<Program> =
        vec![Box::pin(first(views[0].clone())), Box::pin(second(views[1].clone()))];
    turns(programs, &views);
    views
}

/// Nothing is left over anywhere.
#[track_caller]
fn settled(views: &[World]) {
    for view in views {
        assert!(view.explain().waiting.is_empty(), "{}", view.explain());
        assert_eq!(view.with(|process| process.lower().unexpected_bytes()), 0);
    }
}

/// A future that is polled at most `left` times, then dropped.
async fn at_most<T>(mut left: u32, future: impl Future<Output = T>) -> Option<T> {
    let mut future = pin!(future);
    poll_fn(move |context| {
        if left == 0 {
            return Poll::Ready(None);
        }
        left -= 1;
        match future.as_mut().poll(context) {
            Poll::Ready(done) => Poll::Ready(Some(done)),
            Poll::Pending if left == 0 => Poll::Ready(None),
            Poll::Pending => {
                context.waker().wake_by_ref();
                Poll::Pending
            }
        }
    })
    .await
}

/// Lets the others have their turns.
async fn turns_of_others(count: u32) {
    at_most(count, pending::<()>()).await;
}

/// A service of the test: what becomes of a request, and how many there are at once.
#[derive(Clone, Default)]
struct Handler {
    now: Arc<AtomicU32>,
    most: Arc<AtomicU32>,
    turns: u32,
}

impl Service<Bytes> for Handler {
    type Response = Bytes;
    type Error = String;
    type Future = Pin<Box<dyn Future<Output = Result<Bytes, String>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), String>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Bytes) -> Self::Future {
        let Self { now, most, turns } = self.clone();
        Box::pin(async move {
            let at_once = now.fetch_add(1, Ordering::Relaxed) + 1;
            most.fetch_max(at_once, Ordering::Relaxed);
            turns_of_others(turns).await;
            now.fetch_sub(1, Ordering::Relaxed);
            match &request[..] {
                b"!" => Err("no".into()),
                bytes => Ok(bytes.iter().rev().copied().collect()),
            }
        })
    }
}

fn reversed(mut bytes: Vec<u8>) -> Vec<u8> {
    bytes.reverse();
    bytes
}

async fn ask<P: Transport>(client: &mut Client<P>, request: Vec<u8>) -> Result<Bytes, CallError> {
    poll_fn(|context| client.poll_ready(context)).await?;
    client.call(request.into()).await
}
