//! The table over all papers.

use midplane_benches::anchors::measure::Anchor;
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
        what: impl Into<String>,
        unit: &'static str,
        published: f64,
        ours: f64,
    ) -> Self {
        let deviation = (published != 0.0).then(|| ours / published - 1.0);
        let (published, ours) = (Some(published), Some(ours));
        Self { paper, what: what.into(), unit, published, ours, deviation, note: String::new() }
    }

    /// Creates the row of an anchor, whose place in the paper is `place`.
    pub(crate) fn of(paper: &'static str, place: &str, anchor: Anchor) -> Self {
        let what = format!("{place}: {}", anchor.what);
        let row = Self::new(paper, what, anchor.unit, anchor.published, anchor.measured);
        if anchor.is_input { row.note("a constant of the profile") } else { row }
    }

    /// Creates a row for a number that the paper describes in words only, or not at all.
    pub(crate) fn ours(
        paper: &'static str,
        what: impl Into<String>,
        unit: &'static str,
        ours: f64,
        note: impl Into<String>,
    ) -> Self {
        let (what, note) = (what.into(), note.into());
        Self { paper, what, unit, published: None, ours: Some(ours), deviation: None, note }
    }

    /// Creates a row for a missing number, with the reason.
    pub(crate) fn missing(
        paper: &'static str,
        what: impl Into<String>,
        why: impl Into<String>,
    ) -> Self {
        let (what, note) = (what.into(), why.into());
        Self { paper, what, unit: "", published: None, ours: None, deviation: None, note }
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

/// Formats the table as Markdown.
pub(crate) fn markdown(document: &Document) -> String {
    let cells = |row: &Row| {
        let [published, ours, unit, off] = row.cells();
        vec![row.paper.into(), row.what.clone(), published, ours, unit, off, row.note.clone()]
    };
    let titles = "paper, what, paper's, ours, unit, off,";
    report::markdown(titles, document.rows.iter().map(cells))
}
