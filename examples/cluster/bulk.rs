//! Measures a large message from disk to link to disk, in pieces by plan and in pieces of 64 KiB.

use std::fs::File;
use std::io::Write as _;

use crate::claims::median;
use crate::contest::Site;
use crate::transfer::observe::{Observed, Real, Timings};
use crate::transfer::pace::{Limit, Limits};
use crate::transfer::wire::{Hand, end, serve};
use crate::transfer::{Fault, contents};

/// Bytes of the message.
const MESSAGE: usize = 4 << 20;
/// Bytes of the pieces without a plan.
const PIECE: u64 = 64 << 10;
/// Transfers from which the planner learns the path, and pairs that are then timed.
const OBSERVED: u64 = 6;
const PAIRS: u64 = 5;
/// Limits of a volume of 3,000 operations and 125 MB a second, and of a gigabit link.
const LIMITS: Limits = Limits {
    disk: Limit { op_us: 333.0, mbps: 1000.0 },
    link: Limit { op_us: 100.0, mbps: 1000.0 },
};

fn text(fault: Fault) -> String {
    match fault {
        Fault::Input(what) | Fault::Lost(what) => what,
    }
}

/// Measures the time from rank 0 to rank 1, in ms: by plan, and in pieces of 64 KiB.
pub(crate) async fn measure(site: &Site<'_>) -> Result<Vec<f64>, String> {
    let mut file = tempfile::tempfile().map_err(|error| error.to_string())?;
    match site.rank {
        0 => {
            file.write_all(&contents(MESSAGE)).map_err(|error| error.to_string())?;
            let stream = site.connect(site.cluster.listeners[1]).await?;
            let hand = Hand::new(stream).map_err(|error| error.to_string())?;
            let took = pairs(&hand, &file).await.map_err(text)?;
            end(&hand).await.map_err(|error| error.to_string())?;
            Ok(took)
        }
        1 => {
            let stream = site.accept().await?;
            serve(stream, &file, false, LIMITS).await.map_err(|error| error.to_string())?;
            Ok(Vec::new())
        }
        _ => Ok(Vec::new()),
    }
}

async fn pairs(hand: &Hand, file: &File) -> Result<Vec<f64>, Fault> {
    let real = Real { hand, file, limits: LIMITS };
    let mut timings = Timings::new(MESSAGE as u64);
    for _ in 0..OBSERVED {
        timings.observe(&real).await?;
    }
    let plan = Observed::new(&real, &timings)?.plan(MESSAGE as u64);
    let planned = plan.map_err(|error| Fault::Lost(error.to_string()))?.whole_bytes();
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
