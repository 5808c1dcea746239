use std::io::Write as _;
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;
use proptest::prelude::*;

/// An environment with these variables.
fn of<'a>(variables: &'a [(&'a str, &'a str)]) -> impl Fn(&str) -> Option<String> + 'a {
    |name| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).into())
}

/// A file with these lines; removed when dropped.
struct File(PathBuf);

impl File {
    fn new(name: &str, text: &str) -> Self {
        // Tests of one process run at the same time.
        static FILES: AtomicUsize = AtomicUsize::new(0);
        let number = FILES.fetch_add(1, Ordering::Relaxed);
        let name = format!("midplane-{}-{number}-{name}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let mut options = std::fs::OpenOptions::new();
        let file = options.write(true).create_new(true).mode(0o600).open(&path);
        file.unwrap().write_all(text.as_bytes()).unwrap();
        Self(path)
    }

    fn path(&self) -> Option<PathBuf> {
        Some(self.0.clone())
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn place(rank: u16, peers: &[&str]) -> Result<Option<ProcessGroup>, LaunchError> {
    let peers = peers.iter().map(ToString::to_string).collect();
    Ok(Some(ProcessGroup { rank, peers, keys: Vec::new() }))
}

#[test]
fn without_flags_or_launcher_a_process_is_alone() {
    assert_eq!(Launch::new().place_in(of(&[])), Ok(None));
    // A batch script of Slurm has a rank, but is no step.
    let batch = [("SLURM_PROCID", "0"), ("SLURM_NTASKS", "4"), ("SLURM_JOB_NODELIST", "a[1-4]")];
    assert_eq!(Launch::new().place_in(of(&batch)), Ok(None));
    let one = [("OMPI_COMM_WORLD_RANK", "0"), ("OMPI_COMM_WORLD_SIZE", "1")];
    assert_eq!(Launch::new().place_in(of(&one)), Ok(None));
}

#[test]
fn flags_override_the_environment() {
    let peers = File::new("flags", "# two of them\na:1\n\n  b:2  \n");
    let by_hand = Launch::new().rank(Some(1)).peers(peers.path());
    let slurm = [("SLURM_PROCID", "nonsense"), ("SLURM_STEP_NUM_TASKS", "9")];
    assert_eq!(by_hand.place_in(of(&slurm)), place(1, &["a:1", "b:2"]));
    let list = Launch::new().peers(peers.path());
    assert_eq!(list.place_in(of(&[])), Err(LaunchError::NoRank(2)));
    assert_eq!(
        list.clone().rank(Some(2)).place_in(of(&[])),
        Err(LaunchError::Rank { rank: 2, size: 2 })
    );
    assert_eq!(
        list.clone().rank(Some(0)).size(Some(3)).place_in(of(&[])),
        Err(LaunchError::Size { ranks: 3, peers: 2 })
    );
    // The environment gives the values that no flag sets.
    let pmi = [("PMI_RANK", "1"), ("PMI_SIZE", "2")];
    assert_eq!(list.place_in(of(&pmi)), place(1, &["a:1", "b:2"]));
    let nowhere = Launch::new().rank(Some(3));
    let unknown = LaunchError::NoPeers { rank: 3, launcher: "--rank" };
    assert_eq!(nowhere.place_in(of(&[])), Err(unknown));
}

#[test]
fn a_slurm_step_gives_rank_size_and_hosts() {
    let step = |rank, node, local, more: (&'static str, &'static str)| {
        let variables = [
            ("SLURM_PROCID", rank),
            ("SLURM_STEP_NUM_TASKS", "5"),
            ("SLURM_STEP_NODELIST", "n[09-10],login"),
            ("SLURM_STEP_TASKS_PER_NODE", "2(x2),1"),
            ("SLURM_NODEID", node),
            ("SLURM_LOCALID", local),
            more,
        ];
        Launch::new().port(Some(7)).place_in(of(&variables))
    };
    let block = ["n09:7", "n09:8", "n10:7", "n10:8", "login:7"];
    assert_eq!(step("3", "1", "1", ("", "")), place(3, &block));
    let cyclic = ["n09:7", "n10:7", "login:7", "n09:8", "n10:8"];
    let in_turns = ("SLURM_DISTRIBUTION", "cyclic:block");
    assert_eq!(step("3", "0", "1", in_turns), place(3, &cyclic));
    // The process is not on the host that the list gives its rank: an error, not a guess.
    assert_eq!(step("3", "0", "1", ("", "")), Err(LaunchError::Placement { rank: 3 }));
    assert_eq!(step("3", "1", "0", ("", "")), Err(LaunchError::Placement { rank: 3 }));
    let by_file = ("SLURM_DISTRIBUTION", "arbitrary");
    let unknown = LaunchError::NoPeers { rank: 3, launcher: "Slurm" };
    assert_eq!(step("3", "1", "1", by_file), Err(unknown));
}

#[test]
fn named_hosts_override_those_of_a_slurm_step() {
    // The order of the step's hosts puts rank 3 on node 1.
    let variables = [
        ("SLURM_PROCID", "3"),
        ("SLURM_STEP_NUM_TASKS", "5"),
        ("SLURM_STEP_NODELIST", "n[09-10],login"),
        ("SLURM_STEP_TASKS_PER_NODE", "2(x2),1"),
        ("SLURM_NODEID", "0"),
        ("SLURM_LOCALID", "1"),
    ];
    let wrong = Err(LaunchError::Placement { rank: 3 });
    assert_eq!(Launch::new().place_in(of(&variables)), wrong);
    let peers = File::new("slurm", "n09:1\nn10:1\nlogin:1\nn09:2\nn10:2\n");
    let launch = Launch::new().peers(peers.path());
    let named = ["n09:1", "n10:1", "login:1", "n09:2", "n10:2"];
    assert_eq!(launch.place_in(of(&variables)), place(3, &named));
    let hosts = File::new("slurm", "n09\nn10\nlogin\nn09\nn10\n");
    let launch = Launch::new().hostfile(hosts.path()).port(Some(7));
    let placed = ["n09:7", "n10:7", "login:7", "n09:8", "n10:8"];
    assert_eq!(launch.place_in(of(&variables)), place(3, &placed));
    // The local number of the process contradicts the file.
    let blocks = File::new("slurm", "n09 slots=4\nn10\n");
    assert_eq!(Launch::new().hostfile(blocks.path()).place_in(of(&variables)), wrong);
}

#[test]
fn open_mpi_and_pmi_need_a_hostfile_for_several_hosts() {
    let local = [
        ("OMPI_COMM_WORLD_RANK", "1"),
        ("OMPI_COMM_WORLD_SIZE", "2"),
        ("OMPI_COMM_WORLD_LOCAL_SIZE", "2"),
        ("OMPI_COMM_WORLD_LOCAL_RANK", "1"),
        // The values of the daemon that started it, on another node.
        ("SLURM_PROCID", "0"),
        ("SLURM_STEP_NUM_TASKS", "1"),
    ];
    let here = ["127.0.0.1:24700", "127.0.0.1:24701"];
    assert_eq!(Launch::new().place_in(of(&local)), place(1, &here));
    let apart =
        [("PMI_RANK", "2"), ("PMI_SIZE", "3"), ("MPI_LOCALNRANKS", "1"), ("MPI_LOCALRANKID", "0")];
    let unknown = LaunchError::NoPeers { rank: 2, launcher: "PMI" };
    assert_eq!(Launch::new().place_in(of(&apart)), Err(unknown));
    let hosts = File::new("pmi", "a slots=2 max-slots=4 # old\n\n[::1]:1\nb:7\n");
    let launch = Launch::new().hostfile(hosts.path());
    assert_eq!(launch.place_in(of(&apart)), place(2, &["a:24700", "a:24701", "[::1]:24700"]));
    let elsewhere = [("PMI_RANK", "1"), ("PMI_SIZE", "3"), ("MPI_LOCALRANKID", "0")];
    assert_eq!(launch.place_in(of(&elsewhere)), Err(LaunchError::Placement { rank: 1 }));
}

#[test]
fn pmi_under_srun_takes_the_hosts_from_slurm() {
    let variables = [
        ("PMI_RANK", "1"),
        ("PMI_SIZE", "2"),
        ("SLURM_PROCID", "1"),
        ("SLURM_STEP_NUM_TASKS", "2"),
        ("SLURM_STEP_NODELIST", "a,b"),
        ("SLURM_STEP_TASKS_PER_NODE", "1(x2)"),
    ];
    assert_eq!(Launch::new().place_in(of(&variables)), place(1, &["a:24700", "b:24700"]));
}

#[test]
fn pods_of_an_indexed_job_find_each_other_by_name() {
    let pod = [("JOB_COMPLETION_INDEX", "1"), ("HOSTNAME", "my-job-1")];
    let size = LaunchError::Job { what: "number of pods", flag: "--size" };
    assert_eq!(Launch::new().place_in(of(&pod)), Err(size));
    let launch = Launch::new().size(Some(2));
    let service = LaunchError::Job { what: "headless service", flag: "--service" };
    assert_eq!(launch.place_in(of(&pod)), Err(service));
    let launch = launch.service(Some("svc".into()));
    assert_eq!(launch.place_in(of(&pod)), place(1, &["my-job-0.svc:24700", "my-job-1.svc:24700"]));
    let renamed = [("JOB_COMPLETION_INDEX", "1"), ("HOSTNAME", "other")];
    assert!(matches!(launch.place_in(of(&renamed)), Err(LaunchError::Variable { .. })));
    assert_eq!(Launch::new().size(Some(1)).place_in(of(&pod)), Ok(None));
    let vast = Launch::new().size(Some(usize::MAX)).service(Some("svc".into()));
    assert!(matches!(vast.place_in(of(&pod)), Err(LaunchError::Size { .. })));
}

#[test]
fn errors_name_the_wrong_value_or_line() {
    let rank = [("OMPI_COMM_WORLD_RANK", "2"), ("OMPI_COMM_WORLD_SIZE", "2")];
    let error = Launch::new().place_in(of(&rank)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "OMPI_COMM_WORLD_RANK=\"2\" is no rank below the size; fix it, or give --rank and --peers"
    );
    let tasks = [
        ("SLURM_PROCID", "0"),
        ("SLURM_STEP_NUM_TASKS", "2"),
        ("SLURM_STEP_NODELIST", "a[1-2"),
        ("SLURM_STEP_TASKS_PER_NODE", "1(x2)"),
    ];
    assert!(Launch::new().place_in(of(&tasks)).unwrap_err().to_string().contains("a[1-2"));
    for (text, line) in [("a\nb slots=x", 2), ("a slots=0", 1), ("::1", 1), ("a b", 1), (":3", 1)] {
        let hosts = File::new("wrong", text);
        let launch = Launch::new().rank(Some(0)).hostfile(hosts.path());
        let path = hosts.0.clone();
        assert_eq!(launch.place_in(of(&[])), Err(LaunchError::Hostfile { path, line }), "{text}");
    }
    for wrong in ["a", "a:", "a:x", "a:70000"] {
        let peers = File::new("peer", &format!("a:1\n{wrong}"));
        let launch = Launch::new().rank(Some(0)).peers(peers.path());
        let path = peers.0.clone();
        assert_eq!(launch.place_in(of(&[])), Err(LaunchError::Peer { path, line: 2 }), "{wrong}");
    }
    let empty = File::new("empty", "# no host\n");
    let launch = Launch::new().rank(Some(0)).hostfile(empty.path());
    assert_eq!(
        launch.place_in(of(&[])),
        Err(LaunchError::Empty { flag: "--hostfile", path: empty.0.clone() })
    );
    let missing: PathBuf = "/nowhere/at/all".into();
    let launch = Launch::new().rank(Some(0)).peers(Some(missing.clone()));
    let unreadable =
        LaunchError::Unreadable { flag: "--peers", path: missing, kind: ErrorKind::NotFound };
    assert_eq!(launch.place_in(of(&[])), Err(unreadable));
    let many = File::new("many", "a slots=3");
    let launch = Launch::new().rank(Some(0)).hostfile(many.path()).port(Some(65_534));
    assert_eq!(launch.place_in(of(&[])), Err(LaunchError::Ports { first: 65_534, ranks: 3 }));
}

#[test]
fn slurm_lists_are_expanded() {
    let list = |text| hosts::expand(text).map(|hosts| hosts.join(" "));
    assert_eq!(list("a[01-03,7]b,login").as_deref(), Some("a01b a02b a03b a7b login"));
    assert_eq!(list("r[1-2]n[8-9]").as_deref(), Some("r1n8 r1n9 r2n8 r2n9"));
    for wrong in ["", ",", "a[", "a]", "a[]", "a[2-1]", "a[x]", "a[[1]]", "a[+1]", "a[1-99999999]"]
    {
        assert_eq!(list(wrong), None, "{wrong}");
    }
    for long in [format!("a[{}1]", "0".repeat(70_000)), "[1]".repeat(40_000)] {
        assert_eq!(hosts::expand(&long), None);
    }
    assert_eq!(hosts::counts("2(x3),1"), Some(vec![2, 2, 2, 1]));
    for wrong in ["", "x", "2(x", "2(x3", "2(y3)", "1(x99999999)", "1,1(x18446744073709551615)"] {
        assert_eq!(hosts::counts(wrong), None, "{wrong}");
    }
}

proptest! {
    #[test]
    fn any_variables_give_a_place_or_an_error(
        values in proptest::collection::vec("[a-c0-9\\[\\](),x-]{0,12}", 13),
    ) {
        const NAMES: [&str; 13] = [
            "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_STEP_NODELIST",
            "SLURM_STEP_TASKS_PER_NODE", "SLURM_NODEID", "SLURM_LOCALID", "PMI_RANK", "PMI_SIZE",
            "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE",
            "JOB_COMPLETION_INDEX", "HOSTNAME",
        ];
        let variables: Vec<_> = NAMES.into_iter().zip(values.iter().map(String::as_str)).collect();
        if let Ok(Some(place)) = Launch::new().place_in(of(&variables)) {
            prop_assert!(usize::from(place.rank) < place.size());
        }
    }
}

#[test]
fn peers_have_keys_or_none_has_and_each_wrong_line_is_named() {
    let secrets: Vec<SecretKey> = (0..2).map(|_| SecretKey::generate().unwrap()).collect();
    let [first, second] = [0, 1].map(|at| secrets[at].public());
    let with_keys = File::new("keyed", &format!("a:1 {first}\n# and\nb:2\t {second} \n"));
    let launch = Launch::new().rank(Some(1)).peers(with_keys.path());
    let place = launch.place_in(of(&[])).unwrap().unwrap();
    assert_eq!(
        (&place.peers[..], &place.keys[..]),
        (&["a:1".into(), "b:2".into()][..], &[first, second][..])
    );
    let cut = launch.clone().rank(Some(0)).size(Some(2)).place_in(of(&[])).unwrap().unwrap();
    assert_eq!(cut.keys, [first, second]);
    assert_eq!(launch.read_peers().unwrap(), ["a:1", "b:2"]);

    let own = File::new("own", &format!("{}\n", secrets[1].to_text()));
    assert_eq!(place.identity(&own.0).unwrap().node(), NodeId(1));
    let other = File::new("other", &secrets[0].to_text());
    let not_own = IdentityError::NotOwn { node: NodeId(1), listed: second, own: first };
    assert_eq!(place.identity(&other.0).unwrap_err(), LaunchError::Identity(not_own));
    let none = File::new("none", "1:0a0a");
    let why = |path: &Path| match place.identity(path) {
        Err(LaunchError::SecretKey { why, .. }) => why,
        other => panic!("{other:?}"),
    };
    assert!(matches!(why(&none.0), KeyFileError::Malformed(_)));
    let missing = why(Path::new("/nowhere"));
    assert!(matches!(missing, KeyFileError::Unreadable(ErrorKind::NotFound, _)));
    assert_eq!(why(Path::new("/dev/null")), KeyFileError::NotAFile);
    let open = std::fs::Permissions::from_mode(0o644);
    std::fs::set_permissions(&own.0, open).unwrap();
    assert_eq!(why(&own.0), KeyFileError::TooOpen(0o644));
    let unkeyed = ProcessGroup { rank: 0, peers: vec!["a:1".into()], keys: Vec::new() };
    assert_eq!(unkeyed.identity(&own.0).unwrap_err(), LaunchError::NoKeys);

    for (text, line) in [
        (format!("a:1 {first}\nb:2\n"), 2),
        (format!("a:1\n\nb:2 {second}\n"), 3),
        (format!("a:1 {first}\nb:2 {second}\nc:3\n"), 3),
    ] {
        let file = File::new("some", &text);
        let error = LaunchError::SomeKeys { path: file.0.clone(), line };
        assert_eq!(Launch::new().peers(file.path()).read_peers(), Err(error), "{text}");
    }
    for wrong in ["abc".to_owned(), format!("{first} {second}"), format!("{first}0")] {
        let file = File::new("wrong", &format!("a:1 {wrong}\n"));
        let error = LaunchError::PeerKey { path: file.0.clone(), line: 1 };
        assert_eq!(Launch::new().peers(file.path()).read_peers(), Err(error), "{wrong}");
    }
}
