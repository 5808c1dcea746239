//! The lines of PMI-1: the commands of a rank's MPI library, parsed, and nothing of what follows from them.
//!
//! A command is a line of words `NAME=VALUE` between spaces, of which the first is `cmd=`. The request to start further
//! processes has a line for each word instead, from `mcmd=spawn` to `endcmd`. The source is MPICH's description of the
//! protocol (`src/pmi/maint/pmi-1.2.txt`), and what MPICH 5.0.2 sends.

/// Most bytes of a key, of a value and of a name of keys; those that MPICH's Hydra reports.
pub(super) const KEY_BYTES: usize = 64;
pub(super) const VALUE_BYTES: usize = 1_024;
pub(super) const NAME_BYTES: usize = 256;
/// Most bytes of a line: of a put with its longest words, and as much again.
pub(super) const LINE_BYTES: usize = 4_096;

/// A command of a rank.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Command<'a> {
    Init {
        version: &'a str,
    },
    Maxes,
    KvsName,
    AppNumber,
    UniverseSize,
    Put {
        name: &'a str,
        key: &'a str,
        value: &'a str,
    },
    Get {
        name: &'a str,
        key: &'a str,
    },
    BarrierIn {
        group: Option<&'a str>,
    },
    Finalize,
    Abort {
        code: i32,
        message: &'a str,
    },
    /// The first line of a request to start processes.
    SpawnBegins,
    /// A request about names of services, with the word of its reply.
    Service {
        reply: &'static str,
    },
}

/// The reason why a line is no command.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Malformed<'a> {
    /// It does not begin with `cmd=`.
    NoCommand,
    /// The protocol has no such command.
    Unknown(&'a str),
    /// A word of this command is missing.
    Missing(&'static str),
    /// A key or value is empty or too long.
    Length(&'static str),
}

/// Parses a line without its end.
pub(super) fn parse(line: &str) -> Result<Command<'_>, Malformed<'_>> {
    let line = line.trim_ascii();
    if line.starts_with("mcmd=spawn") {
        return Ok(Command::SpawnBegins);
    }
    let Some((command, words)) =
        line.strip_prefix("cmd=").map(|line| line.split_once(' ').unwrap_or((line, "")))
    else {
        return Err(Malformed::NoCommand);
    };
    let word = |name: &str| {
        let values = words.split_ascii_whitespace().filter_map(|word| word.split_once('='));
        values.into_iter().find(|(its, _)| *its == name).map(|(_, value)| value)
    };
    let needed = |name: &'static str| word(name).ok_or(Malformed::Missing(name));
    match command {
        "init" => Ok(Command::Init { version: needed("pmi_version")? }),
        "get_maxes" => Ok(Command::Maxes),
        "get_my_kvsname" => Ok(Command::KvsName),
        "get_appnum" => Ok(Command::AppNumber),
        "get_universe_size" => Ok(Command::UniverseSize),
        "put" => {
            let (name, key, value) = (needed("kvsname")?, needed("key")?, needed("value")?);
            let value = short("value", value, VALUE_BYTES)?;
            Ok(Command::Put { name, key: short("key", key, KEY_BYTES)?, value })
        }
        "get" => {
            let (name, key) = (needed("kvsname")?, needed("key")?);
            Ok(Command::Get { name, key: short("key", key, KEY_BYTES)? })
        }
        "barrier_in" => Ok(Command::BarrierIn { group: word("group") }),
        "finalize" => Ok(Command::Finalize),
        "abort" => {
            let code = word("exitcode").and_then(|code| code.parse().ok()).unwrap_or(1);
            // It may have spaces.
            let message = words.split_once("message=").map_or("", |(_, message)| message);
            Ok(Command::Abort { code, message })
        }
        "publish_name" => Ok(Command::Service { reply: "publish_result" }),
        "unpublish_name" => Ok(Command::Service { reply: "unpublish_result" }),
        "lookup_name" => Ok(Command::Service { reply: "lookup_result" }),
        unknown => Err(Malformed::Unknown(unknown)),
    }
}

fn short<'a>(what: &'static str, text: &'a str, most: usize) -> Result<&'a str, Malformed<'a>> {
    match text.is_empty() || text.len() > most {
        true => Err(Malformed::Length(what)),
        false => Ok(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_mpich_sends_is_understood() {
        let name = "gang-1";
        let lines = [
            ("cmd=init pmi_version=1 pmi_subversion=1", Command::Init { version: "1" }),
            ("cmd=get_maxes", Command::Maxes),
            ("cmd=get_appnum ", Command::AppNumber),
            ("cmd=get_my_kvsname", Command::KvsName),
            ("cmd=get_universe_size", Command::UniverseSize),
            ("cmd=get kvsname=gang-1 key=P0", Command::Get { name, key: "P0" }),
            (
                "cmd=put kvsname=gang-1 key=a value=b=c",
                Command::Put { name, key: "a", value: "b=c" },
            ),
            ("cmd=barrier_in", Command::BarrierIn { group: None }),
            ("cmd=finalize\r", Command::Finalize),
            (
                "cmd=abort exitcode=3 message=no more room",
                Command::Abort { code: 3, message: "no more room" },
            ),
            ("cmd=abort exitcode=x", Command::Abort { code: 1, message: "" }),
            ("mcmd=spawn", Command::SpawnBegins),
            ("cmd=lookup_name service=a", Command::Service { reply: "lookup_result" }),
        ];
        for (line, command) in lines {
            assert_eq!(parse(line), Ok(command), "{line}");
        }
    }

    #[test]
    fn what_is_no_command_is_refused_with_what_is_wrong() {
        let long = format!("cmd=get kvsname=a key={}", "k".repeat(KEY_BYTES + 1));
        for (line, malformed) in [
            ("", Malformed::NoCommand),
            ("init", Malformed::NoCommand),
            ("cmd=", Malformed::Unknown("")),
            ("cmd=get_all", Malformed::Unknown("get_all")),
            ("cmd=init", Malformed::Missing("pmi_version")),
            ("cmd=put kvsname=a key=b", Malformed::Missing("value")),
            ("cmd=put kvsname=a key=b value=", Malformed::Length("value")),
            (&long, Malformed::Length("key")),
        ] {
            assert_eq!(parse(line), Err(malformed), "{line}");
        }
    }

    proptest! {
        #[test]
        fn a_put_is_read_as_it_was_written(
            name in "[a-z0-9_-]{1,40}", key in "[!-<>-~]{1,64}", value in "[!-~]{1,1024}",
        ) {
            let line = format!("cmd=put kvsname={name} key={key} value={value}");
            let (name, key, value) = (name.as_str(), key.as_str(), value.as_str());
            prop_assert_eq!(parse(&line), Ok(Command::Put { name, key, value }));
        }

        #[test]
        fn no_text_is_read_beyond_its_bounds(text in "(cmd=)?(put|get|abort|init|barrier_in)?[ -~]{0,200}|\\PC{0,200}") {
            if let Ok(Command::Put { key, value, .. }) = parse(&text) {
                prop_assert!((1..=KEY_BYTES).contains(&key.len()));
                prop_assert!((1..=VALUE_BYTES).contains(&value.len()));
            }
        }
    }
}
