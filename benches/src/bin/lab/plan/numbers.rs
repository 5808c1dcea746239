//! Numbers with their bounds or the paper's values.

use serde_json::{Value, json};

/// Judgement of a number.
#[derive(Clone, Copy, Debug)]
enum Aim {
    None,
    AtMost(f64),
    Near { paper: f64, tolerance: f64 },
}

/// A number with its judgement.
#[derive(Clone, Debug)]
pub(crate) struct Line {
    name: String,
    value: f64,
    unit: &'static str,
    aim: Aim,
}

impl Line {
    /// Creates a number that is not judged.
    pub(crate) fn info(name: &str, value: f64, unit: &'static str) -> Self {
        Self { name: name.into(), value, unit, aim: Aim::None }
    }

    /// Creates a number with an upper bound.
    pub(crate) fn at_most(name: &str, value: f64, bound: f64, unit: &'static str) -> Self {
        Self { name: name.into(), value, unit, aim: Aim::AtMost(bound) }
    }

    /// Creates a number that the paper prints; `tolerance` is the largest deviation, in the same unit.
    pub(crate) fn near(
        name: &str,
        value: f64,
        paper: f64,
        tolerance: f64,
        unit: &'static str,
    ) -> Self {
        Self { name: name.into(), value, unit, aim: Aim::Near { paper, tolerance } }
    }

    /// Returns name, unit, the paper's value and ours; `None` if the paper prints no value.
    pub(crate) fn beside_paper(&self) -> Option<(&str, &'static str, f64, f64)> {
        match self.aim {
            Aim::Near { paper, .. } => Some((&self.name, self.unit, paper, self.value)),
            Aim::None | Aim::AtMost(_) => None,
        }
    }

    fn holds(&self) -> bool {
        match self.aim {
            Aim::None => true,
            Aim::AtMost(bound) => self.value <= bound,
            Aim::Near { paper, tolerance } => (self.value - paper).abs() <= tolerance,
        }
    }

    fn json(&self) -> Value {
        let mut line = json!({"name": self.name, "value": self.value, "unit": self.unit, "holds": self.holds()});
        match self.aim {
            Aim::None => {}
            Aim::AtMost(bound) => line["at_most"] = json!(bound),
            Aim::Near { paper, .. } => {
                line["paper"] = json!(paper);
                line["deviation"] = json!(self.value - paper);
            }
        }
        line
    }
}

/// Numbers under one title.
#[derive(Clone, Debug)]
pub(crate) struct Report {
    title: &'static str,
    lines: Vec<Line>,
}

impl Report {
    /// Creates an empty report.
    pub(crate) const fn new(title: &'static str) -> Self {
        Self { title, lines: Vec::new() }
    }

    /// Returns all numbers.
    pub(crate) fn lines(&self) -> &[Line] {
        &self.lines
    }

    /// Adds a number.
    pub(crate) fn push(&mut self, line: Line) {
        self.lines.push(line);
    }

    /// Adds all numbers of another report.
    pub(crate) fn append(&mut self, other: Self) {
        self.lines.extend(other.lines);
    }

    /// Returns whether every number is within its bound.
    pub(crate) fn holds(&self) -> bool {
        self.lines.iter().all(Line::holds)
    }

    /// Returns the report as a JSON document.
    pub(crate) fn json(&self) -> Value {
        json!({"report": self.title, "holds": self.holds(), "lines": self.lines.iter().map(Line::json).collect::<Vec<_>>()})
    }

    /// Returns the report as a table.
    pub(crate) fn table(&self) -> String {
        let mut text = format!("{}\n", self.title);
        for line in &self.lines {
            let aim = match line.aim {
                Aim::None => String::new(),
                Aim::AtMost(bound) => format!("at most {bound}"),
                Aim::Near { paper, .. } => {
                    format!("paper {paper}, deviation {:+.3}", line.value - paper)
                }
            };
            let mark = if line.holds() { ' ' } else { '!' };
            let value = if line.value != 0.0 && line.value.abs() < 1e-3 {
                format!("{:.2e}", line.value)
            } else {
                format!("{:.4}", line.value)
            };
            text += &format!("{mark} {:<62} {value:>12} {:<9} {aim}\n", line.name, line.unit);
        }
        text
    }
}
