//! Tests libfabric and its providers: opens an endpoint of each.

use std::collections::{BTreeMap, BTreeSet};

use midplane_kit::processes;
use midplane_kit::report::{self, Failure};
use midplane_ofi::endpoint::{Config, Endpoint};
use midplane_ofi::provider::{Choice, Provider, providers, version};

use super::{Row, State};

/// Bytes of the frames of the endpoints: those of a NIC with an MTU of 8 KiB, nearly.
const FRAME_BYTES: usize = 8 << 10;
const PURPOSE: &str =
    "NICs over libfabric: verbs, EFA, Slingshot, Omni-Path, and others without hardware";

/// Returns a row for the library, and one for each provider with reliable datagram endpoints.
pub(super) fn rows() -> Vec<Row> {
    let (major, minor) = match version() {
        Ok(version) => version,
        Err(error) => {
            let cure = "only hardware NICs need it; if a NIC brings its own, name that in MIDPLANE_LIBFABRIC";
            return vec![Row::new("libfabric", (State::No, error.to_string()), PURPOSE, cure)];
        }
    };
    let mut found: BTreeMap<String, (Provider, BTreeSet<String>)> = BTreeMap::new();
    // Errors are those of a library without providers.
    for provider in providers(&Choice::any()).unwrap_or_default() {
        let domain = provider.domain.clone();
        let entry = found.entry(provider.name.clone());
        entry.or_insert_with(|| (provider, BTreeSet::new())).1.insert(domain);
    }
    let state = if found.is_empty() { State::Limited } else { State::Yes };
    let detail = format!("version {major}.{minor}, {} providers", found.len());
    let cure = "install the NIC's provider; `fi_info -t FI_EP_RDM` and FI_LOG_LEVEL=warn say what is missing";
    let mut rows = vec![Row::new("libfabric", (state, detail), PURPOSE, cure)];
    rows.extend(found.values().map(|(provider, domains)| row(provider, domains)));
    rows
}

fn row(provider: &Provider, domains: &BTreeSet<String>) -> Row {
    let domains = domains.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
    let choice = Choice::any().provider(&provider.name).domain(&provider.domain);
    let (state, detail) = match open(&choice) {
        Ok(has_descriptor) => (State::Yes, able(provider, has_descriptor)),
        Err(error) => (State::No, error),
    };
    Row::new(
        "libfabric provider",
        (state, format!("{} on {domains}: {detail}", provider.name)),
        "NICs (`midplane-ofi`), by this name",
        "FI_LOG_LEVEL=warn prints why the provider refuses",
    )
}

/// Opens an endpoint; returns whether it has a descriptor to wait for.
fn open(choice: &Choice) -> Result<bool, String> {
    let config = Config::new(FRAME_BYTES).sends(8).receives(8);
    let opened = processes::run(async {
        let endpoint = Endpoint::open(choice, &config).map_err(Failure::of_run)?;
        Ok(endpoint.has_descriptor())
    });
    opened.map_err(report::text)
}

/// Describes the abilities of a provider.
fn able(provider: &Provider, has_descriptor: bool) -> String {
    let wait = if has_descriptor { "waits on a descriptor" } else { "is polled each millisecond" };
    let source = if provider.has_source { "names senders" } else { "does not name senders" };
    let memory = if provider.registers { "registers memory" } else { "registers no memory" };
    format!("opens, {wait}, {source}, {memory}, copies up to {} bytes at once", provider.inject)
}
