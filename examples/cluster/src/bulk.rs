//! Measures a large message from disk to link to disk, in pieces by plan and in pieces of 64 KiB.

use std::fs::File;

use crate::claims::median;
use crate::contest::Site;
use crate::report::text;
use crate::transfer;
use crate::transfer::observe::{Observed, Real, Timings};
use crate::transfer::wire::{Connection, end, serve};

/// Bytes of the message.
const MESSAGE: usize = 4 << 20;
/// Bytes of the pieces without a plan.
const PIECE: u64 = 64 << 10;
/// Transfers from which the planner learns the path, and pairs that are then timed.
const OBSERVED: u64 = 6;
const PAIRS: u64 = 5;

/// Measures the time from rank 0 to rank 1, in ms: by plan, and in pieces of 64 KiB.
pub(crate) async fn measure(site: &Site<'_>) -> Result<Vec<f64>, String> {
    let file = transfer::file(MESSAGE).map_err(text)?;
    match site.rank {
        0 => {
            let stream = site.connect(site.cluster.listeners[1]).await?;
            let connection = Connection::new(stream).map_err(text)?;
            let took = pairs(&connection, &file).await?;
            end(&connection).await.map_err(text)?;
            Ok(took)
        }
        1 => {
            let stream = site.accept().await?;
            serve(stream, &file).await.map_err(text)?;
            Ok(Vec::new())
        }
        _ => Ok(Vec::new()),
    }
}

async fn pairs(connection: &Connection, file: &File) -> Result<Vec<f64>, String> {
    let real = Real { connection, file };
    let mut timings = Timings::new(MESSAGE as u64);
    for _ in 0..OBSERVED {
        timings.observe(&real).await?;
    }
    let plan = Observed::new(&timings)?.plan(MESSAGE as u64);
    let planned = plan.map_err(text)?.whole_bytes();
    let pieces = vec![PIECE; MESSAGE / PIECE as usize];
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for pair in 0..PAIRS {
        let mut turns = [(&planned, &mut ours), (&pieces, &mut theirs)];
        if pair % 2 == 1 {
            turns.reverse();
        }
        for (sizes, times) in turns {
            times.push(real.time(sizes).await?.us / 1e3);
        }
    }
    Ok(vec![median(ours), median(theirs)])
}
