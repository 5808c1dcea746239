//! Tests that TCP programs, which know nothing of nodes, reach services of nodes through the gateway: redis-benchmark,
//! redis-cli and mini-redis's client reach mini-redis; wrk and h2load reach axum.
//!
//! If a test's program is not installed, the test says so and tests nothing; with MIDPLANE_FOREIGN_PROGRAMS set to
//! `required`, it fails.

mod gateway;
mod nodes;

use std::io::Write;
use std::process::Stdio;

use axum::Router;
use axum::body::Body;
use axum::extract::DefaultBodyLimit;
use axum::routing::{get, post};
use bytes::Bytes;
use gateway::{Gateway, WITHIN, service};
use nodes::{Over, over_each};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::Command;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

include!(concat!(env!("OUT_DIR"), "/mini_redis.rs"));

/// A service of a node, behind a gateway.
struct Behind {
    gateway: Gateway,
    node: midplane::Node,
    stop: oneshot::Sender<()>,
    serving: JoinHandle<()>,
}

impl Behind {
    /// Starts mini-redis's server with a node's listener.
    async fn redis(over: Over) -> Self {
        let (cluster, node) = service(over).await;
        let listener = node.listen("redis").await.unwrap();
        let (stop, stopped) = oneshot::channel();
        let serving =
            tokio::spawn(async { mini_redis::server::run(listener, stopped).await.unwrap() });
        let gateway = Gateway::start(&cluster, "redis", &node).await;
        Self { gateway, node, stop, serving }
    }

    /// Starts an axum service with a node's listener.
    async fn axum(over: Over) -> Self {
        let (cluster, node) = service(over).await;
        let listener = node.listen("web").await.unwrap();
        let (stop, stopped) = oneshot::channel();
        let large = Bytes::from(vec![b'x'; 1 << 20]);
        let app = Router::new()
            .route("/hello", get(|| async { "hello" }))
            .route("/large", get(|| async { large }))
            .route("/echo", post(|body: Body| async { body }).layer(DefaultBodyLimit::disable()));
        let serving = tokio::spawn(async {
            let stopped = async { drop::<Result<(), _>>(stopped.await) };
            axum::serve(listener, app).with_graceful_shutdown(stopped).await.unwrap();
        });
        let gateway = Gateway::start(&cluster, "web", &node).await;
        Self { gateway, node, stop, serving }
    }

    /// Stops gateway, service and node cleanly.
    async fn end(self) {
        self.gateway.stop().await;
        self.stop.send(()).unwrap();
        tokio::time::timeout(WITHIN, self.serving).await.unwrap().unwrap();
        self.node.shutdown().await;
    }

    fn url(&self, path: &str) -> String {
        format!("http://{}/{path}", self.gateway.address)
    }

    /// Runs redis-cli; returns its output, or `None` if it is not installed.
    async fn redis_cli(&self, arguments: &[&str], input: &[u8]) -> Option<Vec<u8>> {
        let port = self.gateway.address.port().to_string();
        let arguments = [&["-h", "127.0.0.1", "-p", &port], arguments].concat();
        run("redis-cli", "redis-tools", &arguments, input).await
    }
}

/// Returns the command of a program that ends with its test.
fn program(name: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(name);
    command.args(arguments).kill_on_drop(true);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit());
    command
}

/// Runs a program to its end; returns its output, or `None` if it is not installed and not required.
async fn run(name: &str, package: &str, arguments: &[&str], input: &[u8]) -> Option<Vec<u8>> {
    let mut child = match program(name, arguments).spawn() {
        Ok(child) => child,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let text =
                format!("{name} is not installed (Debian: {package}): this test tests nothing");
            let is_required =
                std::env::var("MIDPLANE_FOREIGN_PROGRAMS").as_deref() == Ok("required");
            assert!(!is_required, "{text}");
            // Not `eprintln`: its output is not shown for tests that pass.
            writeln!(std::io::stderr(), "{text}").unwrap();
            return None;
        }
        Err(error) => panic!("{name}: {error}"),
    };
    let mut stdin = child.stdin.take().unwrap();
    let fed = async move {
        // A program need not read its input.
        let _ = stdin.write_all(input).await;
    };
    let both = async { tokio::join!(fed, child.wait_with_output()).1.unwrap() };
    let ended = tokio::time::timeout(WITHIN, both).await.expect("it ends in time");
    let said = String::from_utf8_lossy(&ended.stdout);
    assert!(ended.status.success(), "{name} {arguments:?}: {}\n{said}", ended.status);
    Some(ended.stdout)
}

