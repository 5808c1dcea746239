//! `midplane gang`: the daemons of gang scheduling, and the client that runs, lists, saves and ends jobs.

mod adopt;
mod arguments;
mod daemon;
pub(crate) mod listing;
mod run;
mod slices;

use std::path::Path;

use midplane::gang::live::client::{self, ClientError};
use midplane::gang::live::daemon::find_socket;
use midplane::gang::live::message::{Reply, Request};
use midplane::gang::names::JobId;
use midplane_kit::processes;
use midplane_kit::report::{Failure, print_document};
use serde_json::json;

pub(crate) use arguments::Arguments;
use arguments::What;

pub(crate) fn main(arguments: &Arguments) -> Result<u8, Failure> {
    let socket = match (&arguments.socket, &arguments.what) {
        (Some(socket), _) => socket.clone(),
        (None, What::Daemon(options)) => options.default_socket(),
        (None, _) => find_socket(),
    };
    let (socket, json) = (&socket, arguments.json);
    processes::run(async {
        match &arguments.what {
            What::Daemon(options) => daemon::main(options, socket, json).await,
            What::Run(options) => run::run(socket, options, json).await,
            What::Adopt(options) => adopt::main(socket, options, json).await,
            What::Checkpoint(options) => run::checkpoint(socket, options, json).await,
            What::Restore(options) => run::restore(socket, options, json).await,
            What::Attach { job, label } => run::attach(socket, JobId(*job), *label, json).await,
            What::List => listing::print(socket, json).await,
            What::Kill { job, signal } => {
                let request = Request::Kill { job: JobId(*job), signal: *signal };
                ask(socket, &request).await?;
                print_document(json, &json!({ "job": job, "signal": signal }), |_| String::new());
                Ok(0)
            }
            What::Trace { file } => trace(socket, file, json).await,
        }
    })
}

/// Returns the error of a request: a refused one is bad input.
fn failure(error: ClientError) -> Failure {
    match error {
        ClientError::Refused(_) => error.to_string().into(),
        _ => Failure::of_run(error),
    }
}

async fn ask(socket: &Path, request: &Request) -> Result<Reply, Failure> {
    client::ask(socket, request).await.map_err(failure)
}

async fn trace(socket: &Path, file: &Path, json: bool) -> Result<u8, Failure> {
    let Reply::Slices(slices) = ask(socket, &Request::Slices).await? else {
        return Err(failure(ClientError::Gone));
    };
    let name = file.display().to_string();
    let drawn = slices::draw(file, &slices)
        .map_err(|error| Failure::of_write(error.kind(), format!("{name}: {error}")))?;
    print_document(json, &json!({ "file": name, "slices": drawn }), |_| String::new());
    Ok(0)
}
