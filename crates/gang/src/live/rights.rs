//! Users of this host: which user a client is, and the rights with which a daemon of root acts for that user.
//!
//! A daemon of root starts a job as the user who submitted it, and reads and writes checkpoints with that user's
//! rights. Every other daemon acts for its own user alone. Users are identified by name and number. Their groups come
//! from each host's own user database.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::ffi::OsStr;
use std::io;
use std::os::fd::AsFd;
use std::panic::resume_unwind;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use nix::unistd::{Uid as NixUid, User as Entry, getgrouplist};
use rustix::fs::{FileType, fchown, fstat};
use rustix::process::{Gid, Resource, Rlimit, Uid, geteuid, setrlimit};
use rustix::termios::isatty;
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, set_capabilities, set_thread_groups,
    set_thread_res_gid, set_thread_res_uid,
};
use serde::{Deserialize, Serialize};

use crate::node_core::user::User;

/// The users that a daemon serves.
#[derive(Clone, Debug)]
pub(super) struct Users {
    /// The user that this process runs as.
    own: User,
}

/// Rights of a user on this host: numbers of the user, its group, and all of its groups.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
struct Identity {
    uid: u32,
    gid: u32,
    groups: Vec<u32>,
}

/// The rights of a user's jobs and requests on this host. Empty if they are those of this process.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub(super) struct Rights(Option<Identity>);

/// Limits the operations that each other user has under way with a daemon. Clones share the counts.
#[derive(Clone, Debug, Default)]
pub(super) struct Places(Arc<Mutex<BTreeMap<u32, Arc<()>>>>);

impl Places {
    /// Reserves one of a user's `most` places until the result is dropped; `None` if all are in use.
    pub(super) fn reserve(&self, uid: u32, most: usize) -> Option<Arc<()>> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|_, places| Arc::strong_count(places) > 1);
        let places = all.entry(uid).or_default();
        (Arc::strong_count(places) <= most).then(|| Arc::clone(places))
    }
}

/// Returns a user of this host by user ID, if it has a name.
fn named(uid: u32) -> Option<User> {
    let entry = Entry::from_uid(NixUid::from_raw(uid)).ok()??;
    let is_short = (1..=User::MOST_BYTES).contains(&entry.name.len());
    is_short.then_some(User { name: entry.name, uid })
}

impl Users {
    /// Returns the users that a daemon in this process serves. Reads the user database, which may block.
    pub(super) fn of_this_process() -> Self {
        let uid = geteuid().as_raw();
        let own = named(uid).unwrap_or_else(|| User { name: uid.to_string(), uid });
        Self { own }
    }

    /// Returns whether this process runs as this user.
    pub(super) const fn is_own(&self, uid: u32) -> bool {
        self.own.uid == uid
    }

    /// Returns whether this process may act for other users.
    pub(super) const fn has_all(&self) -> bool {
        self.own.uid == 0
    }

    /// Returns the user of a client by user ID. Reads the user database, which may block.
    ///
    /// # Errors
    /// The reason why this daemon does not serve the user.
    pub(super) fn admit(&self, uid: u32) -> Result<User, String> {
        let own = &self.own;
        if uid == own.uid {
            return Ok(own.clone());
        }
        if !self.has_all() && uid != 0 {
            return Err(format!(
                "this daemon runs as user {own} and serves {own} alone: start one of your own, or have root start one with \
                 --socket-group"
            ));
        }
        named(uid).ok_or_else(|| {
            format!(
                "user {uid} has no name on this host: add it to the user database, with this number on every host that \
                 is to run its jobs"
            )
        })
    }

