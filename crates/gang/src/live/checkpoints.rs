//! Checkpoints on the root's disk: read and written on separate threads.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::sync::{mpsc, oneshot};

use super::collections;
use super::event::Event;
use super::priority;
use super::rights::{Places, Users};
use super::root_folder::RootFolder;
use crate::checkpoint::{Checkpoint, IMAGES, Manifest};
use crate::node_core::message::{Program, Request};
use crate::node_core::user::{Caller, User};
use crate::node_core::{Contents, Input, Read, Write};

/// Most checkpoints of one foreign user that are read or written at a time, each on its own thread.
const MOST: usize = 4;

fn path(folder: &[u8]) -> PathBuf {
    PathBuf::from(OsString::from_vec(folder.to_vec()))
}

/// Reads and writes checkpoints with their users' rights.
#[derive(Clone, Debug)]
pub(super) struct Checkpoints {
    users: Users,
    places: Places,
    events: mpsc::UnboundedSender<Event>,
}

impl Checkpoints {
    pub(super) fn new(users: Users, events: mpsc::UnboundedSender<Event>) -> Self {
        Self { users, places: Places::default(), events }
    }

    /// Runs `work` with a user's rights on a new thread, and then sends `event` with its result. If the user's file
    /// system hangs, only that thread hangs, not the daemon.
    fn with_rights_of<T: Send + 'static>(
        &self,
        user: User,
        work: impl FnOnce(&Users) -> Result<T, String> + Send + 'static,
        event: impl FnOnce(Result<T, String>) -> Event + Send + 'static,
    ) {
        let Self { users, places, events } = self.clone();
        let place = match users.is_own(user.uid) {
            true => Some(Arc::default()),
            false => places.reserve(user.uid, MOST),
        };
        let (result, done) = oneshot::channel();
        let started = priority::spawn(move || {
            let done = match &place {
                None => Err(format!("{MOST} checkpoints of user {user} are being read or written")),
                Some(_) => users.rights(&user).and_then(|rights| {
                    let done = rights.run(|| work(&users));
                    done.map_err(|error| format!("the rights of user {user}: {error}"))?
                }),
            };
            let _ = result.send(done);
        });
        tokio::spawn(async move {
            let done = match started {
                Ok(()) => done.await.unwrap_or_else(|_| Err("its thread has panicked".into())),
                Err(why) => Err(why),
            };
            let _ = events.send(event(done));
        });
    }

    /// Tests whether a caller's checkpoint can be written to a folder, then sends [`Event::Checked`] with the request.
    pub(super) fn check(&self, caller: Caller, folder: &[u8], request: Request) {
        let folder = path(folder);
        let work = move |_: &Users| match Checkpoint::is_at(&folder) {
            true => Err(format!("{}: a checkpoint is there", folder.display())),
            false => Ok(()),
        };
        self.with_rights_of(caller.user.clone(), work, |done| {
            Event::Checked(caller, done.map(|()| request))
        });
    }

    /// Writes a checkpoint with the rights of the requesting user, then sends [`Input::Written`].
    pub(super) fn write(&self, write: Write) {
        let Write { job, client, checkpoint, folder, user, .. } = write;
        let work = move |_: &Users| {
            let folder = path(&folder);
            let is_new = !folder.exists();
            let _locked = collections::lock(&folder)?;
            let written = checkpoint.write_to(&folder).map_err(|error| error.to_string());
            if written.is_err() && is_new {
                // Fails if the folder has other files meanwhile.
                let _ = std::fs::remove_dir(&folder);
            }
            written
        };
        self.with_rights_of(user, work, move |done| {
            Event::Core(Input::Written(job, client, done.map(|()| 0)))
        });
    }

    /// Reads and checks a checkpoint of at most `most` bytes with the caller's rights, then sends [`Input::Read`].
    pub(super) fn read(&self, (caller, weight): (Caller, u8), folder: &[u8], most: u64) {
        let (folder, is_root) = (path(folder), caller.user.uid == 0);
        let work = move |users: &Users| {
            if !(users.has_all() && is_root) {
                return match manifest(&folder)? {
                    it if it.format == IMAGES => Err(images_are_for_root(&folder)),
                    it => read_from(it, &folder, most),
                };
            }
            let opened = RootFolder::open(&folder)?;
            let read = manifest(opened.path()).and_then(|it| match it.format {
                IMAGES => read_images(opened.path(), &folder),
                _ => read_from(it, opened.path(), most),
            });
            read.map_err(|why| opened.explain(&why))
        };
        self.with_rights_of(caller.user.clone(), work, move |read| {
            Event::Core(Input::Read(Box::new(Read { caller, weight, read })))
        });
    }
}

fn images_are_for_root(folder: &Path) -> String {
    format!(
        "{}: it has images of processes, which say which users these run as: only root restores them, by a daemon of root",
        folder.display()
    )
}

/// Parses the program of a checkpoint.
fn program_of(folder: &Path, json: &str) -> Result<Program, String> {
    Program::from_json(json).map_err(|error| format!("{}: its program: {error}", folder.display()))
}

/// Reads the manifest in an open folder. The images are read later, from `name`.
fn read_images(folder: &Path, name: &Path) -> Result<(Program, Contents), String> {
    let manifest = collections::read(folder)?;
    let folder_bytes = name.as_os_str().as_encoded_bytes().to_vec();
    let contents = Contents::Images(manifest.ranks as u16, folder_bytes);
    Ok((program_of(folder, &manifest.program)?, contents))
}

fn manifest(folder: &Path) -> Result<Manifest, String> {
    Manifest::read_from(folder).map_err(|error| error.to_string())
}

/// Reads the parts of a checkpoint, unless they exceed the memory limit.
fn read_from(manifest: Manifest, folder: &Path, most: u64) -> Result<(Program, Contents), String> {
    let bytes = manifest.parts.iter().map(|part| part.bytes).fold(0, u64::saturating_add);
    if bytes > most {
        return Err(format!(
            "{}: has {bytes} bytes, more than the {most} that the root may hold of a checkpoint; start `midplane gang \
             daemon` with a larger --checkpoint-mib",
            folder.display()
        ));
    }
    let checkpoint = manifest.read_parts(folder).map_err(|error| error.to_string())?;
    Ok((program_of(folder, &checkpoint.program)?, Contents::States(checkpoint)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::{FORMAT, Part};
    use crate::names::{Epoch, JobId};

    /// Regression: the limit was compared with the sizes of the folder's entries. Links, and files that grew, exceeded it.
    #[test]
    fn a_checkpoint_that_states_more_bytes_than_the_limit_is_not_read() {
        let parts = [60, 40].map(|bytes| Part { name: "any".into(), bytes, crc32: 0 }).into();
        let (format, job, epoch, program) = (FORMAT, JobId(1), Epoch(1), String::new());
        let manifest = Manifest { format, job, epoch, ranks: 1, program, parts };
        let refusal = |most| read_from(manifest.clone(), Path::new("/nowhere"), most).unwrap_err();
        assert!(refusal(99).contains("100 bytes, more than the 99"));
        assert!(refusal(100).contains("its parts do not match"));
    }
}
