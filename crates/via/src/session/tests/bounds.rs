//! Tests that a peer that breaks the protocol ends its session, and that memory is bounded.

use std::io::IoSlice;
use std::sync::{Arc, Mutex};
use std::task::{Wake, Waker};

use midplane_simhw::shm::rings::RingPair;
use tokio::io::ReadBuf;

use super::{Network, RING, pair};
use crate::session::core::{Core, Direct, Ended, Event};
use crate::session::frame::{FIN, Header, Kind, Reason};
use crate::session::stream::copy_held;
use crate::session::wire::Wire;

#[test]
fn bytes_beyond_the_credit_end_the_session() {
    let [mut hostile, here] = RingPair::local(1 << 20).unwrap();
    let mut here = Core::new(Wire::ring(here), false);
    let push = |pair: &mut RingPair, header: Header, bytes: &[u8]| {
        pair.sender.push(header.words(), &[IoSlice::new(bytes)]);
    };
    push(&mut hostile, Header::new(Kind::Open, 2, 0), b"service");
    for _ in 0..9 {
        assert_eq!(here.ended, None);
        push(&mut hostile, Header::new(Kind::Data, 2, 0), &[0; 32 * 1024]);
        here.pump(None);
    }
    assert_eq!(here.ended, Some(Ended::Violation));
}

#[test]
fn a_service_with_a_name_beyond_the_bound_ends_the_session() {
    for (length, ended) in [(256, None), (257, Some(Ended::Violation))] {
        let [mut hostile, here] = RingPair::local(RING).unwrap();
        let mut here = Core::new(Wire::ring(here), false);
        let header = Header::new(Kind::Open, 2, 0);
        hostile.sender.push(header.words(), &[IoSlice::new(&vec![b'x'; length])]);
        here.pump(None);
        assert_eq!(here.ended, ended);
    }
}

#[test]
fn data_of_several_streams_count_if_they_arrive_in_one_turn() {
    let [mut from, mut to] = pair();
    let streams: Vec<u32> = (0..2).map(|_| from.open("service").unwrap()).collect();
    from.flush();
    to.pump(None);
    streams.iter().for_each(|stream| to.accept(*stream));
    to.flush();
    from.pump(None);
    let mut arrive = |numbers: &[u32]| {
        for number in numbers {
            assert_eq!(from.write(*number, &[IoSlice::new(b"x")], Waker::noop()), 1);
        }
        from.flush();
        to.pump(None);
        to.end_turn()
    };
    // One after the other, and several parts of one.
    for number in [0, 1, 0] {
        assert!(!arrive(&[streams[number]; 2]));
    }
    assert!(arrive(&streams));
    assert!(!arrive(&streams[..1]));
}

/// A waker that records its number.
struct Numbered(u32, Arc<Mutex<Vec<u32>>>);

impl Wake for Numbered {
    fn wake(self: Arc<Self>) {
        self.1.lock().unwrap().push(self.0);
    }
}

#[test]
fn room_wakes_the_writers_that_have_waited_longest_and_no_more_than_it_serves() {
    let [mut from, mut to] = pair();
    let streams: Vec<u32> = (0..30).map(|_| from.open("service").unwrap()).collect();
    from.flush();
    to.pump(None);
    streams.iter().for_each(|stream| to.accept(*stream));
    to.flush();
    from.pump(None);
    let (woken, mut waiting) = (Arc::new(Mutex::new(Vec::new())), Vec::new());
    for stream in streams {
        let waker = Waker::from(Arc::new(Numbered(stream, Arc::clone(&woken))));
        while from.write(stream, &[IoSlice::new(&[7; 3_000])], &waker) > 0 {}
        waiting.push(stream);
    }
    from.flush();
    to.pump(None);
    while woken.lock().unwrap().len() < waiting.len() {
        from.wake_writers();
        let wakers = std::mem::take(&mut from.wakers);
        assert!((1..=4).contains(&wakers.len()), "a quarter of the ring for each");
        wakers.into_iter().for_each(Waker::wake);
    }
    assert_eq!(*woken.lock().unwrap(), waiting);
}

