//! Rows about the papers' numbers, and their sums.

use std::panic::Location;

use midplane_benches::anchors::measure::{Anchor, Origin};
use midplane_kit::claims::median;
use serde::Serialize;

/// A paper's number and ours, or a note why it can't be reproduced.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Row {
    pub(super) paper: &'static str,
    /// Place in the paper, and the quantity.
    what: String,
    unit: &'static str,
    published: Option<f64>,
    ours: Option<f64>,
    /// Ours over the published one, less 1.
    deviation: Option<f64>,
    /// The relation of ours to the published one; `None` if ours is missing.
    #[serde(flatten)]
    origin: Option<Origin>,
    /// File of the code that measured ours, from the repository's root.
    code: &'static str,
    /// Seed of the run; `None` if nothing in it is random.
    seed: Option<u64>,
    /// The reason for a missing number, or a remark.
    note: String,
}

impl Row {
    /// Creates a row with the paper's number and ours, which the caller measured.
    #[track_caller]
    pub(crate) fn new(
        paper: &'static str,
        origin: Origin,
        what: impl Into<String>,
        unit: &'static str,
        published: f64,
        ours: f64,
    ) -> Self {
        let deviation = (published != 0.0).then(|| ours / published - 1.0);
        let (published, ours, origin) = (Some(published), Some(ours), Some(origin));
        Self { unit, published, ours, deviation, origin, ..Self::missing(paper, what, "") }
    }

    /// Creates the row of an anchor, whose place in the paper is `place`.
    pub(crate) fn of(paper: &'static str, place: &str, anchor: Anchor) -> Self {
        let Anchor { what, unit, published, measured, origin, code } = anchor;
        let what = if place.is_empty() { what } else { format!("{place}: {what}") };
        Self { code, ..Self::new(paper, origin, what, unit, published, measured) }
    }

    /// Creates a row for a number, predicted by the caller, that the paper describes in words only, or not at all.
    #[track_caller]
    pub(crate) fn ours(
        paper: &'static str,
        what: impl Into<String>,
        unit: &'static str,
        ours: f64,
        note: impl Into<String>,
    ) -> Self {
        let (ours, origin) = (Some(ours), Some(Origin::Predicted));
        Self { unit, ours, origin, ..Self::missing(paper, what, note) }
    }

    /// Creates a row for a missing number, with the reason.
    #[track_caller]
    pub(crate) fn missing(
        paper: &'static str,
        what: impl Into<String>,
        why: impl Into<String>,
    ) -> Self {
        let (what, note, code) = (what.into(), why.into(), Location::caller().file());
        let (unit, published, ours, deviation, origin) = ("", None, None, None, None);
        Self { paper, what, unit, published, ours, deviation, origin, code, seed: None, note }
    }

    /// Adds a remark.
    pub(crate) fn note(mut self, note: &str) -> Self {
        self.note = note.into();
        self
    }

    /// Adds the seed of the run.
    pub(crate) const fn seed(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }

    /// Returns the place in the paper ("Table 1", "Figures 2, 3", "section 5.5"), which is empty if the row names none, and
    /// the quantity.
    pub(super) fn place(&self) -> (&str, &str) {
        const KINDS: [&str; 6] = ["Table", "Tables", "Figure", "Figures", "section", "footnote"];
        let mut end = 0;
        for word in self.what.split_inclusive(' ') {
            let plain = word.trim_end_matches([' ', ',', ':']);
            let is_number = plain.chars().all(|it| it.is_ascii_digit() || it == '.');
            let belongs = if end == 0 {
                KINDS.contains(&plain)
            } else {
                is_number || matches!(plain, "to" | "and")
            };
            if !belongs {
                break;
            }
            end += word.len();
            if word.contains(':') {
                break;
            }
        }
        let (place, quantity) = self.what.split_at(end);
        (place.trim_end_matches([' ', ',', ':']), quantity)
    }

