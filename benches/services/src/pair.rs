//! A service and its client, each a process of its own.

use std::process::Stdio;
use std::time::{Duration, Instant};

use midplane_kit::command_line::name_of;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use crate::Failure;
use crate::arguments::{Arguments, Namespace, Part, Placement, Row, Unit, What};

/// The time for which processes rest before their own time or memory is read.
const REST: Duration = Duration::from_millis(300);

/// The two processes of a row.
pub struct Pair {
    row: Row,
    service: Process,
    client: Process,
}

impl Pair {
    /// Starts the service, and a client that is ready to be measured.
    pub async fn start(arguments: &Arguments, row: Row) -> Result<Self, Failure> {
        let (first, second) = match row.placement {
            Placement::Any => (None, None),
            Placement::OneCore => (Some(0), Some(0)),
            Placement::TwoCores => (Some(0), Some(1)),
        };
        let mut service = Process::start(arguments, row, Part::Service, "", first)?;
        let place = service.line().await?;
        let mut client = Process::start(arguments, row, Part::Client, &place, second)?;
        client.line().await?;
        Ok(Self { row, service, client })
    }

    /// Has the client do the row's work for `seconds`; returns the number in the row's unit.
    pub async fn measure(&mut self, seconds: f64) -> Result<f64, Failure> {
        if self.row.what.unit() == Unit::AnswersPerS {
            return Ok(self.client.ask(seconds).await? / seconds);
        }
        tokio::time::sleep(REST).await;
        let (before, since) = (self.read()?, Instant::now());
        self.client.ask(seconds).await?;
        Ok(match self.row.what.unit() {
            Unit::OfACore => (self.read()? - before) / since.elapsed().as_secs_f64(),
            _ => self.read()? - before,
        })
    }

    /// Returns seconds of processor time, or bytes of memory.
    fn read(&self) -> Result<f64, Failure> {
        let (service, client) = (&self.service, &self.client);
        match self.row.what {
            What::Idle => service.processor_time(),
            What::Memory => Ok(service.memory()? + client.memory()?),
            _ => Ok(service.processor_time()? + client.processor_time()?),
        }
    }
}

/// A process of this program, which reads orders and writes answers, a line each.
pub struct Process {
    child: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
}

impl Process {
    /// Starts a part of a row at a place, on a processor or any.
    pub fn start(
        arguments: &Arguments,
        row: Row,
        part: Part,
        at: &str,
        processor: Option<usize>,
    ) -> Result<Self, Failure> {
        let program = std::env::current_exe()?;
        let mut command = match arguments.namespaces.get(part as usize) {
            None => Command::new(program),
            Some(Namespace { name, address }) => {
                let mut command = Command::new("ip");
                command.args(["netns", "exec", name]).arg(program);
                command.arg("--host").arg(address.to_string());
                command
            }
        };
        let options = [
            ("--transport", name_of(&row.transport)),
            ("--what", name_of(&row.what)),
            ("--placement", name_of(&row.placement)),
            ("--connections", row.connections.to_string()),
            ("--threads", name_of(&arguments.threads)),
            ("--part", name_of(&part)),
            ("--at", at.to_owned()),
        ];
        for (option, value) in &options {
            command.args([*option, value]);
        }
        if arguments.sealed {
            command.arg("--sealed");
        }
        if let Some(processor) = processor {
            command.args(["--processor", &processor.to_string()]);
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn()?;
        let input = child.stdin.take().ok_or("no input")?;
        let output = BufReader::new(child.stdout.take().ok_or("no output")?).lines();
        Ok(Self { child, input, output })
    }

    /// Kills the process, and waits for its end.
    pub async fn kill(&mut self) -> Result<(), Failure> {
        Ok(self.child.kill().await?)
    }

    /// Returns the next line that the process writes.
    async fn line(&mut self) -> Result<String, Failure> {
        Ok(self.output.next_line().await?.ok_or("a process of a row has ended")?)
    }

    /// Orders a measurement of `seconds`; returns the process's count.
    async fn ask(&mut self, seconds: f64) -> Result<f64, Failure> {
        self.input.write_all(format!("{seconds}\n").as_bytes()).await?;
        Ok(self.line().await?.parse()?)
    }

    fn folder(&self) -> Result<String, Failure> {
        Ok(format!("/proc/{}", self.child.id().ok_or("a process of a row has ended")?))
    }

    /// Returns the seconds that the process's threads have run, in nanoseconds' precision, as the scheduler counts.
    fn processor_time(&self) -> Result<f64, Failure> {
        let mut sum = 0.0;
        for task in std::fs::read_dir(self.folder()? + "/task")? {
            // A thread may end meanwhile.
            let text = std::fs::read_to_string(task?.path().join("schedstat")).unwrap_or_default();
            sum += text.split(' ').next().and_then(|text| text.parse().ok()).unwrap_or(0.0);
        }
        Ok(sum / 1e9)
    }

    /// Returns the bytes of memory that are the process's: a page of two processes counts half for each.
    fn memory(&self) -> Result<f64, Failure> {
        let text = std::fs::read_to_string(self.folder()? + "/smaps_rollup")?;
        let line = text.lines().find_map(|line| line.strip_prefix("Pss:")).ok_or("no sum")?;
        let kib: f64 = line.trim().trim_end_matches(" kB").parse()?;
        Ok(kib * 1024.0)
    }
}
