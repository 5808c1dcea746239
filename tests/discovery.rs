//! Tests discovery by lists, names, files and jobs, and clusters and keys that keep nodes apart.

use std::io::Write as _;
use std::net::{SocketAddr, UdpSocket};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use midplane::discovery::{Discovery, DiscoveryError, File, Job, Place};
use midplane::simhw::seal::Key;
use midplane::{ErrorKind, Listener, Node, NodeBuilder};

/// Returns a builder of nodes of the test's own cluster, over UDP.
fn builder(test: &str) -> NodeBuilder {
    Node::builder().cluster(format!("{test}-{}", std::process::id())).transports("udp")
}

/// Starts a node that listens at a port of the system's choice.
async fn service(builder: NodeBuilder, service: &str) -> (Node, Listener, SocketAddr) {
    let node = builder.bind("127.0.0.1:0".parse().unwrap()).start().await.unwrap();
    let listener = node.listen(service).await.unwrap();
    let address = node.address().unwrap();
    (node, listener, address)
}

/// Replaces a file atomically.
fn replace(path: &Path, text: &str) {
    let mut file = tempfile::NamedTempFile::new_in(path.parent().unwrap()).unwrap();
    file.write_all(text.as_bytes()).unwrap();
    file.persist(path).unwrap();
}

#[tokio::test]
async fn a_file_may_change_while_nodes_run() {
    let (_one, _orders, first) = service(builder("file"), "orders").await;
    let (_other, _stock, second) = service(builder("file"), "stock").await;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("places");
    replace(&path, "# nobody yet\n");
    let client = builder("file").discover_with(File::new(&path)).start().await.unwrap();
    let waiting = tokio::spawn({
        let client = client.clone();
        async move { client.connect("orders").await }
    });
    replace(&path, &format!("{first} # orders\n"));
    waiting.await.unwrap().unwrap();
    replace(&path, &format!("{second}\n"));
    client.connect("stock").await.unwrap();
    client.connect("orders").await.expect("what is connected stays");
}

#[tokio::test]
async fn a_bad_file_is_an_error_at_the_start_and_later_leaves_the_last_places() {
    let (_node, _listener, address) = service(builder("bad-file"), "orders").await;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("places");
    let client = builder("bad-file").discover_with(File::new(&path));
    let client = client.connect_timeout(Duration::ZERO);
    for (text, problem) in
        [(None, "can be read"), (Some("\na b\n"), "line 2: \"a b\" is not HOST:PORT")]
    {
        text.inspect(|text| replace(&path, text));
        let error = client.clone().start().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config);
        let text = error.to_string();
        assert!(text.contains(problem) && text.contains(path.to_str().unwrap()), "{text}");
    }
    replace(&path, &address.to_string());
    let client = client.start().await.unwrap();
    replace(&path, "nowhere");
    client.connect("orders").await.unwrap();
    let error = client.connect("stock").await.unwrap_err().to_string();
    assert!(error.contains("line 1: \"nowhere\" is not HOST:PORT"), "{error}");
    let explained = client.explain().to_string();
    assert!(explained.contains("line 1"), "{explained}");
    replace(&path, &address.to_string());
    let error = client.connect("stock").await.unwrap_err().to_string();
    assert!(!error.contains("line 1"), "{error}");
}

#[tokio::test]
async fn names_are_resolved() {
    let (_node, _listener, address) = service(builder("names"), "orders").await;
    let place = format!("localhost:{}", address.port());
    // No name server receives a query for a name with so long a label.
    let nowhere = format!("{}.invalid:1", "a".repeat(64));
    let client = builder("names").discover(format!("{place}, {nowhere}"));
    let error = client.clone().start().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config);
    assert!(
        error.to_string().contains(&format!("{nowhere} is a place on another host")),
        "{error}"
    );
    let client = client.trusted_network().start().await.unwrap();
    assert!(client.address().unwrap().ip().is_unspecified());
    client.connect("orders").await.unwrap();
    let explained = client.explain().to_string();
    assert!(explained.contains("has no address: "), "{explained}");
}

