//! Writes a run to files for Wireshark and Perfetto.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::sync::{Arc, Mutex};

use super::{PcapngWriter, PerfettoWriter, Record};
use crate::lock::lock;
use crate::topology::Topology;

type Sink = BufWriter<File>;

/// A handle to the files of a run.
#[derive(Clone, Debug)]
pub struct Recorder(Arc<Mutex<Writers>>);

#[derive(Debug)]
struct Writers {
    frames: Option<PcapngWriter<Sink>>,
    tracks: Option<PerfettoWriter<Sink>>,
    /// First error of a write; nothing is written after it.
    error: Option<io::Error>,
}

impl Recorder {
    /// Creates the files whose path is given.
    ///
    /// # Errors
    /// An error that names the file.
    pub fn create(
        pcapng: Option<&Path>,
        perfetto: Option<&Path>,
        topology: &Topology,
    ) -> io::Result<Self> {
        let create = |path: &Path| File::create(path).map(BufWriter::new);
        let named = |path: &Path, error: io::Error| {
            io::Error::new(error.kind(), format!("{}: {error}", path.display()))
        };
        let frames = pcapng.map(|path| {
            let writer = create(path).and_then(|file| PcapngWriter::new(file, topology));
            writer.map_err(|error| named(path, error))
        });
        let tracks = perfetto.map(|path| {
            let file = create(path).map_err(|error| named(path, error))?;
            io::Result::Ok(PerfettoWriter::new(file, topology))
        });
        let (frames, tracks) = (frames.transpose()?, tracks.transpose()?);
        Ok(Self(Arc::new(Mutex::new(Writers { frames, tracks, error: None }))))
    }

    /// Writes a record to the files.
    pub fn record(&self, record: &Record<'_>) {
        let Writers { frames, tracks, error } = &mut *lock(&self.0);
        if error.is_none() {
            let wrote = frames.as_mut().map_or(Ok(()), |writer| writer.record(record));
            let traced = tracks.as_mut().map_or(Ok(()), |writer| writer.record(record));
            *error = wrote.and(traced).err();
        }
    }

    /// Completes the files; later records are dropped.
    ///
    /// # Errors
    /// The first error of a write.
    pub fn finish(&self) -> io::Result<()> {
        let mut writers = lock(&self.0);
        writers.error.take().map_or(Ok(()), Err)?;
        writers.frames.take().map_or(Ok(()), |writer| writer.into_inner().flush())?;
        writers.tracks.take().map_or(Ok(()), |writer| writer.into_inner().flush())
    }
}
