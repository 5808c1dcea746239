//! Finds the launcher that started this process, from the variables that it set.

use super::{Launch, LaunchError, MAX_RANKS, hosts};

/// The values that a launcher gives this process.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Started {
    /// The launcher's name, for messages.
    pub(super) launcher: &'static str,
    pub(super) rank: u16,
    /// The number of ranks, if the launcher gives it.
    pub(super) size: Option<usize>,
    /// The host of each rank, if the launcher gives it.
    pub(super) hosts: Option<Vec<String>>,
    /// This process's number among those of its host, if the launcher gives it.
    local: Option<usize>,
}

impl Started {
    /// Finds the innermost launcher: if one launcher started another, the second is used.
    pub(super) fn find(
        flags: &Launch,
        environment: impl Fn(&str) -> Option<String>,
    ) -> Result<Option<Self>, LaunchError> {
        let environment = Environment(environment);
        if let Some(started) = environment.open_mpi()? {
            return Ok(Some(started));
        }
        let slurm = environment.slurm(flags)?;
        if let Some(mut started) = environment.pmi()? {
            // Under `srun --mpi` both describe this process; under `mpiexec` they describe different ones.
            if let Some(slurm) = slurm
                && (slurm.rank, slurm.size) == (started.rank, started.size)
            {
                started = Self { launcher: "PMI", ..slurm };
            }
            return Ok(Some(started));
        }
        match slurm {
            Some(slurm) => Ok(Some(slurm)),
            None => environment.kubernetes(flags),
        }
    }

    /// Checks that this process is on the host that `hosts` gives its rank, if its launcher gives its local number.
    pub(super) fn check(&self, hosts: &[String]) -> Result<(), LaunchError> {
        let own = hosts.get(usize::from(self.rank));
        let (Some(local), Some(own)) = (self.local, own) else { return Ok(()) };
        let before = hosts[..usize::from(self.rank)].iter().filter(|host| *host == own).count();
        if before == local { Ok(()) } else { Err(LaunchError::Placement { rank: self.rank }) }
    }
}

struct Environment<E>(E);

impl<E: Fn(&str) -> Option<String>> Environment<E> {
    fn text(&self, variable: &str) -> Option<String> {
        (self.0)(variable).filter(|value| !value.is_empty())
    }

    fn number(&self, variable: &'static str) -> Result<Option<usize>, LaunchError> {
        let Some(value) = self.text(variable) else { return Ok(None) };
        match value.parse() {
            Ok(number) if number <= MAX_RANKS => Ok(Some(number)),
            _ => Err(LaunchError::Variable { variable, value, what: "number up to 65535" }),
        }
    }

    /// Reads rank and size from two variables, if both are set.
    fn rank_of_size(
        &self,
        rank: &'static str,
        size: &'static str,
    ) -> Result<Option<(u16, usize)>, LaunchError> {
        let (Some(number), Some(size)) = (self.number(rank)?, self.number(size)?) else {
            return Ok(None);
        };
        match u16::try_from(number) {
            Ok(number) if usize::from(number) < size => Ok(Some((number, size))),
            _ => {
                let (variable, value) = (rank, number.to_string());
                Err(LaunchError::Variable { variable, value, what: "rank below the size" })
            }
        }
    }

