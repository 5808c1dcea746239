//! Tests whole services in virtual time: restarts, crashes, partitions, and a run's report.
#![cfg(target_os = "linux")]

mod attrition;
mod calls;
mod cancelling;
mod incast;
mod maps;
mod messages;
mod quinn;
mod scripts;
mod system;
#[cfg(feature = "axum")]
mod web;
mod world;

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use midplane::net::UdpSocket;
use midplane::sim::{Result, SimError};
use midplane::simhw::drops::DropCause;
use midplane::simhw::fault::Fault;
use midplane::simhw::id::NodeId;
use midplane::simhw::profile::{Machine, NicProfile};
use midplane::simhw::services::RECEIVE_BYTES;
use midplane::simhw::switch::DiscardPolicy;
use midplane::{DEFAULT_CONNECT_TIMEOUT, ErrorKind, Node, Sim, time};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const MS: Duration = Duration::from_millis(1);

/// Echoes the bytes of each stream.
async fn echo(node: Node) -> Result {
    let mut listener = node.listen("echo").await?;
    loop {
        let (mut stream, _) = listener.accept().await?;
        tokio::spawn(async move {
            let (mut read, mut write) = tokio::io::split(&mut stream);
            tokio::io::copy(&mut read, &mut write).await
        });
    }
}

/// Sends bytes and reads the echo.
async fn ask(node: &Node, bytes: &[u8]) -> Result {
    let mut stream = node.connect("echo").await?;
    stream.write_all(bytes).await?;
    stream.shutdown().await?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await?;
    if answer == bytes { Ok(()) } else { Err("another answer".into()) }
}

#[test]
fn streams_calls_and_large_bodies_work_as_live_and_every_run_is_the_same() {
    for (seed, loss) in [(1, 0.0), (2, 0.01)] {
        let report = Sim::builder().seed(seed).loss(loss).check(|sim| {
            sim.host("one", echo).host("two", echo);
            for client in 0..3 {
                sim.client(move |node| async move {
                    for round in 0..5 {
                        ask(&node, &vec![client; 1 << (4 * round)]).await?;
                    }
                    Ok(())
                });
            }
        });
        let report = report.unwrap();
        assert_eq!(report.ended.len(), 3);
        assert!(report.time < Duration::from_secs(5), "{report:?}");
        assert!(report.sent >= report.delivered + report.drops.total(), "{report:?}");
        assert_eq!(report.drops.total() > 0, loss > 0.0);
    }
}

#[test]
fn a_restarted_service_is_reached_within_a_second_and_a_crash_is_noticed_within_one() {
    let took = Arc::new(Mutex::new(Vec::new()));
    let out = Arc::clone(&took);
    let mut sim = Sim::builder().build();
    sim.host("echo", echo);
    sim.client(move |node| {
        let out = Arc::clone(&out);
        async move {
            let mut stream = node.connect("echo").await?;
            stream.write_all(b"before").await?;
            let mut answer = [0; 6];
            stream.read_exact(&mut answer).await?;
            let start = time::Instant::now();
            // The host crashes at 100 ms, and restarts at 300 ms.
            assert!(stream.read_exact(&mut answer).await.is_err());
            out.lock().unwrap().push(start.elapsed());
            ask(&node, b"after").await?;
            out.lock().unwrap().push(start.elapsed());
            Ok(())
        }
    });
    sim.at(100 * MS).crash("echo");
    sim.at(300 * MS).restart("echo");
    let report = sim.run().unwrap();
    let took = took.lock().unwrap();
    assert!(took[0] < 1_100 * MS && took[1] < 2_300 * MS, "{took:?}");
    assert!(report.time < Duration::from_secs(3));
}

#[test]
fn a_first_connect_does_not_wait_for_a_place_without_a_node() {
    let mut sim = Sim::builder().build();
    sim.host("echo", echo).host("down", |_| std::future::pending());
    sim.client(|node| async move {
        time::sleep(100 * MS).await;
        let start = time::Instant::now();
        ask(&node, b"hello").await?;
        assert!(start.elapsed() < 100 * MS, "{:?}", start.elapsed());
        Ok(())
    });
    sim.at(50 * MS).crash("down");
    sim.run().unwrap();
}

