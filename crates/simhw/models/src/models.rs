//! The models: each function checks one property.

use std::sync::Arc;

use loom::sync::Notify;
use loom::sync::atomic::AtomicBool;
use loom::thread;

use crate::byte_ring::{self, MIN_CAPACITY, RingReceiver, RingSender};
use crate::frame::HEADER_BYTES;
use crate::id::PortId;
use crate::lane::{Receiver, Sender, Shape};
use crate::port::{Bells, GATE_BYTES, PortControlBlock, gate};
use crate::ring::{Consumer, Producer, ring, ring_bytes};
use crate::segment::{Segment, View};
use crate::sync::{AtomicU64, Ordering, fence};

/// Checks all interleavings with at most three preemptions. More take minutes, and have found nothing.
fn check(model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(model);
}

fn small_ring() -> (Producer, Consumer) {
    ring(&Arc::new(Segment::private(ring_bytes(2))), 0, 2)
}

fn take(consumer: &mut Consumer) -> [u64; 7] {
    loop {
        match consumer.pop() {
            Some(entry) => return entry,
            None => thread::yield_now(),
        }
    }
}

pub fn a_ring_passes_whole_entries_in_order_around_its_end() {
    check(|| {
        let (mut producer, mut consumer) = small_ring();
        let writer = thread::spawn(move || {
            for value in 1..=3 {
                while producer.push(&[value; 7]).is_err() {
                    thread::yield_now();
                }
            }
        });
        for value in 1..=3 {
            assert_eq!(take(&mut consumer), [value; 7]);
        }
        assert!(consumer.is_empty());
        writer.join().unwrap();
    });
}

pub fn staged_entries_are_seen_all_at_once() {
    check(|| {
        let (mut producer, mut consumer) = small_ring();
        let writer = thread::spawn(move || {
            producer.stage(&[9; 7]).unwrap();
            producer.unstage();
            producer.stage(&[1; 7]).unwrap();
            producer.stage(&[2; 7]).unwrap();
            producer.publish();
        });
        assert_eq!(take(&mut consumer), [1; 7]);
        assert_eq!(consumer.pop(), Some([2; 7]), "it was published before");
        writer.join().unwrap();
    });
}

const SHAPE: Shape = Shape { slots: 4, areas: 4, mtu: 64 };

fn lane() -> (Sender, Receiver) {
    let segment = Arc::new(Segment::private(SHAPE.lane_bytes()));
    (Sender::new(Arc::clone(&segment), 0, SHAPE), Receiver::new(segment, 0, SHAPE))
}

fn header(number: u8) -> [u8; HEADER_BYTES] {
    [number; HEADER_BYTES]
}

fn send(sender: &mut Sender, number: u8) {
    sender.stage(&header(number), View::from(&[][..])).unwrap();
    sender.publish();
}

pub fn a_lane_passes_whole_headers_in_order() {
    check(|| {
        let (mut sender, mut receiver) = lane();
        let writer = thread::spawn(move || (1..=2).for_each(|number| send(&mut sender, number)));
        for number in 1..=2 {
            while !receiver.has_frame() {
                thread::yield_now();
            }
            assert_eq!(receiver.header(), header(number));
            receiver.release(0);
        }
        writer.join().unwrap();
    });
}

pub fn no_wake_is_lost_between_the_last_poll_and_parking() {
    check(|| {
        let (mut sender, receiver) = lane();
        let event = Arc::new(Notify::new());
        let rings = Arc::clone(&event);
        let writer = thread::spawn(move || {
            send(&mut sender, 1);
            fence(Ordering::SeqCst);
            if sender.takes_wake() {
                rings.notify();
            }
        });
        // As the engine does: sets the flag, fences, polls once more, waits.
        receiver.arm_wakeup();
        fence(Ordering::SeqCst);
        // A wait may end spuriously; loom reports one that never ends.
        while !receiver.has_frame() {
            event.wait();
        }
        writer.join().unwrap();
    });
}

pub fn no_wake_is_lost_between_the_last_try_and_waiting_for_room() {
    check(|| {
        let (mut sender, mut receiver) = lane();
        (1..=4).for_each(|number| send(&mut sender, number));
        assert!(!sender.has_room_for(0));
        let event = Arc::new(Notify::new());
        let rings = Arc::clone(&event);
        let reader = thread::spawn(move || {
            assert!(receiver.has_frame() && receiver.release(0), "a quarter of four slots");
            fence(Ordering::SeqCst);
            if receiver.takes_wake() {
                rings.notify();
            }
        });
        sender.await_room();
        fence(Ordering::SeqCst);
        while !sender.has_room_for(0) {
            event.wait();
        }
        reader.join().unwrap();
    });
}

pub fn no_completion_is_missed_by_a_port_that_begins_to_wait() {
    check(|| {
        let (mut producer, mut consumer) = small_ring();
        let waiting = Arc::new(AtomicBool::new(false));
        let event = Arc::new(Notify::new());
        let (waits, rings) = (Arc::clone(&waiting), Arc::clone(&event));
        let nic = thread::spawn(move || {
            producer.push(&[1; 7]).unwrap();
            fence(Ordering::SeqCst);
            if waits.load(Ordering::Relaxed) {
                waits.store(false, Ordering::Relaxed);
                rings.notify();
            }
        });
        // As a port does: sets the waker and the flag, fences, polls once more.
        waiting.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        while consumer.is_empty() {
            event.wait();
        }
        assert_eq!(consumer.pop(), Some([1; 7]));
        nic.join().unwrap();
    });
}

