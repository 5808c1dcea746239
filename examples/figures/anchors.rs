//! Raw transfers of the papers' machines.

#[path = "../anchors/measure.rs"]
#[expect(dead_code, reason = "the example beside it uses the rest")]
pub(crate) mod measure;
#[path = "../anchors/raw.rs"]
pub(crate) mod raw;

use crate::preempt::pm;
