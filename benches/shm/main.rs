//! How fast do two processes talk over shared memory? Spinning, against the slots alone; parked,
//! against tokio's Unix sockets; in bulk.
//!
//! `cargo bench --bench shm` prints the tables. The benchmark starts itself a second time; each of
//! the two runs on a core of its own where there are two, and both on one for the rows that say so.
//! One way is half of a round trip; each number is the median of rounds that take turns.

#[cfg(target_os = "linux")]
mod parked;
#[cfg(target_os = "linux")]
mod side;
#[cfg(target_os = "linux")]
mod spinning;

#[cfg(target_os = "linux")]
fn main() {
    // cargo passes arguments of its own; the child has one of ours.
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