    /// Describes a launcher that gives the number of its processes on this host, but not the hosts of the others.
    fn by_counts(
        &self,
        launcher: &'static str,
        (rank, size): (u16, usize),
        local: [&'static str; 2],
    ) -> Result<Started, LaunchError> {
        let [here, number] = local;
        let all_here = self.number(here)? == Some(size);
        let hosts = all_here.then(|| vec!["127.0.0.1".to_owned(); size]);
        Ok(Started { launcher, rank, size: Some(size), hosts, local: self.number(number)? })
    }

    fn open_mpi(&self) -> Result<Option<Started>, LaunchError> {
        let Some(place) = self.rank_of_size("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE")? else {
            return Ok(None);
        };
        let local = ["OMPI_COMM_WORLD_LOCAL_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"];
        self.by_counts("Open MPI", place, local).map(Some)
    }

    fn pmi(&self) -> Result<Option<Started>, LaunchError> {
        let Some(place) = self.rank_of_size("PMI_RANK", "PMI_SIZE")? else { return Ok(None) };
        self.by_counts("PMI", place, ["MPI_LOCALNRANKS", "MPI_LOCALRANKID"]).map(Some)
    }

    /// Reads a step of `srun`. A batch script has a rank as well, but no step.
    fn slurm(&self, flags: &Launch) -> Result<Option<Started>, LaunchError> {
        let Some((rank, size)) = self.rank_of_size("SLURM_PROCID", "SLURM_STEP_NUM_TASKS")? else {
            return Ok(None);
        };
        let local = self.number("SLURM_LOCALID")?;
        let hosts = if flags.names_hosts() { None } else { self.slurm_hosts(size)? };
        Ok(Some(Started { launcher: "Slurm", rank, size: Some(size), hosts, local }))
    }

    fn slurm_hosts(&self, size: usize) -> Result<Option<Vec<String>>, LaunchError> {
        let [nodes, tasks] = ["SLURM_STEP_NODELIST", "SLURM_STEP_TASKS_PER_NODE"];
        let (Some(list), Some(per_node)) = (self.text(nodes), self.text(tasks)) else {
            return Ok(None);
        };
        let wrong = |variable, value: &str, what| {
            Err(LaunchError::Variable { variable, value: value.into(), what })
        };
        let Some(names) = hosts::expand(&list) else {
            return wrong(nodes, &list, "list of hosts");
        };
        let counts = hosts::counts(&per_node).unwrap_or_default();
        if counts.len() != names.len() || counts.iter().sum::<usize>() != size {
            return wrong(tasks, &per_node, "list of the tasks of each node of the step");
        }
        let distribution = self.text("SLURM_DISTRIBUTION").unwrap_or_default();
        if distribution.starts_with("arbitrary") || distribution.starts_with("plane") {
            return Ok(None);
        }
        let placed = hosts::place(&names, &counts, distribution.starts_with("cyclic"));
        // The step gives the node of this process.
        let own = self.number("SLURM_NODEID")?.and_then(|node| names.get(node));
        let rank = self.number("SLURM_PROCID")?.unwrap_or_default();
        match own {
            Some(own) if placed.get(rank) != Some(own) => {
                Err(LaunchError::Placement { rank: u16::try_from(rank).unwrap_or(u16::MAX) })
            }
            _ => Ok(Some(placed)),
        }
    }

    /// Reads a pod of an indexed job: its host name is the job's name, a dash and its index.
    fn kubernetes(&self, flags: &Launch) -> Result<Option<Started>, LaunchError> {
        let Some(index) = self.number("JOB_COMPLETION_INDEX")? else { return Ok(None) };
        let rank = u16::try_from(index).unwrap_or(u16::MAX);
        let size = flags.size;
        let started = Started { launcher: "Kubernetes", rank, size, hosts: None, local: None };
        if flags.names_hosts() || size == Some(1) {
            return Ok(Some(started));
        }
        let size = size.ok_or(LaunchError::Job { what: "number of pods", flag: "--size" })?;
        if size > MAX_RANKS {
            return Err(LaunchError::Size { ranks: size, peers: MAX_RANKS });
        }
        let service = flags
            .service
            .as_deref()
            .ok_or(LaunchError::Job { what: "headless service", flag: "--service" })?;
        let pod = self.text("HOSTNAME").unwrap_or_default();
        let Some(job) = pod.strip_suffix(&format!("-{index}")) else {
            let what = "name of a job, a dash and its index";
            return Err(LaunchError::Variable { variable: "HOSTNAME", value: pod, what });
        };
        let hosts = (0..size).map(|pod| format!("{job}-{pod}.{service}")).collect();
        Ok(Some(Started { hosts: Some(hosts), ..started }))
    }
}