/// Runs a program that prints text, like [`run`].
async fn run_for_text(name: &str, package: &str, arguments: &[&str]) -> Option<String> {
    run(name, package, arguments, b"").await.map(|bytes| String::from_utf8(bytes).unwrap())
}

over_each! {
    async fn redis_benchmark_counts_no_error(over) {
        let redis = Behind::redis(over).await;
        let port = redis.gateway.address.port().to_string();
        for (requests, clients, pipeline, bytes) in
            [("2000", "1", "1", "3"), ("4000", "16", "1", "64"), ("4000", "16", "16", "4096"), ("200", "4", "2", "100000")]
        {
            let arguments = [
                "-h", "127.0.0.1", "-p", &port, "-t", "set,get", "-r", "100", "-e", "--csv",
                "-n", requests, "-c", clients, "-P", pipeline, "-d", bytes,
            ];
            let Some(said) = run_for_text("redis-benchmark", "redis-tools", &arguments).await else { return };
            // The program prints errors among the rows.
            let rows: Vec<_> = said.lines().map(|line| line.split(',').next().unwrap()).collect();
            assert_eq!(rows, ["\"test\"", "\"SET\"", "\"GET\""], "{said}");
        }
        redis.end().await;
    }

    async fn redis_cli_reads_what_it_wrote(over) {
        let redis = Behind::redis(over).await;
        let Some(set) = redis.redis_cli(&["set", "key", "value"], b"").await else { return };
        assert_eq!(set, b"OK\n");
        assert_eq!(redis.redis_cli(&["get", "key"], b"").await.unwrap(), b"value\n");
        assert_eq!(redis.redis_cli(&["get", "other"], b"").await.unwrap(), b"\n");
        let large: Vec<u8> = (0..1_000_000_u32).map(|at| b'a' + (at % 23) as u8).collect();
        assert_eq!(redis.redis_cli(&["-x", "set", "large"], &large).await.unwrap(), b"OK\n");
        let read = redis.redis_cli(&["--raw", "get", "large"], b"").await.unwrap();
        assert!(read.strip_suffix(b"\n") == Some(&large));
        // mini-redis knows five commands.
        let unknown = redis.redis_cli(&["incr", "key"], b"").await.unwrap();
        assert!(unknown.starts_with(b"ERR unknown command 'incr'"));
        redis.end().await;
    }

    async fn redis_cli_subscribes(over) {
        let redis = Behind::redis(over).await;
        let Some(nobody) = redis.redis_cli(&["publish", "news", "0"], b"").await else { return };
        assert_eq!(nobody, b"0\n");
        let port = redis.gateway.address.port().to_string();
        let mut subscriber = program("redis-cli", &["-p", &port, "subscribe", "news"]).spawn().unwrap();
        let mut lines = BufReader::new(subscriber.stdout.take().unwrap()).lines();
        let mut line = async || tokio::time::timeout(WITHIN, lines.next_line()).await.unwrap().unwrap().unwrap();
        assert_eq!([line().await, line().await, line().await], ["subscribe", "news", "1"]);
        for message in ["1", "2", "3"] {
            assert_eq!(redis.redis_cli(&["publish", "news", message], b"").await.unwrap(), b"1\n");
            assert_eq!([line().await, line().await, line().await], ["message", "news", message]);
        }
        // The subscriber's connection is reset or ends; no other one does.
        subscriber.kill().await.unwrap();
        while redis.redis_cli(&["publish", "news", "4"], b"").await.unwrap() != b"0\n" {}
        redis.end().await;
    }

    async fn the_client_of_mini_redis_reads_what_it_wrote(over) {
        let redis = Behind::redis(over).await;
        let mut client = ::mini_redis::client::connect(redis.gateway.address).await.unwrap();
        for number in 0..200 {
            let (key, value) = (format!("key {number}"), Bytes::from(vec![number as u8; 1_000 * number]));
            client.set(&key, value.clone()).await.unwrap();
            assert_eq!(client.get(&key).await.unwrap(), Some(value));
        }
        let subscriber = ::mini_redis::client::connect(redis.gateway.address).await.unwrap();
        let mut subscriber = subscriber.subscribe(vec!["news".into()]).await.unwrap();
        assert_eq!(client.publish("news", "1".into()).await.unwrap(), 1);
        assert_eq!(subscriber.next_message().await.unwrap().unwrap().content, "1");
        drop((client, subscriber));
        redis.end().await;
    }

    async fn wrk_counts_no_error(over) {
        let web = Behind::axum(over).await;
        let script = tempfile::NamedTempFile::with_suffix(".lua").unwrap();
        std::fs::write(&script, CHECK_BODY).unwrap();
        let script = script.path().to_str().unwrap();
        for (path, connections) in [("hello", "1"), ("hello", "32"), ("large", "8")] {
            let url = web.url(path);
            let arguments = ["-t", "1", "-c", connections, "-d", "1s", "--timeout", "30s", "-s", script, &url];
            let Some(said) = run_for_text("wrk", "wrk", &arguments).await else { return };
            let counted = said.lines().find_map(|line| line.strip_prefix("counted: ")).unwrap();
            let (requests, errors) = counted.split_once(' ').unwrap();
            assert!(requests.parse::<u64>().unwrap() > 0 && errors == "0", "{said}");
        }
        // When its time is over, wrk resets the connections of unanswered requests; the gateway reports these.
        web.gateway.interrupt();
        let (status, said) = web.gateway.ended().await;
        assert!(status.success(), "{status}: {said}");
    }

    async fn h2load_counts_no_error(over) {
        let web = Behind::axum(over).await;
        let body = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(&body, vec![7; 100_000]).unwrap();
        let body = body.path().to_str().unwrap();
        for (path, requests, more) in [
            ("hello", 4_000, &["-c", "8", "-m", "16"][..]),
            ("hello", 4_000, &["-c", "8", "--h1"]),
            ("large", 100, &["-c", "4", "-m", "8"]),
            ("echo", 200, &["-c", "4", "-m", "8", "-d", body]),
        ] {
            let (url, n) = (web.url(path), requests.to_string());
            let arguments = [more, &["-n", &n, &url]].concat();
            let Some(said) = run_for_text("h2load", "nghttp2-client", &arguments).await else { return };
            let all = format!(
                "requests: {n} total, {n} started, {n} done, {n} succeeded, 0 failed, 0 errored, 0 timeout\n\
                 status codes: {n} 2xx, 0 3xx, 0 4xx, 0 5xx\n"
            );
            assert!(said.contains(&all), "{said}");
        }
        web.end().await;
    }
}

/// Script that makes wrk check each body, and print the numbers of requests and errors.
const CHECK_BODY: &str = r#"
local threads = {}
function setup(thread) table.insert(threads, thread) end
function init() wrong = 0 end
function response(status, _, body)
    if status ~= 200 or (body ~= "hello" and body ~= string.rep("x", 1048576)) then wrong = wrong + 1 end
end
function done(summary)
    local errors = summary.errors.connect + summary.errors.read + summary.errors.write
        + summary.errors.status + summary.errors.timeout
    for _, thread in ipairs(threads) do errors = errors + thread:get("wrong") end
    print("counted: " .. summary.requests .. " " .. errors)
end
"#;
