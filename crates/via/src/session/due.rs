//! Frames about a stream that are to be sent once the wire has room.

use super::flow::Flow;
use super::frame::{FIN, Header, Kind, Reason};

/// The frames about a stream that are due.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) struct Due {
    pub(super) accepted: bool,
    pub(super) credit: bool,
    pub(super) blocked: bool,
    pub(super) fin: bool,
    pub(super) stop: bool,
    pub(super) reset: Option<Reason>,
}

impl Due {
    pub(super) fn is_none(self) -> bool {
        self == Self::default()
    }
}

/// Returns a stream's next frame that is due.
pub(super) fn next_due(stream: u32, flow: &Flow) -> Option<Header> {
    let header = |kind, value| Some(Header::new(kind, stream, value));
    let due = &flow.due;
    // The peer's connect must succeed even if the service resets the stream before this frame has left.
    if due.accepted && (due.reset.is_some() || flow.reset.is_none()) {
        return header(Kind::Accepted, flow.receive.granted);
    }
    if let Some(reason) = due.reset {
        return header(Kind::Reset, reason as u64);
    }
    if flow.reset.is_some() {
        return None;
    }
    if due.credit {
        return header(Kind::Credit, flow.receive.granted);
    }
    if due.blocked {
        return header(Kind::Blocked, flow.send.limit);
    }
    if due.stop {
        return header(Kind::Stop, 0);
    }
    let end = if flow.own.has_moved() { flow.send.sent + flow.send.sent_apart } else { 0 };
    due.fin.then(|| Header { flags: FIN, ..Header::new(Kind::Data, stream, end) })
}

/// Clears the mark of a due frame that was sent.
pub(super) fn done(header: Header, flow: &mut Flow) {
    let due = &mut flow.due;
    match header.kind {
        Kind::Reset => *due = Default::default(),
        Kind::Accepted => (due.accepted, due.credit) = (false, false),
        Kind::Credit => due.credit = false,
        Kind::Blocked => due.blocked = false,
        Kind::Stop => due.stop = false,
        _ => {
            due.fin = false;
            flow.send.fin_sent = true;
        }
    }
}
