//! One link, or one witness, by itself.

use super::*;

fn lone_link(quiet_until: u64) -> Link {
    Link::new(LinkSetup {
        me: Party(1),
        senders: 3,
        lease_ns: LEASE_NS,
        request_timeout_ns: REQUEST_TIMEOUT_NS,
        genesis: true,
        quiet_until: Instant::from_nanos(quiet_until),
    })
}

fn supports(link: &mut Link, at: u64, epoch: Epoch) -> bool {
    let now = Instant::from_nanos(at);
    link.handle(now, Party(0), at, 0, Body::AskSupport { epoch, round: 1 });
    let said: Vec<_> = std::iter::from_fn(|| link.poll_send()).collect();
    said.contains(&(Party(0), Body::Support { epoch, round: 1 }))
}

#[test]
fn a_sender_that_gave_an_epoch_up_no_longer_supports_it() {
    let mut link = lone_link(0);
    assert!(supports(&mut link, 1, Epoch::GENESIS));
    link.want(Instant::from_nanos(2));
    link.on_lost(Instant::from_nanos(3), Party(0), false);
    assert!(!supports(&mut link, 4, Epoch::GENESIS));
    assert!(supports(&mut link, 5, Epoch(1 << 32 | 1)));
}

#[test]
fn a_restarted_sender_supports_no_epoch_for_a_lease() {
    let mut link = lone_link(1_000);
    assert!(!supports(&mut link, 999, Epoch::GENESIS));
    assert!(supports(&mut link, 1_000, Epoch::GENESIS));
}

#[test]
fn a_restarted_witness_first_has_all_former_tokens_given_up() {
    let mut witness = Witness::new(2, LEASE_NS, Incarnation(2), true, Instant::ZERO);
    let recover = |epoch| Body::RecoverLink { epoch, suspect: None, gave_up: true };
    let now = Instant::from_nanos(5);
    witness.handle(now, Party(0), recover(Epoch(1 << 32 | 7)));
    let base = Epoch(2 << 32);
    assert_eq!(witness.poll_send(), Some((Party(0), Body::GiveUp { epoch: base })));
    assert_eq!((witness.poll_send(), witness.poll_timeout()), (None, None));
    witness.handle(now, Party(0), recover(base));
    assert!(witness.poll_timeout().is_some_and(|due| due > now.plus_nanos(LEASE_NS)));
}

#[test]
fn any_clock_of_a_peer_gives_a_bounded_wait() {
    for clock in [0, 1, u64::MAX - 1, u64::MAX] {
        let mut link = lone_link(0);
        let grant = Grant {
            epoch: Epoch(2),
            number: u32::MAX,
            evidence: u64::MAX,
            asked_us: 0,
            live: Parties::first(3),
            buffers: 0,
            consumed: 0,
            quantum: 0,
            line_busy_ns: u32::MAX,
            queue: Vec::new(),
        };
        let now = Instant::from_nanos(7);
        link.want(now);
        link.handle(now, Party(0), clock, 1_000, Body::GrantLink(grant));
        assert!(link.holds());
        // Whatever the clock says, the wait is at most what the grant's field can express.
        let longest = now.plus_nanos(u64::from(u32::MAX));
        assert!(link.poll_timeout(now).is_some_and(|at| at <= longest), "{clock}");
    }
}
