use midplane::top::{Calls, Loss, Peer, Report, ServiceStreams};
use ratatui::Terminal;
use ratatui::backend::TestBackend;

use crate::gang::listing::Job;

use super::board::{Row, State, rates};
use super::*;

/// Returns the report, at a given second, of a node that serves orders and calls a service of prices.
fn report(second: u64) -> Report {
    let mut service = ServiceStreams::default();
    (service.name, service.role) = ("orders".into(), "server".into());
    (service.open, service.waiting, service.accepted) = (3, 2, 12_345);
    (service.received_bytes, service.sent_bytes) = (2_000_000 * second, 1_000 * second);
    let mut calls = Calls::default();
    (calls.service, calls.answered, calls.failed) = ("prices".into(), 150 * second, 1);
    let mut peer = Peer::default();
    (peer.name, peer.id, peer.state) = ("pricing".into(), 7, "open".into());
    (peer.transport, peer.why) =
        ("udp".into(), "pricing: udp to 10.0.0.2:4700, as it answers there; sealed".into());
    (peer.streams, peer.sent_bytes, peer.round_trip_us) = (4, 5_000 * second, Some(210));
    let mut loss = Loss::default();
    (loss.cause, loss.count) = ("datagrams lost on the way".into(), 7);
    let mut report = Report::default();
    (report.process, report.incarnation, report.uptime_ms) = (42, 9, 1_000 * second);
    (report.memory_bytes, report.messages_sent) = (12 << 20, 20 * second);
    report.transports = vec!["shm".into(), "udp".into()];
    (report.services, report.calls) = (vec![service], vec![calls]);
    (report.peers, report.losses) = (vec![peer], vec![loss]);
    report
}

/// Returns a board with a live node and one that has vanished.
fn board() -> Board {
    let (old, new) = (report(60), report(62));
    let live = Row {
        name: "orders-1".into(),
        id: 1,
        state: State::Live,
        error: None,
        rates: rates(&new, &old),
        report: Some(new),
    };
    let gone = Row {
        name: "pricing".into(),
        id: 7,
        state: State::Gone,
        error: None,
        rates: None,
        report: Some(Report::default()),
    };
    Board { nodes: vec![live, gone], readings: 2, ..Board::default() }
}

/// Draws a screen, and returns its lines.
fn drawn(board: &Board, view: &View, size: (u16, u16)) -> String {
    let mut terminal = Terminal::new(TestBackend::new(size.0, size.1)).unwrap();
    terminal.draw(|frame| screen::draw(frame, board, view, Duration::from_secs(1))).unwrap();
    let buffer = terminal.backend().buffer();
    let lines = buffer.content.chunks(usize::from(size.0));
    let lines = lines.map(|line| line.iter().map(|cell| cell.symbol()).collect::<String>());
    lines.map(|line| line.trim_end().to_owned() + "\n").collect()
}

fn press(code: KeyCode, board: &Board, view: &mut View) -> bool {
    on_key(KeyEvent::new(code, KeyModifiers::NONE), board, view)
}

#[test]
fn the_screen_shows_two_nodes_and_the_panels_of_the_selected_one() {
    let (mut board, mut view) = (board(), View::default());
    assert_eq!(drawn(&board, &view, (80, 16)), include_str!("services.txt"));
    assert!(press(KeyCode::Tab, &board, &mut view));
    assert_eq!(drawn(&board, &view, (80, 16)), include_str!("peers.txt"));
    assert!(press(KeyCode::Down, &board, &mut view) && press(KeyCode::Down, &board, &mut view));
    assert!(drawn(&board, &view, (80, 16)).contains("pricing: process 0"));
    assert!(press(KeyCode::Up, &board, &mut view) && press(KeyCode::Tab, &board, &mut view));
    assert_eq!(drawn(&board, &view, (80, 16)), include_str!("services.txt"));
    board.jobs = Some(vec![Job {
        job: 3,
        ranks: 4,
        runs: true,
        preemptions: 5,
        seconds: 2.0,
        run_seconds: 1.0,
        command: "solver".into(),
        ..Job::default()
    }]);
    assert!(press(KeyCode::Tab, &board, &mut view) && press(KeyCode::Tab, &board, &mut view));
    let jobs = drawn(&board, &view, (80, 16));
    assert!(jobs.contains("solver") && jobs.contains("services/peers/jobs"), "{jobs}");
    assert!(!press(KeyCode::Char('q'), &board, &mut view));
    let control_c = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
    assert!(!on_key(control_c, &board, &mut view));
}