    /// Returns the rights of a user on this host. Reads the user database, which may block.
    ///
    /// # Errors
    /// The reason why this daemon does not act for the user.
    pub(super) fn rights(&self, user: &User) -> Result<Rights, String> {
        let (own, User { name, uid }) = (&self.own, user);
        if user == own {
            return Ok(Rights(None));
        }
        if !self.has_all() {
            return Err(format!(
                "this daemon runs as user {own} ({}), not {name} ({uid}), and runs jobs of {own} alone: for jobs of other \
                 users, start the daemons of all hosts as root",
                own.uid
            ));
        }
        let missing = || {
            format!(
                "there is no user {name} on this host: add it, with the number {uid}, or run the job elsewhere"
            )
        };
        let text = CString::new(&name[..]).map_err(|_| missing())?;
        let unreadable = |error| format!("user {name} can't be looked up on this host: {error}");
        let entry = Entry::from_name(name).map_err(unreadable)?.ok_or_else(missing)?;
        if entry.uid.as_raw() != *uid {
            return Err(format!(
                "user {name} has the number {} on this host, and {uid} where the job was submitted: give the user one \
                 number on all hosts",
                entry.uid
            ));
        }
        let groups = getgrouplist(&text, entry.gid).map_err(unreadable)?;
        let groups = groups.into_iter().map(nix::unistd::Gid::as_raw).collect();
        Ok(Rights(Some(Identity { uid: *uid, gid: entry.gid.as_raw(), groups })))
    }
}

impl Rights {
    /// Runs `work` with these rights on a thread of its own, and waits for its end. File accesses of the thread are
    /// checked for this user; other threads keep their rights.
    ///
    /// The user can't signal the thread or read its memory, because only its effective user changes.
    ///
    /// # Errors
    /// The system's error; `work` was not run then.
    pub(super) fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> io::Result<T> {
        let Some(identity) = &self.0 else { return Ok(work()) };
        thread::scope(|scope| {
            let worker = thread::Builder::new().spawn_scoped(scope, || {
                identity.borrow()?;
                Ok(work())
            })?;
            worker.join().unwrap_or_else(|panic| resume_unwind(panic))
        })
    }

    /// Makes the user the owner of an open file, so that the user's processes can open it again through `/proc`.
    pub(super) fn give(&self, file: impl AsFd) -> io::Result<()> {
        let Some(Identity { uid, .. }) = self.0 else { return Ok(()) };
        Ok(fchown(file, Some(Uid::from_raw(uid)), None)?)
    }

    /// Returns the user ID, if it is not that of this process.
    pub(super) fn uid(&self) -> Option<u32> {
        self.0.as_ref().map(|identity| identity.uid)
    }

    /// Returns them as an argument of a process, in JSON.
    pub(super) fn to_argument(&self) -> String {
        serde_json::to_string(self).expect("numbers can be written as JSON")
    }
}

/// Returns whether the rights in an argument are those of another user than this process's.
pub(super) fn are_foreign(argument: &OsStr) -> bool {
    let rights = argument.to_str().and_then(|text| serde_json::from_str::<Rights>(text).ok());
    rights.is_some_and(|rights| rights.uid().is_some())
}

/// Takes the rights in an argument, irrevocably and for this whole process, which must have one thread.
///
/// # Errors
/// The system's error; some rights may have changed then.
pub(super) fn take_for_good(argument: &str) -> io::Result<()> {
    let rights: Rights = serde_json::from_str(argument)?;
    rights.0.map_or(Ok(()), |identity| identity.take_for_good())
}

fn gids(groups: &[u32]) -> Vec<Gid> {
    groups.iter().map(|group| Gid::from_raw(*group)).collect()
}

impl Identity {
    /// Makes this thread act for the user. The thread keeps its real and saved user IDs, so that the user has no
    /// rights over it.
    fn borrow(&self) -> io::Result<()> {
        set_thread_groups(&gids(&self.groups))?;
        set_thread_res_gid(None, Gid::from_raw(self.gid), None)?;
        set_thread_res_uid(None, Uid::from_raw(self.uid), None)?;
        if self.uid != 0 {
            // The system drops these capabilities by itself, unless it was configured otherwise (securebits).
            let sets = capabilities(None)?;
            set_capabilities(None, CapabilitySets { effective: CapabilitySet::empty(), ..sets })?;
        }
        Ok(())
    }

    fn take_for_good(&self) -> io::Result<()> {
        let (uid, gid) = (Uid::from_raw(self.uid), Gid::from_raw(self.gid));
        self.take_streams(uid)?;
        // The daemon may have raised these limits for itself. A rank that inherited them could take processor time
        // from the daemon.
        for resource in [Resource::Nice, Resource::Rtprio] {
            setrlimit(resource, Rlimit { current: Some(0), maximum: Some(0) })?;
        }
        set_thread_groups(&gids(&self.groups))?;
        set_thread_res_gid(gid, gid, gid)?;
        set_thread_res_uid(uid, uid, uid)?;
        if self.uid != 0 {
            let none = CapabilitySet::empty();
            let sets = CapabilitySets { effective: none, permitted: none, inheritable: none };
            set_capabilities(None, sets)?;
        }
        Ok(())
    }