#[test]
fn sends_to_a_node_that_does_not_receive_wait_for_one_timeout_together() {
    let mut sim = Sim::builder().build();
    sim.host("silent", |node| async move {
        let _stream = node.connect("meet").await?;
        std::future::pending().await
    });
    sim.client(|node| async move {
        let mut listener = node.listen("meet").await?;
        let (_stream, peer) = listener.accept().await?;
        let start = time::Instant::now();
        let send = || node.send(&peer, "hello");
        let (one, two, three, four) = tokio::join!(send(), send(), send(), send());
        for sent in [one, two, three, four] {
            assert_eq!(sent.unwrap_err().kind(), ErrorKind::NoService);
        }
        let took = start.elapsed();
        assert!(
            took >= DEFAULT_CONNECT_TIMEOUT && took < DEFAULT_CONNECT_TIMEOUT + 1_100 * MS,
            "{took:?}"
        );
        Ok(())
    });
    sim.run().unwrap();
}

#[test]
fn partitions_pauses_and_slow_links_delay_a_client_and_lose_nothing() {
    let mut sim = Sim::builder().build();
    sim.host("echo", echo);
    sim.client(|node| async move {
        let start = time::Instant::now();
        for _ in 0..40 {
            ask(&node, &[7; 100_000]).await?;
            time::sleep(10 * MS).await;
        }
        assert!(start.elapsed() > 700 * MS, "{:?}", start.elapsed());
        Ok(())
    });
    sim.at(50 * MS).partition("echo", "client-1");
    sim.at(250 * MS).heal("client-1", "echo");
    sim.at(300 * MS).pause("echo", 100 * MS);
    sim.at(410 * MS).slow_link("client-1", 10, 100 * MS).loss("echo", 0.05, 100 * MS);
    let report = sim.run().unwrap();
    assert!(report.drops.total() > 0 && report.faults.total() > 0, "{report:?}");
}

#[test]
fn sleeps_are_exact_and_so_are_timeouts_and_intervals() {
    let mut sim = Sim::builder().build();
    sim.client(|_| async {
        let start = time::Instant::now();
        time::sleep(Duration::from_nanos(1_234_567)).await;
        assert_eq!(start.elapsed().as_nanos(), 1_234_567);
        let nothing = std::future::pending::<()>();
        assert!(time::timeout(Duration::from_nanos(3), nothing).await.is_err());
        assert_eq!(start.elapsed().as_nanos(), 1_234_570);
        assert_eq!(time::timeout(MS, async { 5 }).await, Ok(5));
        let mut interval = time::interval(Duration::from_micros(7));
        for _ in 0..4 {
            interval.tick().await;
        }
        assert_eq!(start.elapsed().as_nanos(), 1_234_570 + 21_000);
        Ok(())
    });
    sim.run().unwrap();
}

#[test]
fn a_failure_is_reported_with_its_host_and_time() {
    let fails = |code: fn() -> Result| {
        let mut sim = Sim::builder().build();
        sim.client(move |_| async move {
            time::sleep(3 * MS).await;
            code()
        });
        sim.run().unwrap_err().to_string()
    };
    assert_eq!(fails(|| Err("no luck".into())), "client-1 at 3ms: no luck");
    let text = fails(|| panic!("this is on purpose"));
    assert!(text.contains("client-1 at 3ms") && text.contains("on purpose"), "{text}");

    let mut sim = Sim::builder().limit(50 * MS).build();
    sim.client(|_| std::future::pending());
    let text = sim.run().unwrap_err().to_string();
    assert!(text.contains("50ms") && text.contains("client-1"), "{text}");

    let set_up = |sim: &mut Sim| match sim.run() {
        Err(SimError::SetUp(text)) => text,
        other => panic!("{other:?}"),
    };
    assert!(set_up(&mut Sim::builder().build()).contains("Sim::host"));
    assert!(set_up(Sim::builder().build().host("a", echo).host("a", echo)).contains("\"a\""));
    assert!(set_up(Sim::builder().loss(2.0).build().host("a", echo)).contains("0 to 1"));
    let mut sim = Sim::builder().build();
    sim.host("a", echo).at(MS).crash("b");
    assert!(set_up(&mut sim).contains("\"b\""));
}

