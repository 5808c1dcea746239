//! scratch
#[path = "../common/chains.rs"]
mod chains;
mod report;
mod study;
fn main() { let r = study::run(7, std::env::args().nth(1).and_then(|a| a.parse().ok()).unwrap_or(400)); r.print(); }
