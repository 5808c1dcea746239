//! A job that answers its input, next to one that computes.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Stdio};
use std::time::Duration;

use midplane_gang::live::clock::now;

use crate::scenes::listing;
use crate::stage::{Stage, wait_until};

const SLICE_MS: u32 = 600;
const LINES: u64 = 7;

/// Returns the longest and the median response time.
fn answers(stage: &Stage, how: &str) -> [Duration; 2] {
    let mut client = stage.client_as(1, how, &["cat"]);
    let mut client: Child = client.stdin(Stdio::piped()).spawn().unwrap();
    let mut input = client.stdin.take().unwrap();
    let mut output = BufReader::new(client.stdout.take().unwrap());
    let mut line = String::new();
    let mut waits = Vec::new();
    for number in 0..=LINES {
        let began = now();
        writeln!(input, "{number}").unwrap();
        line.clear();
        output.read_line(&mut line).unwrap();
        assert_eq!(line, format!("{number}\n"));
        // The first answer includes the start of the job.
        if number > 0 {
            waits.push(now().since(began));
        }
        std::thread::park_timeout(Duration::from_millis(170 + 90 * (number % 3)));
    }
    drop(input);
    assert!(client.wait().unwrap().success());
    waits.sort();
    [waits[waits.len() - 1], waits[waits.len() / 2]]
}

/// Input wakes a job: it need not wait for its turn.
pub(crate) fn by_input() {
    let stage = Stage::alone(1, SLICE_MS);
    let itself = std::env::current_exe().unwrap();
    let busy = stage.client(1, &[itself.to_str().unwrap(), "--spin", "60"]).spawn();
    let mut busy: Child = busy.unwrap();
    wait_until("the other one runs", || listing(&stage).jobs.iter().any(|line| line.runs));
    let [waiting, _] = answers(&stage, "pipes");
    let [longest, median] = answers(&stage, "woken");
    println!("longest answer {longest:?} (median {median:?}), in its turn {waiting:?}");
    busy.kill().unwrap();
    busy.wait().unwrap();
    assert!(waiting > Duration::from_millis(200), "it was never suspended: {waiting:?}");
    assert!(median < Duration::from_millis(100), "{median:?}");
    assert!(longest < waiting, "{longest:?}");
}
