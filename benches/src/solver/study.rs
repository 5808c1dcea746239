//! Compares Warp with every static buffer, at five steady and two changing loads.

use std::fmt::Write as _;

use super::arguments::{BUFFERS, PAPER_BUFFER};
use super::run::Run;
use super::setting::{Control, Load, Setting};
use midplane_kit::command_line::name_of;

/// Steady loads: share of the network that background traffic takes.
const LOADS: [f64; 5] = [0.0, 0.2, 0.4, 0.6, 0.8];
/// Changing loads: traffic with this share is on and off in turn.
const CHANGING: [Load; 2] =
    [Load { share: 0.6, period: Some(0.25) }, Load { share: 0.8, period: Some(0.25) }];
/// Tolerance that takes several of these changes to reach.
const DIGITS: f64 = 1e-10;

/// Returns all runs of the study, or those at one load.
pub fn settings(base: &Setting, load: Option<Load>) -> Vec<Setting> {
    let steady = LOADS.map(|share| Load { share, period: None });
    let ways = [(Control::None, 1)]
        .into_iter()
        .chain(BUFFERS.map(|buffer| (Control::Static, buffer)))
        .chain([(Control::Warp, PAPER_BUFFER), (Control::WarpCsend, PAPER_BUFFER)]);
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
    let mut text = String::from("Time to the tolerance, as rank 0 sees it\n");
    let _ = writeln!(
        text,
        "{:<14}{:<12}{:>9}{:>16}{:>22}{:>14}",
        "background", "control", "seconds", "uncontrolled /", "best static (buffer)", "over it"
    );
    let mut loads: Vec<Load> = Vec::new();
    for run in runs {
        if !loads.contains(&run.setting.load) {
            loads.push(run.setting.load);
        }
    }
    for load in loads {
        let of: Vec<&Run> = runs.iter().filter(|run| run.setting.load == load).collect();
        let time = |run: &Run| run.reached_seconds.unwrap_or(f64::INFINITY);
        let least = |control: Control| {
            let of = of.iter().filter(|run| run.setting.control == control);
            of.min_by(|a, b| time(a).total_cmp(&time(b)))
        };
        let (Some(none), Some(best)) = (least(Control::None), least(Control::Static)) else {
            continue;
        };
        for control in [Control::Warp, Control::WarpCsend] {
            let Some(ours) = least(control) else { continue };
            let _ = writeln!(
                text,
                "{:<14}{:<12}{:>9.2}{:>16}{:>22}{:>14.2}",
                format!("{}{}", load.share, if load.period.is_some() { " changing" } else { "" }),
                name_of(&control),
                time(ours),
                ratio(none, ours),
                format!("{:.2} ({})", time(best), best.setting.buffer),
                time(ours) / time(best)
            );
        }
    }
    text
}

/// Returns how many times longer the uncontrolled run takes; a lower bound if it did not reach the tolerance.
fn ratio(none: &Run, ours: &Run) -> String {
    let ours = ours.reached_seconds.unwrap_or(f64::INFINITY);
    match none.reached_seconds {
        Some(none) => format!("{:.1}", none / ours),
        None => format!("> {:.1}", none.seconds / ours),
    }
}
