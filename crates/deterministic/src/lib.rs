//! Replaces the C library's randomness and wall clock on threads that run a simulation, so that a run repeats from its
//! seed.
//!
//! A program that links this crate gets its own `getrandom` and `clock_gettime`. On a thread that has called [`enter`],
//! `getrandom` returns bytes of a stream of the seed, and the wall clock is the caller's: the order of a `HashMap`,
//! `SystemTime::now`, and random numbers of any crate that asks the system are the same in each run. On other
//! threads, and for other clocks, both functions ask the system.
//!
//! A `HashMap`'s hasher draws from the system once per thread. So [`enter`] is for a new thread, before other code
//! runs there. `midplane`'s feature `deterministic` does this for `SimBuilder::check` and `SimBuilder::swarm`.
//!
//! On other systems than Linux, nothing is replaced, and [`enter`] does nothing. It belongs in dev-dependencies:
//! random numbers of an entered thread can be guessed.
#![cfg_attr(not(target_os = "linux"), forbid(unsafe_code))]

#[cfg(target_os = "linux")]
mod replaced;

use std::cell::Cell;
use std::marker::PhantomData;
use std::time::Duration;

/// Returns the time since 1970, or `None` for the system's clock.
type Clock = fn() -> Option<Duration>;

/// The seeded state of a thread.
#[derive(Clone, Copy, Debug)]
struct Entered {
    /// The state of SplitMix64 (Steele, Lea and Flood 2014).
    random: u64,
    clock: Clock,
}

thread_local! {
    // Without a destructor: it can be read at any time of its thread, and reading it allocates nothing.
    static ENTERED: Cell<Option<Entered>> = const { Cell::new(None) };
}

/// Draws this thread's random numbers from `seed`, and reads its wall clock from `clock`, until the guard is dropped.
///
/// `clock` returns times from 1970 on, and may not read the wall clock itself.
///
/// # Panics
/// If the thread has entered already.
pub fn enter(seed: u64, clock: fn() -> Option<Duration>) -> Guard {
    let is_entered = ENTERED.get().is_some();
    assert!(!is_entered, "this thread draws from a seed already: drop the other guard first");
    ENTERED.set(Some(Entered { random: seed, clock }));
    #[cfg(target_os = "linux")]
    replaced::link();
    Guard(PhantomData)
}

/// Guard of [`enter`]: dropping it returns the thread to the system's random numbers and wall clock.
#[derive(Debug)]
#[must_use = "the thread draws from its seed until this is dropped"]
pub struct Guard(PhantomData<*const ()>);

impl Drop for Guard {
    fn drop(&mut self) {
        ENTERED.set(None);
    }
}

/// Fills `bytes` from this thread's seed; returns false if it has none.
#[cfg(target_os = "linux")]
fn fill(bytes: &mut [u8]) -> bool {
    let Some(mut entered) = ENTERED.get() else { return false };
    for part in bytes.chunks_mut(8) {
        entered.random = entered.random.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut word = entered.random;
        word = (word ^ word >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        word = (word ^ word >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        part.copy_from_slice(&(word ^ word >> 31).to_le_bytes()[..part.len()]);
    }
    ENTERED.set(Some(entered));
    true
}

/// Returns this thread's wall clock; `None` if it is the system's.
#[cfg(target_os = "linux")]
fn wall_clock() -> Option<Duration> {
    (ENTERED.get()?.clock)()
}