#[test]
fn a_stream_that_its_service_resets_at_once_was_accepted_and_is_forgotten() {
    for resets_first in [false, true] {
        let [mut one, mut other] = pair();
        let stream = one.open("a service").unwrap();
        one.flush();
        other.pump(None);
        if !resets_first {
            other.accept(stream);
        }
        other.reset(stream, Reason::Dropped);
        other.drop_stream(stream);
        if resets_first {
            // The service's task runs on another thread than the driver, which accepts.
            other.accept(stream);
        }
        other.flush();
        other.accept(stream);
        other.flush();
        one.pump(None);
        let flow = one.flow(stream).unwrap();
        assert_eq!((flow.is_accepted, flow.reset), (true, Some(Reason::Dropped)));
        one.drop_stream(stream);
        one.flush();
        assert_eq!((one.streams(), other.streams()), (0, 0));
    }
}

/// Regression: what an application did after its peer's reset kept the stream for the life of the session.
#[test]
fn a_stream_that_its_peer_has_reset_is_forgotten_whatever_the_application_does() {
    for reads in [false, true] {
        let [mut one, mut other] = pair();
        let stream = one.open("a service").unwrap();
        one.flush();
        other.pump(None);
        other.accept(stream);
        other.flush();
        one.pump(None);
        let mut left = if reads { 200_000 } else { 0 };
        while left > 0 {
            left -= other.write(stream, &[IoSlice::new(&vec![7; left])], Waker::noop());
            other.flush();
            one.pump(None);
        }
        other.reset(stream, Reason::Dropped);
        other.drop_stream(stream);
        other.flush();
        one.pump(None);
        if reads {
            one.consumed(stream, 200_000);
        } else {
            one.finish(stream);
        }
        one.flush();
        one.drop_stream(stream);
        one.flush();
        assert_eq!((one.streams(), other.streams()), (0, 0), "reads: {reads}");
    }
}

#[test]
fn bytes_that_overtake_the_acceptance_of_their_stream_do_not_hold_it_up() {
    let [mut one, mut other] = pair();
    let stream = one.open("a service").unwrap();
    one.flush();
    other.pump(None);
    // The service's task runs on another thread than the driver, which accepts.
    assert_eq!(other.write(stream, &[IoSlice::new(b"first")], Waker::noop()), 5);
    other.accept(stream);
    other.flush();
    for _ in 0..10 {
        // The opener waits for the acceptance, which is no read.
        one.await_bytes(stream, Waker::noop());
        if !one.wake_reader() {
            one.pump(None);
        }
    }
    assert!(one.flow(stream).unwrap().is_accepted);
}

#[test]
fn of_many_descriptions_the_newest_is_kept() {
    let [mut hostile, here] = RingPair::local(RING).unwrap();
    let mut here = Core::new(Wire::ring(here), false);
    for number in 0..100_u8 {
        hostile.sender.push(Header::new(Kind::Hello, 0, 0).words(), &[IoSlice::new(&[number])]);
        here.pump(None);
    }
    assert_eq!(here.events, [Event::Hello(vec![99])]);
}

/// Two streams that the second end has accepted.
fn two_accepted() -> ([Core; 2], [u32; 2]) {
    let [one, other] = RingPair::local(8 * RING).unwrap();
    let mut ends = [Core::new(Wire::ring(one), true), Core::new(Wire::ring(other), false)];
    let streams = [(); 2].map(|()| ends[0].open("service").unwrap());
    ends[0].flush();
    ends[1].pump(None);
    ends[1].events.clear();
    for stream in streams {
        ends[1].accept(stream);
    }
    ends[1].flush();
    ends[0].pump(None);
    (ends, streams)
}

