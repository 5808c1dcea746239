//! Small reliable messages from host to host: the basis of services run by hosts, for comparison.

use std::collections::VecDeque;

use midplane::nicvm::context::Context;
use midplane::nicvm::extension::{Extension, InitError, TimeoutId};
use midplane::simhw::frame::Frame;
use midplane::simhw::host::Host;
use midplane::simhw::id::{ExtensionId, NodeId};
use midplane::simhw::port::{Command, Completion, Port, PortOptions, Status};
use midplane::simhw::region::{Payload, Region};

pub(crate) const RELAY: ExtensionId = ExtensionId(200);
/// Most bytes of a message.
pub(crate) const MOST: usize = 96;
const SEND: u8 = 1;
const RECEIVE: u8 = 2;
/// Number of buffers on each side.
const SLOTS: usize = 128;

/// Carries each message from one port to another's as a control message.
#[derive(Debug, Default)]
pub(crate) struct Relay {
    lent: VecDeque<Command>,
    early: VecDeque<(NodeId, Vec<u8>)>,
}

impl Relay {
    fn hand_out(&mut self, nic: &mut Context<'_>) {
        while let (Some(command), Some((node, bytes))) = (self.lent.front(), self.early.front()) {
            let region = command.region;
            let part = region.part(0, bytes.len() as u32).expect("buffers are as long");
            let (node, length) = (*node, bytes.len() as u64);
            let written = nic.write(part, Payload::from(&bytes[..]));
            let status = if written.is_ok() { Status::Done } else { Status::Region };
            let done = Completion { node, length, ..Completion::of(command, status) };
            nic.complete(region.port, &done);
            self.lent.pop_front();
            self.early.pop_front();
        }
    }
}

impl Extension for Relay {
    fn init(&mut self, _: &mut Context<'_>) -> Result<(), InitError> {
        Ok(())
    }

    fn on_command(&mut self, nic: &mut Context<'_>, command: Command) {
        let Command { opcode, region, node, .. } = command;
        if opcode == RECEIVE {
            self.lent.push_back(command);
            self.hand_out(nic);
            return;
        }
        let bytes = nic.read(region).map(|bytes| bytes.to_vec()).unwrap_or_default();
        let sent = nic.send_control(node, &bytes);
        let status = if sent.is_ok() { Status::Done } else { Status::Refused };
        nic.complete(region.port, &Completion::of(&command, status));
    }

    fn on_control(&mut self, nic: &mut Context<'_>, from: NodeId, message: &[u8]) {
        self.early.push_back((from, message.to_vec()));
        self.hand_out(nic);
    }

    fn on_data(&mut self, _: &mut Context<'_>, _: NodeId, _: &Frame<'_>) {}
    fn on_timeout(&mut self, _: &mut Context<'_>, _: TimeoutId) {}

    fn held(&mut self) -> Vec<Command> {
        self.lent.drain(..).collect()
    }

    fn deactivate(&mut self, nic: &mut Context<'_>) {
        for command in self.held() {
            nic.refuse(&command, Status::Cancelled);
        }
    }
}

/// A host's end of the relay.
pub(crate) struct Mail {
    port: Port,
    memory: Region,
    free: Vec<usize>,
    come: VecDeque<(NodeId, Vec<u8>)>,
    /// Number of received messages.
    pub(crate) received: u64,
}

impl Mail {
    /// # Errors
    /// One line, if the NIC has no room.
    pub(crate) fn open(host: &impl Host) -> Result<Self, String> {
        let options = PortOptions::default().depth(4 * SLOTS);
        let mut port = host.open_port_with(options).map_err(|error| error.to_string())?;
        let memory = port.register(2 * SLOTS * MOST).map_err(|error| error.to_string())?;
        let free = (0..SLOTS).collect();
        let mut mail = Self { port, memory, free, come: VecDeque::new(), received: 0 };
        for slot in SLOTS..2 * SLOTS {
            mail.lend(slot)?;
        }
        mail.port.ring();
        Ok(mail)
    }

    fn lend(&mut self, slot: usize) -> Result<(), String> {
        let region = self.memory.range(slot * MOST, MOST).expect("within it");
        let (extension, opcode, cookie) = (RELAY, RECEIVE, slot as u64);
        let receive = Command { extension, opcode, region, cookie, ..Command::default() };
        self.port.post(&receive).map_err(|error| error.to_string())
    }

    /// # Errors
    /// One line, if a node is lost.
    pub(crate) async fn send(&mut self, node: NodeId, bytes: &[u8]) -> Result<(), String> {
        let slot = loop {
            match self.free.pop() {
                Some(slot) => break slot,
                None => self.look().await?,
            }
        };
        self.memory.write(slot * MOST, bytes).map_err(|error| error.to_string())?;
        let region = self.memory.range(slot * MOST, bytes.len()).expect("within it");
        let (extension, opcode, cookie) = (RELAY, SEND, slot as u64);
        let send = Command { extension, opcode, node, region, cookie, ..Command::default() };
        self.port.submit(&send).map_err(|error| error.to_string())
    }

    /// # Errors
    /// One line, if a node is lost.
    pub(crate) async fn receive(&mut self) -> Result<(NodeId, Vec<u8>), String> {
        loop {
            if let Some(message) = self.come.pop_front() {
                return Ok(message);
            }
            self.look().await?;
        }
    }

    async fn look(&mut self) -> Result<(), String> {
        let done = self.port.completion().await.map_err(|error| error.to_string())?;
        let slot = done.cookie as usize;
        if done.status != Status::Done {
            return Err(format!("a message ended as {:?}", done.status));
        }
        if done.opcode == SEND {
            self.free.push(slot);
            return Ok(());
        }
        let mut bytes = vec![0; done.length as usize];
        self.memory.read(slot * MOST, &mut bytes).map_err(|error| error.to_string())?;
        self.come.push_back((done.node, bytes));
        self.received += 1;
        self.lend(slot)?;
        self.port.ring();
        Ok(())
    }
}
