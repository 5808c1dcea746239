//! Ports, their memory, and commands that never leave the node.

use std::time::Duration;

use midplane::nicvm::coordination;
use midplane::nicvm::messages;
use midplane::simhw::host::{Host, OpenError};
use midplane::simhw::id::{ExtensionId, PortId};
use midplane::simhw::port::{
    Command, MAX_DEPTH, PortOptions, PostError, RegisterError, Status, WELL_KNOWN,
};
use midplane::simhw::region::{
    MAX_REGION, ProtectionTag, RegionError, RegionOptions, RegionRef, Rights,
};

use super::{ask, carry_out, contents, filled, next, open, settle};
use crate::conformance::fabrics::{CENTRE, Site};

pub(crate) async fn ports_have_numbers_of_their_own<H: Host>(site: Site<H>) {
    let ports: Vec<_> = (0..20).map(|_| open(&site.host)).collect();
    let mut numbers: Vec<PortId> = ports.iter().map(|port| port.id()).collect();
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers.len(), ports.len());
}

pub(crate) async fn memory_of_no_bytes_or_too_many_is_refused<H: Host>(site: Site<H>) {
    let mut port = open(&site.host);
    for bytes in [0, MAX_REGION + 1, usize::MAX] {
        assert_eq!(port.register(bytes).unwrap_err(), RegisterError::Size(bytes));
    }
    assert_eq!(port.register(1).unwrap().len(), 1);
}

pub(crate) async fn fresh_memory_is_zero<H: Host>(site: Site<H>) {
    let mut port = open(&site.host);
    let used = filled(&mut port, &[9; 100]);
    drop(used);
    let fresh = port.register(100).unwrap();
    assert_eq!(contents(&fresh, 100), [0; 100]);
}

pub(crate) async fn a_region_keeps_its_bounds<H: Host>(site: Site<H>) {
    let mut port = open(&site.host);
    let region = filled(&mut port, &[1; 21]);
    let past = Err(RegionError::OutOfRange { bytes: 21 });
    assert_eq!(region.write(20, &[2, 2]), past);
    assert_eq!(region.write(usize::MAX, &[2]), past);
    let mut out = [3; 2];
    assert_eq!(region.read(20, &mut out), past);
    assert_eq!(out, [3; 2]);
    assert_eq!(contents(&region, 21), [1; 21]);
    region.write(20, &[4]).unwrap();
    region.write(21, &[]).unwrap();
    region.read(19, &mut out).unwrap();
    assert_eq!(out, [1, 4]);
}

pub(crate) async fn a_range_ends_with_its_region<H: Host>(site: Site<H>) {
    let mut port = open(&site.host);
    let region = port.register(16).unwrap();
    let range = region.range(4, 12).unwrap();
    assert_eq!((range.port, range.offset, range.length), (port.id(), 4, 12));
    assert_eq!(region.range(5, 12), None);
    assert_eq!(region.range(usize::MAX, 2), None);
    assert_eq!(region.range(0, 16), Some(region.whole()));
}

pub(crate) async fn a_post_beyond_the_depth_is_refused<H: Host>(site: Site<H>) {
    let mut port = open(&site.host);
    let full = Err(PostError::QueueFull { depth: port.depth() });
    for _ in 0..port.depth() {
        port.post(&ask(0)).unwrap();
    }
    assert_eq!(port.post(&ask(0)), full);
    port.ring();
    assert_eq!(next(&mut port).await.status, Status::Done);
    port.post(&ask(0)).unwrap();
    assert_eq!(port.post(&ask(0)), full);
    assert_eq!(port.outstanding(), port.depth());
}

pub(crate) async fn many_posts_and_one_ring_all_complete<H: Host>(site: Site<H>) {
    let mut port = open(&site.host);
    let depth = port.depth() as u64;
    for cookie in 0..depth {
        port.post(&ask(cookie)).unwrap();
    }
    port.ring();
    for cookie in 0..depth {
        assert_eq!(next(&mut port).await.cookie, cookie);
    }
    assert_eq!(port.outstanding(), 0);
}

