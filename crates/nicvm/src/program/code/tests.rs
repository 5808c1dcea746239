use super::*;
use proptest::prelude::*;

/// Builds an instruction, valid for most numbers in 64 bytes of memory and 20 instructions.
fn instruction(kind: u8, word: u32, length: u32, number: u64, to: u16) -> Instruction {
    let condition = [Condition::Always, Condition::Equal, Condition::Different, Condition::Less];
    let (offset, condition) = (8 * word, condition[length as usize % 4]);
    let range = Range { offset, length };
    match kind {
        0 => Instruction::Gather(range),
        1 => Instruction::Scatter(range),
        2 => Instruction::Copy { from: range, to: number as u32 % 32 },
        3 => Instruction::Compare { offset, with: number },
        4 => Instruction::Branch { condition, to },
        5 => Instruction::Add { offset, by: number },
        6 => Instruction::Send { node: to, port: 1 },
        7 => Instruction::Signal { cookie: number },
        8 => Instruction::Count(number),
        _ => Instruction::Call { extension: 16, opcode: 1, cookie: 3, range },
    }
}

/// Any bytes that pass the check run without a panic, within their steps and their memory.
#[test]
fn checked_programs_run() {
    let ran = std::cell::Cell::new(0);
    let config = ProptestConfig { cases: 2_000, ..ProptestConfig::default() };
    let parts = (0..10_u8, 0..7_u32, 0..17_u32, 0..40_u64, 0..6_u16);
    proptest!(config, |(
        parts in prop::collection::vec(parts, 1..20),
        flip in proptest::option::weighted(0.2, any::<(prop::sample::Index, u8)>()),
        memory in 56..72_u32,
    )| {
        let code: Vec<Instruction> =
            parts.into_iter().map(|(kind, word, length, number, to)| instruction(kind, word, length, number, to)).collect();
        let mut bytes = assemble(&code);
        if let Some((at, with)) = flip {
            bytes[at.index(code.len() * 24)] ^= with;
        }
        if let Ok(code) = disassemble(&bytes) {
            prop_assert_eq!(assemble(&code), bytes);
            if check(&code, memory).is_ok() {
                ran.set(ran.get() + 1);
                let mut machine = Machine::new(vec![3; memory as usize]);
                machine.run(&code, 500);
                prop_assert!(machine.steps() <= 500);
                for effect in machine.effects() {
                    if let Effect::Send { bytes, .. } = effect {
                        prop_assert!(bytes.len() <= MESSAGE);
                    }
                }
            }
        }
    });
    assert!(ran.get() > 200, "{} programs were valid", ran.get());
}

/// Returns the longest message of any path, found by following all paths; more than `MESSAGE` if there is no limit.
fn longest_by_search(code: &[Instruction]) -> usize {
    let mut longest: Vec<Option<usize>> = vec![None; code.len() + 1];
    let (mut open, mut most) = (vec![(0, 0)], 0);
    while let Some((at, length)) = open.pop() {
        if longest[at].is_some_and(|known| known >= length) || most > MESSAGE {
            continue;
        }
        longest[at] = Some(length);
        let Some(instruction) = code.get(at) else { continue };
        let after = match *instruction {
            Instruction::Gather(range) => length + range.length as usize,
            Instruction::Scatter(range) => length.saturating_sub(range.length as usize),
            Instruction::Send { .. } => 0,
            _ => length,
        };
        most = most.max(after);
        open.extend(successors(*instruction, at).map(|next| (next, after)));
    }
    most
}

proptest! {
    #[test]
    fn a_program_is_refused_if_and_only_if_a_path_gathers_too_much(
        parts in prop::collection::vec((0..6_u8, 0..4_usize, 0..12_u16), 1..12),
    ) {
        const LENGTHS: [u32; 4] = [1 << 13, 15_000, 1 << 15, 1 << 16];
        let last = parts.len() as u16;
        let code: Vec<_> = parts.iter().map(|&(kind, length, to)| {
            let range = Range { offset: 0, length: LENGTHS[length] };
            let to = to.min(last);
            match kind {
                0 | 1 => Instruction::Gather(range),
                2 => Instruction::Scatter(range),
                3 => Instruction::Send { node: 0, port: 0 },
                4 => Instruction::Branch { condition: Condition::Always, to },
                _ => Instruction::Branch { condition: Condition::Less, to },
            }
        }).collect();
        let checked = check(&code, 1 << 16);
        prop_assert_eq!(checked.is_err(), longest_by_search(&code) > MESSAGE, "{:?}", code);
        if let Err((at, _)) = checked {
            prop_assert!(matches!(code[at], Instruction::Gather(_)));
        }
    }
}

/// A check that followed a byte at a time would take 16 million steps for this program.
#[test]
fn a_loop_that_gathers_a_byte_each_time_is_refused_at_once() {
    let byte = Range { offset: 0, length: 1 };
    let mut code = vec![Instruction::Count(1); MAX_PROGRAM - 2];
    code.push(Instruction::Gather(byte));
    code.push(Instruction::Branch { condition: Condition::Less, to: 0 });
    assert_eq!(check(&code, 64), Err((MAX_PROGRAM - 2, CheckError::Message)));
    code[0] = Instruction::Scatter(byte);
    assert_eq!(check(&code, 64), Ok(()));
}

#[test]
fn check_errors_name_the_instruction() {
    let range = |offset, length| Range { offset, length };
    let count = Instruction::Count(1);
    let cases = [
        (vec![], 0, CheckError::Length),
        (vec![count; MAX_PROGRAM + 1], 0, CheckError::Length),
        (vec![count, Instruction::Gather(range(60, 8))], 1, CheckError::Range),
        (vec![Instruction::Scatter(range(u32::MAX, 2))], 0, CheckError::Range),
        (vec![Instruction::Copy { from: range(0, 32), to: 40 }], 0, CheckError::Range),
        (vec![count, count, Instruction::Add { offset: 4, by: 1 }], 2, CheckError::Alignment),
        (vec![Instruction::Branch { condition: Condition::Equal, to: 2 }], 0, CheckError::Target),
        (
            vec![
                Instruction::Gather(range(0, 50)),
                Instruction::Branch { condition: Condition::Equal, to: 0 },
            ],
            0,
            CheckError::Message,
        ),
    ];
    for (code, at, error) in cases {
        assert_eq!(check(&code, 64), Err((at, error)), "{code:?}");
    }
    assert_eq!(disassemble(&[0; 24]), Err((0, CheckError::Unknown)));
    assert_eq!(disassemble(&[1; 23]), Err((0, CheckError::Length)));
}
