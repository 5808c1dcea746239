//! Numbers with their bounds or the paper's values.

use serde::Serialize;

/// A number with its judgement.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Line {
    pub(crate) name: String,
    pub(crate) value: f64,
    pub(crate) unit: &'static str,
    /// False if the number misses its bound.
    holds: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    at_most: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) paper: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    deviation: Option<f64>,
}

/// Numbers of one run.
#[derive(Debug, Default)]
pub(crate) struct Report {
    pub(crate) lines: Vec<Line>,
}

/// The report as a JSON document.
#[derive(Debug, Serialize)]
pub(crate) struct Document<'a> {
    report: &'static str,
    holds: bool,
    lines: &'a [Line],
}

impl Report {
    /// Adds a number that is not judged.
    pub(crate) fn info(&mut self, name: impl Into<String>, value: f64, unit: &'static str) {
        let (name, at_most, paper, deviation) = (name.into(), None, None, None);
        self.lines.push(Line { name, value, unit, holds: true, at_most, paper, deviation });
    }

    /// Adds a number with an upper bound.
    pub(crate) fn at_most(
        &mut self,
        name: impl Into<String>,
        value: f64,
        bound: f64,
        unit: &'static str,
    ) {
        let (name, at_most, paper, deviation) = (name.into(), Some(bound), None, None);
        let holds = value <= bound;
        self.lines.push(Line { name, value, unit, holds, at_most, paper, deviation });
    }

    /// Adds a number that the paper prints; `tolerance` is the largest deviation, in the same unit.
    pub(crate) fn near(
        &mut self,
        name: impl Into<String>,
        value: f64,
        printed: f64,
        tolerance: f64,
        unit: &'static str,
    ) {
        let (name, at_most, paper) = (name.into(), None, Some(printed));
        let holds = (value - printed).abs() <= tolerance;
        let deviation = Some(value - printed);
        self.lines.push(Line { name, value, unit, holds, at_most, paper, deviation });
    }

    /// Returns whether every number is within its bound.
    pub(crate) fn holds(&self) -> bool {
        self.lines.iter().all(|line| line.holds)
    }

    pub(crate) fn document(&self) -> Document<'_> {
        Document { report: "numbers", holds: self.holds(), lines: &self.lines }
    }

    /// Returns the report as a table.
    pub(crate) fn table(&self) -> String {
        let mut text = String::from("numbers\n");
        for Line { name, value, unit, holds, at_most, paper, deviation } in &self.lines {
            let aim = match (at_most, paper, deviation) {
                (Some(bound), ..) => format!("at most {bound}"),
                (_, Some(paper), Some(far)) => format!("paper {paper}, deviation {far:+.3}"),
                _ => String::new(),
            };
            let mark = if *holds { ' ' } else { '!' };
            let is_tiny = *value != 0.0 && value.abs() < 1e-3;
            let value = if is_tiny { format!("{value:.2e}") } else { format!("{value:.4}") };
            text += &format!("{mark} {name:<62} {value:>12} {unit:<9} {aim}\n");
        }
        text
    }
}
