//! Connects this daemon with others: with the root, whichever host that is, and with any host for a ballot.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::UnixStream;
use tokio::sync::{mpsc, watch};
use tokio::task::AbortHandle;
use tokio::time::{sleep, timeout};

use super::event::Event;
use super::link::{self, Credentials, Frame, Link};
use super::snapshot::Budget;
use super::streams;
use crate::names::JobId;
use crate::node_core::election::Ballot;
use crate::node_core::message::{Hello, Purpose};

/// Interval at which the root is dialled again.
const RETRY_INTERVAL: Duration = Duration::from_millis(50);
/// Most time that a request waits for a root. An election takes less.
const ELECTION: Duration = Duration::from_secs(3);
/// Most times that the root is dialled for the last output of ended ranks: for at least ten seconds.
const LAST_DIALS: u32 = 200;

/// The addresses and the credentials for connections to other daemons. Clones share what is known of the root.
#[derive(Clone)]
pub(super) struct Routes {
    pub(super) host: u16,
    /// `host:port` of every daemon, in the order of hosts.
    pub(super) addresses: Arc<[String]>,
    /// `None` for a single daemon without a key.
    pub(super) credentials: Option<Credentials>,
    /// Silence after which a connection with another host ends.
    pub(super) patience: Duration,
    pub(super) root: watch::Receiver<Option<u16>>,
    pub(super) events: mpsc::UnboundedSender<Event>,
    /// Limits the chunks of states from the daemons below this one.
    pub(super) budget: Budget,
}

impl Routes {
    /// Returns the root; if there is none, waits for one for [`ELECTION`], and then returns `None`.
    pub(super) async fn find_root(&mut self) -> Option<u16> {
        let found = timeout(ELECTION, self.root.wait_for(Option::is_some)).await;
        *found.ok()?.ok()?
    }

    /// Waits until another host is the root, or this host no longer is. A host that has lost its parent knows no root
    /// for a while, and may then find the same one.
    pub(super) async fn root_leaves(&self, root: u16) {
        let is_own = root == self.host;
        let has_left = |now: &Option<u16>| now.map_or(is_own, |now| now != root);
        // If the daemon ends, so does this.
        let _ = self.root.clone().wait_for(has_left).await;
    }

