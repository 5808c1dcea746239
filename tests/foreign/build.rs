//! Takes tokio's own tests of streams from the source of its locked release, with TCP's types swapped for those of
//! `midplane_foreign`, and without the tests that `cut.txt` lists. Generates the code of the gRPC service of the tests.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

const STD: &[(&str, &str)] =
    &[("use std::{net, thread};", "use crate::blocking as net; use std::thread;")];
const UNIX: (&str, &str) = ("UnixStream::connect(", "crate::net::connect_path(");

/// tokio's files, and what is swapped beside `tokio::net`; each must occur.
const FILES: &[(&str, &[(&str, &str)])] = &[
    ("buffered", &[("std::net::TcpStream", "crate::blocking::TcpStream")]),
    ("duplex_stream", &[("tokio::io::duplex", "crate::net::duplex")]),
    ("io_copy_bidirectional", &[]),
    ("io_driver", &[("std::net::TcpStream", "crate::blocking::TcpStream")]),
    (
        "io_mem_stream",
        &[
            (
                "use tokio::io::{duplex, AsyncReadExt, AsyncWriteExt, DuplexStream};",
                "use tokio::io::{AsyncReadExt, AsyncWriteExt}; use crate::net::{duplex, DuplexStream};",
            ),
            ("tokio::io::duplex(", "crate::net::duplex("),
        ],
    ),
    ("tcp_accept", &[]),
    ("tcp_connect", &[]),
    ("tcp_echo", &[]),
    ("tcp_into_split", STD),
    (
        "tcp_peek",
        &[
            ("use std::{io::Write, net};", "use crate::blocking as net; use std::io::Write;"),
            ("use std::thread;", "use std::thread;"),
        ],
    ),
    ("tcp_shutdown", &[]),
    ("tcp_split", STD),
    ("uds_split", &[]),
    ("uds_stream", &[UNIX]),
    ("unix_shutdown", &[]),
];

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=cut.txt");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"));
    service();
    let tests = tokio().join("tests");
    let cuts = fs::read_to_string("cut.txt").expect("the list of cut tests");
    let cuts = cuts.lines().filter(|line| !line.trim().is_empty() && !line.starts_with('#'));
    let mut cuts: BTreeSet<&str> = cuts.filter_map(|line| line.split_whitespace().next()).collect();
    let mut root = String::new();
    for (name, swaps) in FILES {
        let text = swapped(&tests.join(format!("{name}.rs")), swaps);
        let mut file = syn::parse_file(&text).expect("tokio's tests parse");
        file.items.retain(|item| match item {
            syn::Item::Fn(item) => !cuts.remove(format!("{name}::{}", item.sig.ident).as_str()),
            _ => true,
        });
        let path = out.join(format!("{name}.rs"));
        fs::write(&path, prettyplease::unparse(&file)).expect("room for a file");
        writeln!(root, "#[allow(warnings)]\n#[path = {path:?}]\nmod {name};").expect("text");
    }
    cuts.retain(|cut| !cut.ends_with("::*"));
    assert!(cuts.is_empty(), "cut.txt lists what is not among tokio's tests: {cuts:?}");
    fs::write(out.join("tokio.rs"), root).expect("room for a file");
}

fn swapped(path: &Path, swaps: &[(&str, &str)]) -> String {
    let mut text = fs::read_to_string(path).expect("the published package has its tests");
    for (from, to) in swaps {
        assert!(text.contains(from), "{from:?} is not in {}", path.display());
        text = text.replace(from, to);
    }
    text.replace("tokio::net::", "crate::net::")
}

/// The source of the tokio that is locked here.
fn tokio() -> PathBuf {
    let cargo = env::var_os("CARGO").expect("cargo sets it");
    let asked = Command::new(cargo)
        .args(["metadata", "--format-version", "1", "--locked", "--offline"])
        .output();
    let told: serde_json::Value =
        serde_json::from_slice(&asked.expect("cargo runs").stdout).expect("metadata");
    let packages = told["packages"].as_array().expect("a list of packages");
    let tokio =
        packages.iter().find(|package| package["name"] == "tokio").expect("it is a dependency");
    let manifest = tokio["manifest_path"].as_str().expect("a path");
    Path::new(manifest).parent().expect("a folder").to_owned()
}

/// A service with each kind of method; its messages are in `src/grpc.rs`.
fn service() {
    use tonic_build::manual::{Builder, Method, Service};
    let method = |name: &str, route: &str| {
        Method::builder()
            .name(name)
            .route_name(route)
            .input_type("crate::grpc::Number")
            .output_type("crate::grpc::Number")
            .codec_path("tonic_prost::ProstCodec")
    };
    let service = Service::builder()
        .name("Numbers")
        .package("numbers")
        .method(method("double", "Double").build())
        .method(method("up_to", "UpTo").server_streaming().build())
        .method(method("sum", "Sum").client_streaming().build())
        .method(method("echo", "Echo").client_streaming().server_streaming().build())
        .build();
    Builder::new().compile(&[service]);
}
