//! Compares Warp with every static buffer, at five steady and two changing loads.

use super::arguments::{BUFFERS, PAPER_BUFFER};
use super::run::Run;
use super::setting::{Control, Load, Setting};
use midplane_kit::command_line::name_of;
use midplane_kit::report::table;

/// Steady loads: share of the network that background traffic takes.
const LOADS: [f64; 5] = [0.0, 0.2, 0.4, 0.6, 0.8];
/// Changing loads: traffic with this share is on and off in turn.
const CHANGING: [Load; 2] =
    [Load { share: 0.6, period: Some(0.25) }, Load { share: 0.8, period: Some(0.25) }];
/// The controls by Warp: the repaired law, the paper's, and the first with conditional send.
const WARPS: [Control; 3] = [Control::Warp, Control::WarpPaper, Control::WarpCsend];
/// Tolerance that takes several of these changes to reach.
const DIGITS: f64 = 1e-10;

/// Returns all runs of the study, or those at one load.
pub fn settings(base: &Setting, load: Option<Load>) -> Vec<Setting> {
    let steady = LOADS.map(|share| Load { share, period: None });
    let ways = [(Control::None, 1)]
        .into_iter()
        .chain(BUFFERS.map(|buffer| (Control::Static, buffer)))
        .chain(WARPS.map(|control| (control, PAPER_BUFFER)));
    let ways: Vec<(Control, u16)> = ways.collect();
    let of_load = |load: Load| {
        let with = move |&(control, buffer): &(Control, u16)| Setting {
            load,
            tolerance: DIGITS,
            ..base.clone().with(control, buffer)
        };
        ways.iter().map(with).collect::<Vec<_>>()
    };
    let loads = load.map_or_else(|| [&steady[..], &CHANGING].concat(), |load| vec![load]);
    loads.into_iter().flat_map(of_load).collect()
}

/// Formats the study's results: ratios of the times to the tolerance.
pub fn summary(runs: &[Run]) -> String {
    let mut loads: Vec<Load> = runs.iter().map(|run| run.setting.load).collect();
    loads.dedup();
    let time = |run: &Run| run.reached_seconds.unwrap_or(f64::INFINITY);
    let least = |load: Load, control: Control| {
        let is_it = |run: &&Run| run.setting.load == load && run.setting.control == control;
        runs.iter().filter(is_it).min_by(|a, b| time(a).total_cmp(&time(b)))
    };
    let line = |load: Load, control: Control| {
        let (none, best) = (least(load, Control::None)?, least(load, Control::Static)?);
        let ours = least(load, control)?;
        Some(vec![
            format!("{}{}", load.share, if load.period.is_some() { " changing" } else { "" }),
            name_of(&control),
            format!("{:.2}", time(ours)),
            ratio(none, ours),
            format!("{:.2} ({})", time(best), best.setting.buffer),
            format!("{:.2}", time(ours) / time(best)),
        ])
    };
    let rows =
        loads.iter().flat_map(|load| WARPS.into_iter().filter_map(|control| line(*load, control)));
    let titles = "background, control, seconds, uncontrolled /, best static (buffer), over it";
    format!("Time until rank 0's values are within the tolerance\n{}", table(titles, rows))
}

/// Returns how many times longer the uncontrolled run takes; a lower bound if it did not reach the tolerance.
fn ratio(none: &Run, ours: &Run) -> String {
    let ours = ours.reached_seconds.unwrap_or(f64::INFINITY);
    match none.reached_seconds {
        Some(none) => format!("{:.1}", none / ours),
        None => format!("> {:.1}", none.seconds / ours),
    }
}
