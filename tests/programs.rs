//! Runs examples as processes of a test.

use std::io::BufReader;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// A process of an example, which ends with its test.
pub(crate) struct Process(pub(crate) Child);

impl Drop for Process {
    fn drop(&mut self) {
        // The process may have exited already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Process {
    /// Starts `command`; the test reads its standard output.
    pub(crate) fn start(command: &mut Command) -> Self {
        Self(command.stdout(Stdio::piped()).spawn().unwrap())
    }

    pub(crate) fn input(&mut self) -> ChildStdin {
        self.0.stdin.take().unwrap()
    }

    pub(crate) fn output(&mut self) -> BufReader<ChildStdout> {
        BufReader::new(self.0.stdout.take().unwrap())
    }
}

/// Returns the command of an example. `cargo test` builds all examples before it runs tests; if only one test target
/// was requested, this builds the example.
pub(crate) fn program(name: &str) -> Command {
    let tests = std::env::current_exe().unwrap();
    let profile = tests.parent().and_then(|deps| deps.parent()).unwrap();
    let program = profile.join("examples").join(format!("{name}{}", std::env::consts::EXE_SUFFIX));
    if !program.is_file() {
        build(name);
    }
    Command::new(program)
}

fn build(name: &str) {
    let cargo = std::env::var_os("CARGO").expect("cargo runs this test");
    let mut command = Command::new(cargo);
    command.args(["build", "--quiet", "--package", "midplane", "--example", name]);
    assert!(command.status().unwrap().success());
}
