use super::*;
use proptest::prelude::*;

fn region(length: u32) -> RegionRef {
    RegionRef { generation: 1, length, ..RegionRef::default() }
}

#[derive(Clone, Debug)]
enum Op {
    Give(u8),
    Delegate(usize, u8, u32, u32),
    Revoke(usize),
    Check(usize, u8, u32, u32),
    Forge(usize, [u64; 3]),
}

fn op() -> impl Strategy<Value = Op> {
    let (which, rights) = (0..40_usize, 0..32_u8);
    prop_oneof![
        (0..32_u8).prop_map(Op::Give),
        (which.clone(), rights.clone(), 0..120_u32, 0..120_u32)
            .prop_map(|(w, r, o, l)| Op::Delegate(w, r, o, l)),
        which.clone().prop_map(Op::Revoke),
        (which.clone(), rights, 0..120_u32, 0..120_u32)
            .prop_map(|(w, r, o, l)| Op::Check(w, r, o, l)),
        (which, any::<[u64; 3]>()).prop_map(|(w, bits)| Op::Forge(w, bits)),
    ]
}

/// A capability as the test models it.
struct Model {
    capability: Capability,
    range: (u32, u32),
    rights: u8,
    above: Option<usize>,
    revoked: bool,
}

fn is_live(model: &[Model], mut at: usize) -> bool {
    loop {
        if model[at].revoked {
            return false;
        }
        match model[at].above {
            Some(above) => at = above,
            None => return true,
        }
    }
}

proptest! {
    #[test]
    fn capabilities_survive_their_words(words: [u64; 3]) {
        prop_assert_eq!(Capability::from_words(words).to_words(), words);
    }

    #[test]
    fn accesses_need_a_granted_and_unrevoked_capability(ops in prop::collection::vec(op(), 1..120)) {
        let mut table = Capabilities::new(NodeId(3), [42; 32]);
        let mut model: Vec<Model> = Vec::new();
        for op in ops {
            match op {
                Op::Give(rights) => {
                    let capability = table.grant(region(100), CapabilityRights(rights)).unwrap();
                    model.push(Model { capability, range: (0, 100), rights, above: None, revoked: false });
                }
                Op::Delegate(which, rights, offset, length) if which < model.len() => {
                    let of = &model[which];
                    let may = is_live(&model, which)
                        && of.rights & CapabilityRights::DELEGATE.0 != 0
                        && of.rights & rights == rights
                        && offset + length <= of.range.1;
                    let part = Capability { offset, length, ..of.capability };
                    let range = (of.range.0 + offset, length);
                    let made = table.delegate(&part, CapabilityRights(rights));
                    if matches!(made, Err(Denied::Depth)) {
                        continue;
                    }
                    prop_assert_eq!(made.is_ok(), may, "{:?}", made);
                    if let Ok(capability) = made {
                        model.push(Model { capability, range, rights, above: Some(which), revoked: false });
                    }
                }
                Op::Revoke(which) if which < model.len() => {
                    let revoked = table.revoke(&model[which].capability);
                    prop_assert_eq!(revoked.is_ok(), is_live(&model, which));
                    model[which].revoked = true;
                }
                Op::Check(which, rights, offset, length) if which < model.len() => {
                    let of = &model[which];
                    let may = is_live(&model, which)
                        && of.rights & rights == rights
                        && offset + length <= of.range.1;
                    let part = Capability { offset, length, ..of.capability };
                    let checked = table.check(&part, CapabilityRights(rights));
                    prop_assert_eq!(checked.is_ok(), may);
                    if let Ok(region) = checked {
                        prop_assert_eq!((region.offset, region.length), (of.range.0 + offset, length));
                    }
                }
                Op::Forge(which, bits) if which < model.len() => {
                    let forged = Capability { key: bits[0] >> 8, ..model[which].capability };
                    prop_assert!(table.check(&forged, CapabilityRights(0)).is_err());
                    prop_assert!(table.check(&Capability::from_words(bits), CapabilityRights(0)).is_err());
                }
                _ => {}
            }
        }
    }
}

