//! Connects this daemon with others: with the root, whichever host that is, and with any host for a ballot.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::UnixStream;
use tokio::sync::{mpsc, watch};
use tokio::time::{sleep, timeout};

use super::event::Event;
use super::link::{self, Credentials, Frame, Link};
use super::streams;
use crate::names::JobId;
use crate::node_core::election::Ballot;
use crate::node_core::message::{Hello, Purpose};

/// Interval at which the root is dialled again.
const RETRY_INTERVAL: Duration = Duration::from_millis(50);
/// Most time that a request waits for a root. An election takes less.
const ELECTION: Duration = Duration::from_secs(3);

/// The addresses and the credentials for connections to other daemons. Clones share what is known of the root.
#[derive(Clone)]
pub(super) struct Routes {
    pub(super) host: u16,
    /// `host:port` of every daemon, in the order of hosts.
    pub(super) addresses: Arc<[String]>,
    /// `None` for a single daemon without a key.
    pub(super) credentials: Option<Credentials>,
    pub(super) root: watch::Receiver<Option<u16>>,
    pub(super) events: mpsc::UnboundedSender<Event>,
}

impl Routes {
    /// Returns the root; if there is none, waits for one for [`ELECTION`], and then returns `None`.
    pub(super) async fn find_root(&mut self) -> Option<u16> {
        let found = timeout(ELECTION, self.root.wait_for(Option::is_some)).await;
        *found.ok()?.ok()?
    }

    /// Connects to another host's daemon.
    ///
    /// # Errors
    /// Those of [`link::dial`].
    pub(super) async fn dial(&self, host: u16, purpose: Purpose) -> io::Result<Link> {
        let address = self.addresses.get(usize::from(host));
        let (address, credentials) =
            address.zip(self.credentials.as_ref()).ok_or(io::ErrorKind::NotFound)?;
        let (mut sender, receiver) = link::dial(address, host, credentials).await?;
        sender.send(&Frame::message(&Hello { host: self.host, purpose })).await?;
        Ok((sender, receiver))
    }

    /// Sends a ballot in a task of its own. The ballot may be lost.
    pub(super) fn send_ballot(&self, to: u16, ballot: Ballot) {
        let routes = self.clone();
        tokio::spawn(async move {
            if let Ok((mut sender, _)) = routes.dial(to, Purpose::Ballot).await {
                let _ = sender.send(&Frame::message(&ballot)).await;
            }
        });
    }

    /// Carries the streams of a job's ranks on this host to and from the root until all ranks have closed them. After
    /// each loss of the root, connects to the next one. While there is no root, ranks whose pipes are full block.
    pub(super) fn carry(
        &self,
        job: JobId,
        mut output: mpsc::Receiver<Frame>,
        input: mpsc::Sender<Frame>,
    ) {
        let mut routes = self.clone();
        let mut input = Some(input);
        tokio::spawn(async move {
            loop {
                if let Some(link) = routes.open(Purpose::Streams(job)).await
                    && streams::to_root(link, &mut output, &mut input).await
                {
                    return;
                }
                // The ranks have ended, and no root fetches their last output.
                if output.is_closed() {
                    return;
                }
                sleep(RETRY_INTERVAL).await;
            }
        });
    }

    /// Connects to the root, for the streams or the images of a job's ranks on this host.
    pub(super) async fn open(&mut self, purpose: Purpose) -> Option<Link> {
        let root = self.find_root().await?;
        if root != self.host {
            return self.dial(root, purpose).await.ok();
        }
        let (ours, theirs) = UnixStream::pair().ok()?;
        self.events.send(Event::Link(root, purpose, Box::new(link::local(theirs)))).ok()?;
        Some(link::local(ours))
    }
}
