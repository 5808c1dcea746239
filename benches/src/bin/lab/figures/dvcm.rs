//! The DVCM paper: the gain of coprocessors, and sender coordination (Figures 2 to 4).

use std::path::Path;

use crate::figures::rows::Row;
use crate::incast::fabrics::simulate;
use crate::incast::run::Run;
use crate::incast::setting::{Atm, Mode, Setting};
use crate::plot::{self, Line, Panel};
use crate::report::text;
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
const SEED: u64 = 1;
/// The paper's switch and protocol: a sender passes the token on after each message.
const PAPERS: Atm = Atm {
    buffer_cells: BUFFER_CELLS,
    discards_rest: false,
    passes_each: true,
    etr_lead: LEAD_CELLS,
    ahead: 0,
};

/// A number of senders that are coordinated in one way, over all sizes of messages.
type Curve = (String, Vec<Run>);

pub(crate) fn plates(directory: &Path) -> Result<Vec<Row>, String> {
    let anchors = measure::dvcm().into_iter();
    let mut rows: Vec<Row> = anchors.map(|anchor| Row::of(PAPER, "section 3", anchor)).collect();
    let runs = [without_tokens(directory)?, with_tokens(directory)?].concat();
    rows.extend(runs.into_iter().map(|row| row.seed(SEED)));
    rows.push(Row::missing(PAPER, "Figure 1", "a drawing, no data"));
    Ok(rows)
}

/// Draws Figure 2: senders that are not coordinated, with and without its early packet discard.
fn without_tokens(directory: &Path) -> Result<Vec<Row>, String> {
    let discarding = Atm { discards_rest: true, ..PAPERS };
    let mut lines = curves(Mode::None, PAPERS, "")?;
    let with_discard = curves(Mode::None, discarding, "; rests discarded")?;
    let rows = [(1, "two"), (2, "three")].map(|(at, count)| {
        let most = |runs: &[Run]| {
            let of = runs.iter().filter(|run| run.setting.message_bytes > 600);
            of.map(|run| run.goodput_mbps).fold(0.0, f64::max)
        };
        let what = |which| format!("Figure 2: most goodput above 600 B, {count} senders{which}");
        let note = "the paper: almost zero, with and without";
        let plain = Row::ours(PAPER, what(""), "Mb/s", most(&lines[at].1), note);
        let which = "; rests discarded";
        [plain, Row::ours(PAPER, what(which), "Mb/s", most(&with_discard[at].1), note)]
    });
    lines.extend(with_discard);
    draw(directory, 2, "Without flow control", &lines)?;
    Ok(rows.into_iter().flatten().collect())
}

/// Draws Figures 3 and 4: the paper's protocol, early release in both ways, and tokens that are kept for longer.
fn with_tokens(directory: &Path) -> Result<Vec<Row>, String> {
    let kept = Atm { passes_each: false, ..PAPERS };
    let mut lines = curves(Mode::Token, PAPERS, "")?;
    lines.extend(curves(Mode::Token, kept, ", token kept")?);
    draw(directory, 3, "With flow control", &lines)?;
    let two = |mode, atm, label: &str| Ok::<_, String>((label.to_owned(), senders(mode, 2, atm)?));
    let ahead = Atm { ahead: LEAD_CELLS, ..PAPERS };
    let ways = [
        two(Mode::TokenEtr, PAPERS, "ten cells early")?,
        two(Mode::Token, ahead, "ten cells before the token")?,
        two(Mode::TokenEtr, ahead, "both")?,
        two(Mode::TokenEtr, kept, "token kept, ten cells early")?,
    ];
    let most_lost = |curves: &[Curve]| {
        let lost = curves.iter().flat_map(|(_, runs)| runs).map(|run| run.loss);
        lost.fold(0.0, f64::max) * 100.0
    };
    let lost = most_lost(&lines).max(most_lost(&ways[..1]));
    let what = "Figures 3, 4: most that is lost";
    let mut rows = vec![Row::ours(PAPER, what, "%", lost, "the paper: under 0.1 %")];
    let what = "Figure 4: most that is lost, with cells before the token";
    rows.push(Row::ours(PAPER, what, "%", most_lost(&ways[1..]), "not in the paper"));
    let (one, without) = (lines[0].clone(), lines[1].clone());
    let last = |runs: &[Run]| runs.last().map_or(0.0, |run| run.goodput_mbps);
    let mut share = |label: &str, runs: &[Run], note| {
        let what = format!("Figure 4: 10 KB, two senders of one's goodput, {label}");
        rows.push(Row::ours(PAPER, what, "%", last(runs) / last(&one.1) * 100.0, note));
    };
    share("without early release", &without.1, "the paper: significantly less than with it");
    share(&ways[0].0, &ways[0].1, "the paper: close to one sender's");
    for (label, runs) in &ways[1..] {
        share(label, runs, "not in the paper");
    }
    let mut lines = vec![one, ("without early release".into(), without.1)];
    lines.extend(ways);
    draw(directory, 4, "Two senders", &lines)?;
    Ok(rows)
}

/// Runs one, two and three senders; `which` completes their names.
fn curves(mode: Mode, atm: Atm, which: &str) -> Result<Vec<Curve>, String> {
    let label = ["1 sender", "2 senders", "3 senders"].map(|count| format!("{count}{which}"));
    (1..).zip(label).map(|(count, label)| Ok((label, senders(mode, count, atm)?))).collect()
}

fn senders(mode: Mode, senders: u16, atm: Atm) -> Result<Vec<Run>, String> {
    let run = |message_bytes| {
        let setting = Setting {
            fabric: Fabric::Sim,
            mode,
            senders,
            message_bytes,
            link_mbps: LINK_MBPS,
            buffer_bytes: BUFFER_CELLS * 53,
            atm: Some(atm),
            seconds: SECONDS,
            sealed: false,
            seed: SEED,
        };
        simulate(&setting).map_err(|failure| failure.to_string())
    };
    SIZES.into_iter().map(run).collect()
}

fn draw(directory: &Path, number: u8, title: &str, curves: &[Curve]) -> Result<(), String> {
    let point = |run: &Run| (f64::from(run.setting.message_bytes) / 1e3, run.goodput_mbps);
    let line = |(label, runs): &Curve| Line {
        label: label.clone(),
        points: runs.iter().map(point).collect(),
    };
    let panel = Panel { title: title.into(), lines: curves.iter().map(line).collect() };
    let path = directory.join(format!("dvcm-figure-{number}.svg"));
    plot::draw(&path, "message, KB", "goodput, Mb/s", &[panel]).map_err(text)
}
