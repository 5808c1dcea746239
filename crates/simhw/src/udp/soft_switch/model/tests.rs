use proptest::prelude::*;

use super::*;
use crate::frame::Kind;
use crate::rng::Rng;
use crate::switch::{Buffer, DiscardPolicy};
use crate::time::LineRate;

fn model(framing: Framing, profile: SwitchProfile) -> Model {
    jittery(framing, profile, 0)
}

fn jittery(framing: Framing, profile: SwitchProfile, jitter: u64) -> Model {
    let link =
        LinkProfile { rate: LineRate::mbps(100), propagation: Duration::from_micros(2), framing };
    let jitter = (Duration::from_nanos(jitter), Rng::new(1, "jitter"));
    Model::new(4, link, profile, 1 << 20, jitter)
}

fn frame(source: u16, destination: u16, bytes: Vec<u8>) -> Offered {
    Offered { source, destination, urgent: false, ends_here: false, bytes }
}

fn run(model: &mut Model) -> Instant {
    while model.next_due() != Instant::FAR_FUTURE {
        let next = model.next_due();
        assert!(model.advance(next, usize::MAX));
    }
    model.reached
}

#[test]
fn a_frame_takes_both_wires_and_both_serialisations() {
    let mut model = model(Framing::PLAIN, SwitchProfile::new(Buffer::Bytes(10_000)));
    model.offer(Instant::from_nanos(500), frame(0, 1, vec![7; 1_000]));
    assert_eq!(run(&mut model).as_nanos(), 500 + 2 * (80_000 + 2_000));
    let out = model.outbound.pop_front().unwrap();
    assert_eq!((out.to, out.bytes), (1, vec![7; 1_000]));
}

#[test]
fn cut_through_saves_one_serialisation_less_the_header() {
    let forwarding = Forwarding::CutThrough { header: 100 };
    let profile = SwitchProfile { forwarding, ..SwitchProfile::new(Buffer::Bytes(10_000)) };
    let mut model = model(Framing::PLAIN, profile);
    model.offer(Instant::ZERO, frame(0, 1, vec![7; 1_000]));
    assert_eq!(run(&mut model).as_nanos(), 8_000 + 80_000 + 2 * 2_000);
}

#[test]
fn a_frame_that_ends_here_goes_back_with_the_time_at_which_it_was_here_whole() {
    let mut model = model(Framing::ETHERNET, SwitchProfile::new(Buffer::Bytes(10_000)));
    let header = Header { length: 3_000, words: [7, 8], ..Header::default() };
    let mut bytes = header.emit().to_vec();
    bytes.resize(header.frame_bytes(), 1);
    let on_wire = Framing::ETHERNET.wire_bytes(bytes.len() as u32);
    let ends_here = true;
    model.offer(Instant::from_nanos(500), Offered { ends_here, ..frame(0, 1, bytes.clone()) });
    run(&mut model);
    let back = model.outbound.pop_front().unwrap();
    assert_eq!(back.to, 0);
    let (returned, payload) = Header::parse(&back.bytes).unwrap();
    assert_eq!((returned.kind, payload.len()), (Kind::Returned, 0));
    assert_eq!(returned.words, [7, 500 + u64::from(on_wire) * 80 + 2_000]);
    assert_eq!(model.tally.drops.of(DropCause::HopLimit), 1);
    assert_eq!(model.tally.pieces, 0);
    // Neither bytes that are not a frame nor a returned header make a returned header.
    for bytes in [bytes[1..].to_vec(), returned.emit().to_vec()] {
        model.offer(Instant::from_nanos(900), Offered { ends_here, ..frame(0, 1, bytes) });
    }
    run(&mut model);
    assert!(model.outbound.is_empty());
    let Tally { frames, delivered, drops, .. } = model.tally;
    assert_eq!((frames, delivered, drops.total()), (4, 1, 3));
    assert_eq!(model.in_flight(), 0);
}

#[test]
fn a_frame_that_is_segmented_anew_has_other_pieces_at_the_output() {
    let length = 5_000;
    let mut model = model(Framing::ETHERNET, SwitchProfile::new(Buffer::Cells(200)));
    model = model.recut(Some(Framing::Cells));
    model.offer(Instant::ZERO, frame(0, 1, vec![3; length as usize]));
    let end = run(&mut model).as_nanos();
    // The frame is complete at the switch; then all its cells leave.
    let bytes = Framing::ETHERNET.wire_bytes(length) + Framing::Cells.wire_bytes(length);
    let model_end = u64::from(bytes) * 80 + 2 * 2_000;
    assert!(end.abs_diff(model_end) <= 200, "{end} and {model_end}");
    assert_eq!(model.tally.pieces, u64::from(Framing::Cells.pieces(length)));
    assert_eq!(model.outbound.pop_front().unwrap().bytes, vec![3; length as usize]);
    assert_eq!(model.in_flight(), 0);
}

