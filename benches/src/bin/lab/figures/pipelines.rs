//! The pipelines paper: its tables, Figures 2 and 8 to 14, and plans that follow a change.

mod adaptation;
mod drawings;
mod measured;
mod paper;

use std::path::Path;

use crate::figures::rows::Row;
use midplane_benches::anchors::measure;

const PAPER: &str = "pipelines";

pub(crate) fn plates(directory: &Path) -> Result<Vec<Row>, String> {
    let folder = directory.join(PAPER);
    std::fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let measured = measured::Measured::new();
    drawings::draw(&folder, &measured)?;
    let anchors = measure::pipelines().into_iter();
    let mut rows: Vec<Row> = anchors.map(|anchor| Row::of(PAPER, "Table 1", anchor)).collect();
    let anchors = measure::pipelines_table_2().into_iter();
    rows.extend(anchors.map(|anchor| Row::of(PAPER, "Table 2", anchor)));
    rows.extend(measured.rows());
    rows.extend(paper::rows());
    rows.extend(adaptation::draw(&folder)?);
    rows.push(Row::missing(
        PAPER,
        "Table 3",
        "parameters of a system: the input of the rows on GMS",
    ));
    rows.push(Row::missing(PAPER, "Figures 1 and 3 to 7", "drawings and one trace, no data"));
    Ok(rows)
}
