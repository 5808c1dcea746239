//! Leaves out the unit tests of the modules that this package shares with midplane-simhw.

fn main() {
    println!("cargo:rustc-cfg=midplane_models");
}