#[tokio::test]
async fn a_place_on_another_host_needs_a_key_or_trust_and_binds_an_open_address() {
    let far = builder("far").discover("192.0.2.1:4700").connect_timeout(Duration::ZERO);
    let error = far.clone().start().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config);
    for part in ["192.0.2.1:4700", "key_file", "trusted_network"] {
        assert!(error.to_string().contains(part), "{error}");
    }
    let key = Key::new(1, [3; 32]);
    for open in [far.clone().trusted_network(), far.clone().key(key.clone())] {
        let node = open.start().await.unwrap();
        assert_eq!(node.address().unwrap().ip().to_string(), "0.0.0.0");
        assert_ne!(node.address().unwrap().port(), 0);
    }
    let near = builder("far").discover("127.0.0.1:4700").key(key.clone()).start().await.unwrap();
    assert!(near.address().unwrap().ip().is_loopback(), "all places are on this host");
    // A node that was explicitly bound to loopback reports places that it can't reach.
    let bound = far.key(key).bind("127.0.0.1:0".parse().unwrap()).start().await.unwrap();
    let error = bound.connect("orders").await.unwrap_err().to_string();
    assert!(error.contains("192.0.2.1:4700 (it is on another host"), "{error}");
}

#[tokio::test]
async fn a_node_at_all_addresses_of_ipv6_reaches_places_of_both_versions() {
    if UdpSocket::bind("[::1]:0").is_err() {
        return; // This host has no IPv6.
    }
    let (_node, _listener, old) = service(builder("versions"), "orders").await;
    let new = builder("versions").bind("[::1]:0".parse().unwrap()).start().await.unwrap();
    let _stock = new.listen("stock").await.unwrap();
    let places = format!("{old},{}", new.address().unwrap());
    let client = builder("versions").bind("[::]:0".parse().unwrap()).trusted_network();
    let client = client.discover(&places).start().await.unwrap();
    client.connect("orders").await.unwrap();
    client.connect("stock").await.unwrap();
    // A node without an address takes the IP version of its places.
    let client = builder("versions").discover(new.address().unwrap().to_string());
    client.start().await.unwrap().connect("stock").await.unwrap();
    let client = builder("versions").discover(&places).connect_timeout(Duration::ZERO);
    let error = client.start().await.unwrap().connect("stock").await.unwrap_err().to_string();
    assert!(error.contains("bind [::]:0"), "{error}");
}

#[tokio::test]
async fn nodes_of_other_clusters_are_refused_by_name() {
    let (node, _listener, address) = service(builder("one"), "orders").await;
    let stranger = builder("other").discover(address.to_string()).connect_timeout(Duration::ZERO);
    let stranger = stranger.start().await.unwrap();
    let pid = std::process::id();
    let expected = format!("{address} (is of cluster \"one-{pid}\", this node of \"other-{pid}\")");
    // The node may describe itself only after the first search.
    let error = loop {
        let error = stranger.connect("orders").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NoService);
        if error.to_string().contains("cluster \"one") {
            break error.to_string();
        }
    };
    assert!(error.contains(&expected), "{error}");
    assert_eq!((stranger.peers(), node.peers()), (Vec::new(), Vec::new()));
    let own = builder("one").discover(address.to_string()).start().await.unwrap();
    own.connect("orders").await.unwrap();
}

#[tokio::test]
async fn nodes_with_one_key_file_meet_and_with_another_do_not() {
    let directory = tempfile::tempdir().unwrap();
    let key_file = |name: &str, digits: &str, mode| {
        let path = directory.path().join(name);
        std::fs::write(&path, format!("1:{}\n", digits.repeat(32))).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        path
    };
    let (own, other) = (key_file("own", "0a", 0o600), key_file("other", "0b", 0o400));
    let (_node, _listener, address) = service(builder("key").key_file(&own), "orders").await;
    let client = builder("key").discover(address.to_string());
    client.clone().key_file(&own).start().await.unwrap().connect("orders").await.unwrap();
    let stranger = client.clone().key_file(&other).connect_timeout(Duration::ZERO);
    let error = stranger.start().await.unwrap().connect("orders").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoService);
    let error = client.key_file(key_file("open", "0a", 0o644)).start().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config);
    assert!(error.to_string().contains("chmod 600"), "{error}");
}

