//! Instructions of a piece of work, counted by valgrind's callgrind in a process of this program.

use std::process::{Command, Stdio};

/// Repetitions before the count and during it: tables and pools have reached their size, and rare events are part of the
/// mean.
pub const WARM_UP: usize = 200;
pub const COUNTED: usize = 1_000;

/// Starts this program under callgrind, with arguments for which it calls [`play`]; returns the mean number of instructions of
/// the work.
///
/// # Errors
/// One line: valgrind is missing, or there is no count.
pub fn count(arguments: &[&str]) -> Result<f64, String> {
    let failed = |error: std::io::Error| format!("valgrind, which counts instructions: {error}");
    let own = std::env::current_exe().map_err(failed)?;
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg("--toggle-collect=*callgrind::counted*")
        .arg(own)
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .map_err(failed)?;
    let text = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        return Err(format!("{} under valgrind; --help says how to build", output.status));
    }
    let all = text.lines().find_map(|line| line.split_once("Collected :")?.1.trim().parse().ok());
    let all: Option<f64> = all.filter(|all| *all > 0.0);
    Ok(all.ok_or("no count; --help says how to build")? / COUNTED as f64)
}

/// Runs the work that is counted, in the process that [`count`] has started.
pub fn play(work: &mut dyn FnMut()) {
    (0..WARM_UP).for_each(|_| work());
    counted(work);
}

/// Runs the counted work; callgrind finds this function by its name.
#[inline(never)]
fn counted(work: &mut dyn FnMut()) {
    for _ in 0..COUNTED {
        work();
    }
}
