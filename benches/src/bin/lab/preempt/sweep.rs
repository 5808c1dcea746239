//! The cost of a channel's FIFOs and of other open channels on the paper's machine, over sizes and numbers.

use midplane::gang::channel::geometry::{FifoSize, Geometry};
use midplane::gang::daemon::Costs;
use midplane::simhw::profile::Machine;
use serde::Serialize;

use super::{pm, report};

/// One of the open channels, in virtual time.
#[derive(Serialize)]
struct Row {
    fifo_bytes: u32,
    channels: u16,
    one_way_us: f64,
    mb_per_s: f64,
    /// Time of saving and restoring with both FIFOs full.
    save_us: f64,
    restore_us: f64,
}

#[derive(Serialize)]
struct Document {
    machine: &'static str,
    sweep: Vec<Row>,
}

fn measure(fifo_bytes: u32, channels: u16) -> Option<Row> {
    let machine = Machine::PM_MYRINET;
    let fifo = FifoSize { messages: 512, bytes: fifo_bytes };
    let geometry = Geometry { send: fifo, receive: fifo, message: Geometry::PM.message };
    let (one_way_us, mb_per_s) = pm::transfer(&machine, geometry, channels)?;
    let costs = Costs::paper(&machine.host);
    let full = 2 * fifo_bytes as usize;
    let [save_us, restore_us] =
        [costs.of_save(full), costs.of_restore(full)].map(|took| took.as_secs_f64() * 1e6);
    Some(Row { fifo_bytes, channels, one_way_us, mb_per_s, save_us, restore_us })
}

pub(crate) fn run(json: bool) -> bool {
    let sizes = [8, 16, 32, 64, 128, 256].map(|kib| (kib << 10, 1));
    let numbers = [2, 4, 8, 16].map(|channels| (64 << 10, channels));
    let rows = sizes.into_iter().chain(numbers).map(|(bytes, channels)| measure(bytes, channels));
    let Some(sweep) = rows.collect::<Option<Vec<Row>>>() else { return false };
    if json {
        report::print_json(&Document { machine: Machine::PM_MYRINET.name, sweep });
        return true;
    }
    let mut text = format!(
        "{:>9} {:>9} {:>10} {:>12} {:>12} {:>12}\n",
        "FIFO", "channels", "one way", "stream", "save, full", "restore"
    );
    for Row { fifo_bytes, channels, one_way_us, mb_per_s, save_us, restore_us } in &sweep {
        text += &format!(
            "{:>5} KiB {channels:>9} {one_way_us:>7.2} us {mb_per_s:>7.1} MB/s {save_us:>9.0} us {restore_us:>9.0} us\n",
            fifo_bytes >> 10
        );
    }
    report::print(&text);
    true
}