/// A discovery that reports places set by a test.
#[derive(Debug, Default)]
struct Settable(Mutex<Vec<Place>>);

impl Discovery for &'static Settable {
    async fn places(&self) -> Result<Vec<Place>, DiscoveryError> {
        Ok(self.0.lock().unwrap().clone())
    }
}

/// A discovery that never answers, like that of a registry that is down.
#[derive(Debug)]
struct Silent;

impl Discovery for Silent {
    async fn places(&self) -> Result<Vec<Place>, DiscoveryError> {
        std::future::pending().await
    }
}

#[tokio::test]
async fn a_discovery_of_the_users_own_may_change_and_a_silent_one_stops_no_other() {
    let (_node, _listener, address) = service(builder("own"), "orders").await;
    let settable: &Settable = Box::leak(Box::default());
    let client =
        builder("own").discover_with(settable).discover_with(Silent).start().await.unwrap();
    let waiting = tokio::spawn(async move { client.connect("orders").await.map(drop) });
    tokio::task::yield_now().await;
    settable.0.lock().unwrap().push(address.into());
    waiting.await.unwrap().unwrap();
}

/// A discovery that returns one more of its places with each call.
#[derive(Debug)]
struct Growing(Vec<Place>, AtomicUsize);

impl Discovery for Growing {
    async fn places(&self) -> Result<Vec<Place>, DiscoveryError> {
        let count = self.1.fetch_add(1, Ordering::Relaxed);
        Ok(self.0.iter().take(count).cloned().collect())
    }
}

/// Regression: the time of a search did not end as long as it met new nodes.
#[tokio::test]
async fn a_search_that_meets_a_new_node_each_time_ends_in_time() {
    let mut services = Vec::new();
    for _ in 0..8 {
        services.push(service(builder("growing"), "orders").await);
    }
    let places = services.iter().map(|(.., address)| Place::from(*address)).collect();
    let client = builder("growing").discover_with(Growing(places, AtomicUsize::new(0)));
    let client = client.connect_timeout(Duration::ZERO).start().await.unwrap();
    let error = client.connect("stock").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoService);
    assert!(client.peers().len() <= 1, "it has searched once");
}

/// Environment variable with the port of a job's first process.
const PORT: &str = "MIDPLANE_TEST_JOB_PORT";

/// Runs as a process of a job, which [`processes_of_a_job_find_each_other`] starts: rank 0 serves until its input ends.
#[tokio::test]
async fn process_of_a_job() {
    let Ok(port) = std::env::var(PORT) else { return };
    let port = port.parse().unwrap();
    let builder = Node::builder().transports("udp").discover_with(Job::new().port(port));
    let is_first = std::env::var("PMI_RANK").as_deref() == Ok("0");
    let node = builder.start().await.unwrap();
    assert_eq!(node.address().unwrap().port(), if is_first { port } else { port + 1 });
    if is_first {
        let mut listener = node.listen("orders").await.unwrap();
        let _stream = listener.accept().await.unwrap();
        let _ =
            tokio::task::spawn_blocking(|| std::io::stdin().read_line(&mut String::new())).await;
    } else {
        node.connect("orders").await.unwrap();
    }
}

/// Returns the first of two consecutive ports that were free a moment ago.
fn free_ports() -> u16 {
    loop {
        let first = UdpSocket::bind("127.0.0.1:0").unwrap();
        let port = first.local_addr().unwrap().port();
        if port < u16::MAX && UdpSocket::bind(("127.0.0.1", port + 1)).is_ok() {
            return port;
        }
    }
}

#[test]
fn processes_of_a_job_find_each_other() {
    let port = free_ports().to_string();
    let cluster = format!("job-{}", std::process::id());
    let start = |rank: &str| {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "discovery::process_of_a_job", "--nocapture"]);
        command.env("MIDPLANE_CLUSTER", &cluster).env(PORT, &port);
        command.env("PMI_RANK", rank).env("PMI_SIZE", "2").env("MPI_LOCALNRANKS", "2");
        command.stdin(Stdio::piped()).spawn().unwrap()
    };
    let mut first = start("0");
    let mut second = start("1");
    assert!(second.wait().unwrap().success());
    drop(first.stdin.take());
    assert!(first.wait().unwrap().success());
}
