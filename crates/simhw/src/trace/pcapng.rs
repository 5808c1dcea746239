//! Writes a run as a pcapng file: each frame at the end of each link that it passed, and where it was dropped.

use std::borrow::Cow;
use std::io::{self, Write};
use std::time::Duration;

use pcap_file::DataLink;
use pcap_file::PcapError;
use pcap_file::pcapng::PcapNgWriter;
use pcap_file::pcapng::blocks::enhanced_packet::{EnhancedPacketBlock, EnhancedPacketOption};
use pcap_file::pcapng::blocks::interface_description::{
    InterfaceDescriptionBlock, InterfaceDescriptionOption,
};

use super::{Record, TracedFrame};
use crate::time::Instant;
use crate::topology::{End, LinkId, Topology};

/// LINKTYPE_USER0, for private captures; the dissector registers it.
const LINK_TYPE: u32 = 147;
/// Nanoseconds, as an exponent of ten.
const RESOLUTION: u8 = 9;
/// Flags of a packet: inbound and outbound.
const INBOUND: u32 = 1;
const OUTBOUND: u32 = 2;

/// Writes frames with nanosecond timestamps. Each link is an interface, named after its ends. One more
/// interface, `drops`, has the dropped frames, each with its cause as a comment.
#[doc(hidden)]
pub struct PcapngWriter<W: Write> {
    out: PcapNgWriter<W>,
    /// For each link, the flags of its frames.
    flags: Vec<u32>,
    names: Vec<String>,
    bytes: Vec<u8>,
}

impl<W: Write> std::fmt::Debug for PcapngWriter<W> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PcapngWriter").field("links", &self.names).finish_non_exhaustive()
    }
}

fn failed(error: PcapError) -> io::Error {
    match error {
        PcapError::IoError(error) => error,
        other => io::Error::other(other),
    }
}

impl<W: Write> PcapngWriter<W> {
    /// Begins a file for runs on `topology`.
    ///
    /// # Errors
    /// Errors of the underlying writer.
    pub fn new(out: W, topology: &Topology) -> io::Result<Self> {
        let mut writer = Self {
            out: PcapNgWriter::new(out).map_err(failed)?,
            flags: Vec::new(),
            names: Vec::new(),
            bytes: Vec::new(),
        };
        for link in 0..topology.links.len() as u32 {
            let name = topology.link_name(LinkId(link));
            writer.interface(&name)?;
            writer.names.push(name);
            let ends = &topology.links[link as usize];
            writer.flags.push(match (ends.from, ends.to) {
                (End::Nic(_), _) => OUTBOUND,
                (_, End::Nic(_)) => INBOUND,
                _ => 0,
            });
        }
        writer.interface("drops")?;
        Ok(writer)
    }

    fn interface(&mut self, name: &str) -> io::Result<()> {
        let block = InterfaceDescriptionBlock {
            linktype: DataLink::from(LINK_TYPE),
            snaplen: 0,
            options: vec![
                InterfaceDescriptionOption::IfName(Cow::Borrowed(name)),
                InterfaceDescriptionOption::IfTsResol(RESOLUTION),
            ],
        };
        self.out.write_pcapng_block(block).map(drop).map_err(failed)
    }

    /// Writes the frame of a record, if the record has one to write.
    ///
    /// # Errors
    /// Errors of the underlying writer.
    pub fn record(&mut self, record: &Record<'_>) -> io::Result<()> {
        match *record {
            Record::Passed { at, link, frame } => {
                let flags = self.flags.get(link.0 as usize).copied().unwrap_or(0);
                self.frame(at, link.0, frame, EnhancedPacketOption::Flags(flags))
            }
            Record::Dropped { at, cause, link, frame } => {
                let place = link.and_then(|link| self.names.get(link.0 as usize));
                let place = place.map_or("at its NIC", String::as_str);
                let comment = format!("dropped: {cause}; last seen: {place}");
                let drops = self.names.len() as u32;
                self.frame(at, drops, frame, EnhancedPacketOption::Comment(comment.into()))
            }
            _ => Ok(()),
        }
    }

    fn frame(
        &mut self,
        at: Instant,
        interface_id: u32,
        frame: TracedFrame<'_>,
        option: EnhancedPacketOption<'_>,
    ) -> io::Result<()> {
        self.bytes.clear();
        self.bytes.extend_from_slice(&frame.header.emit());
        self.bytes.extend_from_slice(frame.payload);
        let block = EnhancedPacketBlock {
            interface_id,
            timestamp: Duration::from_nanos(at.as_nanos()),
            original_len: self.bytes.len() as u32,
            data: Cow::Borrowed(&self.bytes),
            options: vec![option],
        };
        self.out.write_pcapng_block(block).map(drop).map_err(failed)
    }

    /// Returns the underlying writer.
    pub fn into_inner(self) -> W {
        self.out.into_inner()
    }
}
