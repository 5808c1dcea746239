//! Writes to the peer's memory that bypass the NIC: they change only the memory that they name, and only if it is open
//! to them.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use midplane_simhw::host::Host as _;
use midplane_simhw::region::ProtectionTag;
use midplane_via::attributes::{ViAttributes, ViState};
use midplane_via::descriptor::Descriptor;
use midplane_via::memory::{Memory, MemoryOptions, RemoteMemory};
use midplane_via::nic::WorkQueue;
use midplane_via::outcome::{AsyncError, DescriptorError, Operation};
use proptest::prelude::*;

use super::pair::{End, Setting, connected_over, pattern, pause};
use super::rings::rings;
use super::{descriptor, errors, received};

const BYTES: usize = 5_000;

fn attributes() -> ViAttributes {
    ViAttributes { rdma_write: true, ..super::attributes() }
}

/// A message or a write of the client.
#[derive(Clone, Copy, Debug)]
struct Step {
    offset: usize,
    length: usize,
    /// True for a message, false for a write.
    is_send: bool,
    has_immediate: bool,
}

impl Step {
    /// Returns whether the step consumes a receive of the peer.
    const fn takes_receive(self) -> bool {
        self.is_send || self.has_immediate
    }
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = (0..BYTES, 0..BYTES, any::<bool>(), any::<bool>());
    let step = step.prop_map(|(offset, length, is_send, has_immediate)| Step {
        offset,
        length: length.min(BYTES - offset),
        is_send: is_send && has_immediate,
        has_immediate,
    });
    proptest::collection::vec(step, 1..20)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Sends writes and messages in any order; the last message follows all of them.
    #[test]
    fn writes_change_the_memory_that_they_name_and_no_other(
        steps in steps(), mtu in 1_usize..3_000, depth in 2_usize..6, most in 1_usize..BYTES,
    ) {
        let (both, _) = rings(mtu, depth);
        let name = Arc::new(Mutex::new(None));
        let (place, todo, expected) = (Arc::clone(&name), steps.clone(), steps.clone());
        let client = move |mut end: End| async move {
            end.opens().await;
            let to: RemoteMemory = name.lock().unwrap().expect("the server has registered it");
            for (number, step) in todo.iter().enumerate() {
                let at = number * BYTES;
                end.memory.write(at, &pattern(number as u32, step.length)).unwrap();
                let mut posted = descriptor(&end, at, step.length, most);
                posted.immediate = step.has_immediate.then_some(number as u32);
                if !step.is_send {
                    posted = posted.write(to.at(step.offset as u32).unwrap());
                }
                end.nic.post_send(end.vi, posted).unwrap();
            }
            end.nic.post_send(end.vi, descriptor(&end, 0, 0, 1)).unwrap();
            for step in todo {
                let done = end.nic.wait(end.vi, WorkQueue::Send).await.unwrap();
                let operation = if step.is_send { Operation::Send } else { Operation::RdmaWrite };
                assert_eq!((done.outcome, done.operation, done.length), (Ok(()), operation, step.length));
            }
            end.nic.wait(end.vi, WorkQueue::Send).await.unwrap().outcome
        };
        let server = move |mut end: End| async move {
            let received_steps = steps_with_receive(&expected);
            let options = MemoryOptions { rdma_write: true, rdma_read: true, ..MemoryOptions::default() };
            let memory = end.nic.register(BYTES, options).unwrap();
            for slot in 0..=received_steps.len() {
                end.nic.post_receive(end.vi, descriptor(&end, slot * BYTES, BYTES, most)).unwrap();
            }
            *place.lock().unwrap() = Some(memory.remote());
            for number in received_steps {
                let step = expected[number];
                let done = received(&mut end).await;
                let operation =
                    if step.is_send { Operation::Receive } else { Operation::RemoteRdmaWrite };
                assert_eq!((done.outcome, done.operation, done.length), (Ok(()), operation, step.length));
                assert_eq!(done.immediate, step.has_immediate.then_some(number as u32));
                if step.is_send {
                    let begin = done.descriptor.segments[0].offset();
                    assert_eq!(end.bytes(begin, done.length), pattern(number as u32, done.length));
                }
            }
            assert_eq!(received(&mut end).await.length, 0);
            let mut bytes = vec![0; BYTES];
            memory.read(0, &mut bytes).unwrap();
            bytes
        };
        let bytes = BYTES * (steps.len() + 1);
        let (last, bytes) =
            connected_over(Setting::default(), attributes(), bytes, both, client, server);
        prop_assert_eq!(last, Ok(()));
        let mut shadow = vec![0; BYTES];
        for (number, step) in steps.iter().enumerate().filter(|(_, step)| !step.is_send) {
            shadow[step.offset..][..step.length].copy_from_slice(&pattern(number as u32, step.length));
        }
        prop_assert!(bytes == shadow);
    }
}

