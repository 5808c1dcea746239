//! Tests copies that write, exchange updates, lose and repeat what they send, join late and restart.

use proptest::prelude::*;

use super::*;

const KEYS: u8 = 3;

#[derive(Clone, Debug)]
enum Op {
    Set(usize, u8),
    Remove(usize, u8),
    /// One member sends another the updates due to it.
    Send(usize, usize),
    /// One of the updates in flight arrives. If the flag is set, it stays in flight and can arrive again.
    Arrive(usize, bool),
    /// Loses the updates in flight between two members, whose connection is made anew.
    Reconnect(usize, usize),
    /// A member loses its state and restarts under another number.
    Restart(usize),
    Read(usize),
    Pass(i64),
}

fn any_op() -> impl Strategy<Value = Op> {
    let (member, key) = (0_usize..4, 0..KEYS);
    prop_oneof![
        4 => (member.clone(), key.clone()).prop_map(|(member, key)| Op::Set(member, key)),
        1 => (member.clone(), key).prop_map(|(member, key)| Op::Remove(member, key)),
        6 => (member.clone(), member.clone()).prop_map(|(from, to)| Op::Send(from, to)),
        6 => (any::<usize>(), any::<bool>()).prop_map(|(index, again)| Op::Arrive(index, again)),
        1 => (member.clone(), member.clone()).prop_map(|(one, other)| Op::Reconnect(one, other)),
        1 => member.clone().prop_map(Op::Restart),
        2 => member.prop_map(Op::Read),
        2 => (0_i64..1_000_000).prop_map(Op::Pass),
    ]
}

const READER: Observer = Observer::Reader(0);

struct Member {
    replica: Replica,
    /// The values that its reader has seen.
    seen: BTreeMap<Bytes, (Version, Option<Bytes>)>,
}

impl Member {
    fn new(id: u64) -> Self {
        let mut replica = Replica::new(id);
        replica.join(READER, true);
        Self { replica, seen: BTreeMap::new() }
    }

    fn read(&mut self, now: i64) {
        for update in self.replica.take(now, READER, 100) {
            let new = (update.version, update.value);
            let before = self.seen.insert(update.key, new.clone());
            assert!(before.is_none_or(|before| before.0 <= new.0), "the reader went back");
        }
    }
}

/// Members, and the updates in flight between them.
struct World {
    members: Vec<Member>,
    in_flight: Vec<(usize, usize, Update)>,
    now: i64,
    writes: u32,
    next: u64,
}

impl World {
    /// The first two members are connected; the others join when they reconnect.
    fn new() -> Self {
        // Numbers that are not sorted by age.
        let members = [40, 10, 30, 20].map(Member::new).into();
        let mut world = Self { members, in_flight: Vec::new(), now: 0, writes: 0, next: 0 };
        world.reconnect(0, 1);
        world
    }

    fn id(&self, member: usize) -> u64 {
        self.members[member].replica.id
    }

    fn reconnect(&mut self, one: usize, other: usize) {
        if one == other {
            return;
        }
        self.in_flight
            .retain(|(from, to, _)| ![(one, other), (other, one)].contains(&(*from, *to)));
        for (member, peer) in [(one, self.id(other)), (other, self.id(one))] {
            self.members[member].replica.leave(Observer::Peer(peer));
            self.members[member].replica.join(Observer::Peer(peer), true);
        }
    }

    fn restart(&mut self, member: usize) {
        let former = self.id(member);
        self.in_flight.retain(|(from, to, _)| *from != member && *to != member);
        for other in &mut self.members {
            other.replica.leave(Observer::Peer(former));
        }
        self.next += 1;
        // Alternately above all other numbers, and below them.
        let id = if self.next.is_multiple_of(2) { 5_000 + self.next } else { 5_000 - self.next };
        self.members[member] = Member::new(id);
    }

    fn set(&mut self, member: usize, key: u8) -> Bytes {
        self.writes += 1;
        let value = Bytes::from(self.writes.to_le_bytes().to_vec());
        let key = Bytes::from(vec![key]);
        self.members[member].replica.set(self.now, key, value.clone()).unwrap();
        value
    }

    fn send(&mut self, from: usize, to: usize) {
        let peer = Observer::Peer(self.id(to));
        for update in self.members[from].replica.take(self.now, peer, 60) {
            self.in_flight.push((from, to, update));
        }
    }

    fn arrive(&mut self, index: usize, again: bool) {
        if self.in_flight.is_empty() {
            return;
        }
        let index = index % self.in_flight.len();
        let (from, to, update) = self.in_flight[index].clone();
        if !again {
            self.in_flight.swap_remove(index);
        }
        let from = self.id(from);
        self.members[to].replica.handle(self.now, from, update);
    }