#[test]
fn a_late_wake_up_changes_no_fate() {
    let outcome = |step: u64| {
        let mut model = model(Framing::Cells, SwitchProfile::new(Buffer::Cells(100)));
        for number in 0..60_u64 {
            let at = Instant::from_nanos(number * 100_000);
            model.advance(Instant::from_nanos(at.as_nanos() / step * step), usize::MAX);
            model.offer(at, frame((number % 3) as u16, 3, vec![number as u8; 2_000]));
        }
        run(&mut model);
        let survivors: Vec<u8> = model.outbound.iter().map(|frame| frame.bytes[0]).collect();
        (survivors, model.tally.drops)
    };
    let (survivors, drops) = outcome(1);
    assert!(!survivors.is_empty() && drops.total() > 0);
    assert_eq!(outcome(1_000_000), (survivors, drops));
}

#[test]
fn a_lost_last_cell_takes_the_next_packet_with_it() {
    // Output 3 holds two cells, and those of hosts 1 and 2 fill it when host 0's last one arrives.
    let mut model = model(Framing::Cells, SwitchProfile::new(Buffer::Cells(2)));
    for (host, at, length) in [(1, 0, 40), (0, 3_000, 60), (2, 5_000, 40)] {
        model.offer(Instant::from_nanos(at), frame(host, 3, vec![1; length]));
    }
    run(&mut model);
    assert_eq!(model.tally.drops.of(DropCause::BufferFull), 1, "{:?}", model.tally);
    let after = Instant::from_nanos(1_000_000);
    for number in 0..2 {
        model.offer(after, frame(0, 3, vec![10 + number; 40]));
    }
    run(&mut model);
    assert_eq!(model.tally.drops.of(DropCause::Merged), 1, "{:?}", model.tally);
    let survivors: Vec<u8> = model.outbound.iter().map(|frame| frame.bytes[0]).collect();
    assert_eq!(survivors, [1, 1, 11]);
}

/// Returns how many of 3 x 50 frames of 7 packets are delivered, sent by three hosts at line rate.
fn survivors(jitter: u64) -> u64 {
    let profile = SwitchProfile::new(Buffer::Bytes(32 << 10));
    let mut model = jittery(Framing::ETHERNET, profile, jitter);
    for number in 0..150 {
        model.offer(
            Instant::from_nanos(number % 3 * 40_000),
            frame((number % 3) as u16, 3, vec![0; 10_000]),
        );
    }
    run(&mut model);
    model.tally.delivered
}

#[test]
fn equal_senders_collapse_unless_they_are_in_step_to_the_nanosecond() {
    // In phase, the same sender's pieces always arrive first after space became free.
    assert!(survivors(0) >= 25, "{}", survivors(0));
    assert!(survivors(120_000) <= 15, "{}", survivors(120_000));
}

#[test]
fn a_host_that_floods_its_line_loses_at_its_own_memory_only() {
    let mut model = model(Framing::PLAIN, SwitchProfile::new(Buffer::Bytes(1 << 20)));
    for _ in 0..30 {
        model.offer(Instant::ZERO, frame(0, 3, vec![0; 50_000]));
    }
    model.offer(Instant::ZERO, frame(1, 3, vec![1; 50_000]));
    assert_eq!(model.tally.drops.of(DropCause::System), 10);
    run(&mut model);
    assert_eq!(model.tally.delivered, 21);
    assert_eq!(model.in_flight(), 0);
}