/// Waits for times that `tokio::select!` draws among ready branches, and then for an answer.
#[cfg(tokio_unstable)]
async fn draws(node: Node) -> Result {
    for _ in 0..100 {
        let drawn = tokio::select! {
            () = async {} => 1,
            () = async {} => 2,
            () = async {} => 4,
            () = async {} => 8,
        };
        time::sleep(Duration::from_micros(drawn)).await;
    }
    ask(&node, &[1]).await
}

#[cfg(tokio_unstable)]
#[test]
fn select_draws_its_branches_from_the_seed() {
    let digest = |seed| {
        let checked = Sim::builder().seed(seed).check(|sim| {
            sim.host("echo", echo).client(draws);
        });
        checked.expect("two runs of a seed are the same").digest
    };
    assert_ne!(digest(1), digest(2));
}

#[test]
fn a_run_that_depends_on_more_than_its_seed_is_an_error() {
    let runs = AtomicU32::new(0);
    let checked = Sim::builder().seed(9).check(|sim| {
        let more = runs.fetch_add(1, Ordering::Relaxed);
        sim.host("echo", echo);
        sim.client(
            move |node| async move { ask(&node, &vec![0; 10 + 5_000 * more as usize]).await },
        );
    });
    assert!(matches!(checked, Err(SimError::Nondeterministic { seed: 9 })), "{checked:?}");
}

#[test]
fn a_path_is_as_long_as_the_topology_and_its_costs_say() {
    const LINK: Duration = Duration::from_micros(10);
    // 8 bytes occupy 74 on the wire: 592 ns at 1 Gb/s, 5,920 ns at 100 Mb/s.
    let round_trip = |builder: midplane::sim::SimBuilder| {
        let took = Arc::new(Mutex::new(Duration::ZERO));
        let out = Arc::clone(&took);
        let mut sim = builder.latency(LINK).build();
        sim.client(move |_| {
            let out = Arc::clone(&out);
            async move {
                let socket = UdpSocket::bind("0.0.0.0:7".parse()?)?;
                let start = time::Instant::now();
                socket.send_to(&[1; 8], "10.0.0.3:7".parse()?).await?;
                socket.recv_from(&mut [0; 8]).await?;
                *out.lock().unwrap() = start.elapsed();
                Ok(())
            }
        });
        let idle = |_| std::future::pending();
        sim.host("idle", idle).host("echo", |_| async {
            let socket = UdpSocket::bind("0.0.0.0:7".parse()?)?;
            loop {
                let (length, peer) = socket.recv_from(&mut [0; 8]).await?;
                socket.send_to(&[2; 8][..length], peer).await?;
            }
        });
        sim.run().unwrap();
        *took.lock().unwrap()
    };
    let bits = Duration::from_nanos;
    assert_eq!(round_trip(Sim::builder()), 2 * (2 * LINK + bits(2 * 592)));
    let trunk = 2 * (3 * LINK + bits(2 * 592 + 5_920));
    assert_eq!(round_trip(Sim::builder().dumbbell(2, 100)), trunk);
    let trunks = 2 * (4 * LINK + bits(2 * 592 + 2 * 5_920));
    assert_eq!(round_trip(Sim::builder().two_tier(2, 100)), trunks);
    let with_nics = round_trip(Sim::builder().nics(NicProfile::MODERN));
    assert!(with_nics > 2 * (2 * LINK + bits(2 * 592)) + bits(2_000), "{with_nics:?}");
    let with_hosts = round_trip(Sim::builder().hosts(Machine::ETHERNET_25G.host));
    assert!(
        with_hosts > 2 * (2 * LINK + bits(2 * 592)) + bits(2 * (150 + 1_500)),
        "{with_hosts:?}"
    );
}

