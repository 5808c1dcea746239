//! Reports a live NIC's drops as events of `tracing` and, with the feature `metrics`, its counters as metrics.
//!
//! Both are derived from the counters that the driver reports anyway: they cost nothing per frame.

use crate::drops::Drops;
use crate::id::NodeId;
use crate::nic::NicCounters;

/// Handles a report of the driver: `now` after `before`.
pub(super) fn on_report(node: NodeId, before: &NicCounters, now: &NicCounters) {
    if before.drops != now.drops {
        on_drops(node, &before.drops, &now.drops);
    }
    #[cfg(feature = "metrics")]
    count(node, before, now);
}

fn on_drops(node: NodeId, before: &Drops, now: &Drops) {
    for (cause, count) in now.iter() {
        let more = count.saturating_sub(before.of(cause));
        if more > 0 {
            tracing::debug!(node = node.0, cause = cause.name(), count = more, "frames dropped");
            #[cfg(feature = "metrics")]
            metrics::counter!("midplane_dropped_total", "node" => node.to_string(), "cause" => cause.name())
                .increment(more);
        }
    }
}

#[cfg(feature = "metrics")]
fn count(node: NodeId, before: &NicCounters, now: &NicCounters) {
    let counts = [
        ("midplane_sent_frames_total", before.frames_sent, now.frames_sent),
        ("midplane_sent_bytes_total", before.bytes_sent, now.bytes_sent),
        ("midplane_received_frames_total", before.frames_received, now.frames_received),
        ("midplane_received_bytes_total", before.bytes_received, now.bytes_received),
    ];
    for (name, before, now) in counts {
        if now > before {
            metrics::counter!(name, "node" => node.to_string()).increment(now - before);
        }
    }
}

#[cfg(all(test, feature = "metrics"))]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::{Arc, Mutex};

    use metrics::{
        Counter, CounterFn, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit,
    };

    use super::*;
    use crate::drops::DropCause;

    type Counts = Arc<Mutex<BTreeMap<String, u64>>>;

    struct Ledger(Counts);
    struct Entry(String, Counts);

    impl CounterFn for Entry {
        fn increment(&self, value: u64) {
            *self.1.lock().unwrap().entry(self.0.clone()).or_default() += value;
        }
        fn absolute(&self, _: u64) {}
    }

    impl Recorder for Ledger {
        fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
        fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
        fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
        fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
            let labels: Vec<_> = key.labels().map(|label| label.value()).collect();
            let name = format!("{} {}", key.name(), labels.join(" "));
            Counter::from_arc(Arc::new(Entry(name, Arc::clone(&self.0))))
        }
        fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
            Gauge::noop()
        }
        fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
            Histogram::noop()
        }
    }

    #[test]
    fn reported_counters_are_counted_once() {
        let counts = Counts::default();
        let mut now = NicCounters { frames_sent: 3, bytes_sent: 200, ..NicCounters::default() };
        now.drops.add(DropCause::Stranger);
        metrics::with_local_recorder(&Ledger(Arc::clone(&counts)), || {
            on_report(NodeId(7), &NicCounters::default(), &now);
            on_report(NodeId(7), &now, &now);
        });
        let expected = [
            ("midplane_dropped_total 7 stranger".to_owned(), 1),
            ("midplane_sent_bytes_total 7".to_owned(), 200),
            ("midplane_sent_frames_total 7".to_owned(), 3),
        ];
        assert_eq!(*counts.lock().unwrap(), BTreeMap::from(expected));
    }
}
