//! Transfers images of processes between hosts: each file as its name, then its bytes in bounded parts. The
//! connection's flow control makes the sender wait for the receiver's disk.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use bytes::Bytes;
use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};

use super::criu;
use super::link::{Frame, Receiver, Sender, Stream};
use crate::checkpoint::Part;

/// Most bytes of a file that one frame carries.
const PART_BYTES: usize = 256 << 10;
/// Most files of one host's ranks, and most bytes of a file's name.
const MOST_FILES: usize = 1 << 20;
const NAME_BYTES: usize = 64;

/// Messages between the data of files.
#[derive(Debug, Serialize, Deserialize)]
enum Note {
    /// All processes are dumped and may continue.
    Dumped,
    /// The bytes of this file of a rank follow.
    File { rank: u16, name: String },
    /// No more files follow.
    End,
    /// The images, or the rest of them, can't be sent, for this reason.
    Failed(String),
}

/// Reports that the processes are dumped.
pub(super) async fn send_dumped(sender: &mut Sender) -> Result<(), String> {
    say(sender, &Note::Dumped).await
}

/// Reports why there are no images.
pub(super) async fn send_failure(sender: &mut Sender, why: String) {
    // If the connection has ended, the root has already given the images up.
    let _ = say(sender, &Note::Failed(why)).await;
}

async fn say(sender: &mut Sender, note: &Note) -> Result<(), String> {
    sender.send(&Frame::message(note)).await.map_err(|error| format!("the connection: {error}"))
}

/// Returns the name of a rank's file, relative to the folder of all ranks.
fn part_name(rank: u16, name: &str) -> String {
    format!("rank-{rank}/{name}")
}

/// Returns the ranks and names of all files of these ranks in a folder, without CRIU's logs.
pub(super) fn list(
    folder: &Path,
    ranks: impl Iterator<Item = u16>,
) -> Result<Vec<(u16, String)>, String> {
    let mut all = Vec::new();
    for rank in ranks {
        let folder = criu::of_rank(folder, rank);
        let failed = |error: std::io::Error| format!("{}: {error}", folder.display());
        for entry in fs::read_dir(&folder).map_err(failed)? {
            let name = entry.map_err(failed)?.file_name().to_string_lossy().into_owned();
            if name != criu::LOG {
                all.push((rank, name));
            }
        }
    }
    Ok(all)
}

/// Sends files of a folder. Checks each against its entry in `parts`, if there is one.
///
/// # Errors
/// The reason, which is also sent to the receiver.
pub(super) async fn send(
    sender: &mut Sender,
    folder: &Path,
    files: &[(u16, String)],
    parts: Option<&[Part]>,
) -> Result<(), String> {
    for (rank, name) in files {
        let sent = send_file(sender, folder, (*rank, name)).await;
        let fits = sent.and_then(|sent| {
            let stated = parts.and_then(|parts| parts.iter().find(|part| part.name == sent.name));
            match stated.and_then(|stated| sent.differs_from(stated)) {
                None => Ok(()),
                Some(how) => Err(format!("{}: {how}", folder.join(&sent.name).display())),
            }
        });
        if let Err(why) = fits {
            send_failure(sender, why.clone()).await;
            return Err(why);
        }
    }
    say(sender, &Note::End).await
}

async fn send_file(
    sender: &mut Sender,
    folder: &Path,
    (rank, name): (u16, &str),
) -> Result<Part, String> {
    let path = folder.join(part_name(rank, name));
    let failed = |error: std::io::Error| format!("{}: {error}", path.display());
    let mut file = open(&path)?;
    say(sender, &Note::File { rank, name: name.into() }).await?;
    let (mut hasher, mut length) = (crc32fast::Hasher::new(), 0);
    let mut buffer = vec![0; PART_BYTES];
    loop {
        let read = file.read(&mut buffer).map_err(failed)?;
        if read == 0 {
            break;
        }
        hasher.update(&buffer[..read]);
        length += read as u64;
        let bytes = Bytes::copy_from_slice(&buffer[..read]);
        let frame = Frame::Data { rank, stream: Stream::Output, bytes };
        sender.send(&frame).await.map_err(|error| format!("the connection: {error}"))?;
    }
    Ok(Part { name: part_name(rank, name), bytes: length, crc32: hasher.finalize() })
}

