//! Memory that jobs claim, and memory that suspended jobs free for others.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Child;

use midplane_gang::live::clock::now;

use crate::parts::end_with_test;
use crate::scenes::listing;
use crate::stage::{Stage, said, wait_until};

/// The mount point of control groups on systems with version 2 alone.
const MOUNT: &str = "/sys/fs/cgroup";
const MIB: u64 = 1 << 20;

/// A control group for a daemon, with the memory controller.
struct Group {
    folder: PathBuf,
}

impl Group {
    fn make(name: &str, limit: u64) -> Option<Self> {
        let mount = Path::new(MOUNT);
        let enabled = fs::read(mount.join("cgroup.controllers"))
            .and_then(|_| fs::write(mount.join("cgroup.subtree_control"), "+memory"));
        let folder = mount.join(format!("midplane-{name}-{}", std::process::id()));
        if let Err(error) = enabled.and_then(|()| fs::create_dir(&folder)) {
            println!("skipped: no control group with the memory controller: {error}");
            return None;
        }
        fs::write(folder.join("memory.max"), limit.to_string()).unwrap();
        Some(Self { folder })
    }

    /// Returns the daemon's freezer option: control groups below this one.
    fn freezer(&self) -> String {
        format!("auto in {}", self.folder.display())
    }

    /// Returns the group of a job.
    fn job(&self, job: u32) -> PathBuf {
        let folders = fs::read_dir(&self.folder).unwrap().flatten().map(|entry| entry.path());
        let mut jobs = folders.map(|folder| folder.join(format!("job-{job}")));
        jobs.find(|folder| folder.exists()).unwrap()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let is_removed = || !self.folder.exists() || fs::remove_dir(&self.folder).is_ok();
        if !std::thread::panicking() {
            wait_until("the reaper has removed what was in the group", is_removed);
        }
    }
}

/// Puts this process into a control group.
pub(crate) fn enter(group: &str) {
    fs::write(Path::new(group).join("cgroup.procs"), "0").unwrap();
}

/// Fills memory, and then uses all of it again and again.
pub(crate) fn fill(mebibytes: &str, seconds: &str) {
    end_with_test();
    let mut all = vec![1_u8; mebibytes.parse::<usize>().unwrap() << 20];
    println!("filled");
    let end = now() + std::time::Duration::from_secs_f64(seconds.parse().unwrap());
    // Each page is in use in each of the job's slices.
    while now() < end {
        for at in (0..all.len()).step_by(4_096) {
            all[at] = all[at].wrapping_add(1);
        }
    }
}

fn number(group: &Path, file: &str) -> u64 {
    fs::read_to_string(group.join(file)).unwrap().trim().parse().unwrap()
}

/// A client of a job whose ranks fill memory, each with a claim.
fn filling(stage: &Stage, ranks: u16, claim: &str, [mebibytes, seconds]: [&str; 2]) -> Child {
    let program = std::env::current_exe().unwrap();
    let command = [program.to_str().unwrap(), "--fill", mebibytes, seconds];
    stage.client_as(ranks, &format!("memory {claim}"), &command).spawn().unwrap()
}

/// Two jobs need 360 MiB of 400 MiB. The reserve of 40 MiB is not free, so memory of the suspended job is swapped out.
pub(crate) fn suspended_jobs_give_theirs() {
    let Some(group) = Group::make("suspended", 400 * MIB) else { return };
    if fs::read_to_string("/proc/swaps").unwrap().lines().count() < 2 {
        println!("skipped: there is no swap");
        return;
    }
    let stage = Stage::with(1, 1, 3_000, ("none", &group.freezer()));
    let one = filling(&stage, 1, "200", ["180", "100"]);
    wait_until("the first has its memory", || {
        !listing(&stage).jobs.is_empty() && number(&group.job(1), "memory.current") > 170 * MIB
    });
    let swapped = |job| number(&group.job(job), "memory.swap.current");
    assert_eq!((swapped(1), stage.errors(0).as_str()), (0, ""), "nothing is missing");
    assert_eq!(number(&group.job(1), "memory.max"), 200 * MIB);
    // The claims of both would not fit.
    let program = std::env::current_exe().unwrap();
    let fill = [program.to_str().unwrap(), "--fill", "180", "100"];
    let two = stage.client(1, &fill).spawn().unwrap();
    wait_until("the first one gives memory while it is suspended", || swapped(1) > 0);
    for mut client in [one, two] {
        client.kill().unwrap();
        client.wait().unwrap();
    }
    wait_until("no job is left", || listing(&stage).jobs.is_empty());
    drop(stage);
}

/// A job that needs more memory than it has claimed is ended, and its neighbour is not.
pub(crate) fn over_the_claim() {
    let Some(group) = Group::make("claims", 600 * MIB) else { return };
    let stage = Stage::with(1, 2, 200, ("none", &group.freezer()));
    let neighbour = filling(&stage, 1, "100", ["60", "2"]);
    let (code, _, error) = said(filling(&stage, 1, "60", ["200", "1"]).wait_with_output().unwrap());
    let why =
        "host 0 (this host): its processes there needed more than the 60 MiB of their --memory";
    assert!(code == 137 && error.contains(why), "{code} {error}");
    assert_eq!(said(neighbour.wait_with_output().unwrap()).0, 0);
}

/// Two hosts with 90 MiB for jobs each: the claims of a job count on each of its hosts, until it has ended.
pub(crate) fn claims_that_do_not_fit() {
    let (limit, names) = (100 * MIB, ["first", "second"]);
    let groups: Vec<_> = names.iter().map_while(|name| Group::make(name, limit)).collect();
    let freezers = match &groups[..] {
        [one, two] => format!("{};{}", one.freezer(), two.freezer()),
        // Claims are counted without the controller as well.
        _ => "auto with 94371840".to_owned(),
    };
    let stage = Stage::with(2, 2, 100, ("none", &freezers));
    wait_until("host 1 is there", || listing(&stage).hosts == [true, true]);
    let stays = |ranks, claim: &str| {
        stage.client_as(ranks, &format!("memory {claim}"), &["sleep", "1000"]).spawn().unwrap()
    };
    let mut first = stays(4, "30");
    wait_until("it is admitted", || listing(&stage).jobs.len() == 1);
    assert_eq!(listing(&stage).jobs[0].memory, Some(30 * MIB), "it is listed");
    for (ranks, claim, ran) in [(4, "16", "2 ranks"), (1, "31", "1 rank")] {
        let (code, _, error) = said(stays(ranks, claim).wait_with_output().unwrap());
        let why = format!(
            "it has 90 MiB for jobs, of which 60 MiB are given to 1 job: --memory {claim} MiB for {ran} does not fit"
        );
        assert!(code == 2 && error.contains(&why), "{code} {error}");
        let names_host = |it: &String| error.contains(&format!("({it}): it has"));
        assert!(stage.addresses.iter().any(names_host), "{error}");
    }
    let mut second = stays(4, "15");
    wait_until("it is admitted", || listing(&stage).jobs.len() == 2);
    for client in [&mut first, &mut second] {
        client.kill().unwrap();
        client.wait().unwrap();
    }
    wait_until("both have ended", || listing(&stage).jobs.is_empty());
    let (code, _, error) = said(
        stage.client_as(4, "memory 45", &["true"]).spawn().unwrap().wait_with_output().unwrap(),
    );
    assert_eq!((code, error.as_str()), (0, ""), "all is free again");
    let (code, _, error) = said(stays(1, "91").wait_with_output().unwrap());
    assert!(code == 2 && error.contains("it has 90 MiB for jobs: --memory 91 MiB"), "{error}");
}
