//! The LAM over VIA paper: one-way times of messages (Table 1).

use std::path::Path;

use crate::figures::rows::Row;
use crate::lam_table::{self, Column, Registers};
use crate::plot::{self, Line, Panel};
use midplane_benches::anchors::measure::{self, Origin};

const PAPER: &str = "lam-via";
/// The table's messages have 2^n bytes, for n below this.
const SIZES: u32 = 16;

pub(crate) fn plates(directory: &Path) -> Result<Vec<Row>, String> {
    let anchors = measure::lam_via().into_iter();
    let mut rows: Vec<Row> = anchors.map(|anchor| Row::of(PAPER, "section 2.1", anchor)).collect();
    let mut lines = Vec::new();
    for column in [Column::Tcp, Column::Copied, Column::LocalTcp, Column::Local] {
        let (name, place) = match column {
            Column::Tcp => ("TCP/IP", "remote"),
            Column::LocalTcp => ("TCP/IP", "local"),
            Column::Local => ("VIA", "local"),
            Column::Copied | Column::Foreseen(_) => ("VIA", "remote"),
        };
        let origin = |bytes| match column {
            Column::Tcp if bytes == 1 => Origin::Fitted("LAM's work over TCP"),
            // Every other row was fitted, from the first on.
            Column::Local if usize::ilog2(bytes) % 2 == 0 => {
                Origin::Fitted("five costs of the loopback, to every other row")
            }
            _ => Origin::Predicted,
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
    for registers in [Registers::AtTheStart, Registers::EachTime] {
        let how = match registers {
            Registers::AtTheStart => "user data registered at the start",
            Registers::EachTime => "user data registered for each message",
        };
        let label = format!("LAM on VIA, remote, {how}, foreseen");
        let mut line = Line { label, points: Vec::new() };
        for bytes in (0..SIZES).map(|n| 1 << n) {
            let us = lam_table::one_way_us(Column::Foreseen(registers), bytes)?;
            line.points.push((bytes as f64 / 1024.0, us));
            if bytes > lam_table::LONGEST_COPIED {
                let [tcp, via] = [Column::Tcp, Column::Copied]
                    .map(|column| lam_table::published(column, bytes).unwrap_or_default());
                let note =
                    format!("not in the paper: {tcp} us over TCP, {via} us over VIA by copies");
                let what = format!("section 5: {bytes} B, remote, VIA, {how}");
                rows.push(Row::ours(PAPER, what, "us", us, note));
            }
        }
        lines.push(line);
    }
    rows.push(Row::missing(PAPER, "Figures 1 to 3", "drawings, no data"));
    let panel = Panel { title: "LAM/MPI, Table 1".into(), lines };
    plot::draw(&directory.join("lam-via-table-1.svg"), "message, KiB", "one way, us", &[panel])?;
    Ok(rows)
}
