//! Formats the report as text, and draws the plot.

use std::path::Path;

use midplane_benches::incast::run::Run;
use midplane_benches::incast::setting::Mode;
use midplane_benches::nodes::Fabric;
use midplane_benches::plot::{Line, Panel, draw};
use midplane_kit::command_line::name_of;
use midplane_kit::report::{Failure, table};

/// Formats a table with a line for each run.
pub(crate) fn text(runs: &[Run]) -> String {
    let mut text = String::new();
    if let Some(Run { setting, .. }) = runs.first() {
        let buffer = format!("{} bytes", setting.buffer_bytes);
        let trust = match (setting.fabric, setting.sealed) {
            (Fabric::Sim, _) => "in memory",
            (_, true) => "sealed",
            (_, false) => "no key: the network is trusted",
        };
        text += &format!(
            "Fabric {}, {trust}, links of {} Mb/s, {buffer} at each port of the switch, seed {}\n",
            name_of(&setting.fabric),
            setting.link_mbps,
            setting.seed
        );
    }
    let titles =
        "mode, senders, bytes, goodput Mb/s, loss %, Jain, median us, p99 us, control, lost ranks";
    let time = |us: Option<f64>| us.map_or_else(|| "-".into(), |us| format!("{us:.0}"));
    let line = |run: &Run| {
        vec![
            name_of(&run.setting.mode),
            run.setting.senders.to_string(),
            run.setting.message_bytes.to_string(),
            format!("{:.2}", run.goodput_mbps),
            format!("{:.3}", run.loss * 100.0),
            format!("{:.4}", run.jain),
            time(run.median_us),
            time(run.p99_us),
            run.control_messages.to_string(),
            if run.lost_ranks.is_empty() { "".into() } else { format!("{:?}", run.lost_ranks) },
        ]
    };
    text + &table(titles, runs.iter().map(line))
}

/// Draws goodput over message size: a panel for each mode, a line for each number of senders.
///
/// # Errors
/// One line that names the file.
pub(crate) fn plot(path: &Path, runs: &[Run]) -> Result<(), Failure> {
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