#[test]
fn a_switch_whose_buffer_is_full_drops_or_waits_by_its_rule() {
    let lost = |policy| {
        let mut sim = Sim::builder().port_buffer(8 << 10).discard(policy).build();
        sim.host("sink", |_| async {
            let socket = UdpSocket::bind("0.0.0.0:7".parse()?)?;
            loop {
                socket.recv_from(&mut [0; 1_000]).await?;
            }
        });
        for _ in 0..4 {
            sim.client(|_| async {
                let socket = UdpSocket::bind("0.0.0.0:7".parse()?)?;
                for _ in 0..50 {
                    socket.send_to(&[1; 1_000], "10.0.0.1:7".parse()?).await?;
                }
                time::sleep(10 * MS).await;
                Ok(())
            });
        }
        let report = sim.run().unwrap();
        assert_eq!(report.delivered + report.drops.total(), 200);
        report.drops.total()
    };
    assert!(lost(DiscardPolicy::Tail) > 50);
    assert_eq!(lost(DiscardPolicy::BackPressure), 0);
}

#[test]
fn a_run_continues_where_the_last_one_ended_and_refuses_late_hosts() {
    let mut sim = Sim::builder().build();
    sim.host("echo", echo);
    sim.client(|node| async move {
        time::sleep(30 * MS).await;
        ask(&node, b"once").await
    });
    assert_eq!(sim.run_for(10 * MS).unwrap().time, 10 * MS);
    assert_eq!(sim.run_for(10 * MS).unwrap().time, 20 * MS);
    assert!(sim.run().unwrap().time > 30 * MS);
    sim.at(MS).crash("echo");
    let late = sim.run().unwrap_err().to_string();
    assert!(late.contains("before the first run"), "{late}");
}

/// A counter that loses its value when it restarts.
async fn forgetful(node: Node) -> Result {
    let total = Arc::new(AtomicU32::new(0));
    let mut listener = node.listen("counter").await?;
    loop {
        let (mut stream, _) = listener.accept().await?;
        let total = total.fetch_add(1, Ordering::Relaxed) + 1;
        tokio::spawn(async move { stream.write_all(&total.to_le_bytes()).await });
    }
}

#[test]
fn a_swarm_finds_a_bug_that_only_a_restart_shows_and_leaves_one_fault() {
    let folder = tempfile::tempdir().unwrap();
    let sims = Sim::builder().trace(folder.path());
    let result = sims.swarm(100, Duration::from_secs(1), |sim| {
        sim.host("counter", forgetful);
        sim.client(|node| async move {
            let mut last = 0;
            for _ in 0..50 {
                time::sleep(20 * MS).await;
                let Ok(mut stream) = node.connect("counter").await else { continue };
                let mut bytes = [0; 4];
                if stream.read_exact(&mut bytes).await.is_ok() {
                    let total = u32::from_le_bytes(bytes);
                    assert!(total > last, "the counter went back from {last} to {total}");
                    last = total;
                }
            }
            Ok(())
        });
    });
    let Err(SimError::Swarm { script, error, .. }) = &result else { panic!("{result:?}") };
    assert!(error.to_string().contains("went back"), "{error}");
    assert_eq!(script.len(), 1, "{script:?}");
    let is_restart = ["Crash", "ProcessExit"].iter().any(|kind| script[0].contains(kind));
    assert!(is_restart && script[0].contains("counter"), "{script:?}");
    // The trace is that of the failed run, not of a later run that succeeded.
    let SimError::Host { trace: Some(path), .. } = &**error else { panic!("{error}") };
    let tracks = contents(path, ".perfetto-trace");
    assert!(["crash begins", "process-exit begins"].iter().any(|text| tracks.contains(text)));
}