/// Regression: of two peers with one name, both had the rates of the second.
#[test]
fn peers_of_one_name_have_their_own_rates() {
    let [old, new] = [60, 62].map(|second| {
        let mut report = report(second);
        let mut other = report.peers[0].clone();
        (other.id, other.sent_bytes) = (8, 100 * second);
        report.peers.push(other);
        report
    });
    let rates = rates(&new, &old).unwrap();
    assert_eq!(rates.peers, [(7, (0.0, 5_000.0)), (8, (0.0, 100.0))].into());
}

#[test]
fn any_size_and_any_report_can_be_drawn() {
    let mut hostile = report(u64::MAX / 2_000_000);
    hostile.services[0].name = "\x1b[2J\u{7}\n".into();
    hostile.services.push(hostile.services[0].clone());
    hostile.losses[0].count = u64::MAX;
    hostile.messages_sent = u64::MAX;
    let mut board = board();
    board.nodes[0].rates = rates(&hostile, &Report::default());
    assert_eq!(board.nodes[0].rates, None, "it is another incarnation");
    let mut old = hostile.clone();
    (old.uptime_ms, old.messages_sent) = (0, 0);
    board.nodes[0].rates = rates(&hostile, &old);
    assert!(board.nodes[0].rates.is_some());
    board.nodes[0].report = Some(hostile);
    board.problems.push("no node was found".into());
    for size in [(1, 1), (20, 3), (80, 24), (300, 100)] {
        for _ in 0..2 {
            let shown = drawn(&board, &View::default(), size);
            assert!(!shown.contains(['\x1b', '\u{7}']), "{shown}");
        }
    }
    assert!(!screen::text(&board).contains('\x1b'));
}

#[tokio::test]
async fn a_node_that_vanishes_is_shown_as_gone_and_a_restarted_one_once() {
    let builder = Node::builder().cluster(format!("cli-top-{}", std::process::id()));
    let node = builder.clone().connect_timeout(Duration::ZERO).name("top").start().await.unwrap();
    let reader = Reader { node, gang: None };
    let mut board = Board::default();
    board.update(reader.read().await);
    assert_eq!((board.nodes.len(), board.problems.len()), (0, 1), "{:?}", board.problems);
    let shy = builder.clone().name("shy").start().await.unwrap();
    let open = builder.clone().name("open").allow_top().start().await.unwrap();
    let states = |board: &Board| {
        board.nodes.iter().map(|row| (row.name.clone(), row.state)).collect::<Vec<_>>()
    };
    let both = [("open".to_owned(), State::Live), ("shy".to_owned(), State::Denied)];
    board.update(reader.read().await);
    assert_eq!(states(&board), both);
    // Two readings within a millisecond give no rates.
    while board.nodes[0].rates.is_none() {
        board.update(reader.read().await);
        assert_eq!((states(&board), board.problems.len()), (both.to_vec(), 0));
    }
    let document = serde_json::to_value(&board).unwrap();
    assert_eq!(document["nodes"][1]["state"], "denied");
    assert!(document["nodes"][0]["report"]["memory_bytes"].as_u64() > Some(0), "{document}");
    open.shutdown().await;
    drop(shy);
    while states(&board) != [("open".to_owned(), State::Gone)] {
        board.update(reader.read().await);
    }
    let _open = builder.name("open").allow_top().start().await.unwrap();
    while states(&board) != both[..1] {
        board.update(reader.read().await);
    }
}
