//! Messages under sender coordination, to the centre of the star.

use midplane::nicvm::coordination::{self, receive, send};
use midplane::nicvm::messages;
use midplane::simhw::host::Host;
use midplane::simhw::id::NodeId;
use midplane::simhw::port::{Command, Status};

use super::{contents, filled, next, open, pattern, post_receives, succeed};
use crate::conformance::fabrics::{CENTRE, NODES, Site};

const EACH: u32 = 8;

fn message(node: NodeId, number: u32) -> Vec<u8> {
    pattern(u32::from(node.0) << 20 | number, 3_000)
}

pub(crate) async fn coordinated_messages_of_two_senders_all_arrive<H: Host>(site: Site<H>) {
    let mut port = open(&site.host);
    let ports = site.learn_ports(port.id()).await;
    if site.is(0) {
        let buffers = post_receives(&mut port, 2 * EACH as usize, 3_000, receive).await;
        site.meet().await;
        let mut expected = [0; NODES as usize];
        for _ in 0..2 * EACH {
            let completion = next(&mut port).await;
            assert_eq!(completion.status, Status::Done);
            let number = &mut expected[completion.node.index()];
            let bytes = contents(&buffers[completion.cookie as usize], completion.length);
            assert_eq!(bytes, message(completion.node, *number));
            *number += 1;
        }
        assert_eq!(expected, [0, EACH, EACH]);
    } else {
        site.meet().await;
        for number in 0..EACH {
            let region = filled(&mut port, &message(site.host.node(), number));
            succeed(&mut port, &send(CENTRE, ports[0], region.whole(), u64::from(number))).await;
        }
    }
}

pub(crate) async fn coordinated_messages_of_one_sender_stay_in_order<H: Host>(site: Site<H>) {
    let mut port = open(&site.host);
    let ports = site.learn_ports(port.id()).await;
    if site.is(0) {
        let _buffers = post_receives(&mut port, EACH as usize, 3_000, receive).await;
        site.meet().await;
        for number in 0..u64::from(EACH) {
            let completion = next(&mut port).await;
            assert_eq!((completion.args[0], completion.cookie), (number, number));
        }
    } else {
        site.meet().await;
    }
    if site.is(2) {
        let region = filled(&mut port, &message(site.host.node(), 0));
        for number in 0..u64::from(EACH) {
            let command = send(CENTRE, ports[0], region.whole(), number);
            port.post(&Command { args: [number, 0, 0], ..command }).unwrap();
        }
        port.ring();
        for number in 0..u64::from(EACH) {
            let completion = next(&mut port).await;
            assert_eq!((completion.status, completion.cookie), (Status::Done, number));
        }
    }
}

pub(crate) async fn a_coordinated_message_arrives_with_its_tag<H: Host>(site: Site<H>) {
    let mut port = open(&site.host);
    let ports = site.learn_ports(port.id()).await;
    if site.is(0) {
        let buffers = post_receives(&mut port, 1, 10, receive).await;
        site.meet().await;
        let completion = next(&mut port).await;
        assert_eq!((completion.node, completion.args[0]), (NodeId(2), 0xABCD_EF01));
        assert_eq!(contents(&buffers[0], completion.length), b"tagged");
    } else {
        site.meet().await;
    }
    if site.is(2) {
        let region = filled(&mut port, b"tagged");
        let command = send(CENTRE, ports[0], region.whole(), 1);
        let completion =
            super::carry_out(&mut port, &Command { args: [0xABCD_EF01, 0, 0], ..command }).await;
        assert_eq!(completion.opcode, coordination::SEND_WITH_FLOW_CONTROL);
        assert_eq!((completion.status, completion.length), (Status::Done, 6));
    }
}

pub(crate) async fn without_a_route_a_coordinated_message_arrives<H: Host>(site: Site<H>) {
    let mut port = open(&site.host);
    let ports = site.learn_ports(port.id()).await;
    let bytes = pattern(9, 5_000);
    if site.is(2) {
        let buffers = post_receives(&mut port, 1, 5_000, receive).await;
        site.meet().await;
        let completion = next(&mut port).await;
        assert_eq!((completion.status, completion.node), (Status::Done, CENTRE));
        assert_eq!(contents(&buffers[0], completion.length), bytes);
        return;
    }
    site.meet().await;
    if site.is(0) {
        let region = filled(&mut port, &bytes);
        succeed(&mut port, &send(NodeId(2), ports[2], region.whole(), 1)).await;
    }
}

pub(crate) async fn coordinated_and_other_messages_have_buffers_of_their_own<H: Host>(
    site: Site<H>,
) {
    let mut port = open(&site.host);
    let ports = site.learn_ports(port.id()).await;
    if site.is(0) {
        let coordinated = post_receives(&mut port, 1, 16, receive).await;
        let plain = port.register(16).unwrap();
        port.submit(&messages::receive(plain.whole(), 50)).unwrap();
        super::settle(&mut port).await;
        site.meet().await;
        for _ in 0..2 {
            let completion = next(&mut port).await;
            let (buffer, bytes) = match completion.cookie {
                50 => (&plain, &b"plain"[..]),
                _ => (&coordinated[0], &b"coordinated"[..]),
            };
            assert_eq!(contents(buffer, completion.length), bytes);
        }
    } else {
        site.meet().await;
    }
    if site.is(1) {
        let region = filled(&mut port, b"coordinated");
        succeed(&mut port, &send(CENTRE, ports[0], region.whole(), 1)).await;
        let region = filled(&mut port, b"plain");
        succeed(&mut port, &messages::send(CENTRE, ports[0], region.whole(), 2)).await;
    }
}
