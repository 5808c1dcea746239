//! Checkpoints on the root's disk: written and read on threads of their own.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use tokio::sync::mpsc;

use super::event::Event;
use super::priority;
use crate::checkpoint::Checkpoint;
use crate::node_core::message::Program;
use crate::node_core::{ClientId, Read, Write};

fn path(folder: &[u8]) -> PathBuf {
    PathBuf::from(OsString::from_vec(folder.to_vec()))
}

/// Returns why no checkpoint can be written to a folder; `None` if one can.
pub(super) fn refusal(folder: &[u8]) -> Option<String> {
    let folder = path(folder);
    Checkpoint::is_at(&folder).then(|| format!("{}: a checkpoint is there", folder.display()))
}

/// Writes a checkpoint. [`Event::Written`] follows.
pub(super) fn write(write: Write, events: mpsc::UnboundedSender<Event>) {
    tokio::task::spawn_blocking(move || {
        priority::lower_this_thread();
        let Write { job, checkpoint, folder, .. } = write;
        let written = checkpoint.write_to(&path(&folder)).map_err(|error| error.to_string());
        let _ = events.send(Event::Written(job, written));
    });
}

/// Reads and checks a checkpoint of at most `most` bytes. [`Event::Read`] follows.
pub(super) fn read(
    (client, weight): (ClientId, u8),
    folder: Vec<u8>,
    most: u64,
    events: mpsc::UnboundedSender<Event>,
) {
    tokio::task::spawn_blocking(move || {
        priority::lower_this_thread();
        let read = Read { client, weight, read: read_from(&path(&folder), most) };
        let _ = events.send(Event::Read(Box::new(read)));
    });
}

fn read_from(folder: &Path, most: u64) -> Result<(Program, Checkpoint), String> {
    is_at_most(most, folder)?;
    let checkpoint = Checkpoint::read_from(folder).map_err(|error| error.to_string())?;
    let wrong = |error| format!("{}: its program: {error}", folder.display());
    let program = Program::from_json(&checkpoint.program).map_err(wrong)?;
    Ok((program, checkpoint))
}

/// Refuses a checkpoint that would not fit into memory, before any of it is read.
fn is_at_most(most: u64, folder: &Path) -> Result<(), String> {
    // If the folder can't be read, the reader reports why.
    let files = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let bytes: u64 = files.filter_map(|file| Some(file.metadata().ok()?.len())).sum();
    if bytes <= most {
        return Ok(());
    }
    Err(format!(
        "{}: has {bytes} bytes, more than the {most} that the root may hold of a checkpoint; start `midplane gang daemon` \
         with a larger --checkpoint-mib",
        folder.display()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checkpoint_that_is_longer_than_the_limit_is_not_read() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("process-0.bin"), [0; 100]).unwrap();
        let refused = is_at_most(99, folder.path()).unwrap_err();
        assert!(refused.contains("100 bytes, more than the 99"));
        assert!(is_at_most(100, folder.path()).is_ok());
        assert!(is_at_most(0, Path::new("/nowhere")).is_ok());
    }
}
