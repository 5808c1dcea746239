//! Processes that poll or block, without futures: two threads that park or spin while they wait.

use std::thread;

use midplane_via::message::engine::{Config, Engine};
use midplane_via::message::envelope::Tag;
use midplane_via::message::group::{CommHandle, Rank};
use midplane_via::message::memory::{MemoryConfig, network};
use midplane_via::message::process::{MessageError, Parker, Process};
use midplane_via::message::request::{Failure, Load, Mode};
use midplane_via::message::transport::{Claim, StartError};

type Own = Process;

const A: Rank = Rank(0);
const B: Rank = Rank(1);

/// Runs each side on its own thread: once parking at once, once polling before it parks, and once without ever parking.
fn pair(
    first: impl Fn(&mut Own, &CommHandle, &Parker) + Send + Copy + 'static,
    second: impl Fn(&mut Own, &CommHandle, &Parker) + Send + Copy + 'static,
) {
    for parker in [|| Parker::new(0), Parker::default, Parker::polling] {
        let config = Config::default().eager(100);
        let memory = MemoryConfig::default().depth(2).room(128);
        let mut ends = network(2, memory).into_iter();
        let (one, other) = (ends.next().expect("two"), ends.next().expect("two"));
        let play = move |end, program: &dyn Fn(&mut Own, &CommHandle, &Parker)| {
            let (mut process, scope) = Process::new(Engine::new(end, config), 2).unwrap();
            let parker = parker();
            program(&mut process, &scope, &parker);
            finish(&mut process, &parker, &scope);
        };
        let threads =
            [thread::spawn(move || play(one, &first)), thread::spawn(move || play(other, &second))];
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    }
}

/// Exchanges a last message, after which neither side needs the other.
fn finish(process: &mut Own, parker: &Parker, scope: &CommHandle) {
    let (other, end) = (Rank(1 - scope.rank().0), Tag(u32::MAX));
    process.send(scope, Mode::Standard, other, end, &[], parker).unwrap();
    let last = process.receive(scope, Some(other), Some(end), Load::anything(), parker).unwrap();
    last.result.unwrap();
}

/// Calls `ask` until it returns a value.
fn poll<T>(mut ask: impl FnMut() -> Option<T>) -> T {
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        thread::yield_now();
    }
}

#[test]
fn messages_are_exchanged_in_reused_storage() {
    pair(
        |process, scope, parker| {
            let mut storage = Vec::new();
            for n in 0..200_usize {
                let bytes = vec![n as u8; n * 3];
                process.send(scope, Mode::Synchronous, B, Tag(1), &bytes, parker).unwrap();
                let room = Load::Room { room: 1000, storage };
                let back = process.receive(scope, Some(B), Some(Tag(2)), room, parker).unwrap();
                assert_eq!(back.bytes, bytes);
                storage = back.bytes;
            }
        },
        |process, scope, parker| {
            for _ in 0..200 {
                let got = process.receive(scope, None, None, Load::anything(), parker).unwrap();
                process.send(scope, Mode::Standard, A, Tag(2), &got.bytes, parker).unwrap();
            }
        },
    );
}

#[test]
fn probes_and_the_attached_buffer_work_without_futures() {
    pair(
        |process, scope, parker| {
            process.attach(2000);
            let bytes = [9; 1500];
            process.send(scope, Mode::Buffered, B, Tag(1), &bytes, parker).unwrap();
            let full = process.send(scope, Mode::Buffered, B, Tag(1), &bytes, parker);
            assert!(matches!(full, Err(MessageError::Buffer { needed: 1564, .. })), "{full:?}");
            process.send(scope, Mode::Synchronous, B, Tag(2), &[], parker).unwrap();
            assert_eq!(process.detach(), Some(2000), "the first one was received");
        },
        |process, scope, parker| {
            let found = poll(|| process.iprobe(scope, None, Some(Tag(1)), Claim::Leave).unwrap());
            assert_eq!((scope.rank_of(found.key.source), found.length), (A, 1500));
            let found = poll(|| process.iprobe(scope, Some(A), None, Claim::Take).unwrap());
            let message = found.claimed.unwrap();
            process.start(message, Load::anything()).unwrap();
            assert_eq!(poll(|| process.test(message)).bytes, [9; 1500]);
            assert!(process.start(message, Load::anything()).is_err(), "it is received once");
            process.free(message);
            process.receive(scope, Some(A), Some(Tag(2)), Load::anything(), parker).unwrap();
        },
    );
}

#[test]
fn wrong_use_is_refused_and_changes_nothing() {
    pair(
        |process, scope, _| {
            let send = process.send_init(scope, Mode::Standard, B, Tag(1)).unwrap();
            assert!(process.start(send, Load::anything()).is_err(), "a send has no room");
            let receive = process.receive_init(scope, Some(B), None).unwrap();
            assert!(process.start(receive, Load::Copy(b"x")).is_err(), "a receive no message");
            process.start(receive, Load::anything()).unwrap();
            assert!(process.start(receive, Load::anything()).is_err(), "it is in progress");
            process.cancel(receive);
            let outcome = poll(|| process.test(receive));
            assert_eq!(outcome.result, Err(Failure::Cancelled));
            process.free(receive);
            assert!(process.start(receive, Load::anything()).is_err(), "it was freed");
            assert!(process.test(receive).is_none());
            process.free(receive);
            process.start(send, Load::Copy(b"x")).unwrap();
            poll(|| process.test(send)).result.unwrap();
            assert!(process.send_init(scope, Mode::Standard, Rank(2), Tag(1)).is_err());
        },
        |process, scope, parker| {
            let got = process.receive(scope, Some(A), None, Load::anything(), parker).unwrap();
            assert_eq!(got.bytes, b"x");
        },
    );
}

#[test]
fn a_buffered_send_that_fails_returns_its_part_of_the_buffer() {
    const LONGEST: usize = 1 << 30;
    let end = network(1, MemoryConfig::default()).remove(0);
    let (mut process, scope) = Process::new(Engine::new(end, Config::default()), 1).unwrap();
    process.attach(2 * LONGEST);
    let long = Load::Bytes(vec![0; LONGEST + 1].into());
    let sent = process.isend(&scope, Mode::Buffered, A, Tag(1), long);
    assert!(matches!(sent, Err(MessageError::Start(StartError::TooLong { .. }))), "{sent:?}");
    assert_eq!(process.detach(), Some(2 * LONGEST));
}
