//! Bugs on purpose: what the tests are tested with.
//!
//! None is there unless the crate is built with the feature `planted` and one is asked for.

#[cfg(feature = "planted")]
use std::sync::atomic::{AtomicU8, Ordering};

macro_rules! bugs {
    ($($(#[$doc:meta])* $bug:ident = $name:literal: $what:literal,)*) => {
        /// A bug, by name.
        #[derive(Clone, Copy, Debug, Eq, PartialEq)]
        #[repr(u8)]
        pub enum Bug {
            $(#[doc = $what] $bug,)*
        }

        impl Bug {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$bug,)*];

            /// Its name on command lines.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$bug => $name,)*
                }
            }

            /// What is wrong.
            #[must_use]
            pub const fn what(self) -> &'static str {
                match self {
                    $(Self::$bug => $what,)*
                }
            }
        }
    };
}

bugs! {
    DuplicateDelivered = "duplicate-delivered": "a control message that had arrived is delivered again",
    EarlyAcknowledgement = "early-acknowledgement": "a missing control message is acknowledged",
    QueueSurvives = "queue-survives": "messages of an ended connection are sent over the next",
    ResendForgotten = "resend-forgotten": "a control message that was lost is not sent again",
    TokenCopied = "token-copied": "whoever grants a token keeps it",
    HastyWitness = "hasty-witness": "a new token is made before the old one's lease is over",
    GapIgnored = "gap-ignored": "a message whose middle is missing is delivered",
    MessageTwice = "message-twice": "a message that was doubled is delivered twice",
    BusyForgotten = "busy-forgotten": "a message that finds the line busy is forgotten",
    AlarmForgotten = "alarm-forgotten": "an alarm that has gone off is taken to be set",
    BuffersSurvive = "buffers-survive": "buffers of a closed port stay",
    TrapCommits = "trap-commits": "what a handler asked for before it panicked happens",
}

#[cfg(feature = "planted")]
static PLANTED: AtomicU8 = AtomicU8::new(u8::MAX);

/// Plants a bug in all units of this process, or takes it away; nothing without the feature.
pub fn plant(bug: Option<Bug>) {
    #[cfg(feature = "planted")]
    PLANTED.store(bug.map_or(u8::MAX, |bug| bug as u8), Ordering::Relaxed);
    #[cfg(not(feature = "planted"))]
    let _ = bug;
}

/// Whether `bug` is planted.
#[cfg(feature = "planted")]
pub(crate) fn is(bug: Bug) -> bool {
    PLANTED.load(Ordering::Relaxed) == bug as u8
}

/// Whether `bug` is planted.
#[cfg(not(feature = "planted"))]
pub(crate) const fn is(_: Bug) -> bool {
    false
}
