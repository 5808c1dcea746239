//! Ranks that speak PMI-1, as MPI programs of MPICH do.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;

use rustix::process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};

use crate::scenes::listing;
use crate::stage::{Stage, wait_until};

/// Values put by ranks of several hosts are known to all of them; two jobs with equal numbers of rounds take turns.
pub(crate) fn barriers() {
    let stage = Stage::tree(3, 2, 10);
    wait_until("all are there", || listing(&stage).hosts.iter().all(|here| *here));
    let itself = std::env::current_exe().unwrap();
    let command = [itself.to_str().unwrap(), "--pmi", "300"];
    let clients = [1, 2].map(|_| stage.client(6, &command).spawn().unwrap());
    for client in clients {
        let (code, out, error) = stage.end(client);
        assert_eq!((code, error.as_str()), (0, ""), "{out}");
        assert_eq!(out.lines().count(), 6);
    }
}

/// A rank that ends while another waits for it in a barrier ends the job, with an error that names both. A rank that
/// aborts ends it with its code; one that sends nonsense, with an error that quotes it.
pub(crate) fn failures() {
    let stage = Stage::alone(2, 10);
    let itself = std::env::current_exe().unwrap();
    for (part, code, why) in [
        ("--pmi-leaves", 137, "rank 0 waits in a PMI barrier, and rank 1 has ended"),
        ("--pmi-aborts", 7, "rank 1 aborted with code 7: no more room"),
        ("--pmi-babbles", 1, "PMI-1 has no command \"open_sesame\""),
    ] {
        let client = stage.client(2, &[itself.to_str().unwrap(), part]).spawn().unwrap();
        let (its, _, error) = stage.end(client);
        assert!(error.contains(why), "{part}: {error}");
        assert!(its >= code, "{part}: {its}");
    }
}

/// A rank's end of its socket.
struct Pmi(BufReader<UnixStream>);

impl Pmi {
    fn open() -> Self {
        let number = std::env::var("PMI_FD").unwrap().parse().unwrap();
        let own = pidfd_open(getpid(), PidfdFlags::empty()).unwrap();
        let end = pidfd_getfd(own, number, PidfdGetfdFlags::empty()).unwrap();
        let mut pmi = Self(BufReader::new(UnixStream::from(end)));
        let reply = pmi.ask("cmd=init pmi_version=1 pmi_subversion=1");
        assert!(reply.starts_with("cmd=response_to_init rc=0"), "{reply}");
        pmi
    }

    fn send_line(&mut self, line: &str) {
        self.0.get_mut().write_all(format!("{line}\n").as_bytes()).unwrap();
    }

    fn ask(&mut self, line: &str) -> String {
        self.send_line(line);
        let mut reply = String::new();
        self.0.read_line(&mut reply).unwrap();
        reply
    }
}

fn variable(name: &str) -> u32 {
    std::env::var(name).unwrap().parse().unwrap()
}

/// In each round, puts a value and reads those of all others after the barrier.
pub(crate) fn talk(rounds: u32) {
    let mut pmi = Pmi::open();
    let (own, ranks) = (variable("PMI_RANK"), variable("PMI_SIZE"));
    let name = pmi.ask("cmd=get_my_kvsname");
    let (_, name) = name.trim().rsplit_once('=').unwrap();
    for round in 0..rounds {
        let put = format!("cmd=put kvsname={name} key=r{own} value={round}.{own}");
        assert_eq!(pmi.ask(&put), "cmd=put_result rc=0\n");
        assert_eq!(pmi.ask("cmd=barrier_in"), "cmd=barrier_out rc=0\n");
        for other in 0..ranks {
            let got = pmi.ask(&format!("cmd=get kvsname={name} key=r{other}"));
            assert_eq!(got, format!("cmd=get_result rc=0 value={round}.{other}\n"));
        }
        // No rank puts the next value before all have read this one.
        assert_eq!(pmi.ask("cmd=barrier_in"), "cmd=barrier_out rc=0\n");
    }
    assert_eq!(pmi.ask("cmd=finalize"), "cmd=finalize_ack rc=0\n");
    println!("{own} of {ranks} in {name}");
}

/// Rank 0 waits in a barrier that rank 1 does not enter.
pub(crate) fn fail(part: &str) {
    let mut pmi = Pmi::open();
    if variable("PMI_RANK") == 0 {
        pmi.ask("cmd=barrier_in");
        return;
    }
    match part {
        "--pmi-aborts" => pmi.send_line("cmd=abort exitcode=7 message=no more room"),
        "--pmi-babbles" => pmi.send_line("cmd=open_sesame"),
        _ => return,
    }
    pmi.ask("cmd=finalize");
}
