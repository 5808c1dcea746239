//! Checkpoints on disk: a job's cut and its processes' states, from which the job can be restored on any hosts.
//!
//! A checkpoint is a folder. Its parts are written first. The manifest lists each part with its length and checksum;
//! it is written under another name, and renamed last. A folder without a manifest is no checkpoint, so an incomplete
//! checkpoint counts as none after its host has died.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::context::{NetworkContext, ReadError};
use crate::names::{Epoch, JobId};

/// The format of states that ranks have sent, which this build writes and reads.
pub(crate) const FORMAT: u16 = 3;
/// The format of images of processes, which the module `live` writes and reads.
#[cfg_attr(not(feature = "live"), expect(dead_code, reason = "only real processes have images"))]
pub(crate) const IMAGES: u16 = 2;
pub(crate) const MANIFEST: &str = "manifest.json";
const NETWORK: &str = "network.bin";
/// Most bytes of a manifest: its program has at most a message between daemons, 8 MiB, and JSON may write a byte as up to 7 bytes.
const MANIFEST_BYTES: u64 = 64 << 20;

/// A job's state at one cut.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Checkpoint {
    /// The contents of the job's channels.
    pub network: NetworkContext,
    /// The states of the processes, by rank, in the program's own format.
    pub processes: Vec<Vec<u8>>,
    /// The job's program and options, in a format of the program that writes the checkpoint.
    pub program: String,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Manifest {
    pub(crate) format: u16,
    pub(crate) job: JobId,
    pub(crate) epoch: Epoch,
    pub(crate) ranks: usize,
    pub(crate) program: String,
    pub(crate) parts: Vec<Part>,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Part {
    pub(crate) name: String,
    pub(crate) bytes: u64,
    pub(crate) crc32: u32,
}

/// An error of writing or reading a [`Checkpoint`].
#[derive(Debug, Error)]
#[error("{}: {problem}", path.display())]
pub struct CheckpointError {
    /// The path of the file or folder.
    pub path: PathBuf,
    /// The problem with it.
    pub problem: CheckpointProblem,
}

/// Problems of a file or folder of a [`Checkpoint`].
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum CheckpointProblem {
    /// A file could not be read or written.
    #[error("{0}")]
    File(io::Error),
    /// The folder has no manifest: it is no checkpoint, or an incomplete one.
    #[error("no checkpoint here, or one that was never finished; name the folder of another")]
    Unfinished,
    /// The manifest can't be parsed.
    #[error("{0}")]
    Manifest(serde_json::Error),
    /// The checkpoint was written in this other format.
    #[error("format {0}; this build reads format {FORMAT}: restore it with the build that made it")]
    Format(u16),
    /// The length or checksum of a part differs from those in the manifest.
    #[error("{0}")]
    Part(String),
    /// The part of the channels can't be parsed.
    #[error("{0}")]
    Network(ReadError),
    /// The manifest is inconsistent with its parts.
    #[error("{0}")]
    Contradiction(&'static str),
}

impl CheckpointProblem {
    fn at(self, path: impl Into<PathBuf>) -> CheckpointError {
        CheckpointError { path: path.into(), problem: self }
    }
}

impl Part {
    /// Describes how this part differs from its entry in a manifest; `None` if it does not.
    pub(crate) fn differs_from(&self, stated: &Self) -> Option<String> {
        let Self { bytes, crc32, .. } = stated;
        ((self.bytes, self.crc32) != (*bytes, *crc32)).then(|| {
            let (found, found_crc) = (self.bytes, self.crc32);
            format!("{found} bytes with checksum {found_crc:08x}, not {bytes} with {crc32:08x}")
        })
    }
}

fn at(path: &Path) -> impl FnOnce(io::Error) -> CheckpointError + '_ {
    move |error| CheckpointProblem::File(error).at(path)
}

/// Writes a file that only its owner can access, and waits until it is on disk. Removes an existing file or link of
/// this name. If it fails, no file has the name.
pub(crate) fn write_anew(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut options = File::options();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = options.open(path)?;
    let written = file.write_all(bytes).and_then(|()| file.sync_all());
    written.inspect_err(|_| drop(fs::remove_file(path)))
}

fn write(path: &Path, bytes: &[u8]) -> Result<(), CheckpointError> {
    write_anew(path, bytes).map_err(at(path))
}

/// Reads a regular file, but at most one byte more than `most`.
fn read(path: &Path, most: u64) -> Result<Vec<u8>, CheckpointError> {
    let file = File::open(path).map_err(at(path))?;
    if !file.metadata().map_err(at(path))?.is_file() {
        return Err(CheckpointProblem::Contradiction("it is no regular file").at(path));
    }
    let mut bytes = Vec::new();
    file.take(most.saturating_add(1)).read_to_end(&mut bytes).map_err(at(path))?;
    Ok(bytes)
}

fn process_name(rank: usize) -> String {
    format!("process-{rank}.bin")
}

impl Manifest {
    /// Writes the manifest to a folder that has all parts, which thereby becomes a checkpoint.
    pub(crate) fn write_to(&self, folder: &Path) -> Result<(), CheckpointError> {
        let manifest = folder.join(MANIFEST);
        let text = serde_json::to_vec_pretty(self).expect("a manifest can be written as JSON");
        is_short(&text, &manifest)?;
        let unfinished = folder.join("manifest.part");
        write(&unfinished, &text)?;
        fs::rename(&unfinished, &manifest)
            .inspect_err(|_| drop(fs::remove_file(&unfinished)))
            .map_err(at(&manifest))?;
        // Makes the renamed entry durable.
        File::open(folder).and_then(|folder| folder.sync_all()).map_err(at(folder))
    }

    /// Reads the manifest of a checkpoint of any format.
    pub(crate) fn read_from(folder: &Path) -> Result<Self, CheckpointError> {
        let path = folder.join(MANIFEST);
        let text = read(&path, MANIFEST_BYTES).map_err(|error| match error.problem {
            CheckpointProblem::File(error) if error.kind() == io::ErrorKind::NotFound => {
                CheckpointProblem::Unfinished.at(folder)
            }
            problem => problem.at(&path),
        })?;
        is_short(&text, &path)?;
        serde_json::from_slice(&text).map_err(|error| CheckpointProblem::Manifest(error).at(path))
    }

    /// Reads the checkpoint of this manifest, and checks all of its parts.
    pub(crate) fn read_parts(self, folder: &Path) -> Result<Checkpoint, CheckpointError> {
        let path = folder.join(MANIFEST);
        if self.format != FORMAT {
            return Err(CheckpointProblem::Format(self.format).at(path));
        }
        let names: Vec<&str> = self.parts.iter().map(|part| part.name.as_str()).collect();
        let expected = (0..self.ranks).map(process_name);
        let expected: Vec<String> =
            std::iter::once(NETWORK.to_owned()).chain(expected).take(names.len() + 1).collect();
        if names != expected {
            let what = "its parts do not match its number of ranks";
            return Err(CheckpointProblem::Contradiction(what).at(path));
        }
        let mut parts = Vec::new();
        for part in &self.parts {
            parts.push(read_part(folder, part)?);
        }
        let mut parts = parts.into_iter();
        let bytes = parts.next().unwrap_or_default();
        let network = NetworkContext::from_bytes(&bytes)
            .map_err(|error| CheckpointProblem::Network(error).at(folder.join(NETWORK)))?;
        let same =
            (network.job, network.epoch, network.ranks.len()) == (self.job, self.epoch, self.ranks);
        if !same {
            let what = "the network's part is of another job, epoch or number of ranks";
            return Err(CheckpointProblem::Contradiction(what).at(path));
        }
        Ok(Checkpoint { network, processes: parts.collect(), program: self.program })
    }
}

impl Checkpoint {
    /// Returns whether a folder contains a checkpoint, intact or damaged.
    #[must_use]
    pub(crate) fn is_at(folder: &Path) -> bool {
        folder.join(MANIFEST).exists()
    }

    /// Writes the checkpoint to a folder. Creates the folder if needed; it must not contain a checkpoint.
    ///
    /// # Errors
    /// [`CheckpointProblem::File`]; the folder then contains no checkpoint, and none of its parts.
    pub fn write_to(&self, folder: &Path) -> Result<(), CheckpointError> {
        fs::create_dir_all(folder).map_err(at(folder))?;
        let manifest = folder.join(MANIFEST);
        if manifest.exists() {
            let error = io::Error::new(io::ErrorKind::AlreadyExists, "a checkpoint is there");
            return Err(at(&manifest)(error));
        }
        let too_large = "the network's context is larger than a gigabyte";
        let network = self.network.to_bytes();
        let network =
            network.map_err(|_| CheckpointProblem::Contradiction(too_large).at(manifest))?;
        let mut parts = Vec::new();
        let states = self.processes.iter().enumerate();
        let states = states.map(|(rank, state)| (process_name(rank), &state[..]));
        let mut all = std::iter::once((NETWORK.to_owned(), &network[..])).chain(states);
        let written: Result<(), CheckpointError> = all.try_for_each(|(name, bytes)| {
            write(&folder.join(&name), bytes)?;
            let (length, crc32) = (bytes.len() as u64, crc32fast::hash(bytes));
            parts.push(Part { name, bytes: length, crc32 });
            Ok(())
        });
        let manifest = Manifest {
            format: FORMAT,
            job: self.network.job,
            epoch: self.network.epoch,
            ranks: self.network.ranks.len(),
            program: self.program.clone(),
            parts,
        };
        let written = written.and_then(|()| manifest.write_to(folder));
        if written.is_err() && !Self::is_at(folder) {
            for part in &manifest.parts {
                let _ = fs::remove_file(folder.join(&part.name));
            }
        }
        written
    }

    /// Reads a checkpoint, and checks all of its parts.
    ///
    /// # Errors
    /// [`CheckpointError`], which names the file.
    pub fn read_from(folder: &Path) -> Result<Self, CheckpointError> {
        Manifest::read_from(folder)?.read_parts(folder)
    }
}

/// Refuses a manifest that is longer than [`MANIFEST_BYTES`].
fn is_short(text: &[u8], path: &Path) -> Result<(), CheckpointError> {
    if text.len() as u64 <= MANIFEST_BYTES {
        return Ok(());
    }
    Err(CheckpointProblem::Contradiction("a manifest has at most 64 MiB").at(path))
}

fn read_part(folder: &Path, part: &Part) -> Result<Vec<u8>, CheckpointError> {
    let path = folder.join(&part.name);
    let bytes = read(&path, part.bytes)?;
    let (name, length) = (part.name.clone(), bytes.len() as u64);
    let found = Part { name, bytes: length, crc32: crc32fast::hash(&bytes) };
    match found.differs_from(part) {
        Some(how) => Err(CheckpointProblem::Part(how).at(path)),
        None => Ok(bytes),
    }
}
