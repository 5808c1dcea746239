//! Tests features that only Linux has: sealed memory, abstract sockets, priorities, limits, control groups.

use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};

use midplane::gang::live::daemon::{probe_control_groups, probe_criu, probe_memory_controller};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::process::{Resource, Rlimit, getrlimit};
use rustix::thread::{CapabilitySet, capabilities};

use super::{ABSTRACT_SOCKETS, MEMORY, Row, State, works};

/// Open files that are enough for a daemon with hundreds of clients or ranks.
const OPEN_FILES: u64 = 4_096;
/// The limit RLIMIT_NICE that allows the nice value -20.
const HIGHEST_NICE: u64 = 40;

pub(super) fn shared_memory() -> [Row; 2] {
    [
        Row::new(
            MEMORY,
            works(sealed_memory()),
            "ports and rings between processes of this host",
            "allow memfd_create and file seals (Linux 3.17): see the container's seccomp profile",
        ),
        Row::new(
            ABSTRACT_SOCKETS,
            works(abstract_socket()),
            "finding processes of this host, and passing them memory",
            "allow abstract Unix sockets: see the sandbox (Landlock, AppArmor); processes that share memory need the \
             same network namespace",
        ),
    ]
}

/// Makes a sealed memfd, as the fabric does for a segment: its length can no longer change.
fn sealed_memory() -> io::Result<String> {
    let file = memfd_create("midplane-doctor", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    ftruncate(&file, 4_096)?;
    fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok("a memfd of 4096 bytes is sealed".into())
}

fn abstract_socket() -> io::Result<String> {
    let name = format!("midplane/doctor/{}", std::process::id());
    let address = SocketAddr::from_abstract_name(name)?;
    let listener = UnixListener::bind_addr(&address)?;
    let _client = UnixStream::connect_addr(&address)?;
    listener.accept()?;
    Ok("a process can connect by name".into())
}

pub(super) fn rights() -> [Row; 5] {
    let sets = capabilities(None);
    let is_capable = sets.is_ok_and(|sets| sets.effective.contains(CapabilitySet::SYS_NICE));
    [
        Row::new(
            "thread priorities",
            priorities(getrlimit(Resource::Rtprio), getrlimit(Resource::Nice), is_capable),
            "a gang daemon that stops ranks on time while they spin",
            "grant CAP_SYS_NICE, or set LimitRTPRIO=1 and LimitNICE=-20 in the unit; slices are less exact without",
        ),
        Row::new(
            "open files",
            files(getrlimit(Resource::Nofile)),
            "peers, clients and ranks, each of which takes a few",
            "ulimit -n 4096, or LimitNOFILE=4096 in the unit; above the hard limit, as root",
        ),
        Row::new(
            "control groups",
            works(control_groups()),
            "freezing a job with every process that it has started; without, `gang daemon` sends signals to its ranks",
            "systemd-run --user --scope -p Delegate=yes midplane gang daemon, or the unit in crates/cli/systemd",
        ),
        Row::new(
            "memory of jobs",
            works(memory_controller()),
            "holding jobs to what they claim by `gang run --memory`, and taking memory from suspended ones",
            "start the daemon in a control group of its own, as for control groups; if /proc/cgroups lists memory with a \
             hierarchy other than 0, version 1 has it: boot with cgroup_no_v1=memory",
        ),
        Row::new(
            "criu",
            works(probe_criu()),
            "saving and restoring jobs whose programs take no part in checkpoints",
            "install criu, as new as the kernel; run `criu check`, this and the daemon as root",
        ),
    ]
}

/// Rates the limits on priorities; a limit of `None` allows every value.
fn priorities(real_time: Rlimit, nice: Rlimit, is_capable: bool) -> (State, String) {
    let allows =
        |limit: Rlimit, value| is_capable || limit.current.is_none_or(|most| most >= value);
    match (allows(real_time, 1), allows(nice, HIGHEST_NICE)) {
        (true, true) => (State::Yes, "real-time and nice -20".into()),
        (true, false) => (State::Limited, "real-time, but not nice -20".into()),
        (false, true) => (State::Limited, "nice -20, but not real-time".into()),
        (false, false) => (State::No, "neither real-time nor nice -20".into()),
    }
}

fn files(limit: Rlimit) -> (State, String) {
    let text =
        |limit: Option<u64>| limit.map_or_else(|| "unlimited".into(), |limit| limit.to_string());
    let is_enough = limit.current.is_none_or(|most| most >= OPEN_FILES);
    let state = if is_enough { State::Yes } else { State::Limited };
    (state, format!("{}, hard limit {}", text(limit.current), text(limit.maximum)))
}

fn control_groups() -> io::Result<String> {
    let folder = probe_control_groups()?;
    Ok(format!("groups can be made as {}", folder.display()))
}

fn memory_controller() -> io::Result<String> {
    probe_memory_controller().map(|()| "jobs' groups can have the memory controller".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: Rlimit = Rlimit { current: Some(0), maximum: Some(0) };
    const UNLIMITED: Rlimit = Rlimit { current: None, maximum: None };

    #[test]
    fn a_capability_or_both_limits_allow_priorities() {
        assert_eq!(priorities(NONE, NONE, true).0, State::Yes);
        assert_eq!(priorities(UNLIMITED, UNLIMITED, false).0, State::Yes);
        assert_eq!(priorities(NONE, UNLIMITED, false).0, State::Limited);
        assert_eq!(priorities(UNLIMITED, NONE, false).0, State::Limited);
        assert_eq!(priorities(NONE, NONE, false).0, State::No);
    }

    #[test]
    fn few_open_files_are_a_limit() {
        let soft = |soft| Rlimit { current: Some(soft), maximum: None };
        assert_eq!(files(soft(1_024)), (State::Limited, "1024, hard limit unlimited".into()));
        assert_eq!(files(soft(OPEN_FILES)).0, State::Yes);
        assert_eq!(files(UNLIMITED).0, State::Yes);
    }
}
