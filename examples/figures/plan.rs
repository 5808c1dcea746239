//! The example that computes the numbers of the pipelines paper.

#[path = "../plan/figures.rs"]
pub(crate) mod figures;
#[path = "../plan/numbers.rs"]
#[expect(dead_code, reason = "the example beside it uses the rest")]
pub(crate) mod numbers;
#[path = "../plan/paper.rs"]
pub(crate) mod paper;
