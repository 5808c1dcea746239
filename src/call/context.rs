//! The context of a call: its deadline, its trace, its caller.

use std::fmt;
use std::time::Duration;

use tokio::time::Instant;

use crate::node::PeerName;

tokio::task_local! {
    static CURRENT: Context;
}

/// Most bytes of a `traceparent`, and of a `tracestate`.
pub(super) const MAX_PARENT: usize = 64;
pub(super) const MAX_STATE: usize = 512;

/// The deadline, the trace and the caller of a call, which its service receives with the request.
///
/// A service runs within the context of its call, and the calls that it makes inherit deadline and trace. A task that
/// it spawns does not inherit them: pass the task [`Context::current`], and run it by [`Context::scope`].
#[derive(Clone, Debug, Default)]
pub struct Context {
    deadline: Option<Instant>,
    trace: Trace,
    peer: Option<PeerName>,
}

impl Context {
    /// Creates a context without deadline, trace and caller, for a program that serves no calls itself.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    pub(super) const fn of_call(deadline: Option<Instant>, trace: Trace, peer: PeerName) -> Self {
        Self { deadline, trace, peer: Some(peer) }
    }

    /// Returns the context of the call that is being served, or of the [scope](Self::scope) around the caller.
    #[must_use]
    pub fn current() -> Option<Self> {
        CURRENT.try_with(Self::clone).ok()
    }

    /// Sets the deadline to this time from now; an earlier deadline of the context stays.
    #[must_use]
    pub fn with_timeout(mut self, time: Duration) -> Self {
        let own = Instant::now().checked_add(time);
        self.deadline = earlier(self.deadline, own);
        self
    }

    /// Sets the W3C trace context. As its specification demands, an invalid `traceparent` is ignored with its `tracestate`.
    #[must_use]
    pub fn with_trace(mut self, traceparent: &str, tracestate: &str) -> Self {
        self.trace = Trace::new(traceparent, tracestate).unwrap_or_default();
        self
    }

    /// Runs a future within this context: its calls inherit deadline and trace.
    pub async fn scope<F: Future>(self, future: F) -> F::Output {
        CURRENT.scope(self, future).await
    }

    /// Runs a function within this context.
    pub(super) fn enter<R>(self, run: impl FnOnce() -> R) -> R {
        CURRENT.sync_scope(self, run)
    }

    /// Returns when the caller stops waiting.
    #[must_use]
    pub const fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// Returns the caller of the call that is being served.
    #[must_use]
    pub const fn peer(&self) -> Option<&PeerName> {
        self.peer.as_ref()
    }

    /// Returns the trace's `traceparent`.
    #[must_use]
    pub fn traceparent(&self) -> Option<&str> {
        Some(self.trace.parent.as_str()).filter(|parent| !parent.is_empty())
    }

    /// Returns the trace's `tracestate`, which may be empty.
    #[must_use]
    pub fn tracestate(&self) -> &str {
        &self.trace.state
    }

    pub(super) const fn trace(&self) -> &Trace {
        &self.trace
    }
}

/// Returns the earlier of two deadlines.
pub(super) fn earlier(one: Option<Instant>, other: Option<Instant>) -> Option<Instant> {
    [one, other].into_iter().flatten().min()
}

/// A W3C trace context; both parts are empty if there is none.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(super) struct Trace {
    pub(super) parent: String,
    pub(super) state: String,
}

impl Trace {
    /// Creates a trace; `None` if `parent` is not a valid `traceparent`.
    pub(super) fn new(parent: &str, state: &str) -> Option<Self> {
        is_parent(parent).then(|| {
            let is_state = state.len() <= MAX_STATE && state.bytes().all(is_printable);
            Self {
                parent: parent.into(),
                state: if is_state { state.into() } else { String::new() },
            }
        })
    }
}

impl fmt::Display for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.parent)
    }
}

const fn is_printable(byte: u8) -> bool {
    matches!(byte, b' '..=b'~')
}

/// Returns whether a text is a `traceparent`: version, 32 digits of a trace, 16 of a span, 2 of flags.
fn is_parent(text: &str) -> bool {
    let bytes = text.as_bytes();
    if !(55..=MAX_PARENT).contains(&bytes.len()) || !bytes.iter().copied().all(is_printable) {
        return false;
    }
    let is_hex = |part: &[u8]| part.iter().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    let is_zero = |part: &[u8]| part.iter().all(|byte| *byte == b'0');
    let (version, trace, span, flags) =
        (&bytes[..2], &bytes[3..35], &bytes[36..52], &bytes[53..55]);
    // Later versions may append more after another dash.
    let ends = bytes.len() == 55 || (version != b"00" && bytes[55] == b'-');
    [version, trace, span, flags].into_iter().all(is_hex)
        && [bytes[2], bytes[35], bytes[52]] == *b"---"
        && version != b"ff"
        && !is_zero(trace)
        && !is_zero(span)
        && ends
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_traceparent_is_kept_and_anything_else_is_ignored() {
        let good = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        let context = Context::new().with_trace(good, "a=1");
        assert_eq!(context.traceparent(), Some(good));
        assert_eq!(context.tracestate(), "a=1");
        let later = format!("cc{}-more", &good[2..]);
        assert!(is_parent(&later));
        let zero = "00-00000000000000000000000000000000-b7ad6b7169203331-01";
        let upper = good.to_uppercase();
        let long = format!("{good}-more");
        for bad in ["", "00", zero, &upper, &long, &format!("ff{}", &good[2..]), &"é".repeat(28)] {
            assert_eq!(Context::new().with_trace(bad, "a=1").traceparent(), None, "{bad}");
        }
        assert_eq!(Context::new().with_trace(good, "a\n").tracestate(), "");
    }
}
