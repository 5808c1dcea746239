//! The numbers that this project promises, each with its bound, and the report in which `lab all` finds it.
//!
//! `promises/rows.txt` has the table, and describes the format of its lines.

#[cfg(test)]
mod tests;

use midplane_kit::claims::median;
use serde::Serialize;
use serde_json::Value;

/// Rows and commands of the table.
#[derive(Debug)]
pub struct Promises {
    pub rows: Vec<Promise>,
    pub commands: Vec<Command>,
}

/// One number, and its bound.
#[derive(Debug)]
pub struct Promise {
    pub area: String,
    pub what: String,
    pub bound: Bound,
    pub source: Source,
}

/// The origin of a row's number.
#[derive(Debug)]
pub enum Source {
    /// A number in the report of the command with this name.
    Report(String, Number),
    /// No report has it; the text names a script or a bench that prints it, if there is one.
    Nowhere(String),
}

/// A program with arguments, which prints a report in JSON.
#[derive(Debug)]
pub struct Command {
    pub name: String,
    pub words: String,
    /// Further arguments of the full run.
    pub full: String,
    /// Further arguments of the quick run; `None` if it leaves the command out.
    pub quick: Option<String>,
    /// Most rounds of this command.
    pub rounds: usize,
}

impl Promises {
    /// Reads the table that was compiled in.
    ///
    /// # Panics
    /// Panics if a line of it is wrong.
    pub fn read() -> Self {
        let mut all = Self { rows: Vec::new(), commands: Vec::new() };
        let mut area = String::new();
        let lines = include_str!("promises/rows.txt").lines().map(str::trim);
        for line in lines.filter(|line| !line.is_empty() && !line.starts_with("# ")) {
            let cells: Vec<&str> = line.split('|').map(str::trim).collect();
            match cells[..] {
                [title] if title.starts_with("## ") => area = title[3..].into(),
                [name, words, full, quick, rounds] => all.commands.push(Command {
                    name: name.into(),
                    words: words.into(),
                    full: full.into(),
                    quick: Some(quick.into()).filter(|_| quick != "-"),
                    rounds: rounds.parse().expect(line),
                }),
                [what, bound, command, number] => all.rows.push(Promise {
                    area: area.clone(),
                    what: what.into(),
                    bound: Bound::parse(bound).expect(line),
                    source: match command {
                        "-" => Source::Nowhere(number.into()),
                        name => Source::Report(name.into(), Number::parse(number).expect(line)),
                    },
                }),
                _ => panic!("neither a row nor a command: {line}"),
            }
        }
        all
    }
}

/// A bound such as `<= 0.85x` or `>= 10 million/s`.
#[derive(Clone, Debug, PartialEq)]
pub struct Bound {
    /// True if the number may be at most the limit, false if at least.
    pub at_most: bool,
    pub limit: f64,
    pub unit: String,
}

impl std::fmt::Display for Bound {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { at_most, limit, unit } = self;
        let sign = if *at_most { "<=" } else { ">=" };
        let gap = if matches!(unit.as_str(), "" | "x") { "" } else { " " };
        write!(f, "{sign} {limit}{gap}{unit}")
    }
}

impl Bound {
    fn parse(text: &str) -> Option<Self> {
        let at_most = text.starts_with("<=");
        let rest = text.strip_prefix(if at_most { "<=" } else { ">=" })?.trim_start();
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        Some(Self { at_most, limit: rest[..end].parse().ok()?, unit: rest[end..].trim().into() })
    }

    /// Returns whether a number in the bound's unit is within it.
    fn holds(&self, number: f64) -> bool {
        if self.at_most { number <= self.limit } else { number >= self.limit }
    }

    /// Converts a report's number to the bound's unit: from shares to percent, from bytes to MiB.
    fn scaled(&self, number: f64) -> f64 {
        match self.unit.as_str() {
            "%" => number * 100.0,
            "MiB" => number / f64::from(1 << 20),
            _ => number,
        }
    }
}

/// Summary of a row's number over several rounds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Measured {
    pub median: f64,
    pub lowest: f64,
    pub highest: f64,
    pub rounds: usize,
    /// True if the median is within the bound.
    pub holds: bool,
}

impl Measured {
    fn of(numbers: impl Iterator<Item = f64> + Clone, bound: &Bound) -> Self {
        let median = median(numbers.clone().collect());
        Self {
            median,
            lowest: numbers.clone().fold(f64::INFINITY, f64::min),
            highest: numbers.clone().fold(f64::NEG_INFINITY, f64::max),
            rounds: numbers.count(),
            holds: bound.holds(median),
        }
    }
}

/// The rule by which a report gives a row's number. Of several that fit, the one whose median misses the bound most counts.
#[derive(Debug)]
pub enum Number {
    /// `PICK`: a number of the report.
    Worst(Pick),
    /// `best PICK`: the best one that fits.
    Best(Pick),
    /// `PICK / PICK`: ours divided by theirs with as many `bytes`.
    Ratio(Pick, Pick),
    /// `line PICK`: the number of each `bytes` that is no power of two, divided by that on the straight line through the
    /// next smaller and the next larger size.
    Line(Pick),
}

