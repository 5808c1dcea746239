//! Tests a daemon whose process has no file descriptor left for a client: it neither spins nor ignores the client for
//! good.
//!
//! The limit applies to the whole process, so this test is alone in its file.
#![cfg(target_os = "linux")]

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::time::Duration;

use midplane::nicvm::unit::Unit;
use midplane::simhw::id::NodeId;
use midplane::simhw::nicd::{Client, ClientConfig, ServerConfig};
use midplane::simhw::shm::{ShmConfig, ShmNic};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::time::{ClockId, clock_gettime};

/// Environment variable that names the daemon of a child process.
const DAEMON: &str = "MIDPLANE_TEST_DAEMON";
/// File descriptors that the daemon's process may open.
const FEW: u64 = 64;

/// Not a test by itself: a client that connects when its input says so.
#[test]
fn child_that_connects() {
    let Ok(name) = std::env::var(DAEMON) else { return };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let _inside = runtime.enter();
    println!("\nready");
    std::io::stdin().read_line(&mut String::new()).unwrap();
    Client::connect(ClientConfig::new(name, NodeId(0))).unwrap();
    println!("\nconnected");
}

fn until(lines: &mut impl BufRead, what: &str) {
    let mut line = String::new();
    while line.trim() != what {
        line.clear();
        assert!(lines.read_line(&mut line).unwrap() > 0, "it ended before {what:?}");
    }
}

/// Returns the processor time that this process has used.
fn busy() -> Duration {
    let now = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

#[tokio::test]
async fn a_daemon_without_descriptors_waits_for_one_and_then_takes_its_client() {
    if std::env::var(DAEMON).is_ok() {
        return;
    }
    let name = format!("without descriptors {}", std::process::id());
    let config = ShmConfig::new(name.clone(), NodeId(0), 1).spin(Duration::ZERO);
    let nic = ShmNic::start(config, Unit::default()).unwrap();
    let config = ServerConfig::new(name.clone()).spin(Duration::ZERO);
    let server = nic.serve_ports(config).unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "child_that_connects", "--nocapture"]).env(DAEMON, &name);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap());
    until(&mut lines, "ready");

    let before = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(FEW), ..before }).unwrap();
    let taken: Vec<_> = (0..FEW).map_while(|_| File::open("/dev/null").ok()).collect();
    assert!((1..FEW).contains(&(taken.len() as u64)), "this process has its descriptors");
    let (time, spent) = (Duration::from_millis(500), busy());
    // The pipe stays open: closing it would free a descriptor.
    child.stdin.as_ref().unwrap().write_all(b"go\n").unwrap();
    tokio::time::sleep(time).await;
    let spent = busy() - spent;
    setrlimit(Resource::Nofile, before).unwrap();
    drop(taken);

    until(&mut lines, "connected");
    assert!(child.wait().unwrap().success());
    assert!(spent < time / 25, "{spent:?} of {time:?} were spent on a client that can't be taken");
    drop(server);
    nic.shutdown().await;
}
