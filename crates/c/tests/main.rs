//! C programs that are compiled with the header, against services of this process.
#![cfg(target_os = "linux")]
#![expect(clippy::print_stderr, reason = "says what is skipped")]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use midplane::Node;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

/// The folder of the library, which cargo builds with this test.
fn library() -> PathBuf {
    let own = std::env::current_exe().unwrap();
    own.parent().unwrap().to_owned()
}

/// Compiles a program of this crate into a folder of its own; `None` without a C compiler.
fn compile(source: &str) -> Option<(TempDir, PathBuf)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("program");
    let mut cc = Command::new("cc");
    cc.args(["-std=c99", "-D_POSIX_C_SOURCE=200809L", "-Wall", "-Wextra", "-Werror", "-pthread"]);
    cc.arg("-o").arg(&program).arg(root.join(source));
    cc.arg("-I").arg(root.join("include"));
    cc.arg("-L").arg(library()).arg("-lmidplane_c");
    cc.arg(format!("-Wl,-rpath,{}", library().display()));
    match cc.output() {
        Err(error) => {
            eprintln!("skipped: no C compiler: {error}");
            None
        }
        Ok(output) => {
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            Some((folder, program))
        }
    }
}

/// Returns the compiled test programs; `None` without a C compiler.
fn programs() -> Option<&'static Path> {
    static PROGRAMS: OnceLock<Option<(TempDir, PathBuf)>> = OnceLock::new();
    let compiled = PROGRAMS.get_or_init(|| compile("tests/programs.c"));
    compiled.as_ref().map(|(_, program)| program.as_path())
}

/// Runs a test program, in the cluster of that name, while `serve` serves it.
async fn run(name: &str, serve: impl Future<Output = ()>) {
    if let Some(program) = programs() {
        run_program(program, name, serve).await;
    }
}

/// Runs a program with one argument, in the cluster of that name, while `serve` serves it. Returns its output.
async fn run_program(program: &Path, name: &str, serve: impl Future<Output = ()>) -> String {
    let cluster = cluster(name);
    let mut command = Command::new(program);
    command.arg(name).env("MIDPLANE_CLUSTER", cluster).env_remove("MIDPLANE_TRANSPORTS");
    let runs = tokio::task::spawn_blocking(move || command.output().unwrap());
    tokio::select! {
        output = runs => {
            let output = output.unwrap();
            let text = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{name}: {} {text}", output.status);
            String::from_utf8(output.stdout).unwrap()
        }
        () = serve => panic!("the service has ended"),
    }
}

fn cluster(name: &str) -> String {
    format!("c-{name}-{}", std::process::id())
}

async fn node(name: &str) -> Node {
    Node::builder().cluster(cluster(name)).start().await.unwrap()
}

async fn echo(node: &Node) {
    let mut listener = node.listen("echo").await.unwrap();
    while let Ok((stream, _)) = listener.accept().await {
        tokio::spawn(async move {
            let (mut reader, mut writer) = tokio::io::split(stream);
            tokio::io::copy(&mut reader, &mut writer).await?;
            writer.shutdown().await
        });
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_program_sends_and_receives_at_once_more_than_any_window() {
    let node = node("echo").await;
    run("echo", echo(&node)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_arguments_are_errors_that_name_the_reason() {
    let node = node("wrong").await;
    run("wrong", echo(&node)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_that_the_service_resets_fails() {
    let node = node("reset").await;
    let mut listener = node.listen("reset").await.unwrap();
    run("reset", async {
        while let Ok((stream, _)) = listener.accept().await {
            stream.reset();
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_example_greet_prints_the_answer_of_a_service() {
    let Some((_folder, program)) = compile("examples/greet.c") else { return };
    let node = node("Ada").await;
    let mut listener = node.listen("greeter").await.unwrap();
    let printed = run_program(&program, "Ada", async {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut name = String::new();
            stream.read_to_string(&mut name).await.unwrap();
            stream.write_all(format!("hello {name}").as_bytes()).await.unwrap();
        }
    });
    assert_eq!(printed.await, "hello Ada\n");
}
