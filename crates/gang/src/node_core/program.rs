//! The program of a job.

use serde::{Deserialize, Serialize};

/// The program that every rank of a job runs.
#[derive(Clone, Debug, Default, Eq, PartialEq, Serialize, Deserialize)]
pub struct Program {
    /// The program and its arguments, at least one element. A name without a slash is looked up in `PATH`.
    pub command: Vec<Vec<u8>>,
    /// The whole environment, as `NAME=VALUE`.
    pub environment: Vec<Vec<u8>>,
    /// The working directory.
    pub folder: Vec<u8>,
    /// Rows and columns of rank 0's terminal; `None` for no terminal.
    pub terminal: Option<(u16, u16)>,
    /// True if the job continues when a rank fails.
    pub keep_going: bool,
    /// True if the job wakes before its slice when input arrives for it, or data at ports of its suspended ranks
    /// ([`SchedulerConfig::early_wakeup`](crate::scheduler_core::SchedulerConfig::early_wakeup)).
    pub woken: bool,
    /// Bytes of memory that each rank claims, and may use at most; `None` for no claim and no limit.
    pub memory: Option<u64>,
    /// Processes that run in the job's slices. `command` is then only shown, not run: each rank waits until the
    /// control group is empty.
    pub adopts: Option<Adopted>,
    /// True if the ranks are restored from images of processes, which the root has. A client can't request this.
    pub images: bool,
}

/// A control group of processes that another system has started.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub enum Adopted {
    /// The absolute path of the group's folder, on each host that has it.
    Folder(String),
    /// A step of a Slurm job, such as `0` or `batch`; without a step, the whole job.
    SlurmStep {
        /// Number of the job.
        job: u32,
        /// Name of the step.
        step: Option<String>,
    },
    /// The UID of a Kubernetes pod.
    Pod(String),
}

/// A [`Program`] in a checkpoint's JSON.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Recorded {
    command: Vec<String>,
    environment: Vec<String>,
    folder: String,
    terminal: Option<(u16, u16)>,
    keep_going: bool,
    #[serde(default)]
    woken: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    memory: Option<u64>,
}

impl Program {
    /// Returns the command as text.
    #[must_use]
    pub fn shown(&self) -> String {
        let words = self.command.iter().map(|word| String::from_utf8_lossy(word).into_owned());
        words.collect::<Vec<_>>().join(" ")
    }

    /// Encodes the program as JSON; `None` if its command, environment or folder is not UTF-8.
    #[must_use]
    pub(crate) fn to_json(&self) -> Option<String> {
        let text = |bytes: &Vec<u8>| String::from_utf8(bytes.clone()).ok();
        let texts = |all: &[Vec<u8>]| all.iter().map(text).collect::<Option<Vec<_>>>();
        let recorded = Recorded {
            command: texts(&self.command)?,
            environment: texts(&self.environment)?,
            folder: text(&self.folder)?,
            terminal: self.terminal,
            keep_going: self.keep_going,
            woken: self.woken,
            memory: self.memory,
        };
        serde_json::to_string(&recorded).ok()
    }

    /// Parses the JSON of [`Program::to_json`].
    ///
    /// # Errors
    /// The parser's error, with its position.
    pub(crate) fn from_json(json: &str) -> Result<Self, serde_json::Error> {
        let Recorded { command, environment, folder, terminal, keep_going, woken, memory } =
            serde_json::from_str(json)?;
        let bytes = |texts: Vec<String>| texts.into_iter().map(String::into_bytes).collect();
        let (command, environment) = (bytes(command), bytes(environment));
        let folder = folder.into_bytes();
        let found =
            Self { command, environment, folder, terminal, keep_going, woken, ..Self::default() };
        Ok(Self { memory, ..found })
    }
}
