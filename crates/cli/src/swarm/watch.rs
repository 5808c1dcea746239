//! Writes the run of one seed to files for Wireshark and Perfetto.

use std::fs::File;
use std::io::BufWriter;
use std::path::Path;

use midplane::simhw::trace::{PcapngWriter, PerfettoWriter, Record};

use crate::swarm::Arguments;
use crate::swarm::plan::Plan;
use crate::swarm::run::Observer;

fn create(path: &Path) -> Result<BufWriter<File>, String> {
    let file = File::create(path);
    file.map(BufWriter::new).map_err(|error| format!("{}: {error}", path.display()))
}

/// Creates the files of `--pcapng` and `--perfetto`, and returns their writer; `None` if neither is given.
///
/// # Errors
/// One line that names a file that cannot be created.
pub(crate) fn observer(arguments: &Arguments, seed: u64) -> Result<Option<Observer>, String> {
    let topology = Plan::new(seed).topology;
    let mut frames = match &arguments.pcapng {
        Some(path) => {
            let writer = PcapngWriter::new(create(path)?, &topology);
            Some(writer.map_err(|error| format!("{}: {error}", path.display()))?)
        }
        None => None,
    };
    let mut tracks = match &arguments.perfetto {
        Some(path) => Some(PerfettoWriter::new(create(path)?, &topology)),
        None => None,
    };
    if frames.is_none() && tracks.is_none() {
        return Ok(None);
    }
    Ok(Some(Box::new(move |record: &Record<'_>| {
        let wrote = frames.as_mut().map_or(Ok(()), |writer| writer.record(record));
        let traced = tracks.as_mut().map_or(Ok(()), |writer| writer.record(record));
        wrote.and(traced).expect("the file takes what is written");
    })))
}
