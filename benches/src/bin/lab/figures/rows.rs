//! The table over all papers.

use midplane_benches::anchors::measure::{Anchor, Origin};
use serde::Serialize;

use crate::report;

/// A paper's number and ours, or a note why it can't be reproduced.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Row {
    paper: &'static str,
    /// Table or figure, and the quantity.
    what: String,
    unit: &'static str,
    published: Option<f64>,
    ours: Option<f64>,
    /// Ours over the published one, less 1.
    deviation: Option<f64>,
    /// The relation of ours to the published one; `None` if ours is missing.
    #[serde(flatten)]
    origin: Option<Origin>,
    /// The reason for a missing number, or a remark.
    note: String,
}

#[derive(Serialize)]
pub(crate) struct Document {
    pub(crate) rows: Vec<Row>,
}

impl Row {
    /// Creates a row with the paper's number and ours.
    pub(crate) fn new(
        paper: &'static str,
        origin: Origin,
        what: impl Into<String>,
        unit: &'static str,
        published: f64,
        ours: f64,
    ) -> Self {
        let deviation = (published != 0.0).then(|| ours / published - 1.0);
        let (what, published, ours) = (what.into(), Some(published), Some(ours));
        let (origin, note) = (Some(origin), String::new());
        Self { paper, what, unit, published, ours, deviation, origin, note }
    }

    /// Creates the row of an anchor, whose place in the paper is `place`.
    pub(crate) fn of(paper: &'static str, place: &str, anchor: Anchor) -> Self {
        let Anchor { what, unit, published, measured, origin } = anchor;
        let what = if place.is_empty() { what } else { format!("{place}: {what}") };
        Self::new(paper, origin, what, unit, published, measured)
    }

    /// Creates a row for a predicted number that the paper describes in words only, or not at all.
    pub(crate) fn ours(
        paper: &'static str,
        what: impl Into<String>,
        unit: &'static str,
        ours: f64,
        note: impl Into<String>,
    ) -> Self {
        let (what, note, ours) = (what.into(), note.into(), Some(ours));
        let (published, deviation, origin) = (None, None, Some(Origin::Predicted));
        Self { paper, what, unit, published, ours, deviation, origin, note }
    }

    /// Creates a row for a missing number, with the reason.
    pub(crate) fn missing(
        paper: &'static str,
        what: impl Into<String>,
        why: impl Into<String>,
    ) -> Self {
        let (what, note) = (what.into(), why.into());
        let (unit, published, ours, deviation, origin) = ("", None, None, None, None);
        Self { paper, what, unit, published, ours, deviation, origin, note }
    }

    /// Adds a remark.
    pub(crate) fn note(mut self, note: &str) -> Self {
        self.note = note.into();
        self
    }

    fn cells(&self) -> [String; 4] {
        let number = |value: f64| {
            if value.abs() < 10.0 { format!("{value:.2}") } else { format!("{value:.1}") }
        };
        let optional = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), number);
        let off = self.deviation.map_or_else(String::new, |part| format!("{:+.1} %", part * 100.0));
        [optional(self.published), optional(self.ours), self.unit.to_owned(), off]
    }
}

impl Document {
    /// Counts the numbers that the papers print, by the origin of ours, and sums up the predictions.
    fn summary(&self) -> String {
        let printed =
            || self.rows.iter().filter_map(|row| Some((row, row.deviation?, row.origin?)));
        let count = |is_it: fn(Origin) -> bool| printed().filter(|(.., it)| is_it(*it)).count();
        let inputs = count(|origin| origin == Origin::Input);
        let fitted = count(|origin| matches!(origin, Origin::Fitted(_)));
        let mut predicted: Vec<_> =
            printed().filter(|(.., origin)| *origin == Origin::Predicted).collect();
        predicted.sort_by(|(_, a, _), (_, b, _)| a.abs().total_cmp(&b.abs()));
        let of_predictions = match (predicted.get(predicted.len() / 2), predicted.last()) {
            (Some((_, median, _)), Some((worst, most, _))) => format!(
                ": they are off by {:.1} % in the median, and by {:+.0} % at worst ({} {})",
                median.abs() * 100.0,
                most * 100.0,
                worst.paper,
                worst.what
            ),
            _ => String::new(),
        };
        format!(
            "\nOf {} numbers that the papers print, {inputs} are inputs of the model, {fitted} had constants fitted to \
             them, and {} are predicted{of_predictions}.\n",
            printed().count(),
            predicted.len()
        )
    }
}

/// Formats the table as Markdown.
pub(crate) fn markdown(document: &Document) -> String {
    let cells = |row: &Row| {
        let [published, ours, unit, off] = row.cells();
        let origin = match row.origin {
            Some(Origin::Input) => "input".to_owned(),
            Some(Origin::Fitted(constants)) => format!("fitted: {constants}"),
            Some(Origin::Predicted) => "predicted".to_owned(),
            None => String::new(),
        };
        vec![
            row.paper.into(),
            row.what.clone(),
            published,
            ours,
            unit,
            off,
            origin,
            row.note.clone(),
        ]
    };
    let titles = "paper, what, paper's, ours, unit, off, origin of ours,";
    report::markdown(titles, document.rows.iter().map(cells)) + &document.summary()
}