    /// Returns the cells of the row, in the order of [`Row::TITLES`]; links lead up to the repository's root by `root`.
    pub(super) fn cells(&self, root: &str) -> Vec<String> {
        let number = |value: f64| {
            if value.abs() < 10.0 { format!("{value:.2}") } else { format!("{value:.1}") }
        };
        let optional = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), number);
        let off = self.deviation.map_or_else(String::new, |part| format!("{:+.1} %", part * 100.0));
        let origin = match self.origin {
            Some(Origin::Input) => "input".to_owned(),
            Some(Origin::Fitted(constants)) => format!("fitted: {constants}"),
            Some(Origin::Predicted) => "predicted".to_owned(),
            None => String::new(),
        };
        let seed = self.seed.map_or_else(|| "-".to_owned(), |seed| seed.to_string());
        let file = self.code.rsplit('/').next().unwrap_or_default();
        let code = format!("[{file}]({root}{})", self.code);
        let (what, unit) = (self.place().1.to_owned(), self.unit.to_owned());
        let numbers = [optional(self.published), optional(self.ours), unit, off, origin];
        [vec![what], numbers.into(), vec![code, seed, self.note.clone()]].concat()
    }

    /// Titles of the cells.
    pub(super) const TITLES: &str = "what, paper's, ours, unit, off, origin of ours, code, seed,";
}

/// The numbers that papers print, counted by the origin of ours.
#[derive(Debug, Serialize)]
pub(super) struct Count {
    pub(super) inputs: usize,
    pub(super) fitted: usize,
    /// The predicted numbers by name, with their deviations from the papers' as fractions, the least first.
    pub(super) predicted: Vec<(String, f64)>,
}

impl Count {
    pub(super) fn of<'a>(rows: impl IntoIterator<Item = &'a Row>) -> Self {
        let (mut inputs, mut fitted, mut predicted) = (0, 0, Vec::new());
        for row in rows {
            match (row.origin, row.deviation) {
                (Some(Origin::Input), Some(_)) => inputs += 1,
                (Some(Origin::Fitted(_)), Some(_)) => fitted += 1,
                (Some(Origin::Predicted), Some(off)) => {
                    predicted.push((format!("{} {}", row.paper, row.what), off));
                }
                _ => (),
            }
        }
        predicted.sort_by(|(_, a), (_, b)| a.abs().total_cmp(&b.abs()));
        Self { inputs, fitted, predicted }
    }

    pub(super) const fn printed(&self) -> usize {
        self.inputs + self.fitted + self.predicted.len()
    }

    /// Returns the median of the predictions' deviations, without their signs.
    pub(super) fn median(&self) -> Option<f64> {
        let off = self.predicted.iter().map(|(_, off)| off.abs());
        (!self.predicted.is_empty()).then(|| median(off.collect()))
    }

    /// Formats the counts as a sentence.
    pub(super) fn sentence(&self) -> String {
        let (printed, inputs, fitted) = (self.printed(), self.inputs, self.fitted);
        let predicted = self.predicted.len();
        let off = match (self.median(), self.predicted.last()) {
            (Some(median), Some((worst, most))) => {
                let (median, most) = (median * 100.0, most * 100.0);
                format!(
                    ": they are off by {median:.1} % in the median, and by {most:+.0} % at worst ({worst})"
                )
            }
            _ => String::new(),
        };
        format!(
            "Of {printed} numbers that are printed, {inputs} are inputs of the model, {fitted} had constants fitted to \
             them, and {predicted} are predicted{off}."
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_place_in_the_paper_is_separated_from_the_quantity() {
        let row = |what: &str| Row::missing("warp", what, "");
        for (what, place, quantity) in [
            ("Table 1: 2 B, remote", "Table 1", "2 B, remote"),
            ("Table 3, save: both full", "Table 3", "save: both full"),
            ("Figures 2, 3: messages", "Figures 2, 3", "messages"),
            ("Figures 1 and 3 to 7", "Figures 1 and 3 to 7", ""),
            ("section 5.5: 4 KB", "section 5.5", "4 KB"),
            ("GAM, 4 KB: gain", "", "GAM, 4 KB: gain"),
        ] {
            assert_eq!(row(what).place(), (place, quantity));
        }
    }

    #[test]
    fn only_printed_numbers_are_counted() {
        let row = |origin, ours| Row::new("warp", origin, "Table 1: a", "us", 10.0, ours);
        let rows = [
            row(Origin::Input, 10.0),
            row(Origin::Fitted("a constant"), 10.0),
            row(Origin::Predicted, 9.0),
            row(Origin::Predicted, 12.0),
            row(Origin::Predicted, 10.1),
            Row::ours("warp", "Figure 1: b", "us", 1.0, ""),
        ];
        let count = Count::of(&rows);
        assert_eq!((count.printed(), count.inputs, count.fitted), (5, 1, 1));
        assert_eq!(count.median().map(|off| (off * 100.0).round()), Some(10.0));
        assert_eq!(count.predicted.last().map(|(_, off)| (off * 100.0).round()), Some(20.0));
    }
}
