//! Tests that the dissector's tables are those of the protocol: kinds of frames, and the extensions that they are for.
//! Tables of one crate are compared in that crate.

#[path = "../docs/wireshark/tables.rs"]
mod tables;

use midplane::gang::GANG;
use midplane::nicvm::admission::CONTROLLED;
use midplane::nicvm::collective::COLLECTIVES;
use midplane::nicvm::coordination::COORDINATION;
use midplane::nicvm::install::INSTALLER;
use midplane::nicvm::memory::MEMORY;
use midplane::nicvm::messages::MESSAGES;
use midplane::nicvm::program::PROGRAMS;
use midplane::simhw::frame::{HEADER_BYTES, Header, MAGIC, VERSION};
use midplane::via::VIA;
use midplane::warp::firmware::WARP;
use midplane::warp::memory::extension::MERMERA;
use tables::{Names, names, table, variant};

const DISSECTOR: &str = include_str!("../docs/wireshark/midplane.lua");

#[test]
fn the_dissector_knows_all_kinds_of_frames() {
    let frame = Header::default().emit();
    let kind = |number: u8| {
        let mut frame = frame;
        frame[2] = number;
        let (header, _) = Header::parse(&frame).ok()?;
        Some((number.into(), variant(&header.kind)))
    };
    let kinds: Names = (0..=u8::MAX).filter_map(kind).collect();
    assert_eq!(table("kinds"), kinds);
}

#[test]
fn the_dissector_knows_all_extensions() {
    let extensions = [
        (MESSAGES.0, "Messages"),
        (COORDINATION.0, "Coordination"),
        (VIA.0, "VIA"),
        (COLLECTIVES.0, "Collectives"),
        (MEMORY.0, "Memory"),
        (INSTALLER.0, "Installer"),
        (PROGRAMS.0, "Programs"),
        (GANG.0, "Gang"),
        (WARP.0, "Warp"),
        (MERMERA.0, "Mermera"),
    ];
    assert_eq!(table("extensions"), names(extensions));
}

#[test]
fn the_dissector_reads_this_version_of_the_header() {
    for line in [
        format!("local HEADER = {HEADER_BYTES}\n"),
        format!("local MAGIC = {MAGIC:#04X}\n"),
        format!("local VERSION = {VERSION}\n"),
        format!("local CONTROLLED = {CONTROLLED:#04X}\n"),
    ] {
        assert!(DISSECTOR.contains(&line), "{line}");
    }
}