    fn run(&mut self, op: Op) {
        match op {
            Op::Set(member, key) => drop(self.set(member, key)),
            Op::Remove(member, key) => {
                self.members[member].replica.remove(self.now, Bytes::from(vec![key]));
            }
            Op::Send(from, to) => self.send(from, to),
            Op::Arrive(index, again) => self.arrive(index, again),
            Op::Reconnect(one, other) => self.reconnect(one, other),
            Op::Restart(member) => self.restart(member),
            Op::Read(member) => self.members[member].read(self.now),
            Op::Pass(time) => self.now += time,
        }
    }

    fn connect_all(&mut self) {
        for one in 0..self.members.len() {
            for other in 0..one {
                self.reconnect(one, other);
            }
        }
    }

    /// Exchanges updates until none is due.
    fn settle(&mut self) {
        for _ in 0..1_000 {
            for from in 0..self.members.len() {
                (0..self.members.len()).for_each(|to| self.send(from, to));
            }
            if self.in_flight.is_empty() {
                return;
            }
            while !self.in_flight.is_empty() {
                self.arrive(0, false);
            }
        }
        panic!("the exchange never ends");
    }

    fn assert_equal(&mut self) {
        let entries = |member: &Member| -> Vec<_> {
            let entries = member.replica.entries.iter();
            entries.map(|(key, one)| (key.clone(), one.version, one.value.clone())).collect()
        };
        let first = entries(&self.members[0]);
        let now = self.now;
        for member in &mut self.members {
            assert_eq!(entries(member), first);
            while member.replica.has_due(READER) == Some(true) {
                member.read(now);
            }
            // A write that was renewed under a higher version is not reported to its own member's reader.
            let seen = member.seen.iter().map(|(key, (_, value))| (key, value));
            let newest = first.iter().map(|(key, _, value)| (key, value));
            assert!(seen.eq(newest), "a reader sees the newest of each key");
        }
    }
}

fn versions(member: &Member) -> (u64, BTreeMap<Bytes, Version>) {
    let entries = member.replica.entries.iter();
    (member.replica.id, entries.map(|(key, entry)| (key.clone(), entry.version)).collect())
}

proptest! {
    #[test]
    fn all_copies_become_equal_no_reader_goes_back_and_the_last_write_arrives(
        ops in proptest::collection::vec(any_op(), 0..120),
        last in (0_usize..4, 0..KEYS),
    ) {
        let mut world = World::new();
        for op in ops {
            let before: Vec<_> = world.members.iter().map(versions).collect();
            world.run(op);
            for (before, member) in before.iter().zip(&world.members) {
                let after = versions(member);
                if before.0 == after.0 {
                    prop_assert!(before.1.iter().all(|(key, version)| after.1[key] >= *version));
                }
            }
        }
        world.connect_all();
        world.settle();
        world.assert_equal();
        // A member without any state writes last; whatever versions the others have, its write wins.
        world.now += 1;
        world.restart(last.0);
        let value = world.set(last.0, last.1);
        world.connect_all();
        world.settle();
        world.assert_equal();
        let key = [last.1];
        prop_assert_eq!(world.members[0].replica.get(&key).and_then(|entry| entry.value.clone()), Some(value));
    }

    #[test]
    fn updates_in_any_order_and_any_number_give_one_result(
        updates in proptest::collection::vec((0_u8..3, 0_u64..5, 0_u64..5), 0..20),
        order in proptest::collection::vec(any::<prop::sample::Index>(), 0..60),
    ) {
        let updates: Vec<_> = updates
            .into_iter()
            .map(|(key, counter, writer)| Update {
                key: Bytes::from(vec![key]),
                // One version has one value.
                value: (counter != 3).then(|| Bytes::from(vec![counter as u8, writer as u8])),
                version: Version { counter, writer: writer + 10 },
                age: counter,
            })
            .collect();
        let mut once = Replica::new(1);
        updates.iter().for_each(|update| once.handle(0, 9, update.clone()));
        let mut mixed = Replica::new(2);
        for index in order.iter().filter(|_| !updates.is_empty()) {
            mixed.handle(0, 9, index.get(&updates).clone());
        }
        updates.iter().rev().for_each(|update| mixed.handle(0, 9, update.clone()));
        prop_assert_eq!(once.entries, mixed.entries);
        prop_assert_eq!(once.bytes, mixed.bytes);
        prop_assert_eq!(once.removed, mixed.removed);
    }

    #[test]
    fn any_update_is_merged_or_refused(
        key in proptest::collection::vec(any::<u8>(), 0..3), length in 0_usize..3,
        version: (u64, u64), age: u64, now in any::<i64>().prop_map(|now| now.max(0)),
    ) {
        let mut replica = Replica::new(1);
        replica.join(Observer::Peer(2), true);
        replica.set(0, Bytes::from(key.clone()), Bytes::new()).unwrap();
        let value = Some(Bytes::from(vec![0; MAX_VALUE - 1 + length]));
        let version = Version { counter: version.0, writer: version.1 };
        replica.handle(now, 2, Update { key: Bytes::from(key.clone()), value, version, age });
        replica.remove(now, Bytes::from(key));
        replica.expire(i64::MAX);
        replica.take(now, Observer::Peer(2), 0);
    }
}

