//! The iteration: each rank computes some unknowns from the latest values that it has of the others.
//!
//! The values are in a map of latest values. No rank waits for another, and a value that a newer one replaces is not sent.

use std::ops::Range;
use std::time::Duration;

use midplane::latest::LatestMap;
use midplane::warp::iterate::{FixedPoint, Order, Part, partition, residual};
use midplane::{Error, Node, time};

/// Unknowns of one entry of the map, whose values have at most 32 KiB.
const BLOCK: usize = 1_000;
/// Time between two sweeps, so that few values are replaced before they are sent.
const PACE: Duration = Duration::from_millis(1);

/// Values by the first unknown of their block.
type Board = LatestMap<u32, Vec<f64>>;

async fn board(node: &Node) -> Result<Board, Error> {
    node.latest_map("fixed point").await
}

/// Divides a rank's unknowns into blocks.
fn blocks(own: &Range<usize>) -> impl Iterator<Item = Range<usize>> {
    let end = own.end;
    own.clone().step_by(BLOCK).map(move |first| first..end.min(first + BLOCK))
}

/// Iterates as rank number `rank` of `ranks`, until the node is shut down.
///
/// # Errors
/// The map can't be joined, or a value can't be set.
///
/// # Cancel safety
/// If dropped, the rank stops; its last values stay at the other ranks.
pub async fn work(
    node: &Node,
    problem: impl FixedPoint,
    rank: usize,
    ranks: usize,
) -> Result<(), Error> {
    let board = board(node).await?;
    let mut changes = board.watch();
    let own = partition(problem.unknowns(), ranks)[rank].clone();
    let mut part = Part::new(problem, own.clone(), Order::GaussSeidel);
    loop {
        let has_changed = part.sweep() != 0.0;
        if has_changed {
            for block in blocks(&own) {
                board.set(&(block.start as u32), &part.x()[block].to_vec())?;
            }
            time::sleep(PACE).await;
        } else if changes.next().await.is_none() {
            return Ok(());
        }
        for entry in board.snapshot() {
            let values = entry.value.unwrap_or_default();
            (entry.key as usize..).zip(values).for_each(|(i, value)| part.handle_value(i, value));
        }
    }
}

/// Collects the ranks' values until they are the answer: no unknown is further than `tolerance` from its update. Returns
/// them, and their largest residual.
///
/// The residual is that of all values together, so it needs no agreement about the end.
///
/// # Errors
/// The map can't be joined.
///
/// # Cancel safety
/// If dropped, it has collected nothing; the ranks continue to iterate.
pub async fn collect(
    node: &Node,
    problem: &impl FixedPoint,
    tolerance: f64,
) -> Result<Option<(Vec<f64>, f64)>, Error> {
    let board = board(node).await?;
    let mut changes = board.watch();
    let mut x: Vec<f64> = (0..problem.unknowns()).map(|i| problem.start(i)).collect();
    loop {
        let left = residual(problem, &x);
        if left <= tolerance {
            return Ok(Some((x, left)));
        }
        let Some(change) = changes.next().await else { return Ok(None) };
        let values = change.value.unwrap_or_default();
        for (place, value) in x.iter_mut().skip(change.key as usize).zip(values) {
            *place = value;
        }
    }
}
