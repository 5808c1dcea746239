//! Writes Gantt charts to files.

use std::path::Path;

use midplane::pipeline::gantt::{Chart, chrome_trace, svg};
use midplane::pipeline::timing::Row;

/// Writes charts to a file: a trace for Perfetto if its name ends in `.json`, else SVG.
pub(crate) fn write(file: &Path, charts: &[(&str, &[Row])], names: &[&str]) -> std::io::Result<()> {
    let charts: Vec<Chart<'_>> =
        charts.iter().map(|&(title, rows)| Chart { title, rows }).collect();
    let trace = file.extension().is_some_and(|extension| extension == "json");
    let text = if trace { chrome_trace(&charts, names) } else { svg(&charts, names) };
    std::fs::write(file, text)
}
