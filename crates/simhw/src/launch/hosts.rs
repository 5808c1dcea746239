//! Lists of hosts: hostfiles, Slurm's compressed lists, ports for the ranks of each host.

use std::collections::BTreeMap;
use std::path::Path;

use super::{HOSTFILE, LaunchError, MAX_RANKS};

/// Most digits of a number in a compressed list, and most brackets of one of its words.
const MAX_DIGITS: usize = 20;
const MAX_BRACKETS: usize = 16;

/// Reads a hostfile, and returns the host of each rank.
pub(super) fn read(path: &Path, lines: &[String]) -> Result<Vec<String>, LaunchError> {
    let mut hosts = Vec::new();
    for (number, line) in (1..).zip(lines) {
        let line = line.split('#').next().unwrap_or_default().trim();
        if line.is_empty() {
            continue;
        }
        let (host, slots) = host_and_slots(line)
            .filter(|(_, slots)| hosts.len() + slots <= MAX_RANKS)
            .ok_or_else(|| LaunchError::Hostfile { path: path.into(), line: number })?;
        hosts.extend(std::iter::repeat_n(host, slots));
    }
    if hosts.is_empty() {
        return Err(LaunchError::Empty { flag: HOSTFILE, path: path.into() });
    }
    Ok(hosts)
}

/// Parses `HOST`, `HOST:N`, or `HOST slots=N` with other `key=value` words; IPv6 addresses are in brackets.
fn host_and_slots(line: &str) -> Option<(String, usize)> {
    let mut words = line.split_whitespace();
    let name = words.next()?;
    let (host, mut slots) = match name.rsplit_once(':') {
        Some((host, count)) if !count.ends_with(']') => (host, count.parse().ok()?),
        _ => (name, 1),
    };
    // An address with several colons is an IPv6 address without its brackets.
    if host.contains(':') && !(host.starts_with('[') && host.ends_with(']')) {
        return None;
    }
    for word in words {
        let (key, value) = word.split_once('=')?;
        if key == "slots" {
            slots = value.parse().ok()?;
        }
    }
    (!host.is_empty() && (1..=MAX_RANKS).contains(&slots)).then(|| (host.into(), slots))
}

/// Returns `host:port` for each rank: the ports of one host's ranks count up from `first`.
pub(super) fn with_ports(hosts: &[String], first: u16) -> Result<Vec<String>, LaunchError> {
    let mut used: BTreeMap<&str, u16> = BTreeMap::new();
    let mut peers = Vec::with_capacity(hosts.len());
    for host in hosts {
        let ranks = used.entry(host).or_default();
        let Some(port) = first.checked_add(*ranks) else {
            let ranks = hosts.iter().filter(|other| *other == host).count();
            return Err(LaunchError::Ports { first, ranks });
        };
        *ranks += 1;
        peers.push(format!("{host}:{port}"));
    }
    Ok(peers)
}

/// Expands Slurm's compressed list of hosts, such as `a[01-03,7]b,login`; `None` if it is malformed.
pub(super) fn expand(list: &str) -> Option<Vec<String>> {
    let mut hosts = Vec::new();
    for word in split_outside(list)? {
        if word.matches('[').count() > MAX_BRACKETS {
            return None;
        }
        expand_word(word, &mut hosts)?;
    }
    (!hosts.is_empty()).then_some(hosts)
}

/// Splits at the commas outside of brackets.
fn split_outside(list: &str) -> Option<Vec<&str>> {
    let (mut words, mut begin, mut inside) = (Vec::new(), 0, false);
    for (at, character) in list.char_indices() {
        match character {
            '[' if inside => return None,
            '[' => inside = true,
            ']' if !inside => return None,
            ']' => inside = false,
            ',' if !inside => {
                words.push(&list[begin..at]);
                begin = at + 1;
            }
            _ => {}
        }
    }
    words.push(&list[begin..]);
    (!inside && words.iter().all(|word| !word.is_empty())).then_some(words)
}

/// Expands the first brackets of a word, and then those after them.
fn expand_word(word: &str, hosts: &mut Vec<String>) -> Option<()> {
    let Some((before, rest)) = word.split_once('[') else {
        hosts.push(word.into());
        return (hosts.len() <= MAX_RANKS).then_some(());
    };
    let (ranges, after) = rest.split_once(']')?;
    for range in ranges.split(',') {
        let (low, high) = range.split_once('-').unwrap_or((range, range));
        let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
        let (from, to) = (low.parse::<usize>().ok()?, high.parse::<usize>().ok()?);
        let is_number = |text| digits(text) && text.len() <= MAX_DIGITS;
        if !is_number(low) || !is_number(high) || to < from || to - from >= MAX_RANKS {
            return None;
        }
        for number in from..=to {
            expand_word(&format!("{before}{number:0width$}{after}", width = low.len()), hosts)?;
        }
    }
    Some(())
}

/// Expands Slurm's compressed list of counts, such as `2(x3),1`; `None` if it is malformed.
pub(super) fn counts(list: &str) -> Option<Vec<usize>> {
    let mut counts = Vec::new();
    for word in list.split(',') {
        let (count, times) = match word.split_once("(x") {
            Some((count, times)) => (count, times.strip_suffix(')')?.parse().ok()?),
            None => (word, 1),
        };
        let count: usize = count.parse().ok()?;
        if count > MAX_RANKS || times > MAX_RANKS - counts.len() {
            return None;
        }
        counts.extend(std::iter::repeat_n(count, times));
    }
    Some(counts)
}

/// Returns the host of each rank: hosts filled one after another, or round-robin if `in_turns`.
pub(super) fn place(hosts: &[String], counts: &[usize], in_turns: bool) -> Vec<String> {
    let each = || hosts.iter().zip(counts);
    if !in_turns {
        return each().flat_map(|(host, n)| std::iter::repeat_n(host.clone(), *n)).collect();
    }
    let most = counts.iter().copied().max().unwrap_or(0);
    (0..most)
        .flat_map(|turn| each().filter(move |(_, n)| **n > turn).map(|(host, _)| host.clone()))
        .collect()
}