    /// Connects to another host's daemon.
    ///
    /// # Errors
    /// Those of [`link::dial`].
    pub(super) async fn dial(&self, host: u16, purpose: Purpose) -> io::Result<Link> {
        let address = self.addresses.get(usize::from(host));
        let (address, credentials) =
            address.zip(self.credentials.as_ref()).ok_or(io::ErrorKind::NotFound)?;
        let (mut sender, receiver) =
            link::dial(address, (host, self.patience), credentials).await?;
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
    /// each loss of the root, connects to the next one; ends if that reports that the job is over. While there is no
    /// root, ranks whose pipes are full block, and the last output of ended ranks, or its end, waits for
    /// [`LAST_DIALS`]. Returns the handle that ends this.
    pub(super) fn carry(
        &self,
        job: JobId,
        mut output: mpsc::Receiver<Frame>,
        input: mpsc::Sender<Frame>,
    ) -> AbortHandle {
        let mut routes = self.clone();
        let mut input = Some(input);
        let carrying = tokio::spawn(async move {
            let mut last_dials = 0..LAST_DIALS;
            loop {
                if let Some((root, link)) = routes.open(Purpose::Streams(job)).await {
                    tokio::select! {
                        is_done = streams::to_root(link, &mut output, &mut input) => {
                            if is_done {
                                return;
                            }
                        }
                        // The link ends although the former root's host may have closed nothing.
                        () = routes.root_leaves(root) => {}
                    }
                }
                if output.is_closed() && last_dials.next().is_none() {
                    return;
                }
                sleep(RETRY_INTERVAL).await;
            }
        });
        carrying.abort_handle()
    }

    /// Connects to the root, for the streams or the images of a job's ranks on this host. Also returns which host it
    /// is.
    pub(super) async fn open(&mut self, purpose: Purpose) -> Option<(u16, Link)> {
        let root = self.find_root().await?;
        if root != self.host {
            return Some((root, self.dial(root, purpose).await.ok()?));
        }
        let (ours, theirs) = UnixStream::pair().ok()?;
        self.events.send(Event::Link(root, purpose, Box::new(link::local(theirs)))).ok()?;
        Some((root, link::local(ours)))
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use tokio::task::yield_now;

    use super::*;
    use crate::live::link::Stream;

    /// Most time that a test waits.
    const PATIENCE: Duration = Duration::from_secs(10);

    /// The daemon of host 0 of three, whose ranks have output.
    struct Daemon {
        root: watch::Sender<Option<u16>>,
        events: mpsc::UnboundedReceiver<Event>,
        output: mpsc::Sender<Frame>,
        _input: mpsc::Receiver<Frame>,
    }

    impl Daemon {
        /// Starts to carry the streams of ranks. Other hosts can't be dialled.
        fn start(root: u16) -> Self {
            let (root, root_is) = watch::channel(Some(root));
            let (events, happens) = mpsc::unbounded_channel();
            let addresses = ["a", "b", "c"].map(String::from).into();
            let routes = Routes {
                host: 0,
                addresses,
                credentials: None,
                patience: PATIENCE,
                root: root_is,
                events,
                budget: Budget::default(),
            };
            let ((output, from_ranks), (to_rank, _input)) = (mpsc::channel(1), mpsc::channel(1));
            routes.carry(JobId(1), from_ranks, to_rank);
            Self { root, events: happens, output, _input }
        }

        /// Returns the next link of the streams to this host as the root.
        async fn link(&mut self) -> Link {
            let event = timeout(PATIENCE, self.events.recv()).await;
            let Ok(Some(Event::Link(0, _, link))) = event else { panic!("no link") };
            *link
        }
    }

    fn frame() -> Frame {
        Frame::Data { rank: 0, stream: Stream::Output, bytes: Bytes::from_static(b"last") }
    }

    fn run(test: impl Future<Output = ()>) {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(test);
    }

    /// Regression: it was dropped if no root could be dialled when the ranks ended.
    #[test]
    fn the_last_output_of_ended_ranks_waits_for_the_next_root() {
        run(async {
            let mut daemon = Daemon::start(1);
            daemon.output.send(frame()).await.unwrap();
            daemon.output = mpsc::channel(1).0;
            yield_now().await;
            daemon.root.send_replace(Some(0));
            let (_sender, mut receiver) = daemon.link().await;
            assert_eq!(receiver.receive().await.unwrap(), Some(frame()));
        });
    }

    /// Regression: if the link broke after the last output, the root waited for the end of the output in vain.
    #[test]
    fn the_end_of_the_output_is_sent_over_the_next_link_after_one_breaks() {
        run(async {
            let mut daemon = Daemon::start(0);
            drop(daemon.link().await);
            daemon.output = mpsc::channel(1).0;
            let (_sender, mut receiver) = daemon.link().await;
            assert!(matches!(receiver.receive().await, Ok(Some(Frame::Message(_)))));
        });
    }

    /// Regression: while a process kept the output of an ended job open, its daemon dialled the root again and again.
    #[test]
    fn the_output_of_a_job_that_is_over_is_carried_no_longer() {
        run(async {
            let mut daemon = Daemon::start(0);
            let link = daemon.link().await;
            tokio::spawn(streams::refuse(link));
            assert!(timeout(PATIENCE, daemon.output.closed()).await.is_ok());
        });
    }

    /// Regression: the link to a root that had lost its power, or was no longer the root, took all further output.
    #[test]
    fn output_leaves_a_root_that_is_replaced_although_the_link_to_it_stays() {
        run(async {
            let mut daemon = Daemon::start(0);
            let _first = daemon.link().await;
            daemon.root.send_replace(None);
            yield_now().await;
            daemon.root.send_replace(Some(0));
            let (_sender, mut receiver) = daemon.link().await;
            daemon.output.send(frame()).await.unwrap();
            assert_eq!(receiver.receive().await.unwrap(), Some(frame()));
        });
    }
}
