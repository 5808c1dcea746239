//! Takes tokio's own tests of streams from the source of its locked release, without the tests that `cut.txt` lists,
//! and replaces TCP's types by those of `tests/tokio`. Takes mini-redis's server, and replaces TCP's types by
//! midplane's. Generates the code of the gRPC service of the tests.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

const STD: &[(&str, &str)] =
    &[("use std::{net, thread};", "use crate::blocking as net; use std::thread;")];
const UNIX: (&str, &str) = ("UnixStream::connect(", "crate::net::connect_path(");

/// tokio's files, and replacements in addition to `tokio::net`; each must occur.
const FILES: &[(&str, &[(&str, &str)])] = &[
    ("buffered", &[("std::net::TcpStream", "crate::blocking::TcpStream")]),
    ("duplex_stream", &[("tokio::io::duplex", "crate::net::duplex")]),
    ("io_copy_bidirectional", &[]),
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
    mini_redis(&out);
    let tests = source("tokio").join("tests");
    let cuts = fs::read_to_string("cut.txt").expect("the list of cut tests");
    let cuts = cuts.lines().filter(|line| !line.trim().is_empty() && !line.starts_with('#'));
    let mut cuts: BTreeSet<&str> = cuts.filter_map(|line| line.split_whitespace().next()).collect();
    let (mut root, mut names) = (String::new(), String::new());
    for (name, swaps) in FILES {
        let text = swapped(&tests.join(format!("{name}.rs")), swaps);
        let text = text.replace("tokio::net::", "crate::net::");
        let mut file = syn::parse_file(&text).expect("tokio's tests parse");
        list(&mut names, name, &file);
        file.items.retain(|item| match item {
            syn::Item::Fn(item) => !cuts.remove(format!("{name}::{}", item.sig.ident).as_str()),
            _ => true,
        });
        let path = out.join(format!("{name}.rs"));
        fs::write(&path, prettyplease::unparse(&file)).expect("room for a file");
        writeln!(root, "#[allow(warnings)]\n#[path = {path:?}]\nmod {name};").expect("text");
    }
    cuts.retain(|cut| {
        let Some(name) = cut.strip_suffix("::*") else { return true };
        let text = swapped(&tests.join(format!("{name}.rs")), &[]);
        list(&mut names, name, &syn::parse_file(&text).expect("tokio's tests parse"));
        false
    });
    assert!(cuts.is_empty(), "cut.txt lists what is not among tokio's tests: {cuts:?}");
    fs::write(out.join("tokio.rs"), root).expect("room for a file");
    fs::write(out.join("tokio_tests.txt"), names).expect("room for a file");
}

/// Lists the tests of a file for the test of their documentation.
fn list(names: &mut String, name: &str, file: &syn::File) {
    let is_test = |attribute: &syn::Attribute| {
        attribute.path().segments.last().is_some_and(|last| last.ident == "test")
    };
    for item in &file.items {
        if let syn::Item::Fn(item) = item
            && item.attrs.iter().any(is_test)
        {
            writeln!(names, "{name} {}", item.sig.ident).expect("text");
        }
    }
}

/// Writes mini-redis's server as a module that listens with a node's listener.
fn mini_redis(out: &Path) {
    let source = source("mini-redis").join("src");
    let out = out.join("mini_redis");
    let swap = |path: &Path| {
        let swaps: &[_] = match path.to_str() {
            Some("server.rs") => &[(
                "use tokio::net::{TcpListener, TcpStream};",
                "use midplane::{Listener as TcpListener, Stream as TcpStream};",
            )],
            Some("connection.rs") => {
                &[("use tokio::net::TcpStream;", "use midplane::Stream as TcpStream;")]
            }
            _ => &[],
        };
        let text = swapped(&source.join(path), swaps).replace("crate::", "crate::mini_redis::");
        let into = out.join(path);
        fs::create_dir_all(into.parent().expect("a folder")).expect("room for a folder");
        let mut file = syn::parse_file(&text).expect("mini-redis parses");
        // The tests use its published clients.
        let is_client = |name: &syn::Ident| {
            ["blocking_client", "buffer", "client"].iter().any(|client| name == client)
        };
        file.attrs.clear();
        file.items.retain(|item| match item {
            syn::Item::Mod(module) => !is_client(&module.ident),
            syn::Item::Use(item) => match &item.tree {
                syn::UseTree::Path(path) => !is_client(&path.ident),
                _ => true,
            },
            _ => true,
        });
        fs::write(into, prettyplease::unparse(&file)).expect("room for a file");
    };
    ["lib.rs", "connection.rs", "db.rs", "frame.rs", "parse.rs", "server.rs", "shutdown.rs"]
        .iter()
        .for_each(|name| swap(Path::new(name)));
    for file in fs::read_dir(source.join("cmd")).expect("its commands") {
        let name = file.expect("a file").file_name();
        swap(&Path::new("cmd").join(name));
    }
    let root = format!("#[allow(warnings)]\n#[path = {:?}]\nmod mini_redis;\n", out.join("lib.rs"));
    fs::write(out.with_extension("rs"), root).expect("room for a file");
}

fn swapped(path: &Path, swaps: &[(&str, &str)]) -> String {
    let mut text = fs::read_to_string(path).expect("the published package has the file");
    for (from, to) in swaps {
        assert!(text.contains(from), "{from:?} is not in {}", path.display());
        text = text.replace(from, to);
    }
    text
}

/// Returns the source folder of a dependency, in the locked release.
fn source(name: &str) -> PathBuf {
    let cargo = env::var_os("CARGO").expect("cargo sets it");
    let target = env::var("TARGET").expect("cargo sets it");
    let arguments = ["metadata", "--format-version", "1", "--locked", "--offline"];
    let asked = Command::new(cargo)
        .args(arguments)
        // Dependencies of other platforms are not downloaded.
        .args(["--filter-platform", &target])
        .output()
        .expect("cargo runs");
    assert!(asked.status.success(), "{}", String::from_utf8_lossy(&asked.stderr));
    let metadata: serde_json::Value = serde_json::from_slice(&asked.stdout).expect("metadata");
    let packages = metadata["packages"].as_array().expect("a list of packages");
    let package = packages.iter().find(|package| package["name"] == name);
    let manifest = package.and_then(|package| package["manifest_path"].as_str());
    Path::new(manifest.expect("it is a dependency")).parent().expect("a folder").to_owned()
}

/// Generates a service with each kind of method; its messages are in `src/grpc.rs`.
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
