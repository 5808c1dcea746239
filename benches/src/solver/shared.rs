//! The paper's stack: ranks that read and write Mermera's memory, whose slow writes are conditional sends on Warp
//! (Heddaya and Park 1994, sections 3 and 5.1).
//!
//! A location holds some unknowns of one rank. As in the paper's algorithm, a rank reads the locations of all others,
//! updates its unknowns and writes them; the memory decides which of the writes are sent.

use std::collections::BTreeMap;
use std::ops::Range;

use midplane::simhw::host::Host;
use midplane::simhw::port::Port;
use midplane::warp::memory::{Location, MemoryHandle};

use super::frames;
use super::rank::Parts;
use super::setting::Setting;
use midplane_kit::report::Failure;

/// Most unknowns of a location: with their encoding they fit into a value of 1,024 bytes.
pub const MAX_UNKNOWNS: u16 = 120;

/// A rank's access to the memory.
#[derive(Debug)]
pub struct Shared {
    memory: MemoryHandle<Vec<f64>>,
    /// The port on which this rank asks for the number of received frames.
    counts: Port,
    own: Vec<Range<usize>>,
    /// Locations of the other ranks, by their unknowns, and the number of the last write that was read.
    others: BTreeMap<Location, (Range<usize>, u64)>,
}

/// Returns the unknowns of each location of a rank with the unknowns `range`.
fn locations(range: &Range<usize>, size: usize) -> impl Iterator<Item = Range<usize>> {
    let end = range.end;
    range.clone().step_by(size).map(move |first| first..end.min(first + size))
}

/// Returns the location of `unknowns`: the number of the first.
const fn location(unknowns: &Range<usize>) -> Location {
    unknowns.start as Location
}

impl Shared {
    /// Opens the memory of `host`, for a rank with the unknowns of number `node` in `ranges`.
    pub fn open(
        host: &impl Host,
        setting: &Setting,
        ranges: &[Range<usize>],
    ) -> Result<Self, Failure> {
        let memory = MemoryHandle::open(host).map_err(Failure::of_run)?;
        let counts = host.open_port().map_err(Failure::of_run)?;
        let size = usize::from(setting.buffer.min(MAX_UNKNOWNS));
        let own = host.node().index();
        let others = (0..).zip(ranges).filter(|(rank, _)| *rank != own);
        let others = others.flat_map(|(_, range)| locations(range, size));
        let others = others.map(|unknowns| (location(&unknowns), (unknowns, 0))).collect();
        Ok(Self { memory, counts, own: locations(&ranges[own], size).collect(), others })
    }

    /// Reads all locations of other ranks into `part`. Returns the number of values that were new.
    pub async fn read(&mut self, part: &mut Parts) -> Result<u64, Failure> {
        let mut count = 0;
        for (at, (unknowns, last)) in &mut self.others {
            let seen = self.memory.read_origin(*at).await.map_err(Failure::of_run)?;
            let Some((values, origin)) = seen.filter(|(_, origin)| origin.order > *last) else {
                continue;
            };
            *last = origin.order;
            count += values.len() as u64;
            for (i, value) in unknowns.clone().zip(values) {
                part.handle_value(i, value);
            }
        }
        Ok(count)
    }

    /// Returns the number of frames that the memory of this node has received.
    pub async fn frames(&mut self) -> Result<u64, Failure> {
        frames::count(&mut self.counts).await
    }

    /// Writes the locations whose last unknown is among `computed`.
    pub async fn write(&mut self, computed: &[usize], x: &[f64]) -> Result<(), Failure> {
        for unknowns in &self.own {
            if computed.contains(&(unknowns.end - 1)) {
                let values = x[unknowns.clone()].to_vec();
                let write = self.memory.slow_write(location(unknowns), &values);
                write.await.map_err(Failure::of_run)?;
            }
        }
        Ok(())
    }
}
