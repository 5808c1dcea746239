//! Dials without an answer yet: the first transport that answers carries the session.

use std::sync::Arc;

use super::super::line::Line;
use super::super::piped::Piped;
use super::super::wire::Wire;
use super::{Core, Ended};
use crate::wire::endpoint::PipeId;

impl Core {
    /// Handles an answer over UDP to a dial: UDP then carries the session, unless TCP does. Returns whether UDP does.
    pub(in crate::session) fn on_pipe_established(&mut self, id: PipeId) -> bool {
        let Wire::Dialing(dialing) = &mut self.wire else { return false };
        let Some(udp) = dialing.udp.take_if(|udp| udp.is_over_pipe(id)) else { return false };
        self.wire = Wire::Piped(udp);
        self.is_dirty = true;
        true
    }

    /// Handles the end of a connection over UDP. Returns whether it was a dial.
    pub(in crate::session) fn on_pipe_ended(&mut self, id: PipeId) -> bool {
        match &mut self.wire {
            Wire::Dialing(dialing) => {
                dialing.udp = None;
                if !dialing.is_tcp_open {
                    self.end(Ended::Gone);
                }
                return true;
            }
            Wire::Piped(piped) if piped.is_over_pipe(id) => self.on_wire_ended(),
            _ => {}
        }
        false
    }

    /// Handles an answer over TCP to a dial: TCP then carries the session. Returns `false` if UDP has answered
    /// before.
    pub(in crate::session) fn on_tcp_established(&mut self, line: Arc<Line>) -> bool {
        let is_open = matches!(self.wire, Wire::Dialing(_));
        if is_open {
            self.wire = Wire::Piped(Piped::over_line(line));
            self.is_dirty = true;
        }
        is_open
    }

    /// Records that TCP is not tried, or has failed.
    pub(in crate::session) fn on_tcp_failed(&mut self) {
        let Wire::Dialing(dialing) = &mut self.wire else { return };
        dialing.is_tcp_open = false;
        if dialing.udp.is_none() {
            self.end(Ended::Gone);
        }
    }
}
