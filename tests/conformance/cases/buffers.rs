//! The default service's memory: posted receive buffers, and regions that are sent.

use midplane::nicvm::messages::{receive, send};
use midplane::simhw::host::Host;
use midplane::simhw::port::{Port, Status};
use midplane::simhw::region::{RegionOptions, Rights};

use super::messages::{open_all, send_to_centre};
use super::{contents, filled, next, open, pattern, post_receives, settle, succeed};
use crate::conformance::fabrics::Site;

pub(crate) async fn buffers_are_taken_in_the_order_of_their_posts<H: Host>(site: Site<H>) {
    let (mut port, ports) = open_all(&site).await;
    if site.is(0) {
        let region = port.register(8).unwrap();
        for cookie in [30, 10, 20] {
            port.post(&receive(region.whole(), cookie)).unwrap();
        }
        settle(&mut port).await;
        site.meet().await;
        for cookie in [30, 10, 20] {
            assert_eq!(next(&mut port).await.cookie, cookie);
        }
        return;
    }
    site.meet().await;
    for _ in 0..3 {
        if site.is(1) {
            send_to_centre(&mut port, ports[0], &[1]).await;
        }
    }
}

pub(crate) async fn buffers_need_no_doorbell<H: Host>(site: Site<H>) {
    let (mut port, ports) = open_all(&site).await;
    if site.is(0) {
        let region = port.register(16).unwrap();
        for slot in 0..2 {
            port.post(&receive(region.range(slot * 8, 8).unwrap(), slot as u64)).unwrap();
        }
        site.meet().await;
        for slot in 0..2 {
            assert_eq!(next(&mut port).await.cookie, slot);
        }
        return;
    }
    site.meet().await;
    for _ in 0..2 {
        if site.is(1) {
            send_to_centre(&mut port, ports[0], &[1]).await;
        }
    }
}

pub(crate) async fn a_message_too_long_is_cut_and_the_next_is_not<H: Host>(site: Site<H>) {
    let (mut port, ports) = open_all(&site).await;
    let (long, fitting) = (pattern(1, 3_000), pattern(2, 2_000));
    if site.is(0) {
        let buffers = post_receives(&mut port, 2, 2_000, receive).await;
        site.meet().await;
        let cut = next(&mut port).await;
        assert_eq!((cut.status, cut.length, cut.args[1]), (Status::Truncated, 2_000, 3_000));
        assert_eq!(contents(&buffers[0], 2_000), long[..2_000]);
        let whole = next(&mut port).await;
        assert_eq!((whole.status, whole.length), (Status::Done, 2_000));
        assert_eq!(contents(&buffers[1], 2_000), fitting);
        return;
    }
    site.meet().await;
    if site.is(1) {
        send_to_centre(&mut port, ports[0], &long).await;
        send_to_centre(&mut port, ports[0], &fitting).await;
    }
}

pub(crate) async fn a_port_dropped_with_buffers_is_harmless<H: Host>(site: Site<H>) {
    let mut going = open(&site.host);
    let gone = site.learn_ports(going.id()).await;
    let (mut port, ports) = open_all(&site).await;
    if site.is(0) {
        let _gone = post_receives(&mut going, 3, 64, receive).await;
        let buffers = post_receives(&mut port, 1, 64, receive).await;
        drop(going);
        site.meet().await;
        let completion = next(&mut port).await;
        assert_eq!(contents(&buffers[0], completion.length), b"alive");
        return;
    }
    site.meet().await;
    if site.is(1) {
        send_to_centre(&mut port, gone[0], b"too late").await;
        send_to_centre(&mut port, ports[0], b"alive").await;
    }
}

pub(crate) async fn a_port_inherits_no_buffers<H: Host>(site: Site<H>) {
    let mut other = open(&site.host);
    // Three times, so that the NIC has seen at least one port close before the next is opened.
    for _ in 0..3 {
        let mut going = open(&site.host);
        let gone = post_receives(&mut going, 2, 64, receive).await;
        drop(going);
        drop(gone);
        settle(&mut other).await;
        // The new port may have the dropped port's number.
        let mut port = open(&site.host);
        let region = port.register(64).unwrap();
        port.submit(&receive(region.whole(), 1_000)).unwrap();
        settle(&mut port).await;
        let message = filled(&mut other, b"new");
        succeed(&mut other, &send(site.host.node(), port.id(), message.whole(), 5)).await;
        let completion = next(&mut port).await;
        assert_eq!((completion.status, completion.cookie), (Status::Done, 1_000));
        assert_eq!(contents(&region, completion.length), b"new");
    }
}

pub(crate) async fn a_buffer_that_may_not_be_written_gets_nothing<H: Host>(site: Site<H>) {
    let (mut from, mut to) = (open(&site.host), open(&site.host));
    let options = RegionOptions::default().rights(Rights::LOCAL_READ);
    let buffer = to.register_with(8, options).unwrap();
    buffer.write(0, &[1; 8]).unwrap();
    to.submit(&receive(buffer.whole(), 1)).unwrap();
    settle_or_region(&mut to).await;
    let region = filled(&mut from, &[2; 8]);
    succeed(&mut from, &send(site.host.node(), to.id(), region.whole(), 3)).await;
    settle(&mut from).await;
    assert_eq!(contents(&buffer, 8), [1; 8]);
}

/// Waits until the NIC has taken a buffer that it may refuse.
async fn settle_or_region(port: &mut Port) {
    port.submit(&super::ask(u64::MAX)).unwrap();
    while next(port).await.cookie != u64::MAX {}
}

pub(crate) async fn a_region_sent_again_is_read_again<H: Host>(site: Site<H>) {
    let (mut from, mut to) = (open(&site.host), open(&site.host));
    let buffers = post_receives(&mut to, 5, 8, receive).await;
    let region = from.register(8).unwrap();
    for round in 0..5_u64 {
        region.write(0, &round.to_le_bytes()).unwrap();
        succeed(&mut from, &send(site.host.node(), to.id(), region.whole(), round)).await;
        let completion = next(&mut to).await;
        assert_eq!(completion.cookie, round);
        assert_eq!(contents(&buffers[round as usize], 8), round.to_le_bytes());
    }
}

pub(crate) async fn a_region_may_be_dropped_once_it_was_read<H: Host>(site: Site<H>) {
    let (mut from, mut to) = (open(&site.host), open(&site.host));
    let bytes = pattern(6, 3_000);
    let buffers = post_receives(&mut to, 1, 3_000, receive).await;
    let region = filled(&mut from, &bytes);
    succeed(&mut from, &send(site.host.node(), to.id(), region.whole(), 1)).await;
    drop(region);
    let _other = filled(&mut from, &[0xFF; 3_000]);
    let completion = next(&mut to).await;
    assert_eq!(contents(&buffers[0], completion.length), bytes);
}
