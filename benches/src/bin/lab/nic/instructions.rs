//! Instructions of one message in one process, counted by valgrind.

use std::process::{Command, Stdio};

use midplane_benches::work::interfaces::{Nics, units};

/// Round trips before the count and during it.
const WARM_UP: usize = 200;
const COUNTED: usize = 1_000;

/// Returns the mean number of instructions of a message: its buffer, the send, and both completions.
pub(crate) fn count() -> Result<f64, String> {
    let failed = |error: std::io::Error| format!("valgrind, which counts instructions: {error}");
    let own = std::env::current_exe().map_err(failed)?;
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg("--toggle-collect=*instructions::counted*")
        .arg(own)
        .args(["nic", "--part=counted", "--place=none"])
        .stdin(Stdio::null())
        .output()
        .map_err(failed)?;
    let said = String::from_utf8_lossy(&output.stderr);
    let all = said.lines().find_map(|line| line.split_once("Collected :")?.1.trim().parse().ok());
    let all: f64 = all
        .filter(|all| *all > 0.0)
        .ok_or_else(|| "no count; --help says how to build".to_owned())?;
    Ok(all / (2 * COUNTED) as f64)
}

/// Runs the counted work.
pub(crate) fn work() -> Result<(), String> {
    let nics = Nics::start("lab nic");
    let mut there_and_back = units(&nics);
    (0..WARM_UP).for_each(|_| there_and_back());
    counted(&mut there_and_back);
    Ok(())
}

/// Runs round trips; callgrind finds this function by its name.
#[inline(never)]
fn counted(there_and_back: &mut dyn FnMut()) {
    for _ in 0..COUNTED {
        there_and_back();
    }
}
