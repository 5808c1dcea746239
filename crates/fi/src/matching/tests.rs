use super::*;

fn buffer(length: usize) -> Buffer {
    // SAFETY: no test reads or writes it.
    #[expect(unsafe_code, reason = "a buffer that is never touched")]
    unsafe {
        Buffer::new(64, length)
    }
}

fn receive(tag: u64, ignore: u64, source: u64, context: usize) -> Receive {
    let pattern = Pattern { kind: Kind::Tagged, source, tag, ignore };
    Receive { pattern, buffer: buffer(8), context, reports: true, multi: None }
}

const fn message(tag: u64, peer: usize, length: usize) -> Envelope {
    Envelope { kind: Kind::Tagged, peer, tag, data: None, length }
}

#[test]
fn a_message_goes_to_the_oldest_receive_that_wants_it() {
    let mut matching = Matching::default();
    matching.post(receive(1, 0, ADDR_UNSPEC, 10));
    matching.post(receive(0, u64::MAX, 5, 11));
    matching.post(receive(0x20, 0xf, ADDR_UNSPEC, 12));
    let mut arrive =
        |tag, source| matching.arrive(message(tag, 0, 1), source).map(|matched| matched.context);
    assert_eq!(arrive(0x2f, 4), Some(12));
    assert_eq!(arrive(0x2f, 4), None);
    assert_eq!(arrive(1, 5), Some(10));
    assert_eq!(arrive(1, 5), Some(11));
    assert_eq!(arrive(1, 5), None);
}

#[test]
fn a_receive_finds_the_oldest_message_and_claimed_ones_are_reserved() {
    let mut matching = Matching::default();
    let keys = [(1, 0), (1, 1), (2, 0)]
        .map(|(tag, peer)| matching.keep(message(tag, peer, 0), Body::Announced(0)));
    let find = |matching: &Matching, tag, source| {
        let pattern = Pattern { kind: Kind::Tagged, source, tag, ignore: 0 };
        matching.find(&pattern, |peer| peer as u64)
    };
    assert_eq!(find(&matching, 1, ADDR_UNSPEC), Some(keys[0]));
    assert_eq!(find(&matching, 1, 1), Some(keys[1]));
    matching.claim(keys[0], 77);
    assert_eq!(find(&matching, 1, ADDR_UNSPEC), Some(keys[1]));
    assert_eq!(matching.claimed(Kind::Tagged, 77), Some(keys[0]));
    matching.unlist(keys[0]);
    assert_eq!(matching.claimed(Kind::Tagged, 77), None);
    assert!(matching.take_incomplete_of(1).is_empty());
    assert_eq!(find(&matching, 1, ADDR_UNSPEC), None);
}

#[test]
fn a_buffer_for_several_is_released_with_its_last_message_or_alone() {
    let mut matching = Matching { least_multi: 2, ..Matching::default() };
    let post = |matching: &mut Matching, context| {
        let multi = matching.multis.insert(Multi::new(buffer(10), context));
        matching.post(Receive { multi: Some(multi), ..receive(0, u64::MAX, ADDR_UNSPEC, context) });
        multi
    };
    let one = post(&mut matching, 1);
    post(&mut matching, 2);
    let first = matching.arrive(message(0, 0, 4), 0).unwrap();
    let second = matching.arrive(message(0, 0, 5), 0).unwrap();
    assert_eq!((first.context, second.context), (1, 1));
    assert_eq!(second.buffer.address() - first.buffer.address(), 4);
    // One byte is left: less than the least.
    let third = matching.arrive(message(0, 0, 9), 0).unwrap();
    assert_eq!(third.context, 2);
    assert!(!matching.leave(one));
    assert!(matching.leave(one));
    // What does not fit releases the buffer, which has no message any more.
    let three = post(&mut matching, 3);
    matching.arrive(message(0, 0, 4), 0).unwrap();
    assert!(!matching.leave(three));
    assert!(matching.arrive(message(0, 0, 9), 0).is_none());
    assert_eq!(matching.released.pop().unwrap().context, 3);
}