pub fn no_doorbell_is_lost_and_a_ringer_always_notifies_the_nic() {
    check(|| {
        let bells = Arc::new(Bells::new(128));
        let told = Arc::new(Notify::new());
        let ringers: Vec<_> = [3, 4]
            .map(|port| {
                let (bells, told) = (Arc::clone(&bells), Arc::clone(&told));
                thread::spawn(move || {
                    if bells.ring(PortId(port)) {
                        told.notify();
                    }
                })
            })
            .into();
        let mut heard = Vec::new();
        while heard.len() < 2 {
            bells.take(|port| heard.push(port));
            if heard.len() < 2 && bells.is_silent() {
                told.wait();
            }
        }
        heard.sort_unstable();
        assert_eq!(heard, [PortId(3), PortId(4)]);
        for ringer in ringers {
            ringer.join().unwrap();
        }
    });
}

pub fn a_parked_daemon_is_woken_by_a_doorbell() {
    check(|| {
        let words = PortControlBlock::new(Arc::new(Segment::private(128)));
        let event = Arc::new(Notify::new());
        let (rung, rings) = (words.clone(), Arc::clone(&event));
        let client = thread::spawn(move || {
            if rung.ring() {
                rings.notify();
            }
        });
        loop {
            if words.take_bell() {
                break;
            }
            words.arm_wakeup();
            fence(Ordering::SeqCst);
            if words.take_bell() {
                break;
            }
            event.wait();
            words.disarm_wakeup();
        }
        client.join().unwrap();
    });
}

pub fn a_waiting_client_is_woken_by_a_completion() {
    check(|| {
        let words = PortControlBlock::new(Arc::new(Segment::private(128)));
        let event = Arc::new(Notify::new());
        let (woken, rings) = (words.clone(), Arc::clone(&event));
        let (mut producer, mut consumer) = small_ring();
        let nic = thread::spawn(move || {
            producer.push(&[7; 7]).unwrap();
            fence(Ordering::SeqCst);
            if woken.takes_wake() {
                rings.notify();
            }
        });
        let entry = loop {
            if let Some(entry) = consumer.pop() {
                break entry;
            }
            words.wait();
            fence(Ordering::SeqCst);
            if let Some(entry) = consumer.pop() {
                break entry;
            }
            event.wait();
        };
        assert_eq!(entry, [7; 7]);
        nic.join().unwrap();
    });
}

fn byte_ring() -> (RingSender, RingReceiver) {
    let segment = Arc::new(Segment::private(byte_ring::ring_bytes(MIN_CAPACITY)));
    byte_ring::ring(&segment, 0, MIN_CAPACITY)
}

pub fn a_byte_ring_passes_whole_records_in_order() {
    check(|| {
        let (mut sender, mut receiver) = byte_ring();
        let writer =
            thread::spawn(move || (1..=2).for_each(|number| sender.push([number; 2], &[])));
        for number in 1..=2 {
            let record = loop {
                match receiver.peek().unwrap() {
                    Some(record) => break record,
                    None => thread::yield_now(),
                }
            };
            assert_eq!(record.words, [number; 2]);
            let _ = receiver.advance(record);
        }
        writer.join().unwrap();
    });
}

pub fn no_wake_is_lost_between_the_last_poll_of_a_byte_ring_and_parking() {
    check(|| {
        let (mut sender, mut receiver) = byte_ring();
        let event = Arc::new(Notify::new());
        let rings = Arc::clone(&event);
        let writer = thread::spawn(move || {
            sender.push([1; 2], &[]);
            if sender.must_wake() {
                rings.notify();
            }
        });
        let _ = receiver.park();
        while receiver.peek().unwrap().is_none() {
            event.wait();
        }
        writer.join().unwrap();
    });
}

pub fn no_wake_is_lost_between_a_full_byte_ring_and_waiting_for_room() {
    check(|| {
        let (mut sender, mut receiver) = byte_ring();
        while sender.room().is_some() {
            sender.push([1; 2], &[]);
        }
        let event = Arc::new(Notify::new());
        let rings = Arc::clone(&event);
        let reader = thread::spawn(move || {
            while let Some(record) = receiver.peek().unwrap() {
                if receiver.advance(record) {
                    rings.notify();
                    break;
                }
            }
            if receiver.park() {
                rings.notify();
            }
        });
        sender.await_room();
        while sender.room().is_none() {
            event.wait();
        }
        reader.join().unwrap();
    });
}

/// Increments without an atomic operation: two at once, or one that does not see the other, lose a count.
fn increment(count: &AtomicU64) {
    count.store(count.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
}

/// The NIC takes the ring from a host that posts, writes behind the host's last entry, and opens the gate again.
pub fn host_and_nic_never_write_a_gated_ring_at_once() {
    check(|| {
        let (mut host, mut nic) = gate(&Arc::new(Segment::private(GATE_BYTES)), 0);
        let written = Arc::new(AtomicU64::new(0));
        let first = nic.open().expect("nothing was posted");
        let count = Arc::clone(&written);
        let poster = thread::spawn(move || {
            let posts = [first, first + 1].map(|number| host.post(number, || increment(&count)));
            posts.into_iter().flatten().count() as u64
        });
        while !nic.close() {
            thread::yield_now();
        }
        increment(&written);
        while nic.open().is_none() {
            thread::yield_now();
        }
        while !nic.close() {
            thread::yield_now();
        }
        increment(&written);
        let passed = poster.join().unwrap();
        assert_eq!(written.load(Ordering::Relaxed), passed + 2);
    });
}
