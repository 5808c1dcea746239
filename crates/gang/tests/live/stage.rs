//! Daemons and clients that this program starts, and that end with each scene.

use std::fs::Permissions;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc::channel;
use std::time::Duration;

use midplane_gang::live::clock::now;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

/// Limit of the wait for a client by `Stage::end`: only a hung one takes so long.
const ENDS_WITHIN: Duration = Duration::from_secs(60);

/// Waits until a condition holds, which takes milliseconds unless the machine is busy.
#[track_caller]
pub(crate) fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let give_up = now() + Duration::from_secs(20);
    while !holds() {
        assert!(now() < give_up, "not within 20 s: {what}");
        std::thread::park_timeout(Duration::from_millis(5));
    }
}

/// Returns whether a process exists and is no zombie.
pub(crate) fn lives(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(") ").next().is_some_and(|rest| !rest.is_empty() && !rest.starts_with('Z'))
}

pub(crate) fn itself() -> Command {
    Command::new(std::env::current_exe().unwrap())
}

/// Returns a command that runs this program as another user, whose group has the same number. This process must be
/// root's. That user need not be able to reach the program's file.
pub(crate) fn itself_as(uid: u32) -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.uid(uid).gid(uid).current_dir("/");
    command
}

pub(crate) struct Stage {
    pub(crate) folder: TempDir,
    pub(crate) daemons: Vec<Child>,
    /// Addresses of the daemons, in the order of hosts.
    pub(crate) addresses: Vec<String>,
    slots: u16,
    slice_ms: u32,
    network: String,
    freezer: String,
    /// The user of the daemons, if it is another than this process's.
    user: Option<u32>,
}

impl Stage {
    /// Starts a stage with one daemon.
    pub(crate) fn alone(slots: u16, slice_ms: u32) -> Self {
        Self::tree(1, slots, slice_ms)
    }

    /// Starts a stage with a tree of connected daemons.
    pub(crate) fn tree(hosts: u16, slots: u16, slice_ms: u32) -> Self {
        Self::with_network(hosts, slots, slice_ms, "none")
    }

    /// Starts such a stage with NICs over shared memory ("shm") or UDP ("UDP"), or without NICs ("none").
    pub(crate) fn with_network(
        hosts: u16,
        slots: u16,
        slice_ms: u32,
        network: &'static str,
    ) -> Self {
        Self::with(hosts, slots, slice_ms, (network, "auto"))
    }

