//! The processes of a job, from the environment that its launcher sets.

use std::sync::OnceLock;

use midplane_simhw::launch::{Launch, LaunchError, ProcessGroup as Rank};

use super::{Discovery, DiscoveryError, Place};

/// Returns the places of the other processes of this process's job. The job was started by `srun`, by Open MPI's
/// `mpirun`, by an `mpiexec` of PMI, or as an indexed Kubernetes job. A process without a job has no places.
///
/// The job's environment states the host of each process. The processes of one host have the ports from [`Job::port`]
/// on, in the order of their ranks. The node binds its own port.
///
/// | started by | the environment has | you say |
/// |---|---|---|
/// | `srun` | all that is needed | |
/// | `mpirun`, `mpiexec` on one host | all that is needed | |
/// | `mpirun`, `mpiexec` on several hosts | the hosts under Slurm only | a [`File`](super::File) of the places instead |
/// | Kubernetes, an indexed job | this pod's index | [`Job::size`], [`Job::service`] |
///
/// Pods of a Kubernetes *deployment* need no job: [`List`](super::List) takes the name of their headless service.
#[derive(Debug, Default)]
pub struct Job {
    launch: Launch,
    found: OnceLock<Result<Option<Rank>, String>>,
}

impl Job {
    /// Reads this process's environment.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the port of the first process of each host. Default: 24700
    /// ([`DEFAULT_PORT`](midplane_simhw::launch::DEFAULT_PORT)).
    #[must_use]
    pub fn port(self, port: u16) -> Self {
        Self { launch: self.launch.port(Some(port)), found: OnceLock::new() }
    }

    /// Sets the number of processes, if the environment does not state it: for an indexed Kubernetes job.
    #[must_use]
    pub fn size(self, size: usize) -> Self {
        Self { launch: self.launch.size(Some(size)), found: OnceLock::new() }
    }

    /// Sets the headless service under which the pods of an indexed Kubernetes job have names.
    #[must_use]
    pub fn service(self, service: impl Into<String>) -> Self {
        Self { launch: self.launch.service(Some(service.into())), found: OnceLock::new() }
    }

    fn found(&self) -> Result<Option<&Rank>, &str> {
        let found = self.found.get_or_init(|| self.launch.place().map_err(|error| shown(&error)));
        found.as_ref().map(Option::as_ref).map_err(String::as_str)
    }
}

impl Discovery for Job {
    async fn places(&self) -> Result<Vec<Place>, DiscoveryError> {
        let Some(job) = self.found()? else { return Ok(Vec::new()) };
        others(job)
    }

    fn own_port(&self) -> Option<u16> {
        let job = self.found().ok()??;
        job.peers.get(usize::from(job.rank))?.rsplit_once(':')?.1.parse().ok()
    }
}

/// Returns the places of all ranks except this one.
fn others(job: &Rank) -> Result<Vec<Place>, DiscoveryError> {
    let others = job.peers.iter().enumerate().filter(|(rank, _)| *rank != usize::from(job.rank));
    Ok(others.map(|(_, peer)| peer.parse()).collect::<Result<_, _>>()?)
}

/// Returns the text of an error for a program's author, without flags of command lines.
fn shown(error: &LaunchError) -> String {
    const CURE: &str = "name the places by `NodeBuilder::discover` or a `discovery::File` instead";
    match error {
        LaunchError::Variable { variable, value, what } => {
            format!("{variable}={value:?} is no {what}; correct it, or {CURE}")
        }
        LaunchError::NoPeers { rank, launcher } => {
            format!(
                "{launcher} started this process as rank {rank}, and does not say where the others are; {CURE}"
            )
        }
        LaunchError::Job { what, flag } => {
            let method = flag.trim_start_matches('-');
            format!("an indexed Kubernetes job does not tell its {what}; call `Job::{method}`")
        }
        LaunchError::Placement { rank } => {
            format!("rank {rank} is on another host than the job's order of hosts says; {CURE}")
        }
        LaunchError::Ports { first, ranks } => {
            format!(
                "{ranks} processes of one host from port {first} on go past port 65535; choose a lower `Job::port`"
            )
        }
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(job: &Job, variables: &[(&str, &str)]) -> Result<(Vec<String>, Option<u16>), String> {
        let value = |name: &str| {
            variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
        };
        let place = job.launch.place_in(value).map_err(|error| shown(&error))?;
        let Some(place) = place else { return Ok((Vec::new(), None)) };
        let others = others(&place).unwrap().iter().map(ToString::to_string).collect();
        let job = Job { found: OnceLock::from(Ok(Some(place))), ..Job::new() };
        Ok((others, job.own_port()))
    }

    #[test]
    fn each_launchers_environment_gives_the_other_processes_and_the_own_port() {
        let strings = |list: &[&str]| list.iter().map(ToString::to_string).collect::<Vec<_>>();
        let slurm = [
            ("SLURM_PROCID", "1"),
            ("SLURM_STEP_NUM_TASKS", "3"),
            ("SLURM_STEP_NODELIST", "n[1-2]"),
            ("SLURM_STEP_TASKS_PER_NODE", "2,1"),
        ];
        let expected = (strings(&["n1:24700", "n2:24700"]), Some(24_701));
        assert_eq!(found(&Job::new(), &slurm), Ok(expected));
        let pmi = [("PMI_RANK", "0"), ("PMI_SIZE", "2"), ("MPI_LOCALNRANKS", "2")];
        let expected = (strings(&["127.0.0.1:8"]), Some(7));
        assert_eq!(found(&Job::new().port(7), &pmi), Ok(expected));
        let pod = [("JOB_COMPLETION_INDEX", "1"), ("HOSTNAME", "train-1")];
        let expected = (strings(&["train-0.svc:24700"]), Some(24_700));
        assert_eq!(found(&Job::new().size(2).service("svc"), &pod), Ok(expected));
        assert_eq!(found(&Job::new(), &[]), Ok((Vec::new(), None)));
    }

    #[test]
    fn errors_are_one_line_with_a_cure_in_the_program() {
        let pod = [("JOB_COMPLETION_INDEX", "1"), ("HOSTNAME", "train-1")];
        let apart = [("PMI_RANK", "0"), ("PMI_SIZE", "2"), ("MPI_LOCALNRANKS", "1")];
        let broken = [("PMI_RANK", "2"), ("PMI_SIZE", "2")];
        let here = [("PMI_RANK", "0"), ("PMI_SIZE", "2"), ("MPI_LOCALNRANKS", "2")];
        let cases: [(Job, &[_], &str); 5] = [
            (Job::new(), &pod, "`Job::size`"),
            (Job::new().size(2), &pod, "`Job::service`"),
            (Job::new(), &apart, "`NodeBuilder::discover`"),
            (Job::new(), &broken, "PMI_RANK=\"2\""),
            (Job::new().port(65_535), &here, "`Job::port`"),
        ];
        for (job, variables, cure) in cases {
            let error = found(&job, variables).unwrap_err();
            assert!(error.contains(cure) && !error.contains("--"), "{error}");
            assert!(!error.contains('\n'), "{error}");
        }
    }
}
