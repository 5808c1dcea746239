//! Measures two processes over shared memory: spinning, compared with the bare ring slots; parked, compared with
//! tokio's Unix sockets; and in bulk.
//!
//! `cargo bench -p midplane-benches --bench shm` prints the tables. The benchmark starts itself a second time. Each process runs on a
//! core of its own if there are two; in the rows that say so, both run on one. One way is half of a round trip; each
//! number is the median of alternating rounds.

#[cfg(target_os = "linux")]
mod parked;
#[cfg(target_os = "linux")]
mod side;
#[cfg(target_os = "linux")]
mod spinning;

#[cfg(target_os = "linux")]
fn main() {
    // cargo passes arguments of its own; the child gets one of ours.
    let parent = std::env::args().skip_while(|argument| argument != side::CHILD).nth(1);
    let (mut side, child) = side::Side::start(parent);
    spinning::run(&mut side);
    parked::run(&mut side);
    drop(child);
}

#[cfg(not(target_os = "linux"))]
fn main() {
    println!("the fabric of shared memory is for Linux only");
}
