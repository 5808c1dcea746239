//! Runs the checks of the fuzz targets on their inputs, but for modules, whose engines take long to build.

use std::fs;

/// Runs a check on each input of a folder.
fn run_all(target: &str, check: fn(&[u8])) {
    let folder = format!("{}/../../../fuzz/seeds/{target}", env!("CARGO_MANIFEST_DIR"));
    let inputs = fs::read_dir(&folder).expect("the target has inputs");
    let count = inputs.map(|input| check(&fs::read(input.unwrap().path()).unwrap())).count();
    assert!(count > 0, "no inputs in {folder}");
}

macro_rules! targets {
    ($($target:ident: $path:literal),* $(,)?) => {$(
        #[path = $path]
        mod $target;

        #[test]
        fn $target() {
            run_all(stringify!($target), $target::run);
        }
    )*};
}

targets! {
    control: "../../../fuzz/checks/control.rs",
    header: "../../../fuzz/checks/header.rs",
    interfaces: "../../../fuzz/checks/interfaces.rs",
    messages: "../../../fuzz/checks/messages.rs",
    program: "../../../fuzz/checks/program.rs",
    sealed: "../../../fuzz/checks/sealed.rs",
    unit: "../../../fuzz/checks/unit.rs",
}
