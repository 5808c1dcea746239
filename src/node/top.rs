//! Reports of running nodes: what `midplane top` shows.
//!
//! A node that [allows it](crate::NodeBuilder::allow_top) answers other nodes of its cluster with one [`Report`]: its
//! peers, services, calls, queues and losses. Counters only grow. A rate is the difference between two reports of one
//! `incarnation`, divided by the difference of their `uptime_ms`.
//!
//! ```
//! # use midplane::Node;
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), midplane::Error> {
//! # let cluster = format!("doc-top-{}", std::process::id());
//! # let builder = Node::builder().cluster(cluster);
//! # let observer = builder.clone().start().await?;
//! let node = builder.name("a").allow_top().start().await?;
//! for reading in observer.top().await? {
//!     println!("{}: {} peers", reading.peer.name, reading.report?.peers.len());
//! }
//! # drop(node);
//! # Ok(())
//! # }
//! ```

mod report;
#[cfg(test)]
mod tests;

use std::future::{Ready, ready};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use midplane_simhw::wire::{decode_value, encode_value};
use tokio::task::JoinSet;
use tower_service::Service;

use super::{Inner, Node, PeerInfo};
use crate::call::{CallError, Limits};
use crate::error::{Error, ErrorKind};
pub use report::{Calls, Loss, MAX_ENTRIES, Peer, Report, ServiceStreams, VERSION};

/// The reserved name of the service.
pub(super) const SERVICE: &str = "midplane:top";
/// Limit of the time in which a node must answer: 2 s.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);
/// Most calls that a node answers at once.
const AT_ONCE: usize = 4;

/// The version of a report, and its encoded bytes.
type Answer = (u32, Vec<u8>);

/// A node that was found, and its report.
#[derive(Debug)]
#[non_exhaustive]
pub struct Reading {
    /// The node, as this one knows it.
    pub peer: PeerInfo,
    /// The report, or why there is none: [`ErrorKind::NoService`] if the node does not [allow](crate::NodeBuilder::allow_top)
    /// it or has ended, [`ErrorKind::Busy`] if it does not answer within 2 s, [`ErrorKind::Version`] if it reports in another
    /// version, [`ErrorKind::Reset`], [`ErrorKind::TooLarge`].
    pub report: Result<Report, Error>,
}

/// Answers calls with the report of a node; does not keep the node running.
#[derive(Clone, Debug)]
struct Reporter(Weak<Inner>);

impl Service<()> for Reporter {
    type Response = Answer;
    type Error = String;
    type Future = Ready<Result<Answer, String>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), String>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, (): ()) -> Self::Future {
        let report = self.0.upgrade().map(|inner| Node(inner).report());
        let bytes = report.and_then(|report| encode_value(&report).ok());
        ready(bytes.map(|bytes| (VERSION, bytes)).ok_or_else(|| "the node ends".into()))
    }
}

impl Node {
    /// Serves this node's report while the node runs.
    pub(super) fn serve_top(&self) -> Result<(), Error> {
        let reporter = Reporter(Arc::downgrade(&self.0));
        let limits = Limits::default().concurrency(AT_ONCE);
        let serving = self.serve_as(SERVICE.into(), SERVICE, reporter, limits)?;
        self.0.top.get_or_init(|| serving);
        Ok(())
    }

    /// Searches for the nodes of the cluster, and reads the report of each. Returns them in the order of their names.
    ///
    /// # Errors
    /// Those of [`Node::connect`] if no node was found at all.
    ///
    /// # Cancel safety
    /// If the future is dropped, some nodes may have answered.
    pub async fn top(&self) -> Result<Vec<Reading>, Error> {
        self.0.shared.check()?;
        self.0.search.run(SERVICE, || false).await;
        let peers = self.peers();
        if peers.is_empty() {
            return Err(self.no_node_offers(SERVICE, false));
        }
        let mut asked = JoinSet::new();
        for peer in peers {
            let node = self.clone();
            asked.spawn(async move {
                let report = node.read(&peer).await;
                Reading { peer, report }
            });
        }
        let mut readings = asked.join_all().await;
        readings.sort_by(|a, b| (&a.peer.name, a.peer.id).cmp(&(&b.peer.name, b.peer.id)));
        Ok(readings)
    }

    /// Reads the report of a peer.
    async fn read(&self, peer: &PeerInfo) -> Result<Report, Error> {
        if !peer.services.iter().any(|service| service == SERVICE) {
            let text = format!("{} does not allow it: call `allow_top` there", peer.name);
            return Err(Error::new(ErrorKind::NoService, text));
        }
        let client = self.client_of::<(), Answer, String>(SERVICE, peer.id);
        let asked = client.call(());
        let answer = tokio::time::timeout(ANSWER_WITHIN, asked).await;
        let failed = |kind, text: String| Error::new(kind, format!("{}: {text}", peer.name));
        let (version, bytes) = match answer.unwrap_or(Err(CallError::Deadline)) {
            Ok(answer) => answer,
            Err(CallError::Node(error)) => return Err(error),
            Err(error) => {
                let kind = match &error {
                    CallError::Deadline | CallError::Busy => ErrorKind::Busy,
                    CallError::TooLarge { .. } => ErrorKind::TooLarge,
                    CallError::Decode { .. } => ErrorKind::Version,
                    _ => ErrorKind::Reset,
                };
                let text = match error {
                    CallError::Deadline => "it does not answer within 2 s".into(),
                    CallError::Service(_) => "it ends".into(),
                    error => error.to_string(),
                };
                return Err(failed(kind, text));
            }
        };
        if version != VERSION {
            let text = format!("it reports in version {version}, this program reads {VERSION}");
            return Err(failed(ErrorKind::Version, text));
        }
        let report = decode_value::<Report>(&bytes).ok().filter(Report::is_bounded);
        report.ok_or_else(|| failed(ErrorKind::Version, "its answer is no report".into()))
    }
}