#[test]
fn a_long_frame_is_left_to_its_reader_and_blocks_no_other_stream() {
    let ([mut from, mut to], [one, other]) = two_accepted();
    to.await_bytes(one, Waker::noop());
    let bytes = [7; 20_000];
    assert_eq!(from.write(one, &[IoSlice::new(&bytes)], Waker::noop()), bytes.len());
    assert_eq!(from.write(other, &[IoSlice::new(&bytes)], Waker::noop()), bytes.len());
    let mut out = [0; 20_000];
    let mut into = ReadBuf::new(&mut out);
    // Neither the reader of the other stream nor the driver takes the frame; its own reader is woken.
    assert!(!to.pump(Some(Direct { stream: other, into: &mut into })));
    assert!(!to.pump(None));
    assert_eq!((into.filled().len(), to.wakers.len()), (0, 1));
    to.stop_leaving_frames();
    assert!(to.pump(Some(Direct { stream: other, into: &mut into })));
    assert_eq!(into.filled(), bytes);
    into.clear();
    assert!(crate::session::stream::copy_held(&mut to, one, &mut into));
    assert_eq!(into.filled(), bytes);
}

#[test]
fn a_thousand_streams_that_carried_a_mebibyte_and_are_idle_keep_little_memory() {
    const STREAMS: usize = 1_000;
    const BYTES: usize = 1 << 20;
    let mut ends = pair();
    let chunk = vec![7; 64 * 1024];
    let mut kept = 0;
    let used = allocation_counter::measure(|| {
        let [from, to] = &mut ends;
        for _ in 0..STREAMS {
            let stream = from.open("service").unwrap();
            from.flush();
            to.pump(None);
            to.events.clear();
            to.accept(stream);
            let (mut written, mut read) = (0, 0);
            let mut out = vec![0; chunk.len()];
            while read < BYTES {
                let next = &chunk[..chunk.len().min(BYTES - written)];
                written += from.write(stream, &[IoSlice::new(next)], Waker::noop());
                from.flush();
                // Half of it is held before it is read.
                if read < BYTES / 2 {
                    to.pump(None);
                }
                let mut into = ReadBuf::new(&mut out);
                while crate::session::stream::copy_held(to, stream, &mut into)
                    || to.pump(Some(Direct { stream, into: &mut into }))
                {
                    read += into.filled().len();
                    into.clear();
                }
                to.flush();
                from.pump(None);
                from.wake_writers();
            }
        }
        kept = from.streams() + to.streams();
    });
    assert_eq!(kept, 2 * STREAMS);
    // Both processes may use 64 MiB; most of the memory in use is the streams' own state.
    assert!(used.bytes_current < 4 << 20, "{} bytes are kept", used.bytes_current);
}

#[test]
fn bytes_behind_the_end_of_a_stream_end_the_session() {
    let [mut hostile, here] = RingPair::local(RING).unwrap();
    let mut here = Core::new(Wire::ring(here), false);
    let frames = [
        (Header::new(Kind::Open, 2, 0), &b"service"[..]),
        (Header { flags: FIN, ..Header::new(Kind::Data, 2, 0) }, b""),
        (Header::new(Kind::Data, 2, 0), b"more"),
    ];
    for (header, bytes) in frames {
        assert_eq!(here.ended, None);
        hostile.sender.push(header.words(), &[IoSlice::new(bytes)]);
        here.pump(None);
    }
    assert_eq!(here.ended, Some(Ended::Violation));
}

#[test]
fn streams_beyond_the_bound_are_refused_and_the_session_continues() {
    let [mut here, mut there] = pair();
    let mut opened = 0;
    let mut refused = 0;
    for _ in 0..17_000 {
        while here.open("service").is_none() {
            there.pump(None);
            there.flush();
            here.pump(None);
        }
        there.pump(None);
        there.flush();
        opened += there.events.drain(..).count();
        here.pump(None);
    }
    for stream in (2..34_002).step_by(2) {
        refused += usize::from(here.flow(stream).is_some_and(|flow| flow.reset.is_some()));
    }
    assert_eq!(opened, 16 * 1024);
    assert!(refused > 0 && here.ended.is_none() && there.ended.is_none());
}

