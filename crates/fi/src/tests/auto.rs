//! Domains with `FI_PROGRESS_AUTO`, whose applications do not poll.

use super::remote_memory::{read, write};
use super::side::{ANY, Pair, Side, is_alone, next};
use crate::abi::constants::{PROGRESS_AUTO, RECV, TAGGED};

fn pair() -> Pair {
    Pair::of(Side::open(), Side::open_with(PROGRESS_AUTO))
}

/// Polls the first side alone until it has `count` completions without an error.
#[track_caller]
fn complete(pair: &Pair, count: usize) {
    for _ in 0..count {
        assert_eq!(next(&pair.one).1, 0);
    }
}

#[test]
fn a_process_that_does_not_poll_serves_writes_and_reads() {
    let pair = pair();
    let mut memory = vec![0; 300_000];
    pair.other.register(&mut memory, 42);
    for round in 1..20_u8 {
        let (sent, mut got) = (vec![round; 200_000], vec![0; 200_000]);
        write(&pair, &sent, 1000, 42, 1);
        complete(&pair, 1);
        read(&pair, &mut got, 1000, 42, 2);
        complete(&pair, 1);
        assert_eq!(sent, got);
        // Each poll makes the application drive the endpoint for some time; each call of `wait` returns it to the
        // thread at once.
        if round % 3 == 0 {
            assert!(pair.other.poll().is_none());
        }
        if round % 5 == 0 {
            assert!(pair.other.wait(3).is_none());
        }
    }
}

#[test]
fn a_process_that_does_not_poll_receives_and_sends() {
    let pair = pair();
    let (sent, mut got) = (vec![7; 3 << 20], vec![0; 3 << 20]);
    pair.other.receive(ANY, (5, 0), &mut got, 2);
    assert_eq!(pair.one.send(pair.to_other, 5, &sent, 0, 1), 0);
    complete(&pair, 1);
    let (entry, error, _) = next(&pair.other);
    assert_eq!((entry.flags & (RECV | TAGGED), error, entry.len), (RECV | TAGGED, 0, 3 << 20));
    assert_eq!(sent, got);
    // Sends more bytes than the ring holds to a peer that begins to receive later.
    for _ in 0..10 {
        assert_eq!(pair.other.send(pair.to_one, 6, &sent[..60_000], 0, 3), 0);
    }
    for at in 0..10 {
        pair.one.receive(pair.to_other, (6, 0), &mut got[at * 60_000..][..60_000], 4);
    }
    complete(&pair, 10);
}

#[test]
fn a_waiting_application_is_woken_when_its_driver_receives() {
    let pair = pair();
    let mut got = [0; 4];
    for _ in 0..50 {
        pair.other.receive(ANY, (1, 0), &mut got, 2);
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| pair.other.wait(20_000));
            assert_eq!(pair.one.send(pair.to_other, 1, b"four", 0, 1), 0);
            complete(&pair, 1);
            assert_eq!(waiter.join().unwrap(), Some(2));
        });
    }
}

/// Returns the number of threads with the driver's name, and their total processor time in ticks.
fn drivers() -> (usize, u64) {
    let (mut count, mut ticks) = (0, 0);
    for task in std::fs::read_dir("/proc/self/task").unwrap() {
        let stat = std::fs::read_to_string(task.unwrap().path().join("stat")).unwrap_or_default();
        let Some((name, rest)) = stat.rsplit_once(')') else { continue };
        if name.ends_with("midplane-fi aut") {
            count += 1;
            ticks +=
                rest.split(' ').skip(12).take(2).map(|n| n.parse::<u64>().unwrap()).sum::<u64>();
        }
    }
    (count, ticks)
}

#[test]
fn a_driver_with_nothing_to_do_uses_no_processor_and_ends_with_its_domain() {
    if !is_alone(
        "tests::auto::a_driver_with_nothing_to_do_uses_no_processor_and_ends_with_its_domain",
    ) {
        return;
    }
    let pair = pair();
    let mut memory = [0; 4];
    pair.other.register(&mut memory, 42);
    write(&pair, b"four", 0, 42, 1);
    complete(&pair, 1);
    let (count, before) = drivers();
    assert_eq!(count, 1);
    // The other side does not poll meanwhile.
    assert!(pair.one.wait(500).is_none());
    // A tick is 10 ms; a thread that polls would use 50.
    let used = drivers().1 - before;
    assert!(used <= 5, "{used} ticks");
    pair.other.close_domain();
    assert_eq!(drivers().0, 0);
}
