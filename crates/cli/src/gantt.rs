//! Writes Gantt charts to files.

use std::path::Path;

use midplane::pipeline::gantt::{Chart, chrome_trace, svg};
use midplane::pipeline::timing::Row;

/// Writes charts to a file: a trace for Perfetto if its name ends in `.json`, else SVG.
///
/// # Errors
/// The name has another extension than these, or the file can't be written.
pub(crate) fn write(file: &Path, charts: &[(&str, &[Row])], names: &[&str]) -> std::io::Result<()> {
    let charts: Vec<Chart<'_>> =
        charts.iter().map(|&(title, rows)| Chart { title, rows }).collect();
    let text = match file.extension().map(|extension| extension.as_encoded_bytes()) {
        Some(b"json") => chrome_trace(&charts, names),
        Some(b"svg") | None => svg(&charts, names),
        Some(_) => {
            let text = "its name must end in .svg (a picture) or .json (a trace for Perfetto)";
            return Err(std::io::Error::new(std::io::ErrorKind::InvalidInput, text));
        }
    };
    std::fs::write(file, text)
}
