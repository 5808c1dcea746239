//! One rank of a NAS kernel: a program for `midplane gang run`.

use std::process::ExitCode;

use clap::Args;
use midplane::gang::nas::{Class, RealTime};
use midplane_benches::nas_rank;

use crate::report;

/// Run one rank of a NAS kernel, as a program for midplane gang run
///
/// For example: midplane gang run -n 2 -- lab nas cg S. Kernels are ep, cg and ft; classes S, W and A.
#[derive(Args, Debug)]
pub(crate) struct Arguments {
    /// The kernel: ep, cg or ft
    kernel: nas_rank::Name,
    /// The class: S, W or A
    class: Class,
}

pub(crate) fn main(arguments: Arguments) -> ExitCode {
    let Arguments { kernel, class } = arguments;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let ran = runtime.map_err(|error| error.to_string()).and_then(|runtime| {
        let ran = runtime.block_on(nas_rank::run((kernel, class), 1, &RealTime));
        runtime.shutdown_background();
        ran
    });
    match ran {
        Ok(Some(result)) => {
            report::print_json(&result);
            ExitCode::from(if result.verified { 0 } else { report::FAILED })
        }
        Ok(None) => ExitCode::SUCCESS,
        Err(what) => report::fail(&what, report::FAILED),
    }
}
