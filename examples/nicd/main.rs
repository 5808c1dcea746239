//! A NIC in a daemon, and the processes that use it.
//!
//! ```text
//! cargo run --release --example nicd
//! ```

#[cfg(target_os = "linux")]
mod arguments;
#[cfg(target_os = "linux")]
mod client;
#[cfg(target_os = "linux")]
#[path = "../common/command_line.rs"]
mod command_line;
#[cfg(target_os = "linux")]
mod daemon;
#[cfg(target_os = "linux")]
mod demo;
#[cfg(target_os = "linux")]
#[path = "../common/processes.rs"]
#[expect(dead_code, reason = "other examples use the rest")]
mod processes;
#[cfg(target_os = "linux")]
#[path = "../common/ranks.rs"]
#[expect(dead_code, reason = "other examples use the rest")]
mod ranks;
#[cfg(target_os = "linux")]
#[path = "../common/report.rs"]
mod report;

#[cfg(target_os = "linux")]
fn main() -> std::process::ExitCode {
    demo::main()
}

#[cfg(not(target_os = "linux"))]
fn main() -> std::process::ExitCode {
    eprintln!("error: nicd needs Linux: ports are mapped by other processes there alone");
    std::process::ExitCode::from(2)
}
