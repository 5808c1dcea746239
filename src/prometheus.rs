//! An endpoint with the metrics of the process's nodes, for Prometheus (feature `prometheus`).
//!
//! ```no_run
//! # async fn f() -> Result<(), midplane::Error> {
//! let endpoint = midplane::prometheus::serve("127.0.0.1:9464").await?;
//! println!("metrics at http://{}/metrics", endpoint.address());
//! # Ok(())
//! # }
//! ```
//!
//! `docs/metrics.md` has the names. A process that already has a recorder of the crate `metrics` does not need this.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, ToSocketAddrs};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

use crate::error::{Error, ErrorKind};

/// Most bytes of a request.
const MAX_REQUEST: usize = 8 * 1024;
/// Most requests that are answered at once; further ones wait.
const MAX_AT_ONCE: usize = 16;
/// Limit of the time for a request and its answer.
const WITHIN: Duration = Duration::from_secs(10);
/// The period of the recorder's upkeep.
const UPKEEP: Duration = Duration::from_secs(5);

/// An endpoint that Prometheus scrapes; made by [`serve`]. Dropping it stops the server. The recorder stays.
#[must_use = "dropped, it answers no more"]
pub struct Endpoint {
    address: SocketAddr,
    handle: PrometheusHandle,
    accepting: JoinHandle<()>,
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Endpoint").field("address", &self.address).finish_non_exhaustive()
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

impl Endpoint {
    /// Returns the address at which it listens.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the metrics in Prometheus's text format: for servers of your own.
    #[must_use]
    pub fn render(&self) -> String {
        self.handle.render()
    }
}

/// Installs a recorder for the process, and answers each `GET` at the address with its metrics. The system chooses a
/// port for port 0. Call it once, before the nodes start. The endpoint answers as long as the caller's runtime runs.
///
/// # Errors
/// [`ErrorKind::InUse`] if the process has a recorder already, or the address is in use; [`ErrorKind::System`].
///
/// # Panics
/// Outside a tokio runtime with I/O and time.
pub async fn serve(address: impl ToSocketAddrs) -> Result<Endpoint, Error> {
    let failed = |error| Error::system("the metrics can't be served", error);
    let listener = TcpListener::bind(address).await.map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    let recorder = PrometheusBuilder::new().build_recorder();
    let handle = recorder.handle();
    metrics::set_global_recorder(recorder).map_err(|_| {
        let text =
            "this process has a recorder of metrics already: call `serve` once, or use that one";
        Error::new(ErrorKind::InUse, text)
    })?;
    keep_up(handle.clone()).map_err(failed)?;
    let accepting = tokio::spawn(accept(listener, handle.clone()));
    Ok(Endpoint { address, handle, accepting })
}

/// Starts the thread of the recorder's upkeep. It runs as long as the process, as the recorder does: without upkeep, the
/// program's histograms grow without bound.
fn keep_up(handle: PrometheusHandle) -> io::Result<()> {
    let upkeep = move || {
        loop {
            thread::park_timeout(UPKEEP);
            handle.run_upkeep();
        }
    };
    thread::Builder::new().name("metrics-upkeep".into()).spawn(upkeep).map(drop)
}

async fn accept(listener: TcpListener, handle: PrometheusHandle) {
    let at_once = Arc::new(Semaphore::new(MAX_AT_ONCE));
    loop {
        let Ok(permit) = Arc::clone(&at_once).acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, _)) => {
                let handle = handle.clone();
                tokio::spawn(async move {
                    let _ = tokio::time::timeout(WITHIN, answer(stream, &handle)).await;
                    drop(permit);
                });
            }
            // The process lacks descriptors: some become free later.
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
}

/// Answers one request, and closes the connection.
async fn answer(mut stream: TcpStream, handle: &PrometheusHandle) -> io::Result<()> {
    let mut request = Vec::new();
    while !request.ends_with(b"\r\n\r\n") {
        let mut bytes = [0; 1_024];
        let count = stream.read(&mut bytes).await?;
        if count == 0 || request.len() + count > MAX_REQUEST {
            return Ok(());
        }
        request.extend_from_slice(&bytes[..count]);
    }
    let (status, body) = match request.starts_with(b"GET ") {
        true => ("200 OK", handle.render()),
        false => ("405 Method Not Allowed", String::new()),
    };
    let head = format!(
        "HTTP/1.1 {status}\r\ncontent-type: text/plain; version=0.0.4\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).await?;
    stream.write_all(body.as_bytes()).await?;
    stream.shutdown().await
}
