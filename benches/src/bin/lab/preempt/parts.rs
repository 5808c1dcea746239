//! Parts that this program plays when it has started itself: a daemon, a client, a rank.

use crate::daemons::parts::{self, number, runtime};
use clap::ValueEnum as _;

use crate::nas_rank::{self, Name};
use crate::preempt::laps::Stopwatch;
use crate::preempt::turns;

/// Plays the part that this process was started for; returns false if there is none.
pub(crate) fn play_part() -> bool {
    parts::play_part(|words| match *words {
        ["--be-rank", kernel, class, times] => Some(rank(kernel, class, times)),
        ["--be-ticker", folder, name, seconds] => {
            Some(number(seconds).and_then(|seconds| turns::tick(folder, name, seconds)))
        }
        _ => None,
    })
}

/// Runs a rank; prints its result and its reports of work at the end.
fn rank(kernel: &str, class: &str, times: &str) -> Result<(), String> {
    let program = (Name::from_str(kernel, false)?, class.parse()?);
    let times = number(times)?;
    let watch = Stopwatch::default();
    let result = runtime()?.block_on(nas_rank::run(program, times, &watch))?;
    if let Some(result) = result {
        println!("{}", serde_json::to_string(&result).expect("plain data"));
        println!("{}", serde_json::to_string(&watch.into_reports()).expect("plain data"));
    }
    Ok(())
}
