//! Deliberate bugs, to check that the tests find them.
//!
//! None is active unless the crate is built with the feature `planted`, and [`plant`] selects one. The feature is
//! exempt from semantic versioning.

#[cfg(feature = "planted")]
use std::sync::atomic::{AtomicU8, Ordering};

macro_rules! bugs {
    ($($(#[$doc:meta])* $bug:ident = $name:literal: $what:literal,)*) => {
        /// A deliberate bug.
        #[derive(Clone, Copy, Debug, Eq, PartialEq)]
        #[repr(u8)]
        pub enum Bug {
            $(#[doc = $what] $bug,)*
        }

        impl Bug {
            /// All bugs.
            pub const ALL: &[Self] = &[$(Self::$bug,)*];

            /// Returns its name on command lines.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$bug => $name,)*
                }
            }

            /// Returns a description of the bug.
            #[must_use]
            pub const fn description(self) -> &'static str {
                match self {
                    $(Self::$bug => $what,)*
                }
            }
        }
    };
}

bugs! {
    DuplicateDelivered = "duplicate-delivered": "a control message that had arrived is delivered again",
    EarlyDelivered = "early-delivered": "a control message that arrives too early is delivered at once",
    QueueSurvives = "queue-survives": "messages of an ended connection are sent over the next",
    TokenCopied = "token-copied": "a node that grants a token keeps it",
    GapIgnored = "gap-ignored": "a message whose middle is missing is delivered",
    MessageTwice = "message-twice": "a message that was doubled is delivered twice",
    BusyForgotten = "busy-forgotten": "a message that finds the line busy is forgotten",
    TimeoutEarly = "timeout-early": "a timeout goes off before it is due",
    BuffersSurvive = "buffers-survive": "buffers of a closed port stay",
    TrapCommits = "trap-commits": "effects that a handler requested before it panicked are carried out",
    AckMissing = "ack-missing": "a missing control message is acknowledged",
    LossForgotten = "loss-forgotten": "a lost control message is not sent again",
    AlarmAssumed = "alarm-assumed": "an expired alarm is taken to be set",
    TokenEarly = "token-early": "a new token is made before the lease of the old one is over",
    LeaseIgnored = "lease-ignored": "a holder uses its token long after its lease",
    EarlySurvives = "early-survives": "control messages that arrived early in an ended connection count in the next",
    NumberKept = "number-kept": "the next connection has the number of the ended one",
    ResendStopped = "resend-stopped": "an acknowledgement stops the resend timer of the messages that it does not name",
    RestartLeaks = "restart-leaks": "the buffer of a message that a restarted sender had begun is lost",
    LateRewinds = "late-rewinds": "a doubled frame sets its message back",
    HeldRemembered = "held-remembered": "the note that a frame is held stays when none is held any more",
    TurnSurvives = "turn-survives": "a flow whose messages are withdrawn keeps its turn",
    CommandsLeft = "commands-left": "commands beyond one turn's share wait for the next doorbell",
    StaleAccepted = "stale-accepted": "a data frame for a former incarnation is accepted",
    LongTimeoutLost = "long-timeout-lost": "a coarse timeout beyond one round of the wheel is lost",
    GrantRenews = "grant-renews": "a grant renews the lease of its token",
    GivenUpSupported = "given-up-supported": "a sender supports an epoch that it has given up",
    LeaveReturns = "leave-returns": "a token that a sender took before it left returns to the granter",
    RouteUnwoken = "route-unwoken": "a route that waits for a link that another route releases is not woken",
    BarrierShort = "barrier-short": "a barrier does not wait for its last round",
}

#[cfg(feature = "planted")]
static PLANTED: AtomicU8 = AtomicU8::new(u8::MAX);

/// Activates a bug in all units of this process, or deactivates it with `None`. Without the feature `planted`, does
/// nothing.
pub fn plant(bug: Option<Bug>) {
    #[cfg(feature = "planted")]
    PLANTED.store(bug.map_or(u8::MAX, |bug| bug as u8), Ordering::Relaxed);
    #[cfg(not(feature = "planted"))]
    let _ = bug;
}

/// Returns whether `bug` is active.
#[cfg(feature = "planted")]
pub(crate) fn is(bug: Bug) -> bool {
    PLANTED.load(Ordering::Relaxed) == bug as u8
}

/// Returns whether `bug` is active.
#[cfg(not(feature = "planted"))]
pub(crate) const fn is(_: Bug) -> bool {
    false
}
