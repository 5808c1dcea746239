//! Parts that this program plays when it has started itself: a daemon, a front end, a rank.

use crate::daemons::parts::{self, number, runtime};
use clap::ValueEnum as _;

use crate::nas_rank::{self, Name};
use crate::preempt::laps::Stopwatch;
use crate::preempt::turns;

/// Plays the part that this process was started for; returns false if there is none.
pub(crate) fn play_part() -> bool {
    if parts::play_part() {
        return true;
    }
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let played = match words[..] {
        ["--be-rank", kernel, class, times] => rank(kernel, class, times),
        ["--be-ticker", folder, name, seconds] => {
            number(seconds).and_then(|seconds| turns::tick(folder, name, seconds))
        }
        _ => return false,
    };
    if let Err(error) = played {
        eprintln!("error: {error}");
        std::process::exit(1);
    }
    true
}

/// Runs a rank; prints its result and its reports of work at the end.
fn rank(kernel: &str, class: &str, times: &str) -> Result<(), String> {
    let program = (Name::from_str(kernel, false)?, class.parse()?);
    let times = number(times)?;
    let watch = Stopwatch::default();
    let said = runtime()?.block_on(nas_rank::run(program, times, &watch))?;
    if let Some(said) = said {
        println!("{}", serde_json::to_string(&said).expect("plain data"));
        println!("{}", serde_json::to_string(&watch.into_reports()).expect("plain data"));
    }
    Ok(())
}
