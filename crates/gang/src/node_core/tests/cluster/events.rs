//! Events of a cluster: inputs of its node cores, and their effects.

use std::time::Duration;

use midplane_simhw::time::Instant;
use midplane_simhw::wire;

use super::{Cluster, DIAL, Event};
use crate::names::JobId;
use crate::node_core::message::{self, LONGEST, Program, Reply, Up};
use crate::node_core::tests::network::{End, Message};
use crate::node_core::{ClientId, Contents, Effect, Input, NodeCore, Peer, Read, Transmit};

impl Cluster {
    pub(super) fn handle(&mut self, event: Event) {
        match event {
            Event::Deliver(number, end, message) => self.deliver(number, end, message),
            Event::Step(host, incarnation, number) => self.step_due(host, incarnation, number),
            Event::Arrival(host, incarnation, job) => {
                if self.hosts[usize::from(host)].incarnation == incarnation {
                    self.call(host, |core, now| core.handle(now, Input::Arrived(job)));
                }
            }
            Event::Rank(host, incarnation, member, turn) => {
                self.rank_due(host, incarnation, member, turn);
            }
            Event::Timeout(host) => {
                let it = &mut self.hosts[usize::from(host)];
                if it.timeout_at.take_if(|at| *at <= self.now).is_some() {
                    self.call(host, |core, now| core.handle_timeout(now));
                }
            }
            Event::Dial(host) => self.dial(host),
            Event::Ballot(from, to, ballot) => {
                if self.reaches(from, to) {
                    self.call(to, |core, now| core.handle(now, Input::Ballot(from, ballot)));
                }
            }
            Event::Attach(client) => self.attach(client),
            Event::Written(host, job, client) => {
                self.call(host, |core, now| core.handle(now, Input::Written(job, client, Ok(0))));
            }
            Event::Read(host, caller, folder, weight) => {
                let read = self.disk.get(&folder).cloned().ok_or_else(|| "nothing there".into());
                let read = read.map(|(program, saved)| (program, Contents::States(saved)));
                self.call(host, |core, now| {
                    core.handle(now, Input::Read(Box::new(Read { caller, weight, read })))
                });
            }
            Event::Script(_) => unreachable!("the script takes it"),
        }
    }

    fn deliver(&mut self, number: u64, end: End, message: Message) {
        let Some(connection) = self.network.connections.get(&number) else { return };
        let (child, parent) = (connection.child, connection.parent);
        if !self.network.receives(number, end) {
            return;
        }
        match message {
            Message::Hello => self.call(parent, |core, now| {
                core.handle(now, Input::Child { host: child, connection: number })
            }),
            Message::Up(up) => {
                self.call(parent, |core, now| core.handle(now, Input::Up(number, up)))
            }
            Message::Down(down) => {
                self.call(child, |core, now| core.handle(now, Input::Down(down)))
            }
            Message::Closed => {
                self.network.close(number, end);
                match end {
                    End::Child => {
                        self.call(child, |core, now| {
                            core.handle(now, Input::Disconnected(Peer::Parent))
                        });
                        self.at(DIAL, Event::Dial(child));
                    }
                    End::Parent => {
                        let peer = Peer::Child(number);
                        self.call(parent, |core, now| core.handle(now, Input::Disconnected(peer)));
                    }
                }
            }
        }
    }

    /// Returns whether both hosts are up and can reach each other.
    pub(super) fn reaches(&self, from: u16, to: u16) -> bool {
        let is_up =
            |at: u16| self.hosts[usize::from(at)].core.is_some() && !self.isolated.contains(&at);
        is_up(from) && is_up(to) && self.groups[usize::from(from)] == self.groups[usize::from(to)]
    }

    /// Makes a host without a parent dial the daemons above it: the nearest first, and after each refusal the next
    /// one.
    pub(super) fn dial(&mut self, host: u16) {
        if self.hosts[usize::from(host)].core.is_none() || self.network.above(host).is_some() {
            return;
        }
        let it = &mut self.hosts[usize::from(host)];
        it.dials += 1;
        let it = &self.hosts[usize::from(host)];
        if it.above.is_empty() {
            return;
        }
        let first = if self.takes_over { (it.dials - 1) % it.above.len() } else { 0 };
        let parent = it.above.iter().skip(first).copied().find(|at| self.reaches(host, *at));
        let Some(parent) = parent else { return self.at(DIAL, Event::Dial(host)) };
        let number = self.network.open(self.now, host, parent);
        let at = self.network.send(self.now, number, End::Parent, &mut self.dice);
        self.at_time(
            at.expect("it was just opened"),
            Event::Deliver(number, End::Parent, Message::Hello),
        );
        self.call(host, |core, now| core.handle(now, Input::Parent));
    }

    /// Passes an input to a core, and carries out its effects.
    pub(crate) fn call(&mut self, host: u16, input: impl FnOnce(&mut NodeCore, Instant)) {
        let Some(core) = &mut self.hosts[usize::from(host)].core else { return };
        input(core, self.now);
        loop {
            let recorded = self.core(host).and_then(|core| core.poll_record().cloned());
            if let Some(durable) = recorded {
                self.hosts[usize::from(host)].durable = durable;
            }
            while let Some(transmit) = self.core(host).and_then(NodeCore::poll_transmit) {
                self.transmit(host, transmit);
            }
            let Some(effect) = self.core(host).and_then(NodeCore::poll_effect) else { break };
            self.carry_out(host, effect);
        }
        let at = self.core(host).and_then(|core| core.poll_timeout());
        let it = &mut self.hosts[usize::from(host)];
        if let Some(at) = at.filter(|at| it.timeout_at.is_none_or(|old| *at < old)) {
            it.timeout_at = Some(at);
            self.at_time(at.max(self.now), Event::Timeout(host));
        }
    }

