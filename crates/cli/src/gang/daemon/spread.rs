//! Starts the daemons of the other hosts from host 0, by ssh or another command that runs commands there.

use std::path::Path;
use std::process::{Child, Command, Stdio};

use rustix::process::{Signal, getpid, kill_process};
use rustix::thread::{Timespec, nanosleep};

/// Option that has a daemon end when its standard input does.
pub(crate) const END_WITH_INPUT: &str = "--end-with-input";

/// Checks of whether the other daemons have ended, and the pause before each: 10 s in all.
const CHECKS: u32 = 200;
const CHECK_AFTER: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };

/// Daemons of other hosts. They end when their standard input does: at the latest with this process.
#[derive(Debug)]
pub(crate) struct Spread(Vec<Child>);

/// Quotes a word for a shell.
fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// Returns the host of a peer's `host:port`; an IPv6 address without the brackets, which ssh takes for a part of the name.
fn host_of(peer: &str) -> &str {
    let host = peer.rsplit_once(':').map_or(peer, |(host, _)| host);
    host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host)
}

/// Builds the command line of another host's daemon: this daemon's options, in the same folder.
fn command_line(host: usize, slots: u16) -> Result<String, String> {
    let text = |path: &Path| path.to_str().map(str::to_owned).ok_or("a path is not UTF-8");
    let itself = std::env::current_exe().map_err(|error| error.to_string())?;
    let folder = std::env::current_dir().map_err(|error| error.to_string())?;
    let (itself, folder) = (text(&itself)?, text(&folder)?);
    let mut words = vec![itself];
    let own: Result<Vec<String>, _> =
        std::env::args_os().skip(1).map(std::ffi::OsString::into_string).collect();
    let mut own = own.map_err(|word| format!("{word:?} is not UTF-8"))?.into_iter();
    while let Some(word) = own.next() {
        let name = word.split('=').next().unwrap_or_default();
        let has_value = !word.contains('=');
        match name {
            "--rsh" | "--host" | "--slots" => drop(has_value.then(|| own.next())),
            "--spread" => {}
            // Each host has its own socket, in case hosts share a file system or are one machine.
            "--socket" => {
                let value = word.split_once('=').map(|(_, value)| value.to_owned());
                let value = value.or_else(|| own.next()).unwrap_or_default();
                words.extend([name.to_owned(), format!("{value}.{host}")]);
            }
            _ => words.push(word),
        }
    }
    words.extend(["--host".into(), host.to_string(), "--slots".into(), slots.to_string()]);
    words.push(END_WITH_INPUT.into());
    let words: Vec<String> = words.iter().map(|word| quoted(word)).collect();
    Ok(format!("cd {} && exec {}", quoted(&folder), words.join(" ")))
}

impl Spread {
    /// Starts a daemon on every host but the first, by `rsh HOST COMMAND`.
    ///
    /// # Errors
    /// One line that names the option or the path.
    pub(crate) fn start(rsh: &str, peers: &[String], slots: u16) -> Result<Self, String> {
        let words: Vec<&str> = rsh.split_whitespace().collect();
        let [program, arguments @ ..] = &words[..] else {
            return Err("--rsh: name a command, such as ssh".into());
        };
        let mut spread = Self(Vec::new());
        for (host, peer) in peers.iter().enumerate().skip(1) {
            let mut command = Command::new(program);
            command.args(arguments).arg(host_of(peer)).arg(command_line(host, slots)?);
            let child = command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn();
            spread.0.push(child.map_err(|error| format!("--rsh {program}: {error}"))?);
        }
        Ok(spread)
    }
}

impl Drop for Spread {
    fn drop(&mut self) {
        for child in &mut self.0 {
            drop(child.stdin.take());
        }
        let mut checks = 0..CHECKS;
        for child in &mut self.0 {
            while matches!(child.try_wait(), Ok(None)) && checks.next().is_some() {
                let _ = nanosleep(&CHECK_AFTER);
            }
            // A host that can't be reached ends its daemon when it notices that.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Sends SIGTERM to this process when its standard input ends.
pub(crate) fn end_with_input() {
    std::thread::spawn(|| {
        let _ = std::io::copy(&mut std::io::stdin().lock(), &mut std::io::sink());
        let _ = kill_process(getpid(), Signal::TERM);
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: ssh did not resolve `[fd00::2]`.
    #[test]
    fn the_host_of_an_ipv6_peer_has_no_brackets() {
        for (peer, host) in [
            ("[fd00::2]:24700", "fd00::2"),
            ("10.0.0.2:24700", "10.0.0.2"),
            ("node-2:24700", "node-2"),
        ] {
            assert_eq!(host_of(peer), host);
        }
    }
}
