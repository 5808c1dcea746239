//! Tests that every mistake of a scenario file is reported with its line, its key and the allowed values, and that hosts
//! work again after a fault.

use midplane::nicvm::messages::{MESSAGES, Messages};
use midplane::simhw::fault::FaultKind;
use midplane::simhw::id::NodeId;

use super::scenario::parse;
use super::{Arguments, document, world};

const EXAMPLE: &str = include_str!("example.toml");

#[test]
fn the_example_scenario_has_no_mistakes() {
    let scenario = parse(EXAMPLE).unwrap();
    assert_eq!((scenario.messages.len(), scenario.faults.len()), (3, 2));
    assert_eq!(scenario.faults[1].fault.kind(), FaultKind::Loss);
}

/// Returns the lines of all mistakes, and the report.
fn mistakes(text: &str) -> (Vec<usize>, String) {
    let report = parse(text).unwrap_err();
    let lines = report.split("; ").filter_map(|mistake| mistake.strip_prefix("line "));
    (lines.filter_map(|line| line.split_once(':')?.0.parse().ok()).collect(), report)
}

#[test]
fn every_mistake_is_reported_with_its_line_and_the_allowed_values() {
    let text = "\
hosts = 3
sed = 4
[link]
rate_mbps = \"fast\"
framing = \"token-ring\"
[switch]
buffer_bytes = 7
[[message]]
from = 9
to = 1
[[fault]]
kind = \"los\"
[[fault]]
kind = \"loss\"
link = \"node 0 > node 1\"
probability = 1.5
[[fault]]
kind = \"crash\"
node = 1
ppm = 4
[[fault]]
kind = \"reorder\"
node = 0
probability = 0.5
";
    let (lines, report) = mistakes(text);
    assert_eq!(lines, [2, 4, 5, 7, 9, 12, 15, 16, 20, 21], "{report}");
    for part in [
        "`sed`: unknown here, expected one of `seed`, `hosts`",
        "`rate_mbps` is \"fast\", not from 1 to 400000",
        "`framing` is \"token-ring\", not one of \"ethernet\", \"atm\", \"plain\"",
        "`buffer_bytes` is 7, not from 64 to 1073741824",
        "`from` is 9, not from 0 to 2",
        "`kind` is \"los\", not one of \"loss\", \"burst-loss\"",
        "`link` is \"node 0 > node 1\", not one of \"node 0 > switch 0\"",
        "`probability` is 1.5, not from 0 to 1",
        "`ppm`: unknown here, expected one of `at_us`, `for_us`, `kind`, `node`",
        "`by_us` is missing: from 1 to 60000000",
    ] {
        assert!(report.contains(part), "{part}: {report}");
    }
    assert!(!report.contains('\n'));
}

#[test]
fn a_fault_of_an_output_accepts_links_that_begin_at_the_switch() {
    for kind in ["kind = \"port-stuck\"", "percent = 50\nkind = \"queue-shrink\""] {
        let text = format!("hosts = 2\n[[fault]]\nlink = \"node 0 > switch 0\"\n{kind}\n");
        let (lines, report) = mistakes(&text);
        assert_eq!(lines, [3], "{report}");
        assert!(
            report.contains("not one of \"switch 0 > node 0\", \"switch 0 > node 1\""),
            "{report}"
        );
    }
}

#[test]
fn text_that_is_no_toml_is_reported_with_its_line() {
    let (lines, report) = mistakes("seed = 1\nhosts = = 3\n");
    assert_eq!(lines, [2], "{report}");
    let (lines, _) = mistakes("[[message]]\nfrom = 1\n");
    assert_eq!(lines, [1], "`to` is missing");
}

#[test]
fn every_kind_of_fault_can_be_written() {
    for kind in FaultKind::ALL {
        let values = kind.parameters().iter().map(|name| match *name {
            "link" => "link = \"switch 0 > node 1\"".to_owned(),
            "by" | "period" | "every" => format!("{name}_us = 5"),
            "ahead_ns" => "ahead_us = -5".to_owned(),
            "probability" | "enter" | "leave" => format!("{name} = 0.5"),
            "switch" | "node" | "from" => format!("{name} = 0"),
            name => format!("{name} = 1"),
        });
        let values: Vec<_> = values.collect();
        let text = format!("[[fault]]\nkind = \"{kind}\"\n{}\n", values.join("\n"));
        let scenario = parse(&text).unwrap_or_else(|mistakes| panic!("{kind}: {mistakes:?}"));
        assert_eq!(scenario.faults[0].fault.kind(), *kind);
    }
}

#[test]
fn a_host_receives_and_sends_again_after_a_fault_that_closed_its_ports() {
    for kind in ["crash", "trap", "process-exit", "nic-reset"] {
        let text = format!(
            "until_us = 20_000
            [[message]]
            at_us = 10_000
            from = 0
            to = 1
            [[message]]
            at_us = 2_000
            from = 1
            to = 0
            count = 5
            every_us = 2_000
            [[fault]]
            at_us = 3_500
            for_us = 1_500
            kind = \"{kind}\"
            node = 1
            "
        );
        let scenario = parse(&text).unwrap();
        let mut world = world(&scenario, scenario.seed);
        world.run_until(scenario.until);
        let delivered = [NodeId(0), NodeId(1)].map(|node| {
            let messages = world.firmware(node).extension::<Messages>(MESSAGES).unwrap();
            messages.counters().delivered
        });
        // The message at 4 ms may be lost, and no other.
        assert!(matches!(delivered, [4..=5, 1]), "{kind}: {delivered:?}");
    }
}

#[cfg(unix)]
#[test]
fn paths_that_are_not_utf_8_are_printed() {
    use std::os::unix::ffi::OsStringExt;
    let path = std::ffi::OsString::from_vec(b"run-\xff".to_vec());
    let arguments =
        Arguments { scenario: path.clone().into(), out: path.into(), seed: None, json: true };
    let world = world(&parse(EXAMPLE).unwrap(), 1);
    let printed = serde_json::to_string(&document(&world, &arguments, 1)).unwrap();
    assert!(printed.contains("\"out\":\"run-\u{fffd}\""), "{printed}");
}