    /// Makes the user the owner of the standard streams that are pipes or a terminal, for programs that open
    /// `/dev/stderr` or their terminal by name.
    fn take_streams(&self, uid: Uid) -> io::Result<()> {
        let take = |file: &dyn AsFd| -> io::Result<()> {
            let is_pipe = FileType::from_raw_mode(fstat(file)?.st_mode) == FileType::Fifo;
            if is_pipe || isatty(file) {
                fchown(file, Some(uid), None)?;
            }
            Ok(())
        };
        take(&io::stdin())?;
        take(&io::stdout())?;
        take(&io::stderr())
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use proptest::prelude::*;

    use super::*;

    fn root() -> Users {
        Users { own: User { name: "root".into(), uid: 0 } }
    }

    fn nobody() -> User {
        User { name: "nobody".into(), uid: 65_534 }
    }

    proptest! {
        #[test]
        fn rights_are_read_as_they_were_written(
            uid: u32,
            gid: u32,
            groups in proptest::collection::vec(any::<u32>(), 0..20),
        ) {
            for rights in [Rights(None), Rights(Some(Identity { uid, gid, groups }))] {
                let read: Rights = serde_json::from_str(&rights.to_argument()).unwrap();
                prop_assert_eq!(read, rights);
            }
        }
    }

    #[test]
    fn arguments_that_are_no_rights_are_refused() {
        for text in ["", "1", r#"{"uid":1,"gid":2}"#, r#"{"uid":1,"gid":2,"groups":[-3]}"#, " "] {
            assert!(serde_json::from_str::<Rights>(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn users_without_a_name_or_with_another_number_are_refused() {
        assert!(root().admit(4_000_000_001).unwrap_err().contains("no name on this host"));
        let missing = User { name: "no-such-user".into(), uid: 7 };
        assert!(root().rights(&missing).unwrap_err().contains("no user no-such-user"));
        let other = User { name: "nobody".into(), uid: 7 };
        assert!(root().rights(&other).unwrap_err().contains("one number on all hosts"));
        let damaged = User { name: "a\0b".into(), uid: 7 };
        assert!(root().rights(&damaged).unwrap_err().contains("no user"));
    }

    #[test]
    fn a_daemon_that_is_not_root_s_acts_for_its_own_user_alone() {
        let users = Users { own: User { name: "ada".into(), uid: 1000 } };
        assert_eq!(users.rights(&users.own), Ok(Rights(None)));
        assert!(users.rights(&nobody()).unwrap_err().contains("jobs of ada alone"));
        // On another host, another user may have ada's number, or ada another number.
        let other = User { name: "bob".into(), uid: 1000 };
        assert!(users.rights(&other).is_err());
        assert!(users.admit(1001).unwrap_err().contains("serves ada alone"));
        assert_eq!(users.admit(1000), Ok(users.own.clone()));
        assert_eq!(users.admit(0).unwrap().uid, 0);
    }

    #[test]
    fn a_user_has_so_many_places_and_no_more() {
        let places = Places::default();
        let taken = [places.reserve(1, 2), places.reserve(1, 2)];
        assert!(taken.iter().all(Option::is_some) && places.reserve(1, 2).is_none());
        assert!(places.reserve(2, 2).is_some());
        drop(taken);
        assert!(places.reserve(1, 2).is_some());
    }

    #[test]
    fn work_is_done_with_the_rights_of_a_user() {
        if geteuid().as_raw() != 0 {
            return println!("skipped: it takes root");
        }
        let folder = tempfile::tempdir().unwrap();
        let secret = folder.path().join("secret");
        std::fs::write(&secret, "root's").unwrap();
        std::fs::set_permissions(&secret, PermissionsExt::from_mode(0o600)).unwrap();
        let rights = root().rights(&nobody()).unwrap();
        let read = rights.run(|| std::fs::read(&secret).map_err(|error| error.kind())).unwrap();
        assert_eq!(read, Err(io::ErrorKind::PermissionDenied));
        assert_eq!(std::fs::read(&secret).unwrap(), b"root's");
        assert_eq!(geteuid().as_raw(), 0);
    }
}