const WRITERS: usize = 8;

/// Has tasks write blocks of `block` bytes for 400 ms of virtual time, each to its own stream; returns the bytes that
/// each has written.
fn write_at_once(block: usize) -> [usize; WRITERS] {
    let (mut network, [mut from, mut to]) = Network::new(u64::MAX, 4);
    let streams: Vec<u32> = (0..WRITERS).map(|_| from.open("service").unwrap()).collect();
    let ready = Arc::new(Mutex::new((0..WRITERS as u32).collect::<Vec<u32>>()));
    let waker = |index| Waker::from(Arc::new(Numbered(index, Arc::clone(&ready))));
    let wakers: Vec<Waker> = (0..WRITERS as u32).map(waker).collect();
    let (block, mut memory) = (vec![7; block], vec![0; 1 << 20]);
    let mut written = [0; WRITERS];
    for _ in 0..400 {
        let tasks = std::mem::take(&mut *ready.lock().unwrap());
        for task in tasks.into_iter().map(|task| task as usize) {
            // As a task that writes without end: until it has to wait.
            while let count @ 1.. =
                from.write(streams[task], &[IoSlice::new(&block)], &wakers[task])
            {
                written[task] += count;
            }
        }
        from.flush();
        network.step(&mut [None; 2]);
        while to.pump(None) {}
        while let Some(event) = to.events.pop_front() {
            if let Event::Opened { stream, .. } = event {
                to.accept(stream);
            }
        }
        for stream in &streams {
            while copy_held(&mut to, *stream, &mut ReadBuf::new(&mut memory)) {}
        }
        to.flush();
        from.pump(None);
        from.wake_writers();
        std::mem::take(&mut from.wakers).into_iter().for_each(Waker::wake);
    }
    written
}

#[test]
fn writers_that_share_a_connection_over_udp_take_turns() {
    for block in [1 << 20, 10_000, 1_000] {
        let written = write_at_once(block);
        let (least, all) = (*written.iter().min().unwrap(), written.iter().sum::<usize>());
        assert!(least * WRITERS * 2 > all, "one has less than half of its share: {written:?}");
        // Each step is a millisecond.
        assert!(all / 400 > 100_000, "blocks of {block}: {all} bytes in 400 ms");
    }
}

/// A task that was woken for room may never write: its stream is dropped, or its write is cancelled.
#[test]
fn a_writer_that_was_woken_and_does_not_write_delays_no_other() {
    for drops in [false, true] {
        let (mut network, [mut from, mut to]) = Network::new(u64::MAX, 4);
        let [gone, late, other] = [(); 3].map(|()| from.open("service").unwrap());
        let mut memory = vec![0; 1 << 20];
        from.flush();
        network.step(&mut [None; 2]);
        while to.pump(None) {}
        [gone, late, other].into_iter().for_each(|stream| to.accept(stream));
        to.flush();
        network.step(&mut [None; 2]);
        from.pump(None);
        let write = |from: &mut Core, stream| {
            from.write(stream, &[IoSlice::new(&[7; 20_000])], Waker::noop())
        };
        let mut writers = [gone, late].into_iter().cycle();
        while write(&mut from, writers.next().unwrap()) > 0 {}
        while write(&mut from, writers.next().unwrap()) > 0 {}
        for _ in 0..5 {
            from.flush();
            network.step(&mut [None; 2]);
            while to.pump(None) {}
            for stream in [gone, late, other] {
                while copy_held(&mut to, stream, &mut ReadBuf::new(&mut memory)) {}
            }
            to.flush();
            network.step(&mut [None; 2]);
            from.pump(None);
            from.wake_writers();
            while write(&mut from, other) > 0 {}
        }
        from.flush();
        network.step(&mut [None; 2]);
        from.pump(None);
        from.wake_writers();
        if drops {
            from.drop_stream(gone);
        }
        assert_eq!(write(&mut from, other), 20_000, "no other waits");
        assert!(write(&mut from, late) > 0, "it was woken several rounds ago");
    }
}
