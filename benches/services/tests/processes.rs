//! The processes of a row.

use std::process::Stdio;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::Command;
use tokio::time::timeout;

/// Regression: the service of a run that was killed served until the host restarted.
#[tokio::test]
async fn a_service_ends_with_the_process_that_started_it() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_midplane-services"));
    command.args(["--part", "service", "--transport", "tokio", "--what", "axum_hello"]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
    let mut service = command.spawn().unwrap();
    let input = service.stdin.take().unwrap();
    let mut output = BufReader::new(service.stdout.take().unwrap()).lines();
    assert!(output.next_line().await.unwrap().is_some(), "it serves");
    drop(input);
    let ended = timeout(Duration::from_secs(30), service.wait()).await;
    assert!(ended.unwrap().unwrap().success());
}
