//! Messages in one direction over shared memory, with a window of them in flight.

use std::time::Duration;

use midplane::simhw::frame::Header;
use midplane::simhw::id::NodeId;
use midplane::simhw::shm::measure::Bare;
use midplane::simhw::shm::{ShmConfig, ShmNic};

use super::{BYTES, Part, name, now, open, start, unit};
use crate::pingpong::fabric::run;
use crate::pingpong::layers::{EmptyPolls, GLANCE};
use crate::pingpong::raw::End;
use crate::report::text;

/// Messages in flight.
const WINDOW: usize = 64;
/// Messages that one acknowledgement covers.
const ACKNOWLEDGED: usize = 32;
/// Buffers of each side: those of a window, and those that are posted with the next doorbell.
const BUFFERS: usize = WINDOW + ACKNOWLEDGED;
/// Messages between two readings of the clock.
const BATCH: u64 = 1_000;

/// Starts the NIC of a node.
fn start_nic(place: &str, node: u16) -> Result<ShmNic, String> {
    ShmNic::start(ShmConfig::new(place, NodeId(node), 2), unit()).map_err(text)
}

/// Takes the next completion, if there is one; returns its buffer if it is that of a received message.
fn take(end: &mut End) -> Result<Option<Option<u64>>, String> {
    end.port.poll().map(|done| End::received(&done)).transpose()
}

/// Returns the millions of messages a second that two units and ports carry.
pub(crate) fn messages(time: Duration) -> Result<f64, String> {
    run(async {
        let name = name("rate");
        let nic = start_nic(&name, 0)?;
        let mut end = open(&nic.host(), BUFFERS)?;
        start(Part::Receiver, &name, 10)?.while_running(pump(&nic, &mut end, time)).await
    })
}

/// Sends for `time`, and returns the millions of acknowledged messages a second.
async fn pump(nic: &ShmNic, end: &mut End, time: Duration) -> Result<f64, String> {
    nic.meet().await;
    // The other side has posted its buffers before it sends.
    let first = end.port.completion().await.map_err(text)?;
    end.post_buffer(first.cookie)?;
    let (begin, mut sent, mut acknowledged, mut polls) = (now(), 0, 0, EmptyPolls::default());
    while acknowledged == 0 || begin.elapsed() < time {
        let until = acknowledged + BATCH;
        while acknowledged < until {
            let before = sent;
            while sent - acknowledged < WINDOW as u64 && end.post_message(BYTES) {
                sent += 1;
            }
            if sent > before {
                end.port.ring();
            }
            // With no room for a message, only a completion can make progress.
            let done = match sent > before {
                true => take(end)?,
                false => Some(polls.until(|| take(end).transpose())??),
            };
            if let Some(Some(slot)) = done {
                acknowledged += ACKNOWLEDGED as u64;
                end.post_buffer(slot)?;
            }
        }
    }
    Ok(acknowledged as f64 / begin.elapsed().as_secs_f64() / 1e6)
}

/// Receives messages, and acknowledges them.
pub(crate) fn receive(place: &str) -> Result<(), String> {
    run(async {
        let nic = start_nic(place, 1)?;
        let mut end = open(&nic.host(), BUFFERS)?;
        nic.meet().await;
        end.post_message(BYTES);
        end.port.ring();
        let (mut received, mut polls, mut bytes) = (0, EmptyPolls::default(), [0; GLANCE]);
        loop {
            match take(&mut end)? {
                Some(Some(slot)) => {
                    end.read(slot, BYTES, &mut bytes)?;
                    end.post_buffer(slot)?;
                    received += 1;
                    if received % ACKNOWLEDGED == 0 {
                        end.post_message(BYTES);
                        end.port.ring();
                    }
                }
                Some(None) => {}
                // The other side ends this process.
                None => drop(polls.again()),
            }
        }
    })
}

/// Returns the millions of frames a second that the bare slots carry.
pub(crate) fn slots(time: Duration) -> Result<f64, String> {
    let name = name("slots");
    let mut other = start(Part::BareReceiver, &name, 10)?;
    let mut bare = Bare::meet(&ShmConfig::new(name, NodeId(0), 2)).map_err(text)?;
    let header = Header { length: BYTES as u16, ..Header::default() };
    let (begin, mut sent, mut polls) = (now(), 0_u64, EmptyPolls::default());
    while begin.elapsed() < time {
        for _ in 0..BATCH {
            polls.until(|| bare.send(&header, &[7; BYTES]).then_some(()))?;
            sent += 1;
        }
    }
    let rate = sent as f64 / begin.elapsed().as_secs_f64() / 1e6;
    other.complaint().map_or(Ok(rate), Err)
}

/// Receives frames, and reads them.
pub(crate) fn receive_slots(place: &str) -> Result<(), String> {
    let mut bare = Bare::meet(&ShmConfig::new(place, NodeId(1), 2)).map_err(text)?;
    let (mut bytes, mut polls) = ([0; BYTES], EmptyPolls::default());
    // The other side ends this process.
    loop {
        if bare.receive(&mut bytes).is_none() {
            let _ = polls.again();
        }
    }
}
