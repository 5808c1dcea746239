//! Accepts a node's orders over TCP, at its NIC's UDP address.

use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use midplane::nicvm::install::{self, Listed, MAX_MODULE, QUARANTINE, ROLL_BACK, Refusal};
use midplane::simhw::host::Host;
use midplane::simhw::id::{ExtensionId, NodeId};
use midplane::simhw::nic::LiveHost;
use midplane::simhw::port::{Command, Completion, Port, Status};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};

use crate::nic::builtin;
use crate::nic::orders::{Answer, Installed, MAX_LINE, Order};

/// Timeout of the read of an order, and of its execution.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Most connections at a time; further ones wait.
const CONNECTIONS: usize = 64;
/// Pause after a failed `accept`.
const RETRY_INTERVAL: Duration = Duration::from_millis(100);

/// Carries out the order of each connection, for ever.
pub(crate) async fn serve(listener: TcpListener, host: LiveHost) -> Infallible {
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        let place = Arc::clone(&places).acquire_owned().await;
        let Ok((stream, _)) = listener.accept().await else {
            // The system lacks descriptors for a while, or the client has disconnected.
            sleep(RETRY_INTERVAL).await;
            continue;
        };
        let host = host.clone();
        tokio::spawn(async move {
            // A client that disconnects, or sends no order, disturbs no other.
            let _ = timeout(3 * TIMEOUT, handle_connection(stream, host)).await;
            drop(place);
        });
    }
}

async fn handle_connection(stream: TcpStream, host: LiveHost) -> io::Result<()> {
    let (reader, mut writer) = stream.into_split();
    let mut reader = BufReader::new(reader.take(MAX_LINE + MAX_MODULE as u64));
    let mut line = String::new();
    timeout(TIMEOUT, reader.read_line(&mut line)).await??;
    let answer = match serde_json::from_str(&line) {
        Ok(order) => {
            let mut module = Vec::new();
            if let Order::Install { bytes, .. } = &order {
                module = vec![0; (*bytes).min(MAX_MODULE + 1)];
                timeout(TIMEOUT, reader.read_exact(&mut module)).await??;
            }
            carry_out(&host, order, module).await
        }
        Err(error) => Err(format!("not an order: {error}")),
    };
    let node = host.node().0;
    let answer = answer.unwrap_or_else(|why| Answer {
        status: "failed".into(),
        why: Some(why),
        ..Answer::default()
    });
    let mut text = serde_json::to_string(&Answer { node, ..answer }).expect("plain data");
    text.push('\n');
    writer.write_all(text.as_bytes()).await
}

async fn carry_out(host: &LiveHost, order: Order, module: Vec<u8>) -> Result<Answer, String> {
    let mut port = host.open_port().map_err(|error| error.to_string())?;
    let bytes = module.len().max(256 * Listed::BYTES);
    let region = port.register(bytes).map_err(|error| error.to_string())?;
    region.write(0, &module).map_err(|error| error.to_string())?;
    let about = |opcode, number| install::about(opcode, ExtensionId(number), 1);
    let command = match &order {
        Order::Install { number, policy, .. } => {
            let range = region
                .range(0, module.len())
                .expect("the region is at least as long as the module");
            install::install(ExtensionId(*number), (*policy).into(), range, 1)
        }
        Order::RollBack { number } => about(ROLL_BACK, *number),
        Order::Quarantine { number } => about(QUARANTINE, *number),
        Order::List => install::list(region.whole(), 1),
        Order::Call { number, opcode, to, args } => Command {
            extension: ExtensionId(*number),
            opcode: *opcode,
            node: NodeId(*to),
            args: *args,
            ..Command::default()
        },
    };
    let done = run(&mut port, &command).await?;
    let mut answer = Answer { status: word(done.status), ..Answer::default() };
    match (&order, done.status) {
        (Order::Install { .. } | Order::RollBack { .. }, Status::Done) => {
            (answer.epoch, answer.nodes) = (Some(done.args[0] as u16), Some(done.args[1]));
        }
        (Order::Call { .. }, _) => {
            (answer.length, answer.words) = (Some(done.length), Some([done.args[0], done.args[1]]));
        }
        (Order::List, Status::Done) => {
            let mut lines = vec![0; done.length as usize];
            region.read(0, &mut lines).map_err(|error| error.to_string())?;
            let lines = lines.as_chunks::<{ Listed::BYTES }>().0.iter();
            answer.installed = lines.map(|line| installed(&Listed::parse(line))).collect();
        }
        (_, Status::Refused) => {
            answer.refused_by = Some(done.args[0]);
            // The nodes report a number. This node's own loader has the text, unless only another refuses the module.
            let own =
                (done.args[1] == Refusal::Module as u64).then(|| builtin::load(&module).err());
            answer.why = Some(own.flatten().unwrap_or_else(|| reason(done.args[1]).into()));
        }
        _ => {}
    }
    Ok(answer)
}

async fn run(port: &mut Port, command: &Command) -> Result<Completion, String> {
    port.submit(command).map_err(|error| error.to_string())?;
    match timeout(TIMEOUT, port.completion()).await {
        Ok(done) => done.map_err(|error| error.to_string()),
        Err(_) => Err("the order has not completed within 10 s".into()),
    }
}

fn installed(listed: &Listed) -> Installed {
    let [commands, control_messages, frames, timeouts, failures] = listed.counts;
    Installed {
        number: listed.number.0,
        epoch: listed.epoch.0,
        sha256: listed.hash.to_string(),
        is_down: listed.is_down,
        has_former: listed.has_former,
        commands,
        control_messages,
        frames,
        timeouts,
        failures,
    }
}

/// Returns the name of a status, in kebab case.
fn word(status: Status) -> String {
    let name = format!("{status:?}");
    let word = name.char_indices().map(|(at, letter)| match letter.is_uppercase() && at > 0 {
        true => format!("-{}", letter.to_ascii_lowercase()),
        false => letter.to_ascii_lowercase().into(),
    });
    word.collect()
}

/// Returns the text of a [`Refusal`], by its number.
fn reason(number: u64) -> &'static str {
    let reasons = [
        (Refusal::Module, "the node does not accept this module"),
        (Refusal::Busy, "another change is in progress"),
        (Refusal::Lost, "the node is down"),
        (Refusal::Absent, "it has no such version; `midplane nic list` shows which it has"),
        (Refusal::Late, "the node runs a later version"),
    ];
    let found = reasons.iter().find(|(refusal, _)| *refusal as u64 == number);
    found.map_or("the node reports no reason", |(_, reason)| reason)
}
