//! Jobs of programs that take no part in checkpoints, saved with CRIU. Skipped where CRIU does not work.

use std::collections::BTreeMap;

use midplane_gang::live::client::ClientError;
use midplane_gang::live::daemon::probe_criu;

use crate::saved::{checkpoint, restore};
use crate::scenes::listing;
use crate::stage::{Stage, said, wait_until};

/// Prints its rank and a number, 60 times within about 3 s.
const COUNT: &str = "n=0; while [ $n -lt 60 ]; do n=$((n+1)); echo $GANG_RANK $n; sleep 0.05; done";

/// A job is saved on two hosts amid its work, and restored on one: each rank prints each of its numbers once, in order.
pub(crate) fn count_on_elsewhere() {
    if let Err(error) = probe_criu() {
        return println!("skipped: {error}");
    }
    let stage = Stage::tree(2, 1, 20);
    wait_until("all are there", || listing(&stage).hosts.iter().all(|here| *here));
    let client = stage.client(2, &["sh", "-c", COUNT]).spawn().unwrap();
    let place = tempfile::tempdir().unwrap();
    let folder = place.path().join("saved");
    wait_until("it has run for a while", || {
        listing(&stage).jobs.iter().any(|it| it.run_seconds > 0.5)
    });
    let saved = checkpoint(&stage, 1, &folder, true);
    let saved = saved.unwrap_or_else(|error: ClientError| panic!("{error}"));
    assert_eq!(saved.ranks, 2);
    let (code, before, error) = said(client.wait_with_output().unwrap());
    assert!(code == 137 && error.contains("it was saved in"), "{code} {error}");
    drop(stage);
    let other = Stage::alone(2, 20);
    let (code, after, error) = said(restore(&other, &folder).wait_with_output().unwrap());
    assert_eq!((code, error.as_str()), (0, ""));
    let mut numbers: BTreeMap<&str, Vec<u32>> = BTreeMap::new();
    for line in before.lines().chain(after.lines()) {
        let (rank, number) = line.split_once(' ').unwrap();
        numbers.entry(rank).or_default().push(number.parse().unwrap());
    }
    let whole: Vec<u32> = (1..=60).collect();
    assert_eq!(numbers.into_values().collect::<Vec<_>>(), [whole.clone(), whole]);
    assert!(before.lines().count() < 120 && after.lines().count() > 0);
}
