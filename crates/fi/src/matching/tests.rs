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
    let mut matching = Matching::new(1, 7);
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
    let mut matching = Matching::new(1, 7);
    let keys = [(1, 0), (1, 1), (2, 0)]
        .map(|(tag, peer)| matching.keep(message(tag, peer, 0), Body::Announced(0)));
    let find = |matching: &mut Matching, tag, source| {
        matching.find(&Pattern { kind: Kind::Tagged, source, tag, ignore: 0 })
    };
    assert_eq!(find(&mut matching, 1, ADDR_UNSPEC), Some(keys[0]));
    assert_eq!(find(&mut matching, 1, 1), Some(keys[1]));
    matching.claim(keys[0], 77);
    assert_eq!(find(&mut matching, 1, ADDR_UNSPEC), Some(keys[1]));
    assert_eq!(matching.claimed(Kind::Tagged, 77), Some(keys[0]));
    matching.unlist(keys[0]);
    assert_eq!(matching.claimed(Kind::Tagged, 77), None);
    assert!(matching.take_incomplete_of(1).is_empty());
    assert_eq!(find(&mut matching, 1, ADDR_UNSPEC), None);
}

#[test]
fn a_buffer_for_several_is_released_with_its_last_message_or_alone() {
    let mut matching = Matching::new(2, 7);
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
    // One byte is left: less than `FI_OPT_MIN_MULTI_RECV`.
    let third = matching.arrive(message(0, 0, 9), 0).unwrap();
    assert_eq!(third.context, 2);
    assert!(!matching.leave(one));
    assert!(matching.leave(one));
    // A message that does not fit releases the buffer: no message uses it any more.
    let three = post(&mut matching, 3);
    matching.arrive(message(0, 0, 4), 0).unwrap();
    assert!(!matching.leave(three));
    assert!(matching.arrive(message(0, 0, 9), 0).is_none());
    assert_eq!(matching.released.pop().unwrap().context, 3);
}

/// Model of a matching: lists in which each search begins at the oldest entry.
#[derive(Default)]
struct Model {
    posted: Vec<(Pattern, usize)>,
    messages: Vec<(Envelope, usize)>,
    /// Claimed messages and the contexts of their claims.
    claims: Vec<(Envelope, usize)>,
}

impl Model {
    fn arrive(&mut self, envelope: &Envelope) -> Option<usize> {
        let wants = |(pattern, _): &(Pattern, usize)| {
            pattern.kind == envelope.kind && pattern.wants(envelope.tag, envelope.peer as u64)
        };
        let at = self.posted.iter().position(wants)?;
        Some(self.posted.remove(at).1)
    }

    fn find(&self, pattern: &Pattern) -> Option<usize> {
        let wanted = |(envelope, _): &&(Envelope, usize)| {
            pattern.kind == envelope.kind && pattern.wants(envelope.tag, envelope.peer as u64)
        };
        self.messages.iter().find(wanted).map(|(_, key)| *key)
    }

    fn take(&mut self, key: usize) -> Envelope {
        let at = self.messages.iter().position(|(_, listed)| *listed == key).unwrap();
        self.messages.remove(at).0
    }
}

/// A matching and its model, on which the same random operations run.
struct Run {
    matching: Matching,
    model: Model,
    state: u64,
    /// Number of contexts used so far; the next receive's context.
    context: usize,
    masks: [u64; 12],
}

impl Run {
    fn new(seed: u64) -> Self {
        let (matching, model) = (Matching::new(1, seed), Model::default());
        let mut run = Self { matching, model, state: seed, context: 0, masks: [0; 12] };
        run.masks = run.masks.map(|_| [0, 0, 3, u64::MAX, run.random(64)][run.random(5) as usize]);
        run
    }

    fn random(&mut self, below: u64) -> u64 {
        self.state = self.state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.state >> 33) % below
    }

    /// Posts a receive, or takes or claims the message that matches it.
    fn post(&mut self, kind: Kind, tag: u64, peer: u64) {
        self.context += 1;
        let source = [ADDR_UNSPEC, peer][self.random(2) as usize];
        let ignore = self.masks[self.random(12) as usize];
        let pattern = Pattern { kind, source, tag, ignore };
        let found = self.matching.find(&pattern);
        assert_eq!(found, self.model.find(&pattern));
        let Some(key) = found else {
            self.matching.post(Receive { pattern, ..receive(0, 0, 0, self.context) });
            return self.model.posted.push((pattern, self.context));
        };
        let envelope = self.model.take(key);
        if self.random(5) == 0 {
            self.matching.claim(key, self.context);
            self.model.claims.push((envelope, self.context));
        } else {
            self.matching.unlist(key);
            self.matching.messages.remove(key);
        }
    }

    fn arrive(&mut self, kind: Kind, tag: u64, peer: u64) {
        let envelope = Envelope { kind, ..message(tag, peer as usize, 1) };
        let matched = self.matching.arrive(envelope, peer).map(|matched| matched.context);
        assert_eq!(matched, self.model.arrive(&envelope));
        if matched.is_none() {
            let key = self.matching.keep(envelope, Body::Announced(0));
            self.model.messages.push((envelope, key));
        }
    }

    fn take_posted_of(&mut self, source: u64) {
        let taken = self.matching.take_posted_of(source);
        let mut expected = Vec::new();
        for kind in [Kind::Plain, Kind::Tagged] {
            let is_of = |(pattern, _): &mut (Pattern, usize)| {
                pattern.source == source && pattern.kind == kind
            };
            expected.extend(self.model.posted.extract_if(.., is_of).map(|(_, context)| context));
        }
        assert_eq!(taken.iter().map(|receive| receive.context).collect::<Vec<_>>(), expected);
    }

    fn cancel(&mut self) {
        let wanted = self.random(self.context as u64 + 1) as usize;
        let cancelled = self.matching.cancel(wanted).map(|receive| receive.context);
        let at = self.model.posted.iter().position(|(_, context)| *context == wanted);
        assert_eq!(cancelled, at.map(|at| self.model.posted.remove(at).1));
    }

    fn receive_claimed(&mut self) {
        let Some((envelope, claim)) = self.model.claims.pop() else { return };
        let key = self.matching.claimed(envelope.kind, claim).unwrap();
        self.matching.unlist(key);
        self.matching.messages.remove(key);
        assert_eq!(self.matching.claimed(envelope.kind, claim), None);
    }
}

#[test]
fn an_index_finds_the_entries_that_lists_find() {
    for seed in 0..100 {
        let (mut run, mut most) = (Run::new(seed), [0; 2]);
        for step in 0..3000 {
            most[0] = most[0].max(run.model.posted.len());
            most[1] = most[1].max(run.model.messages.len());
            // Receives and messages gather in turns of 250 steps.
            let posts = if (step / 250) % 2 == 0 { 80 } else { 20 };
            let kind = if run.random(4) == 0 { Kind::Plain } else { Kind::Tagged };
            let (tag, peer) = (run.random(40), run.random(4));
            match run.random(100) {
                0 if run.random(10) == 0 => run.take_posted_of(peer),
                1 | 2 => run.cancel(),
                3 | 4 => run.receive_claimed(),
                dice if dice < posts => run.post(kind, tag, peer),
                _ => run.arrive(kind, tag, peer),
            }
        }
        assert!(most.iter().all(|most| *most > 4 * FEW), "lists would do: {most:?}");
    }
}