    fn core(&mut self, host: u16) -> Option<&mut NodeCore> {
        self.hosts[usize::from(host)].core.as_mut()
    }

    fn transmit(&mut self, host: u16, transmit: Transmit) {
        let (number, to, message) = match transmit {
            Transmit::Up(up) => {
                self.check_length(&up);
                self.check_arrival(host, &up);
                match self.network.above(host) {
                    Some(number) => (number, End::Parent, Message::Up(up)),
                    None => return,
                }
            }
            Transmit::Down(number, down) => {
                self.check_order(host, &down);
                (number, End::Child, Message::Down(down))
            }
            Transmit::Ballot(to, ballot) => {
                if self.reaches(host, to) {
                    let after = Duration::from_micros(self.dice.between(20, 2_000));
                    self.at(after, Event::Ballot(host, to, ballot));
                }
                return;
            }
        };
        if let Some(at) = self.network.send(self.now, number, to, &mut self.dice) {
            self.at_time(at, Event::Deliver(number, to, message));
        }
    }

    /// Checks that no message exceeds the limit of a link.
    fn check_length(&mut self, up: &Up) {
        if let Up::Joined { at, bytes, .. } = up {
            let length = wire::encode_long(up).unwrap().len();
            assert!(length <= LONGEST, "a message of {length} bytes");
            self.longest_report = self.longest_report.max(at + bytes.len() as u64);
        }
    }

    /// Checks that a host reports only one arrival per suspension of a job.
    fn check_arrival(&mut self, host: u16, up: &message::Up) {
        if let message::Up::Arrived { host: own, job } = up
            && *own == host
        {
            assert!(self.arrived.insert((host, *job)), "{job} has arrived twice on host {host}");
        }
    }

    /// Schedules arrivals of data for suspended jobs, some of them twice.
    pub(super) fn arrive(&mut self, host: u16, jobs: &[JobId]) {
        let incarnation = self.hosts[usize::from(host)].incarnation;
        let Some(mut rng) = self.arrivals.take() else { return };
        for job in jobs {
            for _ in 0..rng.below(3) {
                let after = Duration::from_micros(rng.below(20_000));
                self.at(after, Event::Arrival(host, incarnation, *job));
            }
        }
        self.arrivals = Some(rng);
    }

    /// Checks that only one root gives orders in a term.
    fn check_order(&mut self, host: u16, down: &message::Down) {
        let core = self.hosts[usize::from(host)].core.as_ref().expect("it has sent this");
        if matches!(down, message::Down::Order(_)) && core.manager.is_some() {
            let first = *self.orders.entry(core.durable.term).or_insert(host);
            assert_eq!(first, host, "two roots order in term {}", core.durable.term);
        }
    }

    fn reply(&mut self, client: ClientId, reply: Reply) {
        let it = self.clients.get_mut(&client).expect("a client");
        match &reply {
            Reply::Accepted(job) if it.job.is_some() => return assert_eq!(it.job, Some(*job)),
            // The refusing root belongs to a minority, and has not noticed that yet.
            Reply::Refused(_) if it.job.is_some() && it.replies.len() == 1 => {
                it.root = None;
                return self.at(DIAL, Event::Attach(client));
            }
            Reply::Accepted(job) => {
                it.job = Some(*job);
                it.replies.push(reply.clone());
                self.jobs.insert(*job, client);
                return self.admitted(client, *job);
            }
            Reply::Over(over) => drop(self.jobs.remove(&over.job)),
            _ => {}
        }
        self.clients.get_mut(&client).expect("a client").replies.push(reply);
    }

    fn carry_out(&mut self, host: u16, effect: Effect) {
        match effect {
            Effect::Step(number, step) => self.begin_step(host, number, step),
            Effect::Reply(client, reply) => self.reply(client, reply),
            Effect::Seek(above) => self.seek(host, above),
            Effect::Root(_) => {}
            Effect::Deposed => self.disconnect(host),
            Effect::Say(job, word) => self.say(host, job, word),
            Effect::Signal(..) | Effect::Resize(..) => {}
            Effect::BarrierOut(job, _) => self.leave_barrier(host, job),
            Effect::Write(write) => {
                let program = Program::from_json(&write.checkpoint.program).unwrap();
                self.disk.insert(write.folder, (program, write.checkpoint));
                let after = self.up_to(5_000);
                self.at(after, Event::Written(host, write.job, write.client));
            }
            Effect::Read { caller, folder, weight, .. } => {
                let after = self.up_to(5_000);
                self.at(after, Event::Read(host, caller, folder, weight));
            }
            Effect::Disconnect(Peer::Parent) => {
                if let Some(number) = self.network.above(host) {
                    self.close(number, End::Child);
                    self.at(DIAL, Event::Dial(host));
                }
            }
            Effect::Disconnect(Peer::Child(number)) => self.close(number, End::Parent),
            Effect::Refused(_) => {}
            Effect::Quit => unreachable!("nothing orders it"),
            Effect::Collect(_) | Effect::Serve(..) => unreachable!("the user is not root"),
        }
    }
}