/// Returns the numbers of the steps that consume a receive.
fn steps_with_receive(steps: &[Step]) -> Vec<usize> {
    (0..steps.len()).filter(|number| steps[*number].takes_receive()).collect()
}

/// Writes ten bytes to memory that the server exposes, then sends a message. If `is_undone`, a first write succeeds,
/// and the server drops the memory before the second. Returns both outcomes, and the errors of client and server.
fn refused(
    ours: ViAttributes,
    expose: impl Fn(&mut End) -> (RemoteMemory, Option<Memory>) + Send + 'static,
    is_undone: bool,
) -> (Vec<Result<(), DescriptorError>>, [Vec<AsyncError>; 2]) {
    let (both, _) = rings(1_000, 8);
    let name = Arc::new(Mutex::new(None));
    let place = Arc::clone(&name);
    let client = move |mut end: End| async move {
        end.opens().await;
        let to: RemoteMemory = name.lock().unwrap().expect("the server has registered it");
        let write = |end: &End| descriptor(end, 0, 10, 10).write(to);
        if is_undone {
            end.nic.post_send(end.vi, write(&end)).unwrap();
            let done = end.nic.wait(end.vi, WorkQueue::Send).await.unwrap();
            assert_eq!(done.outcome, Ok(()), "the memory is still registered");
            pause(&end.host, Duration::from_millis(5)).await;
        }
        end.nic.post_send(end.vi, write(&end)).unwrap();
        end.nic.post_send(end.vi, descriptor(&end, 0, 10, 10)).unwrap();
        let mut outcomes = Vec::new();
        for _ in 0..2 {
            outcomes.push(end.nic.wait(end.vi, WorkQueue::Send).await.unwrap().outcome);
        }
        assert_eq!(end.nic.query_vi(end.vi).await.unwrap().0, ViState::Error);
        (outcomes, errors(&mut end))
    };
    let server = move |mut end: End| async move {
        let (remote, memory) = expose(&mut end);
        *place.lock().unwrap() = Some(remote);
        while end.host.now() < super::pair::at(9_000_000) {
            end.nic.poll();
            if end.host.now() > super::pair::at(5_000_000) && is_undone {
                break;
            }
            pause(&end.host, Duration::from_micros(100)).await;
        }
        let whole = memory.as_ref().map(|memory| memory.view(0, memory.len()).unwrap().to_vec());
        assert!(is_undone || whole.is_none_or(|bytes| bytes.iter().all(|byte| *byte == 0)));
        drop(memory);
        for _ in 0..200 {
            end.nic.poll();
            pause(&end.host, Duration::from_micros(100)).await;
        }
        errors(&mut end)
    };
    let ((outcomes, client), server) =
        connected_over(Setting::default(), ours, 100, both, client, server);
    (outcomes, [client, server])
}

fn options() -> MemoryOptions {
    MemoryOptions { rdma_write: true, rdma_read: true, ..MemoryOptions::default() }
}

