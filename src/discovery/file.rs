//! Places that a file lists.

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::sync::Mutex;
use tokio::task::{JoinHandle, spawn_blocking};

use super::{Discovery, DiscoveryError, Place};

/// Most bytes of a file of places.
const MOST: u64 = 1 << 20;

/// Returns the places that a file lists: one `HOST:PORT` a line, or `HOST:PORT KEY` with the public key that the node
/// there must prove. `#` begins a comment. The file is read anew with each search, so it may change at any time. It may
/// be empty, and has at most 1 MiB.
///
/// Replace the file by renaming another one over it: a search may otherwise read a half-written file.
#[derive(Clone, Debug)]
pub struct File {
    path: PathBuf,
    /// The read under way: a file system that does not answer blocks one thread, not one for each search.
    reading: Arc<Mutex<Option<Reading>>>,
}

type Reading = JoinHandle<Result<Vec<Place>, DiscoveryError>>;

impl File {
    /// Creates a discovery that returns the places in this file.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), reading: Arc::default() }
    }
}

impl Discovery for File {
    async fn places(&self) -> Result<Vec<Place>, DiscoveryError> {
        let mut reading = self.reading.lock().await;
        if let Some(earlier) = reading.as_mut() {
            // That of a search that did not wait for it.
            let _ = earlier.await;
        }
        let path = self.path.clone();
        // The file may be on a slow or a network file system.
        let places = reading.insert(spawn_blocking(move || read(&path))).await;
        *reading = None;
        places?
    }
}

fn read(path: &Path) -> Result<Vec<Place>, DiscoveryError> {
    let failed =
        |error| format!("{}: {error}; name a file of places that can be read", path.display());
    // Opening a pipe would block until a writer opens it.
    if !std::fs::metadata(path).map_err(failed)?.is_file() {
        return Err(format!("{}: no regular file; name a file of places", path.display()).into());
    }
    let file = std::fs::File::open(path).map_err(failed)?;
    let mut bytes = Vec::new();
    file.take(MOST + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > MOST {
        let text = format!("{}: a file of places has 1 MiB at most; shorten it", path.display());
        return Err(text.into());
    }
    let text = String::from_utf8_lossy(&bytes);
    let mut places = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let entry = line.split('#').next().unwrap_or_default().trim();
        if !entry.is_empty() {
            let wrong = |error| format!("{}: line {number}: {error}", path.display());
            places.push(entry.parse().map_err(wrong)?);
        }
    }
    Ok(places)
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::task::{Context, Waker};

    use proptest::prelude::*;

    use super::*;

    fn file(bytes: &[u8]) -> Result<Vec<Place>, String> {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(bytes).unwrap();
        read(file.path()).map_err(|error| error.to_string())
    }

    #[test]
    fn lines_are_places_and_comments_and_the_first_wrong_one_is_named() {
        let text = "# the cluster\n\n 10.0.0.1:1 # rack 1\n\tb:2\r\n[::1]:3";
        let found = file(text.as_bytes()).unwrap();
        let shown: Vec<_> = found.iter().map(ToString::to_string).collect();
        assert_eq!(shown, ["10.0.0.1:1", "b:2", "[::1]:3"]);
        assert_eq!(file(b"").unwrap(), []);
        let error = file(b"a:1\n# b\nb\nc").unwrap_err();
        assert!(
            error.contains(": line 3: \"b\" is not HOST:PORT or HOST:PORT KEY; name a place"),
            "{error}"
        );
        let error = file(&vec![b'\n'; (MOST + 1) as usize]).unwrap_err();
        assert!(error.contains("1 MiB at most"), "{error}");
        let error = read(Path::new("/nowhere/at/all")).unwrap_err().to_string();
        assert!(error.starts_with("/nowhere/at/all: ") && error.contains("can be read"), "{error}");
        for other in ["/", "/dev/null"] {
            assert!(read(Path::new(other)).unwrap_err().to_string().contains("no regular file"));
        }
    }

    /// Searches at once wait for each other, and none returns an earlier search's places.
    #[test]
    fn searches_at_once_read_the_file_one_after_another() {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        runtime.max_blocking_threads(1).build().unwrap().block_on(search_at_once());
    }

    async fn search_at_once() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "a:1").unwrap();
        let discovery = File::new(file.path());
        let (one, other) = tokio::join!(discovery.places(), discovery.places());
        assert_eq!((one.unwrap().len(), other.unwrap().len()), (1, 1));
        // Dropped while it reads: the only thread is busy.
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let busy = spawn_blocking(move || ended.recv());
        let mut dropped = Box::pin(discovery.places());
        assert!(dropped.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        drop(dropped);
        end.send(()).unwrap();
        busy.await.unwrap().unwrap();
        std::fs::write(file.path(), "a:1\nb:2").unwrap();
        assert_eq!(discovery.places().await.unwrap().len(), 2);
    }

    proptest! {
        #[test]
        fn any_bytes_are_places_or_an_error(bytes: Vec<u8>) {
            if let Err(error) = file(&bytes) {
                prop_assert!(error.contains("line "), "{}", error);
            }
        }
    }
}
