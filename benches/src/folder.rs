//! Folders for the files of one run.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, Once, PoisonError};

use midplane_kit::processes::until_asked;
use tempfile::TempDir;

/// The folders that exist now.
static FOLDERS: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());
static WATCH: Once = Once::new();
/// The exit code after a signal, as shells report an interrupt.
const STOPPED: i32 = 130;

/// A folder in the temporary directory. It is removed when this is dropped, and when Ctrl-C or SIGTERM ends the
/// process.
#[derive(Debug)]
pub struct Folder(TempDir);

impl Folder {
    /// Creates a folder that only this user can read.
    ///
    /// # Errors
    /// The system's.
    pub fn create() -> io::Result<Self> {
        WATCH.call_once(|| drop(std::thread::spawn(watch)));
        let folder = tempfile::tempdir()?;
        with_folders(|folders| folders.push(folder.path().to_owned()));
        Ok(Self(folder))
    }

    /// Returns the folder's path.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        with_folders(|folders| folders.retain(|path| path != self.0.path()));
    }
}

fn with_folders<T>(work: impl FnOnce(&mut Vec<PathBuf>) -> T) -> T {
    work(&mut FOLDERS.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Waits for a signal, removes all folders, and ends the process.
fn watch() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    // Without a runtime, a signal ends the process at once.
    let Ok(runtime) = runtime else { return };
    runtime.block_on(until_asked(None));
    with_folders(|folders| {
        for path in folders.iter() {
            let _ = std::fs::remove_dir_all(path);
        }
        std::process::exit(STOPPED)
    })
}
