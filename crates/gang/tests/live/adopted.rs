//! Adopted processes, which the daemon has not started, take turns with jobs.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use midplane_gang::live::client::{Output, RunOptions, run};
use midplane_gang::live::daemon::probe_control_groups;
use midplane_gang::live::exec_shim::NO_GROUP;
use midplane_gang::live::message::{Adopted, Program};
use rustix::process::{Pid, Signal, kill_process};

use crate::parts::{code, end_with_test, runtime};
use crate::scenes::{listing, spans_of};
use crate::stage::{Stage, itself, wait_until};

/// A control group next to those of the daemon.
struct Group {
    folder: PathBuf,
}

impl Group {
    fn make(name: &str) -> Option<Self> {
        let of_daemon = match probe_control_groups() {
            Ok(folder) => folder,
            Err(error) => {
                println!("skipped: {error}");
                return None;
            }
        };
        let folder = of_daemon.with_file_name(format!("{name}-{}", std::process::id()));
        fs::create_dir(&folder).unwrap();
        Some(Self { folder })
    }

    /// Starts this program in the group, and waits until the group contains it.
    fn start(&self, arguments: &[&str]) -> Child {
        let enter = format!("echo $$ > {}/cgroup.procs; exec \"$0\" \"$@\"", self.folder.display());
        let mut command = Command::new("sh");
        command.args(["-c", &enter]).arg(std::env::current_exe().unwrap()).args(arguments);
        command.env("GANG_JOB", "adopted").env("GANG_RANK", "0").stdout(Stdio::null());
        let child = command.spawn().unwrap();
        // An empty group would end its job at once.
        wait_until("the group has a process", || self.has("populated 1"));
        child
    }

    fn has(&self, line: &str) -> bool {
        let events = fs::read_to_string(self.folder.join("cgroup.events")).unwrap();
        events.lines().any(|other| other == line)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = fs::write(self.folder.join("cgroup.kill"), "1");
        wait_until("the group is empty", || fs::remove_dir(&self.folder).is_ok());
    }
}

/// A client that adopts a group.
pub(crate) fn client(socket: &str, folder: &str) -> ! {
    end_with_test();
    let adopts = Some(Adopted::Folder(folder.to_owned()));
    let (command, folder) = (vec![b"adopt".to_vec()], b"/".to_vec());
    let program = Program { command, folder, keep_going: true, adopts, ..Program::default() };
    let options = RunOptions { ranks: 2, weight: 1, program, output: Output::default() };
    let runtime = runtime();
    let over = runtime.block_on(run(socket.as_ref(), options, |_| {}));
    runtime.shutdown_background();
    std::process::exit(code(over))
}

fn adopt(stage: &Stage, folder: &Path) -> Child {
    let mut client = itself();
    client.arg("--adopt").arg(stage.socket(0)).arg(folder);
    client.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

pub(crate) fn takes_turns() {
    let Some(group) = Group::make("turns") else { return };
    let stage = Stage::alone(2, 15);
    let path = stage.path().to_str().unwrap().to_owned();
    let mut child = group.start(&["--tick", &path, "1.2"]);
    let adopting = adopt(&stage, &group.folder);
    wait_until("it is adopted", || !listing(&stage).jobs.is_empty());
    let itself_path = std::env::current_exe().unwrap();
    let tick = [itself_path.to_str().unwrap(), "--tick", &path, "0.8"];
    let job = stage.client(2, &tick).spawn().unwrap();
    assert_eq!(stage.end(job), (0, String::new(), String::new()));
    assert!(child.wait().unwrap().success());
    // The job ends because the group is empty.
    assert_eq!(stage.end(adopting), (0, String::new(), String::new()));
    let adopted = spans_of(&stage, &["adopted-0"]);
    let job = spans_of(&stage, &["2-0", "2-1"]);
    assert!(adopted.len() > 4 && job.len() > 4, "{} {}", adopted.len(), job.len());
    let pairs = adopted.iter().flat_map(|a| job.iter().map(move |b| (a, b)));
    let mut together = pairs.filter(|(a, b)| a.0 < b.1 && b.0 < a.1);
    assert_eq!(together.next(), None, "both ran");
}

/// The processes continue, both if the client leaves the adoption and if the daemon is killed.
pub(crate) fn continues() {
    let Some(group) = Group::make("continues") else { return };
    let mut stage = Stage::alone(2, 15);
    let mut child = group.start(&["--spin", "1000000"]);
    for kill_daemon in [false, true] {
        let adopting = adopt(&stage, &group.folder);
        wait_until("it is adopted", || !listing(&stage).jobs.is_empty());
        let spin = [std::env::current_exe().unwrap().to_str().unwrap().to_owned()];
        let mut other = stage.client(2, &[&spin[0], "--spin", "1000000"]).spawn().unwrap();
        wait_until("it stands still", || group.has("frozen 1"));
        if kill_daemon {
            stage.daemons[0].kill().unwrap();
        } else {
            kill_process(Pid::from_child(&adopting), Signal::INT).unwrap();
        }
        let (exit, _, error) = stage.end(adopting);
        assert_eq!(exit, if kill_daemon { 2 } else { 128 + Signal::INT.as_raw() }, "{error}");
        other.kill().unwrap();
        other.wait().unwrap();
        wait_until("it continues", || group.has("frozen 0"));
        if !kill_daemon {
            wait_until("no job is left", || listing(&stage).jobs.is_empty());
        }
    }
    assert!(child.try_wait().unwrap().is_none());
    child.kill().unwrap();
    child.wait().unwrap();
}

pub(crate) fn refusals() {
    let Some(group) = Group::make("refused") else { return };
    let stage = Stage::alone(2, 15);
    let gone = group.folder.with_file_name("no-such-group");
    assert_eq!(stage.end(adopt(&stage, &gone)).0, NO_GROUP);
    for (folder, why) in
        [(Path::new("/tmp"), "no control group below"), (Path::new("relative"), "no absolute path")]
    {
        let (exit, _, error) = stage.end(adopt(&stage, folder));
        assert!(exit == 2 && error.contains(why), "{exit} {error}");
    }
    let mut child = group.start(&["--spin", "1000000"]);
    let first = adopt(&stage, &group.folder);
    wait_until("it is adopted", || !listing(&stage).jobs.is_empty());
    let (exit, _, error) = stage.end(adopt(&stage, &group.folder));
    assert!(exit == 2 && error.contains("job 4 has adopted"), "{exit} {error}");
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(stage.end(first).0, 0);
}
