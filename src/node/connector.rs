//! A service that connects to a node's service with each call.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use midplane_via::session::Stream;

use super::Node;
use crate::error::Error;

/// Connects to one service with each call and ignores the request; made by [`Node::connector`].
#[derive(Clone, Debug)]
pub struct Connector {
    node: Node,
    service: String,
}

impl Connector {
    pub(super) const fn new(node: Node, service: String) -> Self {
        Self { node, service }
    }
}

impl<Request> tower_service::Service<Request> for Connector {
    type Response = Stream;
    type Error = Error;
    type Future = Pin<Box<dyn Future<Output = Result<Stream, Error>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request) -> Self::Future {
        let Self { node, service } = self.clone();
        Box::pin(async move { node.connect(&service).await })
    }
}