    /// Starts such a stage with a chosen way of stopping processes.
    pub(crate) fn with(
        hosts: u16,
        slots: u16,
        slice_ms: u32,
        (network, freezer): (&'static str, &str),
    ) -> Self {
        // Over UDP, each NIC has an address of its own.
        let sockets: Vec<_> =
            (0..hosts).map(|_| std::net::UdpSocket::bind("127.0.0.1:0").unwrap()).collect();
        let addresses: Vec<String> =
            sockets.iter().map(|it| it.local_addr().unwrap().to_string()).collect();
        drop(sockets);
        let network = match network {
            "UDP" => format!("UDP {}", addresses.join(",")),
            _ => network.to_owned(),
        };
        let mut stage = Self::empty(hosts, (slots, slice_ms), (network, freezer));
        let key = format!("1:{}", "5a".repeat(32));
        for host in 0..hosts {
            stage.start(host, &key);
        }
        stage
    }

    /// Starts such a stage of root that also serves the members of a group: all users can read the folder of the stage.
    pub(crate) fn for_group(
        hosts: u16,
        slots: u16,
        slice_ms: u32,
        (network, group): (&'static str, &'static str),
    ) -> Self {
        let stage = Self::with(hosts, slots, slice_ms, (network, group));
        std::fs::set_permissions(stage.path(), Permissions::from_mode(0o755)).unwrap();
        stage
    }

    /// Starts a stage whose daemon runs as another user.
    pub(crate) fn for_user(uid: u32) -> Self {
        let mut stage = Self::empty(1, (1, 20), ("none".into(), "auto"));
        std::fs::set_permissions(stage.path(), Permissions::from_mode(0o755)).unwrap();
        std::os::unix::fs::chown(stage.path(), Some(uid), None).unwrap();
        stage.user = Some(uid);
        stage.start(0, "");
        stage
    }

    /// Starts the first of `hosts` connected daemons, with a slot each: as many as there are keys.
    pub(crate) fn with_keys(keys: &[String], hosts: u16) -> Self {
        let mut stage = Self::empty(hosts, (1, 20), ("none".into(), "auto"));
        for (host, keys) in (0..).zip(keys) {
            stage.start(host, keys);
        }
        stage
    }

    fn empty(
        hosts: u16,
        (slots, slice_ms): (u16, u32),
        (network, freezer): (String, &str),
    ) -> Self {
        let bound: Vec<_> =
            (0..hosts).map(|_| std::net::TcpListener::bind("127.0.0.1:0").unwrap()).collect();
        let addresses = bound.iter().map(|it| it.local_addr().unwrap().to_string()).collect();
        let (folder, daemons) = (tempfile::tempdir().unwrap(), Vec::new());
        let (freezer, user) = (freezer.to_owned(), None);
        Self { folder, daemons, addresses, slots, slice_ms, network, freezer, user }
    }

    /// Starts a host's daemon; the daemon before it in its place must have exited.
    pub(crate) fn start(&mut self, host: u16, key: &str) {
        let daemon = self.daemon(host, key);
        match self.daemons.get_mut(usize::from(host)) {
            Some(before) => *before = daemon,
            None => self.daemons.push(daemon),
        }
    }

    pub(crate) fn daemon(&self, host: u16, key: &str) -> Child {
        let peers =
            if self.addresses.len() == 1 { String::new() } else { self.addresses.join(",") };
        let errors = std::fs::File::create(self.errors_file(host)).unwrap();
        let mut daemon = self.user.map_or_else(itself, itself_as);
        // All hosts have the same freezer unless the list has one for each.
        let mut freezers = self.freezer.split(';').cycle();
        let freezer = freezers.nth(host.into()).unwrap_or_default();
        let mut daemon = daemon
            .arg("--daemon")
            .arg(self.socket(host))
            .args([host.to_string(), self.slots.to_string(), self.slice_ms.to_string()])
            .args([&peers, key, &self.network, freezer])
            .stdout(Stdio::piped())
            .stderr(errors)
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(daemon.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        daemon
    }

    /// Waits for a client, and returns its exit code and its output. If it does not end, panics with the reports of
    /// the daemons, of the processes below them and of the client itself.
    #[track_caller]
    pub(crate) fn end(&self, client: Child) -> (i32, String, String) {
        let pid = Pid::from_child(&client);
        let (sender, receiver) = channel();
        std::thread::spawn(move || sender.send(said(client.wait_with_output().unwrap())));
        if let Ok(said) = receiver.recv_timeout(ENDS_WITHIN) {
            return said;
        }
        let mut seen = String::new();
        for (host, daemon) in (0..).zip(&self.daemons) {
            kill_process(Pid::from_child(daemon), Signal::USR1).unwrap();
            wait_until("it explains itself", || self.errors(host).contains("the last order began"));
            seen += &below(daemon.id());
        }
        kill_process(pid, Signal::KILL).unwrap();
        panic!("not within {ENDS_WITHIN:?}:\n{seen}{:?}", receiver.recv());
    }

    fn errors_file(&self, host: u16) -> PathBuf {
        self.folder.path().join(format!("{host}.errors"))
    }

    /// Returns the standard error of a host's daemon.
    pub(crate) fn errors(&self, host: u16) -> String {
        std::fs::read_to_string(self.errors_file(host)).unwrap()
    }

    pub(crate) fn socket(&self, host: u16) -> PathBuf {
        self.folder.path().join(format!("{host}.socket"))
    }

    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn file(&self, name: &str) -> Option<String> {
        std::fs::read_to_string(self.folder.path().join(name)).ok()
    }

    /// Returns a client that has not been started.
    pub(crate) fn client(&self, ranks: u16, command: &[&str]) -> Command {
        self.client_as(ranks, "pipes", command)
    }

    /// Returns a client with a terminal, or of a job that arriving input wakes, as `how` says.
    pub(crate) fn client_as(&self, ranks: u16, how: &str, command: &[&str]) -> Command {
        self.client_at(0, ranks, how, command)
    }

    /// Returns such a client, at the socket of a host.
    pub(crate) fn client_at(&self, host: u16, ranks: u16, how: &str, command: &[&str]) -> Command {
        self.begun(itself(), host, ranks, how, command)
    }

    /// Returns a client of another user.
    pub(crate) fn client_of(&self, uid: u32, host: u16, ranks: u16, command: &[&str]) -> Command {
        self.begun(itself_as(uid), host, ranks, "pipes", command)
    }

    fn begun(
        &self,
        mut client: Command,
        host: u16,
        ranks: u16,
        how: &str,
        command: &[&str],
    ) -> Command {
        client.arg("--client").arg(self.socket(host)).args([ranks.to_string().as_str(), how]);
        client.args(command).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        client
    }

    pub(crate) fn run(&self, ranks: u16, command: &[&str]) -> (i32, String, String) {
        said(self.client(ranks, command).output().unwrap())
    }

    /// Waits until a script has written a number to a file, and returns it.
    #[track_caller]
    pub(crate) fn number(&self, name: &str) -> u32 {
        wait_until(name, || self.file(name).is_some_and(|text| text.ends_with('\n')));
        self.file(name).unwrap().trim().parse().unwrap()
    }
}

/// Describes the processes below a process, and their states.
fn below(pid: u32) -> String {
    let read = |pid: u32, file: &str| {
        std::fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap_or_default()
    };
    let children = read(pid, &format!("task/{pid}/children"));
    let pids = children.split_whitespace().filter_map(|child| child.parse().ok());
    let lines = pids.map(|child| {
        let (stat, place) = (read(child, "stat"), read(child, "wchan"));
        let state = stat.rsplit(") ").next().unwrap_or_default().get(..1).unwrap_or_default();
        format!("process {child} of {pid}: {state}, in {place}\n{}", below(child))
    });
    lines.collect()
}

/// Returns the exit code, which is 128 and the signal for a process that a signal ended, and the output.
pub(crate) fn said(output: Output) -> (i32, String, String) {
    let text = |bytes| String::from_utf8(bytes).unwrap();
    let status = output.status;
    let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap());
    (code, text(output.stdout), text(output.stderr))
}

impl Drop for Stage {
    fn drop(&mut self) {
        for daemon in &mut self.daemons {
            let _ = daemon.kill();
            let _ = daemon.wait();
        }
        // If a scene has failed, prints the daemons' errors.
        if std::thread::panicking() {
            (0..self.daemons.len() as u16).for_each(|host| eprint!("{}", self.errors(host)));
        }
    }
}
