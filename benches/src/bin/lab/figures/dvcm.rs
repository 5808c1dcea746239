//! The DVCM paper: the gain of coprocessors, and sender coordination (Figures 2 to 4).

use std::path::Path;

use crate::figures::rows::Row;
use crate::incast::fabrics::simulate;
use crate::incast::run::Run;
use crate::incast::setting::{Mode, Setting};
use crate::plot::{self, Line, Panel};
use midplane_benches::anchors::measure;
use midplane_benches::nodes::Fabric;

const PAPER: &str = "dvcm";
/// Message sizes in bytes, up to 10 KB as in the figures.
const SIZES: [u32; 9] = [64, 256, 600, 1_000, 1_500, 2_500, 4_096, 7_000, 10_240];
/// OC-3, and a port's buffer in cells: the paper calls the buffer small without a number.
const LINK_MBPS: u32 = 155;
const BUFFER_CELLS: u32 = 256;
/// Cells before a message's end at which a token is released (section 4.3).
const LEAD_CELLS: u32 = 10;
const SECONDS: f64 = 0.1;

pub(crate) fn plates(directory: &Path) -> Result<Vec<Row>, String> {
    let anchors = measure::dvcm().into_iter();
    let mut rows: Vec<Row> = anchors.map(|anchor| Row::of(PAPER, "section 3", anchor)).collect();
    let without = curves(Mode::None)?;
    draw(directory, 2, "Without flow control", &without)?;
    let with = curves(Mode::Token)?;
    draw(directory, 3, "With flow control", &with)?;
    let early = senders(Mode::TokenEtr, 2)?;
    let both: Vec<(String, Vec<Run>)> = vec![
        ("with ETR".into(), early.clone()),
        ("without ETR".into(), with[1].1.clone()),
        ("one sender".into(), with[0].1.clone()),
    ];
    draw(directory, 4, "Two senders", &both)?;
    let most = |runs: &[Run], from: u32| {
        let of = runs.iter().filter(|run| run.setting.message_bytes > from);
        of.map(|run| run.goodput_mbps).fold(0.0, f64::max)
    };
    for (at, count) in [(1, "two"), (2, "three")] {
        let what = format!("Figure 2: most goodput above 600 B, {count} senders");
        let note = "the paper: almost zero";
        rows.push(Row::ours(PAPER, what, "Mb/s", most(&without[at].1, 600), note));
    }
    let lost = with.iter().flat_map(|(_, runs)| runs).map(|run| run.loss).fold(0.0, f64::max);
    let note = "the paper: under 0.1 %";
    rows.push(Row::ours(PAPER, "Figure 3: most that is lost", "%", lost * 100.0, note));
    let last = |runs: &[Run]| runs.last().map_or(0.0, |run| run.goodput_mbps);
    let share = |runs: &[Run]| last(runs) / last(&with[0].1) * 100.0;
    let what = "Figure 4: 10 KB, two senders of one's goodput, without ETR";
    rows.push(Row::ours(PAPER, what, "%", share(&with[1].1), "the paper: less than with it"));
    let what = "Figure 4: the same with ETR, ten cells early";
    rows.push(Row::ours(PAPER, what, "%", share(&early), "the paper: close to one sender's"));
    rows.push(Row::missing(PAPER, "Figure 1", "a drawing, no data"));
    Ok(rows)
}

/// Runs one, two and three senders.
fn curves(mode: Mode) -> Result<Vec<(String, Vec<Run>)>, String> {
    let label = ["1 sender", "2 senders", "3 senders"];
    (1..).zip(label).map(|(count, label)| Ok((label.to_owned(), senders(mode, count)?))).collect()
}

fn senders(mode: Mode, senders: u16) -> Result<Vec<Run>, String> {
    let run = |message_bytes| {
        let setting = Setting {
            fabric: Fabric::Sim,
            mode,
            senders,
            message_bytes,
            link_mbps: LINK_MBPS,
            buffer_bytes: BUFFER_CELLS * 53,
            buffer_cells: Some(BUFFER_CELLS),
            etr_lead: Some(LEAD_CELLS),
            seconds: SECONDS,
            sealed: false,
            seed: 1,
        };
        simulate(&setting).map_err(|failure| failure.to_string())
    };
    SIZES.into_iter().map(run).collect()
}

fn draw(
    directory: &Path,
    number: u8,
    title: &str,
    curves: &[(String, Vec<Run>)],
) -> Result<(), String> {
    let point = |run: &Run| (f64::from(run.setting.message_bytes) / 1e3, run.goodput_mbps);
    let line = |(label, runs): &(String, Vec<Run>)| Line {
        label: label.clone(),
        points: runs.iter().map(point).collect(),
    };
    let panel = Panel { title: title.into(), lines: curves.iter().map(line).collect() };
    let path = directory.join(format!("dvcm-figure-{number}.svg"));
    plot::draw(&path, "message, KB", "goodput, Mb/s", &[panel])
}
