//! The commands: programs that are built, run, and stopped together with their children.

use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::Value;
use tokio::process::Command;
use tokio::time::timeout;

/// Time limit of a build.
const BUILD: Duration = Duration::from_secs(900);
/// Time in which a stopped command ends its children; then it is killed.
const GRACE: Duration = Duration::from_secs(10);

/// The reason why a command has no report.
#[derive(Clone, Debug)]
pub(crate) enum Lack {
    /// Something that it needs is not on this machine.
    Missing(String),
    /// The command itself failed.
    Failed(String),
    /// This program was stopped.
    Stopped,
}

/// Report of a command.
#[derive(Debug)]
pub(crate) struct Report {
    pub(crate) document: Value,
    /// Each peer that it has skipped, a colon, and the reason.
    pub(crate) skipped: Vec<String>,
}

/// The programs, and the folders where they are.
#[derive(Debug)]
pub(crate) struct Programs {
    lab: PathBuf,
    root: PathBuf,
    /// The folder `target` of the workspace.
    target: PathBuf,
    /// Time limit of a command.
    limit: Duration,
}

impl Programs {
    pub(crate) fn find(limit: Duration) -> Result<Self, String> {
        let lab = std::env::current_exe().map_err(|error| error.to_string())?;
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let root = root
            .canonicalize()
            .map_err(|error| format!("the sources, {}: {error}", root.display()))?;
        let target = lab.ancestors().nth(2).map(Path::to_owned).ok_or("lab is in no folder")?;
        Ok(Self { lab, root, target, limit })
    }

    fn services_target(&self) -> PathBuf {
        self.root.join("benches/services/target")
    }

    fn path(&self, program: &str) -> PathBuf {
        match program {
            "lab" => self.lab.clone(),
            "services" => self.services_target().join("release/midplane-services"),
            "cluster" => self.lab.with_file_name("cluster"),
            script => self.root.join(script),
        }
    }

    /// Builds the program of a command, unless it is a script. If the build fails, an existing program is used.
    pub(crate) async fn build(
        &self,
        words: &str,
        stop: impl Future<Output = ()>,
    ) -> Result<(), Lack> {
        let words: Vec<&str> = words.split_whitespace().collect();
        let program = words.first().copied().unwrap_or_default();
        let needed = if program.ends_with("front_door.sh") { "services" } else { program };
        let mut cargo = Command::new("cargo");
        cargo.current_dir(&self.root).env("CARGO_TARGET_DIR", &self.target);
        match needed {
            "services" => {
                cargo.env("CARGO_TARGET_DIR", self.services_target());
                cargo.args([
                    "build",
                    "--release",
                    "-q",
                    "--manifest-path",
                    "benches/services/Cargo.toml",
                ])
            }
            // Together with the benches, the example has their features, and shares what they have built.
            "cluster" => cargo
                .args(["build", "--release", "-q", "-p", "midplane-benches", "-p", "cluster"])
                .args(["--bin", "cluster"]),
            "cargo" => {
                cargo.args(words[1..].iter().take_while(|word| **word != "--")).arg("--no-run")
            }
            _ => return Ok(()),
        };
        match output(cargo, BUILD, stop).await {
            Ok(output) if output.status.success() => Ok(()),
            Err(Lack::Stopped) => Err(Lack::Stopped),
            _ if self.path(needed).is_file() => Ok(()),
            Ok(output) => Err(Lack::Missing(format!("cargo build: {}", complaint(&output)))),
            Err(Lack::Missing(why) | Lack::Failed(why)) => Err(Lack::Missing(why)),
        }
    }

    /// Runs a command whose program was built until it ends, or `stop` completes.
    pub(crate) async fn run(
        &self,
        words: &str,
        stop: impl Future<Output = ()>,
    ) -> Result<Report, Lack> {
        let words: Vec<&str> = words.split_whitespace().collect();
        // A script may stand behind a program that starts it.
        let mut command = match words[0] {
            program @ ("cargo" | "taskset") => Command::new(program),
            program => Command::new(self.path(program)),
        };
        command.args(&words[1..]).arg("--json").current_dir(&self.root);
        command.env("CARGO_TARGET_DIR", &self.target).env("SERVICES", self.path("services"));
        report(&output(command, self.limit, stop).await?)
    }
}

/// Runs a command in a process group of its own, and stops the group if it takes too long or `stop` completes.
async fn output(
    mut command: Command,
    limit: Duration,
    stop: impl Future<Output = ()>,
) -> Result<Output, Lack> {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let name = command.as_std().get_program().to_string_lossy().into_owned();
    let child = command.process_group(0).spawn();
    let child = child.map_err(|error| Lack::Missing(format!("{name}: {error}")))?;
    let group = child.id().and_then(|id| Pid::from_raw(id.try_into().ok()?));
    let mut ended = std::pin::pin!(child.wait_with_output());
    let lack = tokio::select! {
        output = &mut ended => return output.map_err(|error| Lack::Failed(error.to_string())),
        () = stop => Lack::Stopped,
        () = tokio::time::sleep(limit) => Lack::Failed(format!("not done after {limit:?}")),
    };
    for signal in [Signal::TERM, Signal::KILL] {
        // The group may have ended already.
        let _ = group.map(|group| kill_process_group(group, signal));
        if timeout(GRACE, &mut ended).await.is_ok() {
            break;
        }
    }
    Err(lack)
}

/// Returns the last line of a program's errors.
fn complaint(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stderr);
    let line = text.lines().rfind(|line| !line.trim().is_empty());
    line.map_or_else(|| output.status.to_string(), |line| line.trim_start_matches("error: ").into())
}

/// Reads what a command has printed. A report counts even if the exit code says that a claim in it failed, unless its
/// field `holds` says that results are wrong.
fn report(output: &Output) -> Result<Report, Lack> {
    let lines = |bytes: &[u8]| {
        let text = String::from_utf8_lossy(bytes).into_owned();
        let lines = text.lines().filter_map(|line| line.strip_prefix("skipped: "));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    if let Ok(document) = serde_json::from_slice::<Value>(&output.stdout) {
        if document["holds"] == false {
            return Err(Lack::Failed("its report says that results are wrong".into()));
        }
        return Ok(Report { document, skipped: lines(&output.stderr) });
    }
    match lines(&output.stdout).pop() {
        Some(reason) => Err(Lack::Missing(reason)),
        None => Err(Lack::Failed(complaint(output))),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt as _;
    use std::process::ExitStatus;

    use super::*;

    /// Regression: the numbers of a run counted though its results were wrong.
    #[test]
    fn a_report_of_wrong_results_is_a_failed_command() {
        let of = |text: &str| {
            let (stdout, stderr) = (text.as_bytes().to_vec(), Vec::new());
            report(&Output { status: ExitStatus::from_raw(1 << 8), stdout, stderr })
        };
        assert!(matches!(of(r#"{"runs": [], "holds": false}"#), Err(Lack::Failed(_))));
        for text in [r#"{"runs": [], "holds": true}"#, r#"{"runs": []}"#] {
            assert!(of(text).is_ok(), "{text}");
        }
    }
}
