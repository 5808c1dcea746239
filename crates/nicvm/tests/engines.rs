//! Modules made of random bytes behave the same on both engines, and each of their commands ends.

use std::collections::BTreeMap;

use crate::generator;
use crate::harness::Effect;
use midplane_nicvm::sandbox::Engine;
use proptest::prelude::*;

/// Checks the properties that every module must have; returns how many commands ended.
fn compare(module: &[u8]) -> Option<usize> {
    let [first, second] = Engine::ALL.map(|engine| generator::trace(engine, module));
    assert_eq!(first, second, "{}", String::from_utf8_lossy(module));
    let mut ends = BTreeMap::new();
    for effect in &first?.0 {
        if let Effect::Completed(_, done) = effect {
            *ends.entry(done.cookie).or_insert(0) += 1;
        }
    }
    let once = (0..4).map(|cookie| (cookie, 1)).collect::<BTreeMap<_, _>>();
    assert_eq!(ends, once, "each command ends once: {}", String::from_utf8_lossy(module));
    Some(ends.len())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    #[test]
    fn both_engines_do_the_same(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let text = generator::text(&bytes);
        prop_assert_eq!(compare(text.as_bytes()), Some(4), "it does not start: {}", text);
    }
}

/// A module whose timeout handler sets the same timeout again, to expire at once.
#[test]
fn a_module_whose_timeout_always_expires_at_once_ends_its_commands() {
    let text = generator::text(&[]).replace(
        "(func (export \"on_timeout\") (param i32)",
        "(func (export \"on_timeout\") (param $number i32)
          (drop (call $set_timeout (local.get $number) (i32.const 0) (i64.const 0))))
        (func (export \"nothing\") (param i32)",
    );
    let text = text.replace(
        "(func (export \"on_command\") (param i32 i32 i32 i32 i32 i32)",
        "(func (export \"on_command\") (param i32 i32 i32 i32 i32 i32)
          (drop (call $set_timeout (i32.const 1) (i32.const 0) (i64.const 0))))
        (func (export \"nothing more\") (param i32 i32 i32 i32 i32 i32)",
    );
    assert_eq!(compare(text.as_bytes()), Some(4));
}

/// A module that sends itself two messages for each one that it receives.
#[test]
fn a_module_that_sends_itself_more_and_more_messages_ends_its_commands() {
    let send = "(drop (call $send_control (i32.const 1) (i32.const 0) (i32.const 1)))";
    let text = generator::text(&[]).replace(
        "(func (export \"on_control\") (param i32 i32)",
        &format!(
            "(func (export \"on_control\") (param i32 i32) {send} {send})
        (func (export \"nothing\") (param i32 i32)"
        ),
    );
    assert_eq!(compare(text.as_bytes()), Some(4));
}
