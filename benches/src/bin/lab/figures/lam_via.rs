//! The LAM over VIA paper: one-way times of messages (Table 1).

use std::path::Path;

use crate::figures::rows::Row;
use crate::lam_table::{self, Column};
use crate::plot::{self, Line, Panel};
use midplane_benches::anchors::measure::{self, Origin};

const PAPER: &str = "lam-via";
/// The table's messages have 2^n bytes, for n below this.
const SIZES: u32 = 16;

pub(crate) fn plates(directory: &Path) -> Result<Vec<Row>, String> {
    let anchors = measure::lam_via().into_iter();
    let mut rows: Vec<Row> = anchors.map(|anchor| Row::of(PAPER, "section 2.1", anchor)).collect();
    let mut lines = Vec::new();
    for column in Column::ALL {
        let (name, place) = match column {
            Column::Tcp => ("TCP/IP", "remote"),
            Column::Copied => ("VIA", "remote"),
            Column::Local => ("VIA", "local"),
        };
        let origin = |bytes| match column {
            Column::Tcp if bytes == 1 => Origin::Fitted("LAM's work over TCP"),
            Column::Tcp | Column::Copied => Origin::Predicted,
            Column::Local => Origin::Fitted("six costs of the loopback, to this column"),
        };
        let line =
            |whose| Line { label: format!("LAM on {name}, {place}, {whose}"), points: Vec::new() };
        let (mut paper, mut ours) = (line("paper"), line("ours"));
        for bytes in (0..SIZES).map(|n| 1 << n) {
            let us = lam_table::one_way_us(column, bytes)?;
            let published = lam_table::published(column, bytes).ok_or("a size of the table")?;
            let what = format!("Table 1: {bytes} B, {place}, {name}");
            rows.push(Row::new(PAPER, origin(bytes), what, "us", published, us));
            paper.points.push((bytes as f64 / 1024.0, published));
            ours.points.push((bytes as f64 / 1024.0, us));
        }
        lines.extend([paper, ours]);
    }
    let why = "a kernel's TCP to its own host is not modelled";
    rows.push(Row::missing(PAPER, "Table 1: local, TCP/IP", why));
    rows.push(Row::missing(PAPER, "Figures 1 to 3", "drawings, no data"));
    let panel = Panel { title: "LAM/MPI, Table 1".into(), lines };
    plot::draw(&directory.join("lam-via-table-1.svg"), "message, KiB", "one way, us", &[panel])?;
    Ok(rows)
}
