//! Finds the control groups of jobs that another system (Slurm, Kubernetes) has started.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::job_cgroup::{HostCgroups, JobCgroup};
use crate::node_core::message::Adopted;

/// Most bytes of the name of a Slurm step or of the UID of a pod.
const NAME_BYTES: usize = 64;
/// Prefixes of pods' folders by quality-of-service class: as systemd names them, and as the kubelet does.
const POD_CLASSES: [(&str, &str); 3] = [
    ("kubepods.slice/kubepods-pod", "kubepods/pod"),
    ("kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod", "kubepods/burstable/pod"),
    ("kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod", "kubepods/besteffort/pod"),
];

/// Opens the control group of an adopted job; returns `None` if this host has none of that name.
///
/// # Errors
/// The name is malformed, or the group can't be adopted; see [`HostCgroups::adopt`].
pub(super) fn open(adopted: &Adopted) -> io::Result<Option<JobCgroup>> {
    let host = HostCgroups::find()?;
    find(&host.mount, adopted)?.map(|folder| host.adopt(&folder)).transpose()
}

/// Returns the folder of an adopted job's control group below `mount`, if it exists.
fn find(mount: &Path, adopted: &Adopted) -> io::Result<Option<PathBuf>> {
    let candidates = match adopted {
        Adopted::Folder(folder) if !Path::new(folder).is_absolute() => {
            return Err(io::Error::other(format!("{folder:?} is no absolute path")));
        }
        Adopted::Folder(folder) => vec![PathBuf::from(folder)],
        Adopted::SlurmStep { job, step } => {
            let below = match step {
                Some(step) => format!("job_{job}/step_{}", name(step)?),
                None => format!("job_{job}"),
            };
            slurm_daemons(mount).map(|folder| folder.join(&below)).collect()
        }
        Adopted::Pod(uid) => {
            let uid = name(uid)?;
            let escaped = uid.replace('-', "_");
            let of_class = |(systemd, own): (&str, &str)| {
                [format!("{systemd}{escaped}.slice"), format!("{own}{uid}")]
            };
            POD_CLASSES.into_iter().flat_map(of_class).map(|path| mount.join(path)).collect()
        }
    };
    Ok(candidates.into_iter().find(|folder| folder.is_dir()))
}

/// Returns the folders of Slurm's step daemons: one for each `slurmd` on this host.
fn slurm_daemons(mount: &Path) -> impl Iterator<Item = PathBuf> {
    let entries = fs::read_dir(mount.join("system.slice")).into_iter().flatten().flatten();
    entries
        .filter(|entry| entry.file_name().as_encoded_bytes().ends_with(b"slurmstepd.scope"))
        .map(|entry| entry.path())
}

/// Returns `name` if it is safe as a part of a folder's name.
fn name(name: &str) -> io::Result<&str> {
    let fits = (1..=NAME_BYTES).contains(&name.len());
    let is_plain = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
    if fits && is_plain {
        return Ok(name);
    }
    let why = format!("{name:?} is no name of 1 to {NAME_BYTES} letters, digits and hyphens");
    Err(io::Error::other(why))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(mount: &Path, adopted: &Adopted) -> Option<String> {
        let folder = find(mount, adopted).unwrap()?;
        Some(folder.strip_prefix(mount).unwrap().to_str().unwrap().to_owned())
    }

    #[test]
    fn steps_and_pods_are_found_where_their_daemons_put_them() {
        let mount = tempfile::tempdir().unwrap();
        let mount = mount.path();
        let folders = [
            "system.slice/slurmstepd.scope/job_12/step_0",
            "system.slice/node2_slurmstepd.scope/job_13/step_batch",
            "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod0a_1b.slice",
            "kubepods/besteffort/podff-01",
        ];
        for folder in folders {
            fs::create_dir_all(mount.join(folder)).unwrap();
        }
        let step = |job, step: Option<&str>| {
            found(mount, &Adopted::SlurmStep { job, step: step.map(str::to_owned) })
        };
        assert_eq!(step(12, Some("0")).as_deref(), Some(folders[0]));
        assert_eq!(step(13, Some("batch")).as_deref(), Some(folders[1]));
        assert_eq!(step(13, None).as_deref(), Some("system.slice/node2_slurmstepd.scope/job_13"));
        assert_eq!(step(12, Some("1")), None);
        let pod = |uid: &str| found(mount, &Adopted::Pod(uid.to_owned()));
        assert_eq!(pod("0a-1b").as_deref(), Some(folders[2]));
        assert_eq!(pod("ff-01").as_deref(), Some(folders[3]));
        assert_eq!(pod("ff-02"), None);
    }

    #[test]
    fn names_that_are_no_part_of_a_folder_s_name_are_refused() {
        let mount = Path::new("/nowhere");
        for name in ["", "..", "a/b", "0\n", &"0".repeat(65)] {
            let step = Some(name.to_owned());
            for adopted in [Adopted::SlurmStep { job: 1, step }, Adopted::Pod(name.to_owned())] {
                assert!(find(mount, &adopted).is_err(), "{adopted:?}");
            }
        }
        assert!(find(mount, &Adopted::Folder("system.slice".to_owned())).is_err());
    }

    #[test]
    fn folders_outside_and_above_are_not_adopted() {
        let Ok(host) = HostCgroups::find() else { return };
        for folder in ["/tmp", "/nowhere", host.mount.to_str().unwrap()] {
            assert!(host.adopt(Path::new(folder)).is_err(), "{folder}");
        }
    }
}
