//! One rank of a NAS kernel: a program for `midplane gang run`.

use clap::Args;
use midplane_benches::nas_rank;
use midplane_nas::{Class, RealTime};

use crate::processes;
use crate::report::{self, Failure};

/// Run one rank of a NAS kernel, as a program for midplane gang run
///
/// For example: midplane gang run -n 2 -- lab nas cg S. Kernels are ep, cg and ft; classes S, W and A.
#[derive(Args, Debug)]
pub(crate) struct Arguments {
    /// The kernel
    #[arg(value_enum)]
    kernel: nas_rank::Name,
    /// The class: S, W or A
    class: Class,
}

pub(crate) fn run(arguments: &Arguments) -> Result<u8, Failure> {
    let program = (arguments.kernel, arguments.class);
    let ran = async { nas_rank::run(program, 1, &RealTime).await.map_err(Failure::of_run) };
    let Some(result) = processes::run(ran)? else { return Ok(0) };
    report::print_json(&result);
    Ok(if result.verified { 0 } else { report::FAILED })
}
