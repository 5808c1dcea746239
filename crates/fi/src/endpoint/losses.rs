//! The end of a peer: all operations that wait for it complete with an error.

use std::ffi::c_int;

use super::{Requested, State};
use crate::completion::Completions;
use crate::peer::{Departure, End, Finish, Inbound, Link, Target};

impl State {
    /// Ends all operations with a peer that sends no more records.
    pub(super) fn lose(&mut self, number: usize, code: c_int, out: &mut Completions) {
        let peer = &mut self.peers[number];
        let source = peer.source;
        peer.link = Link::Lost(code);
        let (departures, unconfirmed) = peer.clear();
        let inbound = peer.inbound.take();
        unconfirmed.into_iter().for_each(|finish| self.fail(finish, code, out));
        for Departure { end, .. } in departures {
            if let End::Complete(finish) | End::Confirm(finish) = end {
                self.fail(finish, code, out);
            }
        }
        if let Some(inbound) = inbound {
            self.abandon_with(inbound, code, out);
        }
        let announced: Vec<_> = self
            .announced
            .iter()
            .filter(|(_, one)| one.peer == number)
            .map(|(key, _)| key)
            .collect();
        for key in announced {
            let finish = self.announced.remove(key).finish;
            self.fail(finish, code, out);
        }
        let requested: Vec<_> =
            self.requested.iter().filter(|(_, one)| one.0 == number).map(|(key, _)| key).collect();
        for key in requested {
            match self.requested.remove(key).1 {
                Requested::Receive(matched) => self.fail_receive(&matched, code, out),
                Requested::Read(_, finish) => self.fail(finish, code, out),
                Requested::Discard => {}
            }
        }
        for matched in self.matching.take_incomplete_of(number) {
            self.fail_receive(&matched, code, out);
        }
        for receive in self.matching.take_posted_of(source) {
            self.fail_posted(&receive, code, out);
        }
    }

    /// Ends the operation of a stream that its sender has made invalid.
    pub(super) fn abandon(&mut self, inbound: Inbound, out: &mut Completions) {
        self.abandon_with(inbound, crate::abi::constants::ECONNRESET, out);
    }

    fn abandon_with(&mut self, inbound: Inbound, code: c_int, out: &mut Completions) {
        match inbound.target {
            Target::Receive(matched) => self.fail_receive(&matched, code, out),
            Target::Read(_, finish) => self.fail(finish, code, out),
            // Incomplete unexpected messages are removed with their sender.
            Target::Unexpected(_) | Target::Region { .. } | Target::Refused | Target::Discard => {}
        }
    }

    pub(super) fn fail(&self, finish: Finish, code: c_int, out: &mut Completions) {
        self.bindings.complete(out, finish.class, finish.reports, finish.entry.failed(code));
    }
}