/// Opens a file of images. It must be this user's own and no symbolic link, because CRIU obeys the users and rights in
/// it.
fn open(path: &Path) -> Result<File, String> {
    let failed = |error: std::io::Error| format!("{}: {error}", path.display());
    let flags = OFlags::NOFOLLOW.bits() as i32;
    let file = File::options().read(true).custom_flags(flags).open(path).map_err(failed)?;
    check_owner(path, &file.metadata().map_err(failed)?)?;
    Ok(file)
}

/// Refuses a file or folder that other users may have written.
pub(super) fn check_owner(path: &Path, metadata: &fs::Metadata) -> Result<(), String> {
    let own = rustix::process::geteuid().as_raw();
    if metadata.uid() == own && metadata.mode() & 0o022 == 0 {
        return Ok(());
    }
    Err(format!(
        "{}: others than user {own} may have written it, and images of processes say which users they run as: restore \
         only what only root could write",
        path.display()
    ))
}

/// Receives files of these ranks into a folder until the sender reports the end. Calls `dumped` once the processes are
/// dumped.
///
/// # Errors
/// The sender's reason, or why its files can't be written. Some files may remain in the folder then.
pub(super) async fn receive(
    receiver: &mut Receiver,
    folder: &Path,
    ranks: &[u16],
    mut dumped: impl FnMut(),
) -> Result<Vec<Part>, String> {
    for rank in ranks {
        criu::create(&criu::of_rank(folder, *rank))?;
    }
    let (mut parts, mut open) = (Vec::new(), None::<Incoming>);
    loop {
        let frame = receiver.receive().await.map_err(|error| format!("the connection: {error}"))?;
        let frame = frame.ok_or("the connection ended before all images had arrived")?;
        if let Frame::Data { bytes, .. } = &frame {
            open.as_mut().ok_or("received bytes of no file")?.add(bytes)?;
            continue;
        }
        let note = frame.parse::<Note>().ok_or("received a message that is not about images")?;
        if let Some(incoming) = open.take() {
            parts.push(incoming.finish()?);
        }
        match note {
            Note::Dumped => dumped(),
            Note::Failed(why) => return Err(why),
            Note::End => return Ok(parts),
            Note::File { rank, name } if is_name(&name) && ranks.contains(&rank) => {
                if parts.len() == MOST_FILES {
                    return Err(format!("there are more than {MOST_FILES} files"));
                }
                open = Some(Incoming::create(folder, part_name(rank, &name))?);
            }
            Note::File { rank, name } => {
                return Err(format!("{name:?} of rank {rank} is no file of images"));
            }
        }
    }
}

/// Returns whether this is the plain name of a file: without slashes, and not beginning with a dot.
fn is_name(name: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    !name.starts_with('.') && (1..=NAME_BYTES).contains(&name.len()) && name.bytes().all(fits)
}

/// A file that is being received, with its checksum so far.
struct Incoming {
    path: std::path::PathBuf,
    file: File,
    hasher: crc32fast::Hasher,
    part: Part,
}

impl Incoming {
    fn create(folder: &Path, name: String) -> Result<Self, String> {
        let path = folder.join(&name);
        let file = File::options().write(true).create_new(true).mode(0o600).open(&path);
        let file = file.map_err(|error| format!("{}: {error}", path.display()))?;
        let part = Part { name, bytes: 0, crc32: 0 };
        Ok(Self { path, file, hasher: crc32fast::Hasher::new(), part })
    }

