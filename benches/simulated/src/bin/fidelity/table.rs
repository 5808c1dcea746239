//! Prints the tables of a comparison, and judges its errors.

use serde::Deserialize;

use crate::case::Case;
use crate::traffic::{Measured, Protocol};

/// A case, as run by the kernel and in virtual time.
#[derive(Deserialize)]
pub struct Row {
    #[serde(flatten)]
    case: Case,
    protocol: Protocol,
    kernel: Measured,
    sim: Measured,
}

impl Row {
    /// Returns the difference of the goodputs in percent of the kernel's; in percent of the line's rate, where the kernel's is
    /// less than a hundredth of it: no datagram arrives whole.
    fn off(&self) -> f64 {
        let (kernel, line) = (self.kernel.goodput_mbps(), self.case.link_mbps as f64);
        let whole = if kernel < line / 100.0 { line } else { kernel };
        100.0 * (self.sim.goodput_mbps() - kernel) / whole
    }

    fn show(&self) {
        let Self { case, kernel, sim, .. } = self;
        println!(
            "| {} | {} | {:.0} | {} | {:.2} | {:.2} | {:+.1} % | {:.1} | {:.1} | {:.2} | {:.2} | {:.3} | {:.3} |",
            case.senders,
            case.link_mbps,
            f64::from(case.buffer_bytes) / 1024.0,
            case.message_bytes,
            kernel.goodput_mbps(),
            sim.goodput_mbps(),
            self.off(),
            100.0 * kernel.loss,
            100.0 * sim.loss,
            kernel.delay_ms,
            sim.delay_ms,
            kernel.jain(),
            sim.jain(),
        );
    }
}

/// Prints the rows of a protocol; returns whether median and worst error are at most these percents.
pub fn print(rows: &[Row], protocol: Protocol, median: f64, worst: f64) -> bool {
    let rows: Vec<&Row> = rows.iter().filter(|row| row.protocol == protocol).collect();
    if rows.is_empty() {
        return true;
    }
    println!("\nKernel {protocol:?}, and the same in virtual time:\n");
    println!(
        "| senders | Mb/s | buffer KiB | message B | goodput Mb/s: kernel | sim | off | loss %: kernel | sim \
         | delay ms: kernel | sim | Jain: kernel | sim |"
    );
    println!("{}", "|---".repeat(13) + "|");
    rows.iter().for_each(|row| row.show());
    let of = |value: fn(&Row) -> f64| middle_and_most(rows.iter().map(|row| value(row).abs()));
    let goodput = of(Row::off);
    let loss = of(|row| 100.0 * (row.sim.loss - row.kernel.loss));
    // All probes of a case may be lost.
    let probed = rows.iter().filter(|row| row.kernel.delay_ms > 0.0 && row.sim.delay_ms > 0.0);
    let off = |row: &&Row| 100.0 * (row.sim.delay_ms / row.kernel.delay_ms - 1.0).abs();
    let delay = middle_and_most(probed.map(off).chain([0.0]));
    let jain = of(|row| row.sim.jain() - row.kernel.jain());
    println!("\n{} cases; error, median and worst:", rows.len());
    println!(
        "- goodput {:.1} % and {:.1} % (bounds: {median} % and {worst} %)",
        goodput.0, goodput.1
    );
    println!("- loss {:.1} and {:.1} percentage points", loss.0, loss.1);
    println!("- delay {:.1} % and {:.1} %", delay.0, delay.1);
    println!("- Jain's index {:.3} and {:.3}", jain.0, jain.1);
    goodput.0 <= median && goodput.1 <= worst
}

fn middle_and_most(values: impl Iterator<Item = f64>) -> (f64, f64) {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    (values[values.len() / 2], values[values.len() - 1])
}
