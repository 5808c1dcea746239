//! The LAM over VIA paper: one-way times of messages (Table 1).

mod table;

use std::path::Path;

use crate::figures::rows::Row;
use crate::plot::{self, Line, Panel};
use crate::report::text;
use midplane_benches::anchors::measure::{self, Origin};
use table::Column;

const PAPER: &str = "lam-via";
/// The table's messages have 2^n bytes, for n below this.
const SIZES: u32 = 16;

pub(crate) fn plates(directory: &Path) -> Result<Vec<Row>, String> {
    let anchors = measure::lam_via().into_iter();
    let mut rows: Vec<Row> = anchors.map(|anchor| Row::of(PAPER, "section 2.1", anchor)).collect();
    let [mut remote, mut local] = ["remote", "local"]
        .map(|place| Panel { title: format!("LAM/MPI, Table 1, {place}"), lines: Vec::new() });
    for column in [Column::Tcp, Column::Copied, Column::LocalTcp, Column::Local] {
        let (name, place, panel) = match column {
            Column::Tcp => ("TCP/IP", "remote", &mut remote),
            Column::LocalTcp => ("TCP/IP", "local", &mut local),
            Column::Local => ("VIA", "local", &mut local),
            Column::Copied => ("VIA", "remote", &mut remote),
        };
        let (mut paper, mut ours) = (Vec::new(), Vec::new());
        for bytes in sizes() {
            let us = table::one_way_us(column, bytes)?;
            let published = table::published(column, bytes).ok_or("a size of the table")?;
            let what = format!("Table 1: {bytes} B, {place}, {name}");
            rows.push(Row::new(PAPER, origin(column, bytes), what, "us", published, us));
            paper.push(point(column, bytes, published));
            ours.push(point(column, bytes, us));
        }
        panel.lines.push(Line { label: format!("{name}, paper"), points: paper });
        panel.lines.push(Line { label: format!("{name}, ours"), points: ours });
    }
    rows.push(Row::missing(PAPER, "Figures 1 to 3", "drawings, no data"));
    let path = directory.join("lam-via-table-1.svg");
    let (x, y) = ("log2 of the message's bytes", "one way, over the paper's TCP/IP");
    plot::draw(&path, x, y, &[remote, local]).map_err(text)?;
    Ok(rows)
}

fn sizes() -> impl Iterator<Item = usize> {
    (0..SIZES).map(|n| 1 << n)
}

fn origin(column: Column, bytes: usize) -> Origin {
    match column {
        Column::Tcp if bytes == 1 => Origin::Fitted("LAM's work over TCP"),
        // Every other row was fitted, from the first on.
        Column::Local if bytes.ilog2().is_multiple_of(2) => {
            Origin::Fitted("five costs of the loopback, to every other row")
        }
        _ => Origin::Predicted,
    }
}

/// Returns the point of a time in the picture: relative to the paper's time over TCP, at the same place.
fn point(column: Column, bytes: usize, us: f64) -> (f64, f64) {
    let tcp = match column {
        Column::Local | Column::LocalTcp => Column::LocalTcp,
        Column::Tcp | Column::Copied => Column::Tcp,
    };
    (f64::from(bytes.ilog2()), us / table::published(tcp, bytes).unwrap_or(f64::NAN))
}