    fn add(&mut self, bytes: &[u8]) -> Result<(), String> {
        self.hasher.update(bytes);
        self.part.bytes += bytes.len() as u64;
        let written = self.file.write_all(bytes);
        written.map_err(|error| format!("{}: {error}", self.path.display()))
    }

    fn finish(self) -> Result<Part, String> {
        let synced = self.file.sync_data();
        synced.map_err(|error| format!("{}: {error}", self.path.display()))?;
        Ok(Part { crc32: self.hasher.finalize(), ..self.part })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::live::link;

    fn runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
    }

    #[test]
    fn files_arrive_as_they_were_sent() {
        let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        for (rank, length) in [(0, 3 * PART_BYTES + 1), (2, 0)] {
            let folder = criu::of_rank(from.path(), rank);
            criu::create(&folder).unwrap();
            let bytes: Vec<u8> = (0..length).map(|at| (at % 251) as u8).collect();
            fs::write(folder.join("pages-1.img"), bytes).unwrap();
            fs::write(folder.join(criu::LOG), "notes").unwrap();
        }
        let parts = runtime().block_on(async {
            let (ours, theirs) = tokio::net::UnixStream::pair().unwrap();
            let ((mut sender, _), (_, mut receiver)) = (link::local(ours), link::local(theirs));
            let files = list(from.path(), [0, 2].into_iter()).unwrap();
            let sending = async {
                send_dumped(&mut sender).await.unwrap();
                send(&mut sender, from.path(), &files, None).await.unwrap();
            };
            let mut dumped = 0;
            let receiving = receive(&mut receiver, to.path(), &[0, 2], || dumped += 1);
            let ((), parts) = tokio::join!(sending, receiving);
            assert_eq!(dumped, 1);
            parts.unwrap()
        });
        assert_eq!(parts.len(), 2);
        for part in parts {
            let bytes = fs::read(to.path().join(&part.name)).unwrap();
            assert_eq!(bytes, fs::read(from.path().join(&part.name)).unwrap());
            assert_eq!((bytes.len() as u64, crc32fast::hash(&bytes)), (part.bytes, part.crc32));
        }
    }

    /// Sends these notes to a receiver of rank 0, and returns its error.
    fn refused(notes: &[Note]) -> String {
        let to = tempfile::tempdir().unwrap();
        runtime().block_on(async {
            let (ours, theirs) = tokio::net::UnixStream::pair().unwrap();
            let ((mut sender, _), (_, mut receiver)) = (link::local(ours), link::local(theirs));
            for note in notes {
                say(&mut sender, note).await.unwrap();
            }
            drop(sender);
            receive(&mut receiver, to.path(), &[0], || ()).await.unwrap_err()
        })
    }

    #[test]
    fn a_sender_writes_no_file_but_those_of_its_ranks() {
        let file = |rank, name: &str| Note::File { rank, name: name.into() };
        for name in ["../manifest.json", "/etc/passwd", "", ".", "..", "a/b", "a\0b"] {
            assert!(refused(&[file(0, name)]).contains("no file of images"), "{name:?}");
        }
        assert!(refused(&[file(1, "a.img")]).contains("of rank 1 is no file"));
        let twice = refused(&[file(0, "a.img"), file(0, "a.img"), Note::End]);
        assert!(twice.contains("a.img: File exists"), "{twice}");
        let early = refused(&[Note::Dumped, file(0, "a.img")]);
        assert!(early.contains("ended before all images"), "{early}");
        assert_eq!(refused(&[Note::Failed("no disk".into())]), "no disk");
    }

    #[test]
    fn a_file_that_is_a_link_or_that_others_may_write_is_not_restored() {
        let folder = tempfile::tempdir().unwrap();
        let (file, link) = (folder.path().join("a.img"), folder.path().join("b.img"));
        fs::write(&file, "x").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        assert!(open(&file).is_ok() && open(&link).is_err());
        fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o666)).unwrap();
        assert!(open(&file).unwrap_err().contains("may have written it"));
    }
}