#[test]
fn memory_without_write_permission_is_not_written_and_the_connection_ends() {
    type Expose = fn(&mut End) -> (RemoteMemory, Option<Memory>);
    let other_tag: Expose = |end| {
        let options = MemoryOptions { tag: ProtectionTag(9), ..options() };
        let memory = end.nic.register(100, options).unwrap();
        (memory.remote(), Some(memory))
    };
    let not_exposed: Expose = |end| {
        let memory = end.nic.register(100, MemoryOptions::default()).unwrap();
        (memory.remote(), Some(memory))
    };
    let too_short: Expose = |end| {
        let memory = end.nic.register(109, options()).unwrap();
        (memory.remote().at(100).unwrap(), Some(memory))
    };
    let deregistered: Expose = |end| (end.nic.register(100, options()).unwrap().remote(), None);
    let plain: Expose = |end| {
        let memory = end.nic.register(100, options()).unwrap();
        (memory.remote(), Some(memory))
    };
    let is_refused = |ours, expose: Expose, is_undone, reported: &[AsyncError]| {
        let (outcomes, [client, server]) = refused(ours, expose, is_undone);
        let expected = [Err(DescriptorError::RdmaProtection), Err(DescriptorError::Flushed)];
        assert_eq!(outcomes, expected);
        assert_eq!([&client[..], &server[..]], [&[AsyncError::ConnectionLost], reported]);
    };
    // The server's NIC refuses these writes.
    let reported = &[AsyncError::RdmaWriteProtection, AsyncError::ConnectionLost];
    for expose in [other_tag, not_exposed, too_short, deregistered] {
        is_refused(attributes(), expose, false, reported);
    }
    // The interface allows no writes: the client's NIC refuses this one.
    is_refused(super::attributes(), plain, false, &[AsyncError::ConnectionLost]);
    // The memory was mapped, and is deregistered.
    is_refused(attributes(), plain, true, reported);
}

/// A process that maps memory can also read it, so the NIC writes memory that may not be read.
#[test]
fn memory_that_may_not_be_read_is_written_by_the_nic() {
    let (both, _) = rings(1_000, 8);
    let name = Arc::new(Mutex::new(None));
    let place = Arc::clone(&name);
    let client = move |mut end: End| async move {
        end.opens().await;
        let to: RemoteMemory = name.lock().unwrap().expect("the server has registered it");
        end.memory.write(0, &[7; 10]).unwrap();
        end.nic.post_send(end.vi, descriptor(&end, 0, 10, 10).write(to)).unwrap();
        end.nic.post_send(end.vi, descriptor(&end, 0, 0, 1)).unwrap();
        let mut outcomes = Vec::new();
        for _ in 0..2 {
            outcomes.push(end.nic.wait(end.vi, WorkQueue::Send).await.unwrap().outcome);
        }
        assert!(!end.nic.is_gate_open(end.vi), "the NIC writes, so the gate is closed");
        outcomes
    };
    let server = move |mut end: End| async move {
        let options = MemoryOptions { rdma_write: true, ..MemoryOptions::default() };
        let memory = end.nic.register(10, options).unwrap();
        end.nic.post_receive(end.vi, Descriptor::default()).unwrap();
        *place.lock().unwrap() = Some(memory.remote());
        assert_eq!(received(&mut end).await.outcome, Ok(()));
        memory.view(0, 10).unwrap().to_vec()
    };
    let (outcomes, bytes) =
        connected_over(Setting::default(), attributes(), 100, both, client, server);
    assert_eq!((outcomes, bytes), (vec![Ok(()); 2], vec![7; 10]));
}

#[test]
fn a_write_with_immediate_data_and_no_receive_ends_the_connection() {
    let (both, _) = rings(1_000, 8);
    let name = Arc::new(Mutex::new(None));
    let place = Arc::clone(&name);
    let client = move |mut end: End| async move {
        end.opens().await;
        let to: RemoteMemory = name.lock().unwrap().expect("the server has registered it");
        let write: Descriptor = descriptor(&end, 0, 10, 10).write(to).immediate(7);
        end.nic.post_send(end.vi, write).unwrap();
        let outcome = end.nic.wait(end.vi, WorkQueue::Send).await.unwrap().outcome;
        pause(&end.host, Duration::from_millis(5)).await;
        (outcome, errors(&mut end))
    };
    let server = move |mut end: End| async move {
        *place.lock().unwrap() = Some(end.memory.remote());
        let mut reported = Vec::new();
        while reported.len() < 2 {
            end.nic.progress().await.unwrap();
            reported.extend(errors(&mut end));
        }
        reported
    };
    let ((outcome, client), server) =
        connected_over(Setting::default(), attributes(), 100, both, client, server);
    assert_eq!((outcome, client), (Ok(()), vec![AsyncError::ConnectionLost]));
    assert_eq!(server, [AsyncError::ReceiveQueueEmpty, AsyncError::ConnectionLost]);
}

