//! Tests a NIC whose process has no file descriptor left for a peer: it neither spins nor ignores the peer for good.
#![cfg(target_os = "linux")]

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::time::Duration;

use midplane_simhw::hardware::Firmware;
use midplane_simhw::id::NodeId;
use midplane_simhw::shm::{ShmConfig, ShmNic};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::time::{ClockId, clock_gettime};

/// Environment variable that names the fabric that a child process joins.
const FABRIC: &str = "MIDPLANE_TEST_FABRIC_WITHOUT_DESCRIPTORS";
/// File descriptors that the child may open.
const FEW: u64 = 64;
/// Time after which a test fails as hung.
const TIMEOUT: Duration = Duration::from_secs(20);

struct Nothing;

impl Firmware for Nothing {}

fn start(fabric: &str, node: u16) -> ShmNic {
    let config = ShmConfig::new(fabric, NodeId(node), 2).spin(Duration::ZERO);
    ShmNic::start(config, Nothing).unwrap()
}

fn run<T>(test: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(test)
}

/// Returns the processor time that this process has used.
fn busy() -> Duration {
    let now = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

/// Not a test by itself: a NIC that has no descriptors while its peer connects.
#[test]
fn child_without_descriptors() {
    let Ok(fabric) = std::env::var(FABRIC) else { return };
    run(async {
        let nic = start(&fabric, 0);
        let before = getrlimit(Resource::Nofile);
        setrlimit(Resource::Nofile, Rlimit { current: Some(FEW), ..before }).unwrap();
        let taken: Vec<_> = (0..FEW).map_while(|_| File::open("/dev/null").ok()).collect();
        println!("\nready");
        std::io::stdin().read_line(&mut String::new()).unwrap();
        let spent = busy();
        tokio::time::sleep(Duration::from_millis(500)).await;
        let spent = busy() - spent;
        println!("\n{}", spent.as_micros());
        drop(taken);
        tokio::time::timeout(TIMEOUT, nic.meet()).await.expect("its peer is taken in");
        println!("\nmet");
        // Its peer may not have noticed yet that they are connected.
        std::io::stdin().read_line(&mut String::new()).unwrap();
        nic.shutdown().await;
    });
}

#[test]
fn a_nic_without_descriptors_sleeps_and_then_accepts_its_peer() {
    if std::env::var(FABRIC).is_ok() {
        return;
    }
    let fabric = format!("without descriptors {}", std::process::id());
    // The path of this module within its binary, which prefixes test names in the harness.
    let module = module_path!().split_once("::").map(|(_, path)| format!("{path}::"));
    let child = format!("{}child_without_descriptors", module.unwrap_or_default());
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", &child, "--nocapture"]).env(FABRIC, &fabric);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut until = |is: &dyn Fn(&str) -> bool| loop {
        let line = lines.next().expect("it says so before it ends").unwrap();
        if is(&line) {
            return line;
        }
    };
    until(&|line| line == "ready");
    let spent = run(async {
        let nic = start(&fabric, 1);
        child.stdin.as_ref().unwrap().write_all(b"go\n").unwrap();
        let spent = until(&|line| line.parse::<u64>().is_ok());
        tokio::time::timeout(TIMEOUT, nic.meet()).await.expect("its peer takes it in");
        until(&|line| line == "met");
        child.stdin.as_ref().unwrap().write_all(b"end\n").unwrap();
        nic.shutdown().await;
        Duration::from_micros(spent.parse().unwrap())
    });
    assert!(child.wait().unwrap().success());
    assert!(spent < Duration::from_millis(25), "{spent:?} of 500 ms were spent on a knock");
}
