//! Linear systems by asynchronous iteration, over a network that is too small for them.
//!
//! ```text
//! cargo run --release --example solver -- --plot solver.svg
//! cargo run --release --example solver -- --control warp+csend --background 0.5 --json
//! ```
//!
//! Ranks compute their unknowns with whatever they have heard of the others', and send what they
//! computed. Without control the network fills with values that are stale when they arrive; under
//! Warp fewer messages carry more and newer values. The figures are those of Heddaya and Park
//! (1994), section 5.3.

mod arguments;
mod outbox;
mod rank;
mod run;

#[path = "../common/command_line.rs"]
mod command_line;
#[path = "../common/plot.rs"]
mod plot;
#[path = "../common/report.rs"]
mod report;

use std::fmt::Write as _;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use midplane::warp::iterate::FixedPoint as _;
use midplane::warp::iterate::matrix::{self, Linear};
use serde::Serialize;

use arguments::{Arguments, Control};
use plot::{Line, Panel};
use report::{BAD_INPUT, DID_NOT_HOLD};
use run::{Run, Setting};

/// Buffer sizes of Figure 1.
const BUFFERS: [u16; 6] = [1, 4, 8, 16, 32, 128];
/// The paper's system is of so many unknowns.
const UNKNOWNS: usize = 1_000;

fn main() -> ExitCode {
    let arguments = match command_line::parse::<Arguments>(std::env::args_os()) {
        Ok(arguments) => arguments,
        Err(code) => return code,
    };
    if let Some(path) = &arguments.plot
        && !path.parent().is_none_or(|folder| folder == Path::new("") || folder.is_dir())
    {
        let what = format!("--plot {}: there is no such folder", path.display());
        return report::fail(&what, BAD_INPUT);
    }
    let problem = match problem(&arguments) {
        Ok(problem) => Arc::new(problem),
        Err(what) => return report::fail(&what, BAD_INPUT),
    };
    let mut runs = Vec::new();
    let settings = settings(&arguments, problem.unknowns());
    // Drawn on a terminal only.
    let bar = ProgressBar::new(settings.len() as u64);
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} {eta}");
    bar.set_style(style.expect("a constant"));
    for setting in settings {
        match run::simulate(&setting, &problem) {
            Ok(run) => runs.push(run),
            Err(what) => return report::fail(&what, DID_NOT_HOLD),
        }
        bar.inc(1);
    }
    bar.finish_and_clear();
    finish(&arguments, &runs)
}

/// The system that is asked for, if it is one that must converge.
fn problem(arguments: &Arguments) -> Result<Linear, String> {
    let (name, a) = if let Some(path) = &arguments.matrix {
        let name = format!("--matrix {}", path.display());
        let text = std::fs::read_to_string(path).map_err(|error| format!("{name}: {error}"))?;
        let a = matrix::read(&text).map_err(|error| format!("{name}: {error}"))?;
        (name, a)
    } else if let Some(n) = arguments.random {
        (format!("--random {n}"), matrix::random(n.into(), 0.9, arguments.seed))
    } else {
        let n = arguments.trefethen.map_or(UNKNOWNS, usize::from);
        (format!("--trefethen {n}"), matrix::trefethen(n))
    };
    let problem = Linear::new(a, None).map_err(|error| format!("{name}: {error}"))?;
    problem.check().map_err(|error| format!("{name}: {error}"))?;
    let (unknowns, ranks) = (problem.unknowns(), usize::from(arguments.ranks));
    if unknowns < ranks {
        return Err(format!("--ranks {ranks}: there are {unknowns} unknowns to deal out"));
    }
    Ok(problem)
}

/// The runs that are asked for.
fn settings(arguments: &Arguments, unknowns: usize) -> Vec<Setting> {
    let all = [Control::None, Control::Static, Control::Csend, Control::Warp, Control::WarpCsend];
    let controls = arguments.control.map_or_else(|| all.to_vec(), |control| vec![control]);
    let buffers = arguments.buffer.map_or_else(
        || if arguments.control.is_some() { vec![4] } else { BUFFERS.to_vec() },
        |buffer| vec![buffer],
    );
    let backgrounds = arguments.background.map_or_else(
        || if arguments.control.is_some() { vec![0.0] } else { vec![0.0, 0.5] },
        |share| vec![share],
    );
    let mut settings = Vec::new();
    for &background in &backgrounds {
        for &control in &controls {
            for &buffer in &buffers {
                // Without control each update goes by itself, whatever the buffer.
                if control == Control::None && buffer != buffers[0] {
                    continue;
                }
                settings.push(Setting {
                    fabric: arguments.fabric,
                    medium: arguments.medium,
                    control,
                    buffer: if control == Control::None { 1 } else { buffer },
                    transport: arguments.transport,
                    ranks: arguments.ranks,
                    unknowns,
                    background,
                    tolerance: arguments.tolerance,
                    update_us: arguments.update_us,
                    seed: arguments.seed,
                    limit: Duration::from_secs_f64(arguments.seconds),
                });
            }
        }
    }
    settings
}