impl Number {
    fn parse(text: &str) -> Option<Self> {
        if let Some((ours, theirs)) = text.split_once(" / ") {
            return Some(Self::Ratio(Pick::parse(ours)?, Pick::parse(theirs)?));
        }
        match text.split_once(' ') {
            Some(("best", pick)) => Pick::parse(pick).map(Self::Best),
            Some(("line", pick)) => Pick::parse(pick).map(Self::Line),
            _ => Pick::parse(text).map(Self::Worst),
        }
    }

    /// Summarizes the number over the reports of several rounds; `None` if a report lacks it.
    pub fn measured(&self, reports: &[&Value], bound: &Bound) -> Option<Measured> {
        let rounds = reports.iter().map(|report| self.all(report).filter(|all| !all.is_empty()));
        let rounds: Vec<Vec<f64>> = rounds.collect::<Option<_>>()?;
        let count = rounds.first()?.len();
        let of = |at: usize| {
            let numbers = rounds.iter().map(|round| round.get(at).copied());
            let numbers: Vec<f64> = numbers.collect::<Option<_>>()?;
            Some(Measured::of(numbers.into_iter().map(|number| bound.scaled(number)), bound))
        };
        let all: Vec<Measured> = (0..count).map(of).collect::<Option<_>>()?;
        let largest = bound.at_most != matches!(self, Self::Best(_));
        all.into_iter().reduce(|a, b| if (a.median > b.median) == largest { a } else { b })
    }

    /// Reads all numbers that fit from one report.
    fn all(&self, report: &Value) -> Option<Vec<f64>> {
        match self {
            Self::Worst(pick) | Self::Best(pick) => {
                Some(pick.all(report).into_iter().map(|(_, number)| number).collect())
            }
            Self::Ratio(ours, theirs) => {
                let theirs = theirs.all(report);
                let ratio = |(bytes, number)| {
                    let (_, peer) = theirs.iter().find(|(size, _)| *size == bytes)?;
                    Some(number / peer)
                };
                ours.all(report).into_iter().map(ratio).collect()
            }
            Self::Line(pick) => Some(off_line(pick.all(report))),
        }
    }

    /// Returns whether the row needs an object with this value of some field.
    pub fn names(&self, value: &str) -> bool {
        let (first, second) = match self {
            Self::Worst(pick) | Self::Best(pick) | Self::Line(pick) => (pick, None),
            Self::Ratio(ours, theirs) => (ours, Some(theirs)),
        };
        let picks = std::iter::once(first).chain(second);
        picks.flat_map(|pick| &pick.fields).any(|(_, _, wanted)| wanted == value)
    }
}

/// Divides the numbers of sizes between powers of two by those on the line through their neighbours.
fn off_line(mut numbers: Vec<(u64, f64)>) -> Vec<f64> {
    numbers.sort_by_key(|(bytes, _)| *bytes);
    let between = |three: &[(u64, f64)]| {
        let [(left, low), (bytes, number), (right, high)] = three[..] else { return None };
        let share = (bytes - left) as f64 / (right - left).max(1) as f64;
        (!bytes.is_power_of_two()).then(|| number / (low + share * (high - low)))
    };
    numbers.windows(3).filter_map(between).collect()
}

/// Words that choose objects of a report: `FIELD=VALUE` and `FIELD^START` what their fields are, the last word the
/// number's field.
#[derive(Debug)]
pub struct Pick {
    fields: Vec<(String, char, String)>,
    /// JSON pointer to the number.
    number: String,
}

impl Pick {
    fn parse(text: &str) -> Option<Self> {
        let mut words: Vec<&str> = text.split_whitespace().collect();
        let number = format!("/{}", words.pop().filter(|word| !word.contains(['=', '^']))?);
        let field = |word: &str| {
            let sign = word.find(['=', '^'])?;
            let kind = word[sign..].chars().next()?;
            Some((word[..sign].into(), kind, word[sign + 1..].into()))
        };
        Some(Self { fields: words.into_iter().map(field).collect::<Option<_>>()?, number })
    }

    /// Returns the number of each object that fits, at any depth, and the object's `bytes` or 0.
    fn all(&self, report: &Value) -> Vec<(u64, f64)> {
        let own = report.pointer(&self.number).and_then(Value::as_f64);
        let own = own.filter(|_| self.fits(report)).map(|number| {
            let bytes = report.get("bytes").and_then(Value::as_u64);
            (bytes.unwrap_or_default(), number)
        });
        let inner: Vec<&Value> = match report {
            Value::Array(list) => list.iter().collect(),
            Value::Object(fields) => fields.values().collect(),
            _ => Vec::new(),
        };
        own.into_iter().chain(inner.into_iter().flat_map(|value| self.all(value))).collect()
    }

    fn fits(&self, object: &Value) -> bool {
        self.fields.iter().all(|(name, kind, wanted)| {
            let text = match object.get(name) {
                Some(Value::String(text)) => text.clone(),
                Some(other) => other.to_string(),
                None => return false,
            };
            if *kind == '=' { text == *wanted } else { text.starts_with(wanted) }
        })
    }
}
