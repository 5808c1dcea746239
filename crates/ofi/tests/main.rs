//! Tests endpoints over the providers of the system's libfabric. Missing providers are skipped, by name.
#![cfg(target_os = "linux")]
#![expect(clippy::print_stderr, reason = "says what is skipped")]

mod endpoints;
mod fabrics;
mod streams;

use midplane_ofi::endpoint::{Config, Endpoint};
use midplane_ofi::provider::{Choice, OpenError};

/// Providers that need no hardware. `midplane` is available if `FI_PROVIDER_PATH` names its folder.
const PROVIDERS: [&str; 7] = [
    "tcp@127.0.0.1",
    "tcp;ofi_rxm@127.0.0.1",
    "net@127.0.0.1",
    "sockets@127.0.0.1",
    "udp;ofi_rxd@127.0.0.1",
    "shm",
    "midplane",
];

/// Runs a test over each available provider, on a runtime of its own.
fn over_each(test: impl AsyncFn(&Choice)) {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let chosen = std::env::var("MIDPLANE_OFI_TESTS").ok();
    for text in PROVIDERS {
        if chosen.as_ref().is_some_and(|chosen| chosen != text) {
            continue;
        }
        let choice: Choice = text.parse().unwrap();
        let opened = runtime.block_on(async { Endpoint::open(&choice, &Config::new(64)) });
        match opened {
            Ok(_) => runtime.block_on(test(&choice)),
            Err(error @ (OpenError::Unavailable(_) | OpenError::NoProvider(_))) => {
                assert!(std::env::var_os("MIDPLANE_LIBFABRIC_TESTS").is_none(), "{text}: {error}");
                eprintln!("skipped: {text}: {error}");
            }
            Err(error) => panic!("{text}: {error}"),
        }
    }
}