#[test]
fn a_capability_is_delegated_eight_times_in_succession() {
    let mut table = Capabilities::new(NodeId(0), [1; 32]);
    let mut last = table.grant(region(8), CapabilityRights::ALL).unwrap();
    for _ in 0..MAX_DEPTH {
        last = table.delegate(&last, CapabilityRights::ALL).unwrap();
    }
    assert_eq!(table.delegate(&last, CapabilityRights::ALL), Err(Denied::Depth));
    assert!(table.check(&last, CapabilityRights::ALL).is_ok());
}

#[test]
fn delegated_capabilities_leave_the_table_with_the_one_that_is_revoked() {
    let mut table = Capabilities::new(NodeId(0), [1; 32]);
    for _ in 0..MAX_ENTRIES {
        let top = table.grant(region(8), CapabilityRights::ALL).unwrap();
        let below = table.delegate(&top, CapabilityRights::ALL).unwrap();
        let last = table.delegate(&below, CapabilityRights::READ).unwrap();
        table.revoke(&top).unwrap();
        assert_eq!(table.check(&last, CapabilityRights::READ), Err(Denied::Stale));
    }
    assert!(table.entries.len() <= 3, "{} entries", table.entries.len());
}

/// SplitMix64: a generator whose steps invert.
struct SplitMix(u64);

const STEP: u64 = 0x9E37_79B9_7F4A_7C15;
const FIRST: u64 = 0xBF58_476D_1CE4_E5B9;
const SECOND: u64 = 0x94D0_49BB_1331_11EB;

impl SplitMix {
    fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(STEP);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(FIRST);
        let z = (z ^ z >> 27).wrapping_mul(SECOND);
        z ^ z >> 31
    }

    /// Reconstructs the generator's state after it drew `value`.
    fn after(value: u64) -> Self {
        let z = unshift(value, 31).wrapping_mul(inverse(SECOND));
        let z = unshift(z, 27).wrapping_mul(inverse(FIRST));
        Self(unshift(z, 30))
    }
}

/// Returns the `x` with `x ^ x >> by == y`.
fn unshift(y: u64, by: u32) -> u64 {
    (0..64 / by).fold(y, |x, _| y ^ x >> by)
}

/// Returns the inverse of an odd number modulo 2^64: each round doubles the number of correct bits.
fn inverse(odd: u64) -> u64 {
    (0..6).fold(odd, |x, _| x.wrapping_mul(2_u64.wrapping_sub(odd.wrapping_mul(x))))
}

/// Derives the next key from two that were drawn in succession, by trying all values of the 8 bits that the first
/// one lacks.
fn derive_next_key(first: u64, second: u64) -> Option<u64> {
    let mut guesses = (0..256).map(|low| SplitMix::after(first << 8 | low));
    let mut found = guesses.find_map(|mut guess| (guess.draw() >> 8 == second).then_some(guess))?;
    Some(found.draw() >> 8)
}

#[test]
fn two_held_keys_do_not_reveal_a_third() {
    let mut weak = SplitMix(4711);
    let keys = [(); 3].map(|()| weak.draw() >> 8);
    assert_eq!(
        derive_next_key(keys[0], keys[1]),
        Some(keys[2]),
        "the attack works on a weak generator"
    );
    for secret in 0..32 {
        let mut table = Capabilities::new(NodeId(0), [secret; 32]);
        let held = [(); 2].map(|()| table.grant(region(8), CapabilityRights::READ).unwrap());
        let other = table.grant(region(8), CapabilityRights::ALL).unwrap();
        let derived = derive_next_key(held[0].key, held[1].key);
        assert_ne!(derived, Some(other.key), "a key was derived from two others");
        let forged = Capability { key: derived.unwrap_or_default(), ..other };
        assert_eq!(table.check(&forged, CapabilityRights::READ), Err(Denied::Forged));
    }
}
