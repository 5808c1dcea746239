//! The example that measures what being preempted costs.

use crate::report;

#[path = "../preempt/arguments.rs"]
pub(crate) mod arguments;
#[path = "../preempt/cluster.rs"]
#[expect(dead_code, reason = "the example beside it uses the rest")]
pub(crate) mod cluster;
#[path = "../common/daemons/mod.rs"]
#[expect(dead_code, reason = "the example beside it uses the rest")]
pub(crate) mod daemons;
#[path = "../preempt/fit.rs"]
pub(crate) mod fit;
#[path = "../preempt/laps.rs"]
#[expect(dead_code, reason = "the example beside it uses the rest")]
pub(crate) mod laps;
#[path = "../preempt/lines.rs"]
pub(crate) mod lines;
#[path = "../preempt/live.rs"]
#[expect(dead_code, reason = "the example beside it uses the rest")]
pub(crate) mod live;
#[path = "../common/nas_rank.rs"]
#[expect(dead_code, reason = "the example beside it uses the rest")]
pub(crate) mod nas_rank;
#[path = "../preempt/paper.rs"]
#[expect(dead_code, reason = "the example beside it uses the rest")]
pub(crate) mod paper;
#[path = "../common/pm.rs"]
pub(crate) mod pm;
#[path = "../preempt/slowdown.rs"]
#[expect(dead_code, reason = "the example beside it uses the rest")]
pub(crate) mod slowdown;
