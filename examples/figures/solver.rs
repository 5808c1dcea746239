//! The example that carries the Warp paper's iteration out.

use crate::{plot, ranks};

#[path = "../solver/arguments.rs"]
#[expect(dead_code, reason = "the example beside it uses the rest")]
pub(crate) mod arguments;
#[path = "../solver/background.rs"]
pub(crate) mod background;
#[path = "../solver/fabrics.rs"]
#[expect(dead_code, reason = "the example beside it uses the rest")]
pub(crate) mod fabrics;
#[path = "../solver/failure.rs"]
#[expect(dead_code, reason = "the example beside it uses the rest")]
pub(crate) mod failure;
#[path = "../solver/figures.rs"]
pub(crate) mod figures;
#[path = "../solver/lead.rs"]
pub(crate) mod lead;
#[path = "../solver/message.rs"]
pub(crate) mod message;
#[path = "../solver/outbox.rs"]
pub(crate) mod outbox;
#[path = "../solver/pace.rs"]
pub(crate) mod pace;
#[path = "../solver/problem.rs"]
#[expect(dead_code, reason = "the example beside it uses the rest")]
pub(crate) mod problem;
#[path = "../solver/rank.rs"]
pub(crate) mod rank;
#[path = "../solver/run.rs"]
#[expect(dead_code, reason = "the example beside it uses the rest")]
pub(crate) mod run;
#[path = "../solver/setting.rs"]
pub(crate) mod setting;
#[path = "../solver/study.rs"]
#[expect(dead_code, reason = "the example beside it uses the rest")]
pub(crate) mod study;
#[path = "../solver/traces.rs"]
pub(crate) mod traces;