#[derive(Serialize)]
struct Document<'a> {
    runs: &'a [Run],
}

/// Reports, and says how the process is to end.
fn finish(arguments: &Arguments, runs: &[Run]) -> ExitCode {
    if arguments.json {
        report::print_json(&Document { runs });
    } else {
        report::say(&table(runs));
    }
    if let Some(path) = &arguments.plot
        && let Err(what) = draw(path, runs)
    {
        return report::fail(&what, BAD_INPUT);
    }
    match runs.iter().all(|run| run.converged) {
        true => ExitCode::SUCCESS,
        false => report::fail("a run did not converge within --seconds", DID_NOT_HOLD),
    }
}

fn table(runs: &[Run]) -> String {
    let mut text = String::new();
    let _ = writeln!(
        text,
        "{:<12}{:>8}{:>12}{:>10}{:>11}{:>12}{:>8}{:>12}{:>10}",
        "control",
        "buffer",
        "background",
        "seconds",
        "messages",
        "updates/s",
        "sweeps",
        "residual",
        "loss %"
    );
    for run in runs {
        let end = if run.converged { "" } else { "  not converged" };
        let _ = writeln!(
            text,
            "{:<12}{:>8}{:>12.2}{:>10.2}{:>11}{:>12.0}{:>8}{:>12.1e}{:>10.2}{end}",
            word(run.setting.control),
            run.setting.buffer,
            run.setting.background,
            run.seconds,
            run.messages,
            run.updates_per_s,
            run.iterations,
            run.residual,
            run.loss * 100.0
        );
    }
    text
}

/// The word for a control in JSON.
fn word(control: Control) -> String {
    let value = serde_json::to_value(control).ok();
    value.and_then(|value| value.as_str().map(Into::into)).unwrap_or_default()
}

/// Figure 1, the residual over time, and Figure 3's Lambda.
fn draw(path: &Path, runs: &[Run]) -> Result<(), String> {
    let mut controls: Vec<Control> = runs.iter().map(|run| run.setting.control).collect();
    controls.sort_unstable();
    controls.dedup();
    let most = runs.iter().map(|run| run.setting.background).fold(0.0, f64::max);
    let of = |control: Control| {
        let is_it =
            move |run: &&Run| run.setting.control == control && run.setting.background == most;
        runs.iter().filter(is_it)
    };
    let line = |control: &Control, points: Vec<(f64, f64)>| Line { label: word(*control), points };
    let time = |control: &Control| {
        let points = of(*control).map(|run| (f64::from(run.setting.buffer), run.seconds));
        line(control, points.collect())
    };
    let figure = Panel {
        title: format!("Time to the answer, background {most}"),
        lines: controls.iter().map(time).collect(),
    };
    plot::draw(path, "updates of a message", "seconds", &[figure])?;
    // A second picture beside the first, of what happens in time.
    let digits = |control: &Control| {
        let run = of(*control).find(|run| run.setting.buffer <= 4);
        let points = run.map(|run| run.trace.iter().map(|(at, r)| (*at, -r.log10())).collect());
        line(control, points.unwrap_or_default())
    };
    let residual = Panel {
        title: "Digits of the residual".into(),
        lines: controls.iter().map(digits).collect(),
    };
    plot::draw(&path.with_extension("time.svg"), "seconds", "digits", &[residual])?;
    let Some(run) = of(Control::Warp).next() else { return Ok(()) };
    let lambda =
        Panel { title: "Lambda".into(), lines: vec![line(&Control::Warp, run.lambda.clone())] };
    plot::draw(&path.with_extension("lambda.svg"), "seconds", "Lambda", &[lambda])
}
