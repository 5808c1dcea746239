//! Compares the random numbers and clocks of a thread with a seed with those of other threads.
#![expect(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "clocks and the order of a map are tested"
)]

use std::collections::HashMap;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use midplane_deterministic::enter;

fn clock() -> Option<Duration> {
    Some(Duration::new(1_000_000_000, 5))
}

/// Returns the order of a map, random bytes and the wall clock, as a new thread gets them.
fn drawn(seed: Option<u64>) -> (Vec<u32>, u64, SystemTime) {
    thread::spawn(move || {
        let _guard = seed.map(|seed| enter(seed, clock));
        let map: HashMap<u32, ()> = (0..100).map(|key| (key, ())).collect();
        (map.into_keys().collect(), getrandom::u64().unwrap(), SystemTime::now())
    })
    .join()
    .unwrap()
}

#[test]
#[cfg_attr(not(target_os = "linux"), ignore = "nothing is replaced here")]
fn a_seed_decides() {
    let first = drawn(Some(7));
    assert_eq!(first, drawn(Some(7)));
    assert_eq!(first.2, SystemTime::UNIX_EPOCH + clock().unwrap());
    let other = drawn(Some(8));
    assert_ne!((&first.0, first.1), (&other.0, other.1));
}

#[test]
fn other_threads_ask_the_system() {
    let (first, second) = (drawn(None), drawn(None));
    assert_ne!((first.0, first.1), (second.0, second.1));
    assert!(first.2.elapsed().unwrap() < Duration::from_secs(600));
}

#[test]
fn the_system_is_asked_again_after_the_guard() {
    let guard = enter(7, clock);
    let began = Instant::now();
    let buffer = &mut [0; 13];
    getrandom::fill(buffer).unwrap();
    drop(guard);
    let mut later = *buffer;
    getrandom::fill(&mut later).unwrap();
    assert_ne!(&later, buffer);
    assert!(began.elapsed() < Duration::from_secs(600), "other clocks are the system's");
    assert!(SystemTime::now() > SystemTime::UNIX_EPOCH + clock().unwrap());
}

#[test]
#[should_panic(expected = "drop the other guard first")]
fn a_thread_enters_once() {
    let _first = enter(1, clock);
    let _second = enter(2, clock);
}
