//! `midplane gang trace`: draws slices as a Gantt chart or a trace.

use std::collections::BTreeSet;
use std::path::Path;

use midplane::gang::live::message::Slice;
use midplane::pipeline::timing::Row;

use crate::gantt;

/// Most slices of a Gantt chart: the last ones.
const SHOWN: usize = 48;

/// Draws the last slices to a file, and returns their number.
pub(crate) fn draw(file: &Path, slices: &[Slice]) -> std::io::Result<usize> {
    let is_trace = file.extension().is_some_and(|extension| extension == "json");
    let shown = if is_trace { slices.len() } else { slices.len().min(SHOWN) };
    let slices = &slices[slices.len() - shown..];
    let jobs: BTreeSet<u32> =
        slices.iter().flat_map(|slice| slice.running.iter().map(|job| job.0)).collect();
    let jobs: Vec<u32> = jobs.into_iter().collect();
    let mut names: Vec<String> = jobs.iter().map(|job| format!("job {job}")).collect();
    names.push("switch".into());
    let origin = slices.first().map_or(0.0, |slice| slice.at_us);
    let mut rows = Vec::new();
    for (number, pair) in slices.windows(2).enumerate() {
        let (began, ended) = (pair[0].at_us - origin, pair[1].at_us - origin);
        let from = began + pair[0].switch_us;
        rows.extend(Row::new(jobs.len(), number, 0.0, began..from));
        for job in &pair[0].running {
            let row = jobs.binary_search(&job.0).unwrap_or_default();
            rows.extend(Row::new(row, number, 0.0, from..ended));
        }
    }
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    gantt::write(file, &[("slices", &rows)], &names).map(|()| shown)
}