#[test]
fn a_removal_is_forgotten_when_it_is_old_and_its_bytes_are_free() {
    let mut replica = Replica::new(1);
    let key = Bytes::from_static(b"key");
    replica.set(0, key.clone(), Bytes::from_static(b"value")).unwrap();
    assert_eq!(replica.bytes, 8);
    assert!(replica.remove(5, key.clone()));
    assert!(!replica.remove(6, key.clone()));
    assert!(replica.get(&key).is_none());
    replica.expire(TOMBSTONE + 4);
    assert_eq!(replica.entries.len(), 1);
    replica.expire(TOMBSTONE + 5);
    assert_eq!((replica.entries.len(), replica.removed.len(), replica.bytes), (0, 0, 0));
}

#[test]
fn an_update_from_the_end_of_all_versions_does_not_stop_later_ones() {
    let (mut replica, key) = (Replica::new(1), Bytes::from_static(b"key"));
    let version = Version { counter: u64::MAX, writer: 2 };
    replica.handle(0, 2, Update { key: key.clone(), value: Some(Bytes::new()), version, age: 0 });
    assert!(replica.get(&key).is_none());
    replica.set(0, key.clone(), Bytes::from_static(b"one")).unwrap();
    let first = replica.get(&key).unwrap().version;
    replica.set(0, key.clone(), Bytes::from_static(b"two")).unwrap();
    assert!(replica.get(&key).unwrap().version > first);
}

#[test]
fn updates_beyond_the_bounds_are_refused_and_disturb_nothing() {
    let mut replica = Replica::new(1);
    let value = |length| Bytes::from(vec![0; length]);
    assert_eq!(replica.set(0, value(MAX_KEY + 1), value(1)), Err(Refused::Key));
    assert_eq!(replica.set(0, value(1), value(MAX_VALUE + 1)), Err(Refused::Value));
    let version = Version { counter: 1, writer: 2 };
    let long = Update { key: value(1), value: Some(value(MAX_VALUE + 1)), version, age: 0 };
    replica.handle(0, 2, long);
    assert_eq!(replica.refused, 1);
    let count = u32::try_from(MAX_KEYS).unwrap();
    for number in 0..count {
        replica.set(0, Bytes::from(number.to_le_bytes().to_vec()), value(0)).unwrap();
    }
    assert_eq!(replica.set(0, value(8), value(0)), Err(Refused::Keys));
    replica.set(0, Bytes::from(7_u32.to_le_bytes().to_vec()), value(9)).unwrap();
    let full = (0..count).find_map(|number| {
        let key = Bytes::from(number.to_le_bytes().to_vec());
        replica.set(1, key, value(MAX_VALUE)).err()
    });
    assert_eq!(full, Some(Refused::Bytes));
    assert!(replica.bytes <= MAX_BYTES && replica.bytes + MAX_VALUE > MAX_BYTES);
}

#[test]
fn a_waiting_peer_is_due_the_newest_value_of_each_key_alone() {
    let mut replica = Replica::new(1);
    let peer = Observer::Peer(2);
    replica.join(peer, true);
    for number in 0..1_000_u32 {
        let key = Bytes::from(vec![(number % 3) as u8]);
        replica.set(i64::from(number), key, Bytes::from(number.to_le_bytes().to_vec())).unwrap();
    }
    let taken = replica.take(1_000, peer, usize::MAX);
    let values: Vec<_> = taken.iter().map(|update| update.value.clone().unwrap()).collect();
    assert_eq!(values, [999_u32, 997, 998].map(|last| last.to_le_bytes().to_vec()));
    assert_eq!(taken[0].age, 1);
}

#[test]
fn a_member_of_a_full_map_takes_a_key_for_which_another_member_has_made_room() {
    let (mut first, mut second) = (Replica::new(1), Replica::new(2));
    let peer = Observer::Peer(2);
    first.join(peer, true);
    let key = |number: usize| Bytes::from(number.to_le_bytes().to_vec());
    for number in 0..MAX_KEYS {
        first.set(0, key(number), Bytes::new()).unwrap();
    }
    for update in first.take(0, peer, usize::MAX) {
        second.handle(0, 1, update);
    }
    assert!(first.remove(5, key(0)));
    // The second member receives the removal later, and so keeps it longer.
    for update in first.take(5, peer, usize::MAX) {
        second.handle(1_005, 1, update);
    }
    let now = 5 + TOMBSTONE;
    first.expire(now);
    second.expire(now);
    first.set(now, key(MAX_KEYS), Bytes::new()).unwrap();
    for update in first.take(now, peer, usize::MAX) {
        second.handle(now, 1, update);
    }
    assert!(second.get(&key(MAX_KEYS)).is_some());
    assert_eq!((second.entries.len(), second.refused), (MAX_KEYS + 1, 0));
    assert_eq!(second.set(now, key(MAX_KEYS + 1), Bytes::new()), Err(Refused::Keys));
}
