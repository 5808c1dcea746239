//! One link, or one witness, by itself.

use std::time::Duration;

use midplane_simhw::time::nanos;

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

fn grant(epoch: u64) -> Grant {
    Grant {
        epoch: Epoch(epoch),
        number: 1,
        evidence: 0,
        asked_us: u32::MAX,
        live: Parties::first(3),
        buffers: 0,
        consumed: 0,
        quantum: 0,
        line_busy_ns: 0,
        queue: Vec::new(),
    }
}

/// Returns a link that holds and wants the token of this grant, at 1 s. The clock of its granter, party 0, shows `clock`.
fn holder(clock: u64, grant: Grant) -> (Link, Instant) {
    let (mut link, now) = (lone_link(0), Instant::from_nanos(1_000_000_000));
    link.want(now);
    link.handle(now, Party(0), clock, 0, Body::GrantLink(grant));
    assert!(link.holds());
    (link, now)
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
            number: u32::MAX,
            evidence: u64::MAX,
            asked_us: 0,
            line_busy_ns: u32::MAX,
            ..grant(2)
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

#[test]
fn the_clock_of_a_restarted_party_is_learnt_anew() {
    let (mut link, now) = holder(1 << 50, Grant { evidence: u64::MAX, ..grant(2) });
    link.on_lost(now, Party(0), true);
    let request = Body::BcastReqLink { epoch: Epoch(2), requester: Party(0) };
    link.handle(now, Party(0), 5_000, 0, request);
    let granted = std::iter::from_fn(|| link.poll_send()).find_map(|(to, body)| match body {
        Body::GrantLink(grant) => Some((to, grant.evidence)),
        _ => None,
    });
    assert_eq!(granted, Some((Party(0), 5_000)));
}

#[test]
fn a_new_token_replaces_a_void_one_and_keeps_its_waiters() {
    let (mut link, now) = holder(0, Grant { queue: vec![Party(2)], ..grant(2) });
    link.handle(now, Party::WITNESS, 0, 0, Body::GrantLink(grant(3)));
    assert_eq!(link.validity().map(|(epoch, _)| epoch), Some(Epoch(3)));
    assert_eq!(link.next_in_line(), Some(Party(2)));
}

#[test]
fn the_counts_of_buffers_wrap_around() {
    let (mut link, now) = holder(0, Grant { buffers: 5, consumed: u32::MAX - 1, ..grant(2) });
    assert_eq!(link.buffers(), 7);
    link.consume(7);
    assert_eq!(link.buffers(), 0);
    for (limit, left) in [(8, 3), (u32::MAX, 3), (9, 4)] {
        link.handle(now, Party::WITNESS, 0, 0, Body::AddBuffers { epoch: Epoch(2), limit });
        assert_eq!(link.buffers(), left);
    }
}

#[test]
fn messages_that_do_not_begin_leave_their_buffers_to_others() {
    let (mut link, now) = holder(0, Grant { buffers: 5, consumed: u32::MAX - 1, ..grant(2) });
    link.start();
    link.consume(7);
    link.give_back(3);
    assert_eq!(link.buffers(), 3);
    // A newer token was not charged for them.
    link.handle(now, Party::WITNESS, 0, 0, Body::GrantLink(Grant { buffers: 5, ..grant(3) }));
    link.give_back(3);
    assert_eq!(link.buffers(), 5);
}

#[test]
fn the_longest_lease_overflows_nothing() {
    let config = super::super::CoordinationConfig::new().lease(Duration::MAX);
    assert_eq!(config.request_timeout, config.lease * 2);
    assert!(nanos(config.lease).checked_mul(64).is_some());
}

#[test]
fn a_sender_voids_no_token_and_excludes_no_member() {
    let (mut link, now) = holder(0, grant(2));
    let hint = |live| Body::OwnLinkHint { epoch: Epoch(2), holder: Party(0), live };
    for body in [Body::GiveUp { epoch: Epoch(2) }, hint(Parties::default())] {
        link.handle(now, Party(0), 0, 0, body);
    }
    assert!(link.holds());
    link.handle(now, Party(2), 0, 0, Body::BcastReqLink { epoch: Epoch(2), requester: Party(2) });
    assert!(!link.holds(), "the token has gone to a member");
    let mut witness = Witness::new(3, LEASE_NS, Incarnation::FIRST, true, Instant::ZERO);
    witness.handle(now, Party(0), Body::GrantLink(grant(2)));
    assert_eq!(witness.poll_send(), None, "it has not made this epoch");
}

#[test]
fn a_route_that_waits_renews_its_leases_under_traffic() {
    let (mut link, mut now) = holder(0, grant(2));
    // The route waits for another link's token.
    link.start();
    let mut alarm = link.poll_timeout(now);
    for _ in 0..4 * 32 {
        now = now.plus_nanos(LEASE_NS / 32);
        if alarm.is_some_and(|at| at <= now) {
            link.handle_timeout(now);
        }
        let request = Body::BcastReqLink { epoch: Epoch(2), requester: Party(2) };
        link.handle(now, Party(2), now.as_nanos(), 0, request);
        let sent: Vec<_> = std::iter::from_fn(|| link.poll_send()).collect();
        for (party, body) in sent {
            if let Body::AskSupport { epoch, round } = body {
                let support = Body::Support { epoch, round };
                link.handle(now, party, now.as_nanos(), 0, support);
            }
        }
        // After each message the timeout is set anew.
        alarm = link.poll_timeout(now);
        assert!(link.validity().is_some_and(|(_, end)| end > now), "the lease ended at {now:?}");
    }
}