pub(crate) async fn an_idle_port_has_no_completion<H: Host>(site: Site<H>) {
    let mut port = open(&site.host);
    assert_eq!(port.poll(), None);
    settle(&mut port).await;
    assert_eq!(port.poll(), None);
    assert!(!port.is_closed());
}

pub(crate) async fn completions_have_their_commands_cookies<H: Host>(site: Site<H>) {
    let mut port = open(&site.host);
    for cookie in [0, 1, u64::MAX, 0x0123_4567_89AB_CDEF] {
        let completion = carry_out(&mut port, &ask(cookie)).await;
        assert_eq!((completion.cookie, completion.opcode), (cookie, coordination::COUNTERS));
    }
}

pub(crate) async fn an_unknown_extension_is_invalid<H: Host>(site: Site<H>) {
    let mut port = open(&site.host);
    for extension in [0, 3, 200, 255].map(ExtensionId) {
        let command = Command { extension, opcode: 1, cookie: 5, ..Command::default() };
        let completion = carry_out(&mut port, &command).await;
        assert_eq!((completion.status, completion.cookie), (Status::Invalid, 5));
    }
}

pub(crate) async fn an_unknown_command_is_invalid<H: Host>(site: Site<H>) {
    let mut port = open(&site.host);
    for extension in [messages::MESSAGES, coordination::COORDINATION] {
        let command = Command { extension, opcode: 99, cookie: 6, ..Command::default() };
        let completion = carry_out(&mut port, &command).await;
        assert_eq!((completion.status, completion.cookie), (Status::Invalid, 6));
    }
}

pub(crate) async fn a_buffer_of_no_bytes_is_invalid<H: Host>(site: Site<H>) {
    let mut port = open(&site.host);
    for command in [messages::receive, coordination::receive] {
        let completion = carry_out(&mut port, &command(RegionRef::default(), 7)).await;
        assert_eq!((completion.status, completion.cookie), (Status::Invalid, 7));
    }
}

pub(crate) async fn the_region_of_another_port_is_refused<H: Host>(site: Site<H>) {
    let (mut owner, mut other) = (open(&site.host), open(&site.host));
    let region = owner.register(64).unwrap();
    settle(&mut owner).await;
    let send = messages::send(CENTRE, owner.id(), region.whole(), 8);
    for command in [send, messages::receive(region.whole(), 8)] {
        let completion = carry_out(&mut other, &command).await;
        assert_eq!((completion.status, completion.cookie), (Status::Region, 8));
    }
}

pub(crate) async fn a_dropped_region_is_refused<H: Host>(site: Site<H>) {
    let mut port = open(&site.host);
    let region = port.register(64).unwrap();
    let stale = region.whole();
    drop(region);
    let send = messages::send(CENTRE, PortId(0), stale, 9);
    assert_eq!(carry_out(&mut port, &send).await.status, Status::Region);
    // A new region uses its slot now.
    let _fresh = port.register(64).unwrap();
    assert_eq!(carry_out(&mut port, &send).await.status, Status::Region);
}

pub(crate) async fn a_range_past_its_region_is_refused<H: Host>(site: Site<H>) {
    let mut port = open(&site.host);
    let region = port.register(64).unwrap();
    for (offset, length) in [(1, 64), (65, 1), (u32::MAX, u32::MAX)] {
        let range = RegionRef { offset, length, ..region.whole() };
        let send = messages::send(CENTRE, PortId(0), range, 10);
        assert_eq!(carry_out(&mut port, &send).await.status, Status::Region);
    }
}

pub(crate) async fn the_counters_answer<H: Host>(site: Site<H>) {
    let mut port = open(&site.host);
    let before = carry_out(&mut port, &ask(11)).await;
    assert_eq!((before.status, before.cookie), (Status::Done, 11));
    let after = carry_out(&mut port, &ask(12)).await;
    assert!(before.args.iter().zip(&after.args).all(|(before, after)| before <= after));
}

const KNOWN: PortId = PortId(WELL_KNOWN.start + 7);