fn any_profile() -> impl Strategy<Value = (Framing, SwitchProfile)> {
    let framing = prop_oneof![
        Just(Framing::PLAIN),
        Just(Framing::Cells),
        Just(Framing::Packets { mtu: 1_472, overhead: 66 }),
    ];
    let buffer = prop_oneof![
        (2_000_u32..40_000).prop_map(Buffer::Bytes),
        (2_u32..400).prop_map(Buffer::Cells),
    ];
    let discard = prop_oneof![
        Just(DiscardPolicy::Tail),
        Just(DiscardPolicy::Partial),
        Just(DiscardPolicy::EARLY),
    ];
    let forwarding =
        prop_oneof![Just(Forwarding::StoreAndForward), Just(Forwarding::CutThrough { header: 53 })];
    (framing, buffer, discard, forwarding).prop_map(|(framing, buffer, discard, forwarding)| {
        (framing, SwitchProfile { buffer, discard, forwarding, ..SwitchProfile::new(buffer) })
    })
}

proptest! {
    #[test]
    fn every_frame_is_delivered_dropped_or_in_flight(
        (framing, profile) in any_profile(),
        recut in prop_oneof![Just(None), Just(Some(Framing::Cells)), Just(Some(Framing::ETHERNET))],
        jitter in prop_oneof![Just(0), 0_u64..200_000],
        load in proptest::collection::vec((0_u64..200_000, 0_u16..4, 0_u16..4, 48_usize..12_000), 1..80),
    ) {
        let mut model = jittery(framing, profile, jitter).recut(recut);
        let mut now = Instant::ZERO;
        for (number, (gap, source, destination, length)) in load.iter().enumerate() {
            now = now.plus_nanos(*gap);
            model.advance(now, usize::MAX);
            model.offer(now, frame(*source, *destination, vec![number as u8; *length]));
            let Tally { frames, delivered, drops, .. } = model.tally;
            prop_assert_eq!(frames, delivered + drops.total() + model.in_flight() as u64);
        }
        run(&mut model);
        let Tally { frames, delivered, drops, pieces, pieces_passed } = model.tally;
        prop_assert_eq!(frames, delivered + drops.total());
        prop_assert_eq!(pieces, pieces_passed + model.piece_drops().total());
        prop_assert_eq!(delivered, model.outbound.len() as u64);
        // Each frame that arrives is complete, and in order between any two hosts.
        for source in 0..4 {
            for destination in 0..4 {
                let sent: Vec<u8> = (0_u8..).zip(&load)
                    .filter(|(_, frame)| (frame.1, frame.2) == (source, destination))
                    .map(|(number, _)| number)
                    .collect();
                let got = model.outbound.iter()
                    .filter(|frame| frame.to == destination && sent.contains(&frame.bytes[0]));
                let got: Vec<u8> = got.map(|frame| frame.bytes[0]).collect();
                prop_assert!(got.is_sorted());
            }
        }
        for frame in &model.outbound {
            prop_assert_eq!(frame.bytes.len(), load[usize::from(frame.bytes[0])].3);
        }
    }
}

#[test]
fn a_broadcast_leaves_by_every_other_port_and_each_copy_counts() {
    let mut model = model(Framing::ETHERNET, SwitchProfile::new(Buffer::Bytes(4_000)));
    let to_all = NodeId::BROADCAST;
    let header = Header { length: 3_000, destination: to_all, ..Header::default() };
    let mut bytes = header.emit().to_vec();
    bytes.resize(header.frame_bytes(), 1);
    // The second frame finds no space behind the first.
    model.offer(Instant::ZERO, frame(1, to_all.0, bytes.clone()));
    model.offer(Instant::ZERO, frame(1, to_all.0, bytes.clone()));
    // Bytes that are not a frame cannot be given another destination.
    model.offer(Instant::ZERO, frame(1, to_all.0, bytes[1..].to_vec()));
    run(&mut model);
    let mut ports: Vec<u16> = model.outbound.iter().map(|out| out.to).collect();
    ports.sort_unstable();
    ports.dedup();
    assert_eq!(ports, [0, 2, 3]);
    for out in &model.outbound {
        assert_eq!(Header::parse(&out.bytes).unwrap().0.destination, NodeId(out.to));
    }
    let Tally { frames, delivered, drops, .. } = model.tally;
    assert_eq!((frames, delivered + drops.total()), (7, 7));
    assert_eq!(model.in_flight(), 0);
}

#[test]
fn a_faster_line_in_takes_less_time() {
    let mut model = model(Framing::PLAIN, SwitchProfile::new(Buffer::Bytes(10_000)))
        .rate_in(Some(LineRate::mbps(1_000)));
    model.offer(Instant::ZERO, frame(0, 1, vec![7; 1_000]));
    assert_eq!(run(&mut model).as_nanos(), 8_000 + 80_000 + 2 * 2_000);
}