#[test]
fn calls_retry_through_a_restart_under_random_faults() {
    let report = Sim::builder().swarm(20, Duration::from_secs(1), |sim| {
        sim.host("echo-1", echo).host("echo-2", echo);
        sim.client(|node| async move {
            for round in 0..20_u32 {
                let mut tries = 0;
                while ask(&node, &round.to_le_bytes()).await.is_err() {
                    tries += 1;
                    assert!(tries < 20, "round {round} was never answered");
                }
            }
            Ok(())
        });
    });
    let report = report.unwrap();
    assert!(report.time < Duration::from_secs(60), "{report:?}");
}

/// Adds a service and a client that logs its request. If `fails`, the client then returns an error.
fn reports(sim: &mut Sim, fails: bool) {
    sim.host("echo", echo);
    sim.client(move |node| async move {
        let order = tracing::info_span!("order", number = 7);
        ask(&node, b"tea").await?;
        tracing::warn!(left = 3, "little tea");
        drop(order);
        if fails { Err("no tea".into()) } else { Ok(()) }
    });
    sim.at(Duration::from_micros(50)).loss("echo", 0.5, 200 * MS);
}

/// Returns the contents of a trace's file with the extension.
fn contents(path: &std::path::Path, extension: &str) -> String {
    let mut name = path.as_os_str().to_owned();
    name.push(extension);
    String::from_utf8_lossy(&std::fs::read(&name).unwrap()).into_owned()
}

#[test]
fn a_traced_run_shows_packets_hosts_spans_logs_and_faults() {
    let folder = tempfile::tempdir().unwrap();
    let mut sim = Sim::builder().seed(5).trace(folder.path()).build();
    reports(&mut sim, false);
    let report = sim.run().unwrap();
    let path = report.trace.unwrap();
    let name = "a_traced_run_shows_packets_hosts_spans_logs_and_faults-5";
    assert_eq!(path, folder.path().join(name));
    let tracks = contents(&path, ".perfetto-trace");
    let texts =
        ["echo", "client-1 > switch 0", "order number=7", "WARN little tea left=3", "loss begins"];
    for text in texts.iter().chain(&["connect node=client-1 service=echo"]) {
        assert!(tracks.contains(text), "{text:?} is missing");
    }
    let frames = contents(&path, ".pcapng");
    assert!(frames.contains("client-1 > switch 0") && frames.contains("dropped:"));

    // Makes the same run without a trace.
    let mut sim = Sim::builder().seed(5).build();
    reports(&mut sim, false);
    let untraced = sim.run().unwrap();
    assert_eq!((untraced.digest, untraced.trace), (report.digest, None));
}

#[test]
fn a_trace_shows_the_drops_of_a_paused_nic_and_a_full_socket() {
    let folder = tempfile::tempdir().unwrap();
    let mut sim = Sim::builder().trace(folder.path()).build();
    sim.host("sink", |_| async {
        let _socket = UdpSocket::bind("0.0.0.0:9".parse()?)?;
        std::future::pending().await
    });
    sim.client(|_| async {
        let socket = UdpSocket::bind("0.0.0.0:9".parse()?)?;
        for _ in 0..6_000 {
            socket.send_to(&[7; 1_000], "10.0.0.1:9".parse()?).await?;
        }
        midplane::time::sleep(100 * MS).await;
        Ok(())
    });
    sim.at(MS).pause("sink", 10 * MS);
    let report = sim.run().unwrap();
    assert!(report.drops.of(DropCause::NoBuffer) > 100, "{report:?}");
    assert!(report.drops.of(DropCause::SocketFull) > 100, "{report:?}");
    let tracks = contents(&report.trace.unwrap(), ".perfetto-trace");
    for text in ["no_buffer", "DEBUG a socket is full: a packet is dropped peer=10.0.0.2:9 port=9"]
    {
        assert!(tracks.contains(text), "{text:?} is missing");
    }
}

