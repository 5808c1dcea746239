//! The pipelines paper: its tables, and Figures 2 and 8 to 14.

use std::path::Path;

use crate::figures::rows::Row;
use crate::plan;
use midplane_benches::anchors::measure;

const PAPER: &str = "pipelines";

pub(crate) fn plates(directory: &Path) -> Result<Vec<Row>, String> {
    let folder = directory.join("pipelines");
    plan::figures::draw(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let anchors = measure::pipelines().into_iter();
    let mut rows: Vec<Row> = anchors.map(|anchor| Row::of(PAPER, "Table 1", anchor)).collect();
    let mut report = plan::numbers::Report::default();
    plan::paper::run(&mut report);
    let printed = |line: plan::numbers::Line| {
        Some(Row::new(PAPER, line.name, line.unit, line.paper?, line.value))
    };
    rows.extend(report.lines.into_iter().filter_map(printed));
    rows.push(Row::missing(
        PAPER,
        "Table 3",
        "parameters of a system: the input of the rows on GMS",
    ));
    rows.push(Row::missing(PAPER, "Figures 1 and 3 to 7", "drawings and one trace, no data"));
    Ok(rows)
}