/// Memory that was requested over an ended connection is requested again over the next one.
#[test]
fn a_write_over_the_next_connection_succeeds() {
    let (both, _) = rings(1_000, 8);
    let name = Arc::new(Mutex::new(None));
    let place = Arc::clone(&name);
    let client = move |mut end: End| async move {
        end.opens().await;
        let to: RemoteMemory = name.lock().unwrap().expect("the server has registered it");
        end.nic.post_send(end.vi, descriptor(&end, 0, 10, 10).write(to)).unwrap();
        end.nic.disconnect(end.vi).await.unwrap();
        let first = end.nic.wait(end.vi, WorkQueue::Send).await.unwrap().outcome;
        end.connect().await;
        end.memory.write(0, &[7; 10]).unwrap();
        end.nic.post_send(end.vi, descriptor(&end, 0, 10, 10).write(to).immediate(1)).unwrap();
        (first, end.nic.wait(end.vi, WorkQueue::Send).await.unwrap().outcome)
    };
    let server = move |mut end: End| async move {
        *place.lock().unwrap() = Some(end.memory.remote());
        while end.nic.query_vi(end.vi).await.unwrap().0 != ViState::Error {
            end.nic.progress().await.unwrap();
        }
        end.nic.disconnect(end.vi).await.unwrap();
        end.nic.post_receive(end.vi, Descriptor::default()).unwrap();
        end.serve().await;
        assert_eq!(received(&mut end).await.outcome, Ok(()));
        end.bytes(0, 10)
    };
    let (outcomes, bytes) =
        connected_over(Setting::default(), attributes(), 100, both, client, server);
    assert_eq!(outcomes, (Err(DescriptorError::Flushed), Ok(())));
    assert_eq!(bytes, [7; 10]);
}

/// Checks forged reports of completed writes: those that no correct peer sends end the connection.
#[test]
fn invalid_reports_of_writes_end_the_connection() {
    const SEND: u64 = 2 << 32;
    const WRITTEN: u64 = 5 << 32;
    let (of_vi, with_immediate) = (1 << 16, 1 << 32);
    let half = [of_vi | SEND, 100, 0, 0, 0];
    let whole = [of_vi | WRITTEN, 10, with_immediate, 0, 0];
    let long = [of_vi | WRITTEN, (1 << 20) + 1, with_immediate, 0, 0];
    let bare = [of_vi | WRITTEN, 10, 0, 0, 0];
    let outcome_of = |frames: Vec<([u64; 5], Vec<u8>)>| {
        let (both, [_, to_server]) = rings(1_000, 8);
        let client = |mut end: End| async move {
            pause(&end.host, Duration::from_millis(20)).await;
            end.nic.poll();
        };
        let server = move |mut end: End| async move {
            end.nic.post_receive(end.vi, descriptor(&end, 0, 100, 100)).unwrap();
            end.opens().await;
            frames.into_iter().for_each(|frame| to_server.send(frame));
            received(&mut end).await.outcome
        };
        connected_over(Setting::default(), attributes(), 100, both, client, server).1
    };
    assert_eq!(outcome_of(vec![(whole, vec![])]), Ok(()), "a valid report");
    let flushed = Err(DescriptorError::Flushed);
    assert_eq!(outcome_of(vec![(half, vec![1; 50]), (whole, vec![])]), flushed);
    assert_eq!(outcome_of(vec![(long, vec![])]), flushed);
    assert_eq!(outcome_of(vec![(bare, vec![])]), flushed);
}
