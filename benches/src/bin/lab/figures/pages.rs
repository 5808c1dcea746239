//! Writes the pages about the papers: each table and figure with its numbers, ours, and the sources of both.

use std::fmt::Write as _;
use std::path::Path;

use midplane_benches::anchors::constants::{self, Constant, Source};

use super::Paper;
use super::rows::{Count, Row};
use crate::report::{self, Failure};

/// The way from a page in `docs/figures` up to the repository's root.
const ROOT: &str = "../../";

/// Writes a page for each paper, and one that sums them up, next to the pictures.
///
/// # Errors
/// One line that names the file.
pub(super) fn write(directory: &Path, papers: &[Paper], rows: &[Row]) -> Result<(), Failure> {
    for paper in papers {
        let of: Vec<&Row> = rows.iter().filter(|row| row.paper == paper.name).collect();
        let text = page(paper, &of, &pictures(directory, paper.name).map_err(Failure::of_run)?);
        save(&directory.join(format!("{}.md", paper.name)), &text)?;
    }
    let links = |paper: &Paper| format!("[{}]({}.md)", paper.title, paper.name);
    let text = format!(
        "# The papers' tables and figures\n\n{INTRODUCTION}\n{}",
        summary(papers, rows, links)
    );
    save(&directory.join("README.md"), &text)
}

const INTRODUCTION: &str = "\
Made by `cargo run --release -p midplane-benches -- figures --directory docs/figures`, in virtual time: the same on
every machine.

The column *origin of ours* says what a number is worth. An *input* is a constant of the model: it agrees by
construction. *Fitted* names the constants that were chosen so that the number agrees. Only *predicted* numbers are
evidence: the model was not adjusted to them. Many predictions are one table, LAM/MPI's over VIA, or are computed by
the pipelines paper's formulas from the stages that it gives. Each paper's page lists the constants of its machine with
their sources. Curves without printed numbers are drawn, not compared.
";

fn save(path: &Path, text: &str) -> Result<(), Failure> {
    std::fs::write(path, text)
        .map_err(|error| Failure::of_write(error.kind(), format!("{}: {error}", path.display())))
}

/// Formats the counts of each paper, and of all.
pub(super) fn summary(papers: &[Paper], rows: &[Row], name: impl Fn(&Paper) -> String) -> String {
    let cells = |paper: &Paper| {
        let count = Count::of(rows.iter().filter(|row| row.paper == paper.name));
        let percent = |off: Option<f64>| {
            off.map_or_else(|| "-".to_owned(), |off| format!("{:.1} %", off.abs() * 100.0))
        };
        let worst = count.predicted.last().map(|(_, off)| *off);
        let (median, worst) = (percent(count.median()), percent(worst));
        let numbers = [count.printed(), count.inputs, count.fitted, count.predicted.len()];
        [vec![name(paper)], numbers.map(|number| number.to_string()).into(), vec![median, worst]]
            .concat()
    };
    let titles = "paper, printed numbers, inputs, fitted, predicted, predictions off in the median, at worst";
    let table = report::markdown(titles, papers.iter().map(cells));
    format!("{table}\n{}\n", Count::of(rows).sentence())
}

fn page(paper: &Paper, rows: &[&Row], pictures: &[String]) -> String {
    let Paper { name, title, source, .. } = paper;
    let mut text = format!(
        "# {title}\n\nThe paper: {source}\n\nMade by `cargo run --release -p midplane-benches -- figures --paper {name} \
         --directory docs/figures`.\n{} What the columns say: [overview](README.md).\n",
        Count::of(rows.iter().copied()).sentence()
    );
    let mut places: Vec<&str> = Vec::new();
    for row in rows {
        if !places.contains(&row.place().0) {
            places.push(row.place().0);
        }
    }
    let mut shown = Vec::new();
    for place in places {
        let heading = if place.is_empty() { "Other numbers" } else { place };
        let heading = heading[..1].to_uppercase() + &heading[1..];
        let _ = writeln!(text, "\n## {heading}\n");
        for picture in pictures.iter().filter(|picture| shows(picture, place)) {
            let _ = writeln!(text, "![{heading}]({picture})\n");
            shown.push(picture);
        }
        let of = rows.iter().filter(|row| row.place().0 == place);
        text += &report::markdown(Row::TITLES, of.map(|row| row.cells(ROOT)));
    }
    let rest = pictures.iter().filter(|picture| !shown.contains(picture));
    for (at, picture) in rest.enumerate() {
        if at == 0 {
            text += "\n## Figures without printed numbers\n\n";
        }
        let name = picture.trim_end_matches(".svg").rsplit('/').next().unwrap_or_default();
        let _ = writeln!(text, "![{name}]({picture})\n");
    }
    text + "\n## Constants of the model\n\n" + &table(constants::constants(name))
}

fn table(constants: Vec<Constant>) -> String {
    let cells = |Constant { machine, name, value, source }: Constant| {
        let (origin, place) = match source {
            Source::Read(place) => ("read", place),
            Source::Derived(place) => ("derived", place),
            Source::Fitted(rows) => ("fitted", rows),
            Source::Estimated(why) => ("estimated", why),
        };
        vec![machine.into(), name.into(), value, origin.into(), place.into()]
    };
    report::markdown("machine, constant, value, origin, source", constants.into_iter().map(cells))
}

/// Returns the paths of a paper's pictures, from `directory`.
fn pictures(directory: &Path, paper: &str) -> Result<Vec<String>, String> {
    let mut found = Vec::new();
    for (folder, prefix) in [(directory.to_owned(), ""), (directory.join(paper), paper)] {
        let Ok(entries) = std::fs::read_dir(&folder) else { continue };
        for entry in entries {
            let entry = entry.map_err(|error| format!("{}: {error}", folder.display()))?;
            let Ok(name) = entry.file_name().into_string() else { continue };
            if name.ends_with(".svg") && (!prefix.is_empty() || name.starts_with(paper)) {
                found.push(if prefix.is_empty() { name } else { format!("{prefix}/{name}") });
            }
        }
    }
    found.sort();
    Ok(found)
}

/// Returns whether a picture, such as `warp-figure-1.svg`, shows the table or figure at `place`.
fn shows(picture: &str, place: &str) -> bool {
    let kind = if place.starts_with("Table") { "table-" } else { "figure-" };
    let Some((_, rest)) = picture.rsplit_once(kind) else { return false };
    let number = rest.split('.').next().unwrap_or_default();
    let mut words = place.split([' ', ',']).skip(1);
    place.starts_with(['T', 'F']) && words.any(|word| word == number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_picture_belongs_to_the_place_that_it_is_named_after() {
        assert!(shows("warp-figure-1.svg", "Figure 1"));
        assert!(shows("warp-figure-1.residual.svg", "Figure 1"));
        assert!(shows("pipelines/figure-3.svg", "Figures 2, 3"));
        assert!(shows("lam-via-table-1.svg", "Table 1"));
        assert!(!shows("lam-via-table-1.svg", "Figure 1"));
        assert!(!shows("pipelines/figure-11.svg", "Figure 1"));
        assert!(!shows("pipelines/figure-5.svg", "section 5"));
    }
}
