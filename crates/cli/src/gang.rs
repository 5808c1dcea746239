//! `midplane gang`: the daemons of gang scheduling, and the client that runs, lists, saves and ends jobs.

mod arguments;
mod daemon;
mod listing;
mod run;
mod slices;

use midplane_kit::report;
use std::path::Path;
use std::process::ExitCode;

use midplane::gang::live::daemon::default_socket;
use midplane::gang::live::front::{FrontError, ask};
use midplane::gang::live::message::{Reply, Request};
use midplane::gang::names::JobId;

pub(crate) use arguments::Arguments;
use arguments::What;

/// Error: one line, and the exit code.
pub(crate) struct Failure(pub(crate) String, pub(crate) u8);

impl From<FrontError> for Failure {
    fn from(error: FrontError) -> Self {
        let code = match error {
            FrontError::Refused(_) => report::BAD_INPUT,
            _ => report::FAILED,
        };
        Self(error.to_string(), code)
    }
}

pub(crate) fn main(arguments: Arguments) -> ExitCode {
    if let What::Daemon(options) = arguments.what {
        return daemon::main(*options, arguments.socket);
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => return report::fail(&error.to_string(), report::FAILED),
    };
    let result = runtime.block_on(carry_out(&arguments));
    // The task that reads standard input blocks until a key is pressed: it is not waited for.
    runtime.shutdown_background();
    match result {
        Ok(code) => ExitCode::from(code),
        Err(Failure(what, code)) => report::fail(&what, code),
    }
}

async fn carry_out(arguments: &Arguments) -> Result<u8, Failure> {
    let socket = arguments.socket.clone().unwrap_or_else(default_socket);
    match &arguments.what {
        What::Run(options) => run::run(&socket, options, arguments.json).await,
        What::Checkpoint { job, folder, end } => {
            run::checkpoint(&socket, (*job, folder, *end), arguments.json).await
        }
        What::Restore(options) => run::restore(&socket, options, arguments.json).await,
        What::List => listing::once(&socket, arguments.json).await,
        What::Top { times } => listing::top(&socket, *times, arguments.json).await,
        What::Kill { job, signal } => {
            let request = Request::Kill { job: JobId(*job), signal: *signal };
            ask(&socket, &request).await?;
            Ok(0)
        }
        What::Daemon(_) => unreachable!("`main` handles it"),
        What::Trace { file } => trace(&socket, file).await,
    }
}

async fn trace(socket: &Path, file: &Path) -> Result<u8, Failure> {
    let Reply::Slices(slices) = ask(socket, &Request::Slices).await? else {
        return Err(FrontError::Gone.into());
    };
    slices::draw(file, &slices)
        .map_err(|error| Failure(format!("{}: {error}", file.display()), report::BAD_INPUT))?;
    Ok(0)
}
