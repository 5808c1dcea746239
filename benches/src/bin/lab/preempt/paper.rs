//! The paper's numbers, and ours on its machine, for `lab figures`.

use midplane::gang::channel::geometry::Geometry;
use midplane::gang::context::NetworkContext;
use midplane::gang::daemon::{Costs, Mode};
use midplane::gang::names::{Epoch, JobId, Rank};
use midplane::gang::scheduler::Phases;
use midplane::simhw::host::Host;
use midplane::simhw::id::NodeId;
use midplane::simhw::profile::Machine;
use midplane::simhw::sim::SimHost;
use midplane_benches::anchors::measure::{self, Anchor, Origin};
use midplane_benches::anchors::pm;
use midplane_nas::Class;

use super::slowdown::{self, Case, Run};
use crate::nas_rank::Name;
use crate::report::progress;

/// Returns the bytes that a save finds in a context whose FIFOs were filled as the table says.
fn filled(send: bool, receive: bool) -> Option<usize> {
    let mut world = pm::world();
    let hosts: Vec<SimHost> = (0..2).map(|node| world.host(NodeId(node))).collect();
    world.block_on(NodeId(0), async move {
        let (mut contexts, mut channels) = pm::pair(&hosts, Geometry::PM).await;
        let mut other = channels.pop().expect("there are two");
        let mut own = channels.pop().expect("there are two");
        contexts.start().await;
        if receive {
            for _ in 0..Geometry::PM.receive.messages {
                other.send(Rank(0), &[1; 128]).await.expect("the channel is open");
            }
            while !other.is_flushed() {
                other.room().await.expect("the channel is open");
            }
        }
        contexts.stop().await;
        // A process may have filled its FIFO just before it was stopped.
        while send && own.try_send(Rank(1), &[2; 240]).is_ok() {}
        hosts[0].sleep_until(hosts[0].now().plus_nanos(1_000_000)).await;
        let saved = contexts.save().await;
        contexts.restore(&saved).await;
        let network = NetworkContext { job: JobId(1), epoch: Epoch(1), ranks: saved };
        network.validate().expect("the cut is consistent");
        network.ranks[0].bytes()
    })
}

fn table_3(costs: &Costs) -> Vec<Anchor> {
    const RATES: Origin = Origin::Fitted("time per byte to read and write the NIC's memory");
    let rows = [
        (Origin::Input, "receive empty, send empty", false, false, 0.62, 0.18),
        (RATES, "receive empty, send full", true, false, 1.96, 1.56),
        (Origin::Predicted, "receive full, send empty", false, true, 2.16, 1.59),
        (Origin::Predicted, "receive full, send full", true, true, 3.70, 3.19),
    ];
    let mut table = Vec::new();
    for (origin, what, send, receive, save, restore) in rows {
        let bytes = filled(send, receive).unwrap_or(0);
        let measured = [costs.of_save(bytes), costs.of_restore(bytes)];
        let verbs = [("save", save), ("restore", restore)];
        for ((verb, published), measured) in verbs.into_iter().zip(measured) {
            let what = format!("Table 3, {verb}: {what} ({bytes} B)");
            let ms = measured.as_secs_f64() * 1e3;
            table.push(Anchor::new(origin, what, "ms", published, ms));
        }
    }
    table
}

/// Measures Tables 2 and 3.
pub(crate) fn tables() -> Vec<Anchor> {
    [measure::score_d(), table_3(&Costs::paper(&Machine::PM_MYRINET.host))].concat()
}

/// Runs the jobs of Figures 5 and 6, with the paper's four barriers: by kernel, ranks and slice.
pub(crate) fn figures() -> Vec<Run> {
    let (class, mode, phases, seed) = (Class::S, Mode::Copy, Phases::Four, 1);
    let mut cases = Vec::new();
    for kernel in [Name::Ep, Name::Ft, Name::Cg] {
        for ranks in [8, 16, 32] {
            cases.extend([50.0, 100.0, 200.0].map(|slice_ms| Case {
                kernel,
                class,
                ranks,
                slice_ms,
                mode,
                phases,
                seed,
            }));
        }
    }
    let bar = progress(cases.len(), slowdown::PROGRESS);
    cases.iter().map(|case| slowdown::measure(1, case)).inspect(|_| bar.inc(1)).collect()
}
