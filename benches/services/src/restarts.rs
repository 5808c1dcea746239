//! A service that joins, crashes and restarts, as a client of its cluster sees it.

use std::net::UdpSocket;
use std::time::{Duration, Instant};

use tokio::io::AsyncReadExt;
use tokio::time::timeout;

use crate::arguments::{Arguments, Part, Row, Transport, What};
use crate::pair::Process;
use crate::place::{Host, Target};
use crate::{Failure, http};

/// Time until a step has failed.
const PATIENCE: Duration = Duration::from_secs(60);
/// Time between two tries to be answered.
const RETRY: Duration = Duration::from_millis(5);

/// Returns the seconds of the row's step. A joining or restarted service is started as a process and has answered a request; a
/// crash is noticed when a stream to the killed process fails.
pub async fn measure(arguments: &Arguments, row: Row, host: Host) -> Result<f64, Failure> {
    let place = place(row.transport)?;
    let target = Target::new(row.transport, &place, host).await?;
    let start = || Process::start(arguments, row, Part::Service, &place, None);

    let since = Instant::now();
    let mut service = start()?;
    answered(&target).await?;
    if row.what == What::Joined {
        return Ok(since.elapsed().as_secs_f64());
    }

    let mut stream = target.connect().await?;
    service.kill().await?;
    let since = Instant::now();
    // The end and an error both say that the service is gone.
    let _ = timeout(PATIENCE, stream.read_u8()).await?;
    if row.what == What::Noticed {
        return Ok(since.elapsed().as_secs_f64());
    }

    let since = Instant::now();
    let _service = start()?;
    answered(&target).await?;
    Ok(since.elapsed().as_secs_f64())
}

/// Returns a place where no service is: the name of a cluster, or a free address.
fn place(transport: Transport) -> Result<String, Failure> {
    let free = UdpSocket::bind("127.0.0.1:0")?.local_addr()?;
    Ok(match transport {
        Transport::Shm => format!("restarts-{}-{}", std::process::id(), free.port()),
        _ => free.to_string(),
    })
}

/// Asks until there is an answer.
async fn answered(target: &Target) -> Result<(), Failure> {
    let asked = async {
        loop {
            if let Ok(mut caller) = http::Caller::new(target, false).await
                && caller.call().await.is_ok()
            {
                return;
            }
            tokio::time::sleep(RETRY).await;
        }
    };
    Ok(timeout(PATIENCE, asked).await?)
}
