//! Machine, date and versions of a measurement.

use std::process::Command;

use serde::Serialize;

#[derive(Debug, Serialize)]
pub(crate) struct Machine {
    date: String,
    processor: String,
    processors: usize,
    load: String,
    system: String,
    rustc: String,
    version: &'static str,
}

impl Machine {
    pub(crate) fn markdown(&self) -> String {
        let Self { date, processor, processors, load, system, rustc, version } = self;
        format!(
            "Measured on {date} on {processors} x {processor}, {system}, load {load}, with {rustc} and Midplane \
             {version}.\n"
        )
    }
}

/// Describes this machine, now.
pub(crate) fn describe() -> Machine {
    Machine {
        date: output_of("date", &["-u", "+%F"]),
        processor: processor().unwrap_or_else(|| std::env::consts::ARCH.into()),
        processors: std::thread::available_parallelism().map_or(1, usize::from),
        load: first_word("/proc/loadavg").unwrap_or_else(|| "unknown".into()),
        system: output_of("uname", &["-sr"]),
        rustc: output_of("rustc", &["--version"]),
        version: env!("CARGO_PKG_VERSION"),
    }
}

fn processor() -> Option<String> {
    let text = std::fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = text.lines().find(|line| line.starts_with("model name"))?;
    line.split_once(": ").map(|(_, name)| name.to_owned())
}

fn first_word(path: &str) -> Option<String> {
    let text = std::fs::read_to_string(path).ok()?;
    text.split_whitespace().next().map(str::to_owned)
}

fn output_of(program: &str, words: &[&str]) -> String {
    let output = Command::new(program).args(words).output();
    let text = output.ok().and_then(|done| String::from_utf8(done.stdout).ok());
    text.map_or_else(|| format!("no {program}"), |text| text.trim().to_owned())
}