#[test]
fn a_failed_check_leaves_its_trace() {
    let failed = Sim::builder().seed(6).check(|sim| reports(sim, true)).unwrap_err();
    let SimError::Host { trace: Some(path), .. } = &failed else { panic!("{failed}") };
    assert!(failed.to_string().contains(".perfetto-trace for ui.perfetto.dev"), "{failed}");
    assert!(contents(path, ".perfetto-trace").contains("order number=7"));
    assert!(contents(path, ".pcapng").contains("client-1 > switch 0"));
    for extension in ["pcapng", "perfetto-trace"] {
        std::fs::remove_file(path.with_extension(extension)).unwrap();
    }
}

/// Answers each stream. If a stream requests it, sends a request to the other host first.
async fn relay(node: Node) -> Result {
    let other = if node.name() == "left" { "right" } else { "left" };
    let mut listener = node.listen(node.name()).await?;
    loop {
        let (mut stream, _) = listener.accept().await?;
        let node = node.clone();
        tokio::spawn(async move {
            if stream.read_u8().await? == 1
                && let Ok(Ok(mut stream)) = time::timeout(50 * MS, node.connect(other)).await
            {
                drop(stream.write_u8(0).await);
            }
            stream.write_u8(7).await
        });
    }
}

#[test]
fn a_host_that_restarts_at_once_draws_other_numbers_and_is_reached() {
    // With random numbers as before the restart, its session with one host would have the number of the other host's.
    for down in [0, 5, 11, 20] {
        let mut sim = Sim::builder().build();
        sim.host("left", relay).host("right", relay);
        sim.client(|node| async move {
            for round in 0..60 {
                time::sleep(25 * MS).await;
                let stream = node.connect(["left", "right"][round % 2]);
                let Ok(Ok(mut stream)) = time::timeout(500 * MS, stream).await else { continue };
                drop(stream.write_u8(1).await);
                drop(time::timeout(500 * MS, stream.read_u8()).await);
            }
            for name in ["left", "right"] {
                let mut stream = node.connect(name).await?;
                stream.write_u8(1).await?;
                assert_eq!(stream.read_u8().await?, 7);
            }
            Ok(())
        });
        sim.at(337 * MS).crash("left");
        sim.at((337 + down) * MS).restart("left");
        let report = sim.run().unwrap();
        assert!(report.time < Duration::from_secs(6), "{down} ms: {report:?}");
    }
}

#[test]
fn a_report_counts_drops_at_a_full_socket() {
    let mut sim = Sim::builder().build();
    sim.host("deaf", |_| async {
        let _socket = UdpSocket::bind("0.0.0.0:7".parse()?)?;
        std::future::pending().await
    });
    sim.client(|_| async {
        let socket = UdpSocket::bind("0.0.0.0:7".parse()?)?;
        for _ in 0..5_000 {
            socket.send_to(&[0; 1_000], "10.0.0.1:7".parse()?).await?;
        }
        time::sleep(10 * MS).await;
        Ok(())
    });
    let report = sim.run().unwrap();
    let full = report.drops.of(DropCause::SocketFull);
    assert_eq!(full, 5_000 - RECEIVE_BYTES / 1_064, "{report:?}");
    assert_eq!(report.sent, report.delivered + report.drops.total());
}

#[test]
fn an_end_has_the_networks_time_though_the_hosts_clock_has_jumped() -> Result {
    let mut sim = Sim::builder().build();
    sim.client(|_| async {
        time::sleep(Duration::from_secs(10)).await;
        Ok(())
    });
    let step = Fault::ClockStep { node: NodeId(0), by: Duration::from_secs(4) };
    sim.at(Duration::from_secs(1)).fault(step, Duration::ZERO);
    let report = sim.run()?;
    assert_eq!(report.ended[0].time, Duration::from_secs(6));
    assert_eq!(report.time, Duration::from_secs(6));
    Ok(())
}
