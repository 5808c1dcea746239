//! Formats the report as text, and draws the plot.

use std::fmt::Write as _;
use std::path::Path;

use crate::command_line::name_of;
use crate::incast::run::Run;
use crate::incast::setting::Mode;
use crate::nodes::Fabric;
use crate::plot::{Line, Panel, draw};

/// Formats a table with a line for each run.
pub(crate) fn table(runs: &[Run]) -> String {
    let mut text = String::new();
    if let Some(first) = runs.first() {
        let setting = &first.setting;
        let buffer = match setting.buffer_cells {
            Some(cells) => format!("{cells} cells"),
            None => format!("{} bytes", setting.buffer_bytes),
        };
        let trust = match (setting.fabric, setting.sealed) {
            (Fabric::Sim, _) => "in memory",
            (_, true) => "sealed",
            (_, false) => "no key: the network is trusted",
        };
        let _ = writeln!(
            text,
            "Fabric {}, {trust}, links of {} Mb/s, {buffer} at each port of the switch, seed {}",
            name_of(&setting.fabric),
            setting.link_mbps,
            setting.seed
        );
    }
    let _ = writeln!(
        text,
        "{:<10}{:>8}{:>9}{:>14}{:>10}{:>9}{:>12}{:>12}{:>9}",
        "mode",
        "senders",
        "bytes",
        "goodput Mb/s",
        "loss %",
        "Jain",
        "median us",
        "p99 us",
        "control"
    );
    for run in runs {
        let time = |us: Option<f64>| us.map_or_else(|| "-".into(), |us| format!("{us:.0}"));
        let _ = writeln!(
            text,
            "{:<10}{:>8}{:>9}{:>14.2}{:>10.3}{:>9.4}{:>12}{:>12}{:>9}",
            name_of(&run.setting.mode),
            run.setting.senders,
            run.setting.message_bytes,
            run.goodput_mbps,
            run.loss * 100.0,
            run.jain,
            time(run.median_us),
            time(run.p99_us),
            run.control_messages
        );
        if !run.lost_ranks.is_empty() {
            let _ = writeln!(text, "          lost during the run: rank {:?}", run.lost_ranks);
        }
    }
    text
}

/// Draws goodput over message size: a panel for each mode, a line for each number of senders.
///
/// # Errors
/// One line that names the file.
pub(crate) fn plot(path: &Path, runs: &[Run]) -> Result<(), String> {
    let titles = [
        (Mode::None, "Without coordination"),
        (Mode::Token, "With tokens"),
        (Mode::TokenEtr, "With tokens, released early"),
        (Mode::Warp, "Under Warp"),
        (Mode::TokenWarp, "With tokens under Warp"),
    ];
    let panels: Vec<Panel> = titles
        .iter()
        .map(|(mode, title)| Panel { title: (*title).into(), lines: lines(runs, *mode) })
        .filter(|panel| !panel.lines.is_empty())
        .collect();
    draw(path, "message size (bytes)", "goodput (Mb/s)", &panels)
}

fn lines(runs: &[Run], mode: Mode) -> Vec<Line> {
    let of_mode = || runs.iter().filter(|run| run.setting.mode == mode);
    let mut counts: Vec<u16> = of_mode().map(|run| run.setting.senders).collect();
    counts.sort_unstable();
    counts.dedup();
    counts
        .into_iter()
        .map(|senders| Line {
            label: if senders == 1 { "1 sender".into() } else { format!("{senders} senders") },
            points: of_mode()
                .filter(|run| run.setting.senders == senders)
                .map(|run| (f64::from(run.setting.message_bytes), run.goodput_mbps))
                .collect(),
        })
        .collect()
}
