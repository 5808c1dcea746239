//! Checkpoints on disk, and references in messages that keep objects alive.

use std::collections::BTreeSet;
use std::fs;

use bytes::Bytes;
use midplane_gang::channel::geometry::Geometry;
use midplane_gang::checkpoint::{Checkpoint, CheckpointProblem};
use midplane_gang::context::{
    ChannelContext, NetworkContext, PeerState, ReceivedMessage, SentMessage,
};
use midplane_gang::names::{Epoch, JobId, Rank};

fn peer(rank: u16, next: u32) -> PeerState {
    PeerState { rank: Rank(rank), acked: 0, next, expected: 0, refusals: 1 }
}

/// Creates the contexts of two ranks; rank 0 has sent a message that rank 1 has not taken.
fn network(message: &[u8]) -> NetworkContext {
    let mut ranks: Vec<ChannelContext> =
        (0..2).map(|rank| ChannelContext::fresh(Rank(rank), Geometry::PM)).collect();
    ranks[0].peers.push(peer(1, 1));
    ranks[1].peers.push(peer(0, 0));
    ranks[0].send.push(SentMessage {
        to: Rank(1),
        position: 0,
        length: message.len() as u32,
        taken: false,
        bytes: Bytes::copy_from_slice(message),
    });
    NetworkContext { job: JobId(3), epoch: Epoch(9), ranks }
}

fn checkpoint() -> Checkpoint {
    Checkpoint {
        network: network(b"on its way"),
        processes: vec![b"state of 0".to_vec(), vec![]],
        program: "chatter --loud".to_owned(),
    }
}

#[test]
fn a_checkpoint_survives_the_disk() {
    let folder = tempfile::tempdir().unwrap();
    let there = folder.path().join("a/checkpoint");
    checkpoint().write_to(&there).unwrap();
    assert_eq!(Checkpoint::read_from(&there).unwrap(), checkpoint());
    let again = checkpoint().write_to(&there).unwrap_err();
    assert!(again.to_string().contains("a checkpoint is there"), "{again}");
}

/// Regression: the parts stayed, and a full disk stayed full.
#[test]
fn a_checkpoint_that_fails_leaves_none_of_its_parts() {
    let folder = tempfile::tempdir().unwrap();
    let taken = folder.path().join("process-1.bin");
    fs::create_dir(&taken).unwrap();
    let error = checkpoint().write_to(folder.path()).unwrap_err();
    assert_eq!(error.path, taken);
    let left = fs::read_dir(folder.path()).unwrap().map(|file| file.unwrap().path());
    assert_eq!(left.collect::<Vec<_>>(), [taken]);
}

#[test]
fn a_checkpoint_without_its_manifest_does_not_exist() {
    let folder = tempfile::tempdir().unwrap();
    checkpoint().write_to(folder.path()).unwrap();
    // Simulates a writer that died before its last step, with each of the parts missing.
    fs::rename(folder.path().join("manifest.json"), folder.path().join("manifest.part")).unwrap();
    for part in ["process-1.bin", "process-0.bin", "network.bin", "manifest.part"] {
        let said = Checkpoint::read_from(folder.path()).unwrap_err();
        assert!(matches!(said.problem, CheckpointProblem::Unfinished), "{said}");
        fs::remove_file(folder.path().join(part)).unwrap();
    }
    checkpoint().write_to(folder.path()).unwrap();
    assert_eq!(Checkpoint::read_from(folder.path()).unwrap(), checkpoint());
}

#[test]
fn damage_is_refused_with_the_file_that_has_it() {
    let files = ["network.bin", "process-0.bin", "process-1.bin", "manifest.json"];
    for file in files {
        for damage in 0..3 {
            let folder = tempfile::tempdir().unwrap();
            checkpoint().write_to(folder.path()).unwrap();
            let path = folder.path().join(file);
            let mut bytes = fs::read(&path).unwrap();
            match damage {
                0 => bytes.push(b'!'),
                1 => drop(bytes.pop()),
                _ => fs::remove_file(&path).unwrap(),
            }
            if damage < 2 {
                if bytes == fs::read(&path).unwrap() {
                    continue;
                }
                fs::write(&path, &bytes).unwrap();
            }
            let said = Checkpoint::read_from(folder.path()).unwrap_err().to_string();
            let place = if file == "manifest.json" { "" } else { file };
            assert!(said.contains(place), "{file}, damage {damage}: {said}");
        }
    }
    let folder = tempfile::tempdir().unwrap();
    checkpoint().write_to(folder.path()).unwrap();
    let path = folder.path().join("manifest.json");
    let text = fs::read_to_string(&path).unwrap();
    for (from, to) in [
        ("\"format\": 3", "\"format\": 0"),
        ("\"ranks\": 2", "\"ranks\": 3"),
        ("\"job\": 3", "\"job\": 4"),
    ] {
        assert!(text.contains(from));
        fs::write(&path, text.replace(from, to)).unwrap();
        Checkpoint::read_from(folder.path()).unwrap_err();
    }
}

/// An object of a job: its rank, and the rank's number for it.
type Object = (u16, u32);

/// Returns every object that a message of the cut refers to: an object is alive if it is reachable from a local root, or
/// from such a message (SCore-D paper, section 4).
fn roots(cut: &NetworkContext) -> BTreeSet<Object> {
    let all = cut.in_transit().flat_map(|message| message.bytes.chunks_exact(6));
    let object = |reference: &[u8]| {
        let [a, b, c, d, e, f] = *reference else { return None };
        Some((u16::from_le_bytes([a, b]), u32::from_le_bytes([c, d, e, f])))
    };
    all.filter_map(object).collect()
}

fn emit((owner, object): Object) -> Vec<u8> {
    [&owner.to_le_bytes()[..], &object.to_le_bytes()].concat()
}

#[test]
fn objects_that_only_a_message_refers_to_are_found_in_a_cut() {
    let (sent, received) = ((1, 7), (0, 3));
    let mut cut = network(&emit(sent));
    let bytes = Bytes::from(emit(received));
    cut.ranks[0].receive.push(ReceivedMessage { from: Rank(1), position: 0, bytes });
    assert_eq!(roots(&cut), BTreeSet::from([sent, received]));
}

/// Regression: a link to a device without an end made the reader allocate all memory.
#[cfg(unix)]
#[test]
fn a_checkpoint_has_regular_files_alone_and_no_more_of_them_is_read_than_it_states() {
    for name in ["manifest.json", "network.bin", "process-1.bin"] {
        let folder = tempfile::tempdir().unwrap();
        checkpoint().write_to(folder.path()).unwrap();
        let file = folder.path().join(name);
        // A file without data that is longer than this host's memory.
        fs::File::options().write(true).open(&file).unwrap().set_len(1 << 40).unwrap();
        let said = Checkpoint::read_from(folder.path()).unwrap_err().to_string();
        assert!(said.contains("at most") || said.contains(", not "), "{name}: {said}");
        fs::remove_file(&file).unwrap();
        std::os::unix::fs::symlink("/dev/zero", &file).unwrap();
        let said = Checkpoint::read_from(folder.path()).unwrap_err().to_string();
        assert!(said.contains("no regular file"), "{name}: {said}");
    }
}
