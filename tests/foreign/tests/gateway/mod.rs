//! Runs the gateway example as a process.

use std::net::SocketAddr;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use midplane::Node;
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStderr, Command};

use crate::nodes::{Over, cluster_name};

/// 60 s: more than any step takes on a busy machine.
pub const WITHIN: Duration = Duration::from_secs(60);

/// Returns the command that starts a gateway, which ends with its test.
pub fn command() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gateway"));
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).stdin(Stdio::null()).kill_on_drop(true);
    command
}

/// A running gateway.
pub struct Gateway {
    child: Child,
    said: Lines<BufReader<ChildStderr>>,
    /// The address of its TCP listener.
    pub address: SocketAddr,
}

impl Gateway {
    /// Starts a gateway to a service.
    pub async fn start(cluster: &str, service: &str, node: &Node) -> Self {
        let mut command = command();
        command.args([service, "--cluster", cluster]);
        if let Some(address) = node.address() {
            command.args(["--discover", &address.to_string()]);
        }
        let mut child = command.spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let line = tokio::time::timeout(WITHIN, lines.next_line()).await.unwrap().unwrap().unwrap();
        let (address, to) = line.split_once(" -> ").unwrap();
        assert_eq!(to, service);
        let said = BufReader::new(child.stderr.take().unwrap()).lines();
        Self { child, said, address: address.parse().unwrap() }
    }

    /// Sends the gateway a Ctrl-C.
    pub fn interrupt(&self) {
        let id = Pid::from_raw(self.child.id().unwrap().try_into().unwrap()).unwrap();
        kill_process(id, Signal::INT).unwrap();
    }

    /// Waits for the next line on the gateway's standard error.
    #[allow(dead_code, reason = "one of the programs needs it")]
    pub async fn line(&mut self) -> String {
        tokio::time::timeout(WITHIN, self.said.next_line()).await.unwrap().unwrap().unwrap()
    }

    /// Waits until the gateway has exited; returns its status and the rest of its standard error.
    pub async fn ended(mut self) -> (ExitStatus, String) {
        let mut said = String::new();
        let stderr = self.said.get_mut();
        let ended = async { (stderr.read_to_string(&mut said).await, self.child.wait().await) };
        let (read, status) = tokio::time::timeout(WITHIN, ended).await.unwrap();
        read.unwrap();
        (status.unwrap(), said)
    }

    /// Stops the gateway; fails if a connection has ended with an error.
    pub async fn stop(self) {
        self.interrupt();
        let (status, said) = self.ended().await;
        assert!(status.success() && !said.contains("a connection has ended"), "{status}: {said}");
    }
}

/// Starts a service's node; returns the name of its cluster as well.
pub async fn service(over: Over) -> (String, Node) {
    let cluster = cluster_name();
    let builder = Node::builder().cluster(&cluster).name("service");
    let builder = if over == Over::Udp { builder.transports("udp") } else { builder };
    let node = builder.start().await.unwrap();
    (cluster, node)
}