pub(crate) async fn a_port_has_the_requested_number<H: Host>(site: Site<H>) {
    for number in [KNOWN, PortId(3), PortId(40_000), PortId(u16::MAX)] {
        let port = site.host.open_port_with(PortOptions::default().number(number)).unwrap();
        assert_eq!(port.id(), number);
    }
}

pub(crate) async fn a_number_that_is_open_is_refused<H: Host>(site: Site<H>) {
    let any = open(&site.host);
    let known = site.host.open_port_with(PortOptions::default().number(KNOWN)).unwrap();
    for number in [any.id(), known.id()] {
        let again = site.host.open_port_with(PortOptions::default().number(number));
        assert_eq!(again.unwrap_err(), OpenError::Taken(number));
    }
}

pub(crate) async fn a_number_is_free_once_its_port_is_closed<H: Host>(site: Site<H>) {
    let options = PortOptions::default().number(KNOWN);
    for _ in 0..3 {
        let mut port = loop {
            match site.host.open_port_with(options) {
                Ok(port) => break port,
                // The NIC has not seen the port close yet.
                Err(error) => assert_eq!(error, OpenError::Taken(KNOWN)),
            }
            site.host.sleep_until(site.host.now() + Duration::from_micros(100)).await;
        };
        settle(&mut port).await;
    }
}

pub(crate) async fn well_known_numbers_are_assigned_only_on_request<H: Host>(site: Site<H>) {
    // A thousand ports of one node suffice; the other nodes open none.
    let count = if site.is(0) { WELL_KNOWN.start + 10 } else { 0 };
    let ports: Vec<_> = (0..count).map(|_| open(&site.host)).collect();
    assert!(ports.iter().all(|port| !WELL_KNOWN.contains(&port.id().0)));
}

pub(crate) async fn a_port_has_the_requested_depth<H: Host>(site: Site<H>) {
    let mut port = site.host.open_port_with(PortOptions::default().depth(4)).unwrap();
    assert_eq!(port.depth(), 4);
    for _ in 0..4 {
        port.post(&ask(0)).unwrap();
    }
    assert_eq!(port.post(&ask(0)), Err(PostError::QueueFull { depth: 4 }));
    port.ring();
    for _ in 0..4 {
        assert_eq!(next(&mut port).await.status, Status::Done);
    }
}

pub(crate) async fn an_invalid_depth_is_refused<H: Host>(site: Site<H>) {
    for depth in [0, MAX_DEPTH + 1, usize::MAX] {
        let refused = site.host.open_port_with(PortOptions::default().depth(depth));
        assert_eq!(refused.unwrap_err(), OpenError::Depth(depth));
    }
}

pub(crate) async fn a_region_returns_its_rights_and_its_tag<H: Host>(site: Site<H>) {
    let mut port = open(&site.host);
    let plain = port.register(8).unwrap();
    assert_eq!((plain.rights(), plain.tag()), (Rights::LOCAL, ProtectionTag(0)));
    let options = RegionOptions::default().rights(Rights::REMOTE_READ).tag(ProtectionTag(7));
    let other = port.register_with(8, options).unwrap();
    assert_eq!((other.rights(), other.tag()), (Rights::REMOTE_READ, ProtectionTag(7)));
}

pub(crate) async fn a_region_that_may_not_be_read_is_not_sent<H: Host>(site: Site<H>) {
    let mut port = open(&site.host);
    for rights in [Rights::NONE, Rights::LOCAL_WRITE] {
        let options = RegionOptions::default().rights(rights);
        let region = port.register_with(8, options).unwrap();
        let send = messages::send(CENTRE, PortId(0), region.whole(), 10);
        assert_eq!(carry_out(&mut port, &send).await.status, Status::Region);
    }
}

pub(crate) async fn a_port_moves_to_another_task<H: Host>(site: Site<H>) {
    let mut port = open(&site.host);
    port.submit(&ask(1)).unwrap();
    let (back, came) = tokio::sync::oneshot::channel();
    site.host.spawn(async move {
        assert_eq!(next(&mut port).await.cookie, 1);
        port.submit(&ask(2)).unwrap();
        assert!(back.send(port).is_ok());
    });
    let mut port = came.await.unwrap();
    assert_eq!(next(&mut port).await.cookie, 2);
}
