//! Tests that an aborted turn leaves no trace.

use midplane_simhw::hardware::{Dma, Source};
use midplane_simhw::host::Host;
use midplane_simhw::id::{PortId, TimerId};
use midplane_simhw::port::{Command, Completion};
use midplane_simhw::profile::NicProfile;
use midplane_simhw::region::{Payload, RegionRef};
use midplane_simhw::sim::World;

use crate::sim::harness::{A, B, Happening, Log, Probe, at, send, star};

/// Requests one action of each kind.
fn request_all(hw: &mut dyn midplane_simhw::hardware::Hardware, region: RegionRef) {
    for sequence in 0..3 {
        send(hw, B, 100 + sequence, 500).unwrap();
    }
    let header = midplane_simhw::frame::Header {
        source: A,
        destination: B,
        length: 8,
        ..Default::default()
    };
    let from = region.part(0, 8).unwrap();
    hw.transmit(&header, Source::Region(from)).unwrap();
    hw.write(region, Payload::from(&b"never"[..])).unwrap();
    hw.complete(PortId(0), &Completion::default());
    hw.dma(Dma { from, to: region.part(8, 8).unwrap() }).unwrap();
    hw.set_timer(TimerId(2), at(1));
    hw.set_timer(TimerId(1), at(1));
}

/// Runs a world in which the doorbell's turn requests actions and is then aborted, if `abort` is given.
fn run(abort: Option<bool>) -> (u64, Vec<(u64, u32)>, Vec<u8>, u64) {
    let log = Log::new();
    let arrivals = log.clone();
    let mut world = World::new(&star(2), NicProfile::MODERN, 3, move |node, _| {
        let log = log.clone();
        Probe::new(move |hw, happening| match happening {
            Happening::Start if node == A => {
                hw.set_timer(TimerId(1), at(40_000));
                hw.commit();
            }
            Happening::Doorbell(port) => {
                let Some(command) = hw.next_command(port) else { return };
                if let Some(explicit) = abort {
                    request_all(hw, command.region);
                    if !explicit {
                        return; // A turn that ends without a commit is aborted.
                    }
                    hw.abort();
                }
                send(hw, B, 1, 100).unwrap();
                hw.dma(Dma {
                    from: command.region.part(0, 8).unwrap(),
                    to: command.region.part(16, 8).unwrap(),
                })
                .unwrap();
                hw.commit();
            }
            Happening::Timer(timer) => log.add((hw.now().as_nanos(), u32::from(timer.0))),
            Happening::DmaDone(dma) => log.add((hw.now().as_nanos(), 1_000 + dma.0)),
            Happening::Frame(frame) => log.add((hw.now().as_nanos(), frame.header.sequence)),
            _ => {}
        })
    });
    let host = world.host(A);
    let bytes = world.block_on(A, {
        let host = host.clone();
        async move {
            let mut port = host.open_port().unwrap();
            let region = port.register(64).unwrap();
            region.write(0, b"original").unwrap();
            port.submit(&Command { region: region.whole(), ..Command::default() }).unwrap();
            host.sleep_until(at(100_000)).await;
            assert_eq!(port.poll(), None);
            let mut bytes = vec![0; 24];
            region.read(0, &mut bytes).unwrap();
            bytes
        }
    });
    world.run();
    (world.digest(), arrivals.entries(), bytes.unwrap(), world.traffic().sent)
}

#[test]
fn the_aborted_part_of_a_turn_has_no_effect() {
    assert_eq!(run(Some(true)), run(None));
    let (_, log, bytes, sent) = run(None);
    assert_eq!(sent, 1);
    assert_eq!(&bytes, b"original\0\0\0\0\0\0\0\0original");
    assert_eq!(log.len(), 3);
}

#[test]
fn a_turn_that_ends_without_a_commit_has_no_effect() {
    let (_, log, bytes, sent) = run(Some(false));
    assert_eq!(log, [(40_000, 1)]);
    assert_eq!(sent, 0);
    assert_eq!(&bytes[..8], b"original");
    assert_eq!(bytes[8..], [0; 16]);
}
