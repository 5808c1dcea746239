use std::ffi::c_int;
use std::ptr::{null, null_mut};

use super::side::Pair;
use crate::abi::constants::*;
use crate::abi::{AtomicAttr, Ioc, MsgAtomic, RmaIoc};
use crate::atomic::{Datatype, Form, MAX_BYTES, Operation};

const KEY: u64 = 42;
const SUM: c_int = Operation::Sum as c_int;
const READ_OP: c_int = Operation::Read as c_int;
const SWAP: c_int = Operation::CompareAndSwap as c_int;
const U64: c_int = Datatype::U64 as c_int;

/// Starts an atomic operation on elements at `address`, whose form the given buffers select; returns the call's result.
fn start(
    pair: &Pair,
    (address, key): (u64, u64),
    (datatype, operation): (c_int, c_int),
    operands: &[u8],
    comparands: Option<&[u8]>,
    results: Option<&mut [u8]>,
) -> isize {
    let bytes = Datatype::of(datatype).map_or(1, Datatype::bytes);
    let (ep, to, count) = (pair.one.ep, pair.to_other, operands.len() / bytes);
    let (from, with) = (operands.as_ptr().cast(), 7 as *mut _);
    // SAFETY: tests keep the bytes until the completion.
    unsafe {
        let ops = &*(*ep).atomic;
        let no = null_mut();
        match (comparands, results) {
            (None, None) => {
                (ops.write)(ep, from, count, no, to, address, key, datatype, operation, with)
            }
            (None, Some(out)) => {
                let out = out.as_mut_ptr().cast();
                (ops.readwrite)(
                    ep, from, count, no, out, no, to, address, key, datatype, operation, with,
                )
            }
            (Some(with_what), out) => {
                let out = out.map_or(no, |out| out.as_mut_ptr().cast());
                let with_what = with_what.as_ptr().cast();
                (ops.compwrite)(
                    ep, from, count, no, with_what, no, out, no, to, address, key, datatype,
                    operation, with,
                )
            }
        }
    }
}

/// Waits for the only completion of the first side; returns its flags and error.
#[track_caller]
fn end(pair: &Pair) -> (u64, c_int) {
    let [ends, others] = pair.drive(1);
    assert_eq!((ends.len(), others.len()), (1, 0));
    assert_eq!(ends[0].0.op_context as usize, 7);
    (ends[0].0.flags, ends[0].1)
}

#[test]
fn operations_of_all_types_run_at_the_target_and_return_the_former_values() {
    let pair = Pair::new();
    let mut memory = vec![0; 256];
    pair.other.register(&mut memory, KEY);
    let mut seed = 1_u64;
    let mut random = || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (seed >> 33) as u8
    };
    for datatype in Datatype::ALL {
        for operation in Operation::ALL {
            for form in [Form::Base, Form::Fetch, Form::Compare] {
                let length = 3 * datatype.bytes();
                memory.fill_with(&mut random);
                let mut values = || (0..length).map(|_| random()).collect::<Vec<_>>();
                // Half of the comparands equal the present values.
                let (operands, mut comparands) = (values(), values());
                comparands[..datatype.bytes()].copy_from_slice(&memory[8..8 + datatype.bytes()]);
                let (before, mut results) = (memory.clone(), vec![0; length]);
                let names = (datatype as c_int, operation as c_int);
                let compares = (form == Form::Compare).then_some(&comparands[..]);
                let fetches = (form != Form::Base).then_some(&mut results[..]);
                let code = start(&pair, (8, KEY), names, &operands, compares, fetches);
                if !operation.fits(datatype, form) {
                    assert_eq!(code, -(EOPNOTSUPP as isize));
                    continue;
                }
                assert_eq!(code, 0, "{datatype:?} {operation:?} {form:?}");
                let flag = if form == Form::Base { WRITE } else { READ };
                assert_eq!(end(&pair), (ATOMIC | flag, 0));
                let mut expected = before.clone();
                let all = [operands, compares.map_or_else(Vec::new, <[u8]>::to_vec)].concat();
                operation.apply(datatype, &mut expected[8..8 + length], &all);
                assert_eq!(memory, expected, "{datatype:?} {operation:?} {form:?}");
                if form != Form::Base {
                    assert_eq!(results, before[8..8 + length]);
                }
            }
        }
    }
}

#[test]
fn operations_outside_a_region_or_against_its_rights_fail_and_touch_nothing() {
    let pair = Pair::new();
    let (mut memory, mut fixed) = (vec![1; 64], vec![1; 64]);
    pair.other.register(&mut memory, KEY);
    pair.other.register_for(&mut fixed, 43, REMOTE_READ);
    let mut out = [0; 8];
    for (place, fails) in [((60, KEY), true), ((0, 44), true), ((0, 43), true), ((0, KEY), false)] {
        let error = if fails { EACCES } else { 0 };
        assert_eq!(start(&pair, place, (U64, SUM), &[1; 8], None, None), 0);
        assert_eq!(end(&pair).1, error);
        assert_eq!(start(&pair, place, (U64, SUM), &[1; 8], None, Some(&mut out)), 0);
        assert_eq!(end(&pair).1, error);
    }
    assert_eq!((&fixed[..], &memory[8..]), (&[1; 64][..], &[1; 56][..]));
    assert_eq!((memory[0], out), (3, [2; 8]));
    assert_eq!(start(&pair, (0, 43), (U64, READ_OP), &[0; 8], None, Some(&mut out)), 0);
    assert_eq!((end(&pair).1, out), (0, [1; 8]));
    // Calls that fail at once: no elements, too many elements, an unknown operation number.
    let many = vec![0; MAX_BYTES + 8];
    let refused = |names, operands: &[u8]| -start(&pair, (0, KEY), names, operands, None, None);
    assert_eq!(refused((U64, SUM), &[]), EINVAL as isize);
    assert_eq!(refused((U64, SUM), &many), EMSGSIZE as isize);
    assert_eq!(refused((10, SUM), &[1]), EOPNOTSUPP as isize);
    assert_eq!(refused((U64, 13), &[1; 8]), EOPNOTSUPP as isize);
    assert_eq!(refused((-1, -1), &[1]), EOPNOTSUPP as isize);
}

#[test]
fn vectors_are_gathered_and_their_counts_must_agree() {
    let pair = Pair::new();
    let mut memory = vec![0; 64];
    pair.other.register(&mut memory, KEY);
    let (mut one, mut two, mut out) = ([1_u64; 3], [2_u64; 2], [9_u64; 5]);
    let operands = [
        Ioc { addr: one.as_mut_ptr().cast(), count: 3 },
        Ioc { addr: two.as_mut_ptr().cast(), count: 2 },
    ];
    let mut result = [Ioc { addr: out.as_mut_ptr().cast(), count: 5 }];
    let send = |count, results: &mut [Ioc], flags| {
        let rma = RmaIoc { addr: 16, count, key: KEY };
        let msg = MsgAtomic {
            msg_iov: operands.as_ptr(),
            desc: null_mut(),
            iov_count: 2,
            addr: pair.to_other,
            rma_iov: &raw const rma,
            rma_iov_count: 1,
            datatype: U64,
            op: SUM,
            context: 7 as *mut _,
            data: 0,
        };
        let (ep, at, length) = (pair.one.ep, results.as_mut_ptr(), results.len());
        // SAFETY: the vectors and their memory outlive the operation.
        unsafe { ((*(*ep).atomic).readwritemsg)(ep, &raw const msg, at, null_mut(), length, flags) }
    };
    for expected in [[0, 0, 0, 0, 0], [1, 1, 1, 2, 2]] {
        assert_eq!(send(5, &mut result, COMPLETION), 0);
        assert_eq!(end(&pair), (ATOMIC | READ, 0));
        assert_eq!(out, expected);
    }
    assert_eq!((memory[15], memory[16], memory[40], memory[56]), (0, 2, 4, 0));
    assert_eq!(send(4, &mut result, COMPLETION), -(EINVAL as isize));
    assert_eq!(send(5, &mut result, REMOTE_CQ_DATA), -(EINVAL as isize));
    result[0].count = 4;
    assert_eq!(send(5, &mut result, COMPLETION), -(EINVAL as isize));
}

#[test]
fn queries_return_what_the_calls_accept() {
    let pair = Pair::new();
    let ep = pair.one.ep;
    // SAFETY: the endpoint and its domain are open; the numbers have space.
    unsafe {
        let ops = &*(*ep).atomic;
        let mut count = 0;
        assert_eq!((ops.writevalid)(ep, U64, SUM, &raw mut count), 0);
        assert_eq!(count, MAX_BYTES / 8);
        assert_eq!((ops.readwritevalid)(ep, 0, SUM, &raw mut count), 0);
        assert_eq!(count, MAX_BYTES);
        assert_eq!((ops.compwritevalid)(ep, U64, SWAP, &raw mut count), 0);
        assert_eq!((ops.compwritevalid)(ep, U64, SUM, &raw mut count), -EOPNOTSUPP);
        assert_eq!((ops.writevalid)(ep, U64, READ_OP, &raw mut count), -EOPNOTSUPP);
        assert_eq!((ops.writevalid)(ep, 11, SUM, null_mut()), -EOPNOTSUPP);
        let (domain, mut attr) = (pair.one.domain, AtomicAttr { count: 0, size: 0 });
        let query = (*(*domain).ops).query_atomic;
        assert_eq!(query(domain, 9, SUM, &raw mut attr, FETCH_ATOMIC), 0);
        assert_eq!((attr.count, attr.size), (MAX_BYTES / 8, 8));
        assert_eq!(query(domain, 9, SUM, &raw mut attr, COMPARE_ATOMIC), -EOPNOTSUPP);
        assert_eq!(query(domain, 9, SUM, &raw mut attr, 1), -EINVAL);
        // An inject without elements fails and sends nothing.
        assert_eq!(
            (ops.inject)(ep, null(), 0, pair.to_other, 0, KEY, U64, SUM),
            -(EINVAL as isize)
        );
    }
    assert!(pair.one.poll().is_none());
}

#[test]
fn atomics_writes_and_reads_of_one_origin_keep_their_order() {
    const COUNT: usize = 2000;
    let pair = Pair::new();
    let mut memory = vec![0; 8];
    pair.other.register(&mut memory, KEY);
    let mut old = vec![0_u8; 8 * COUNT];
    let ones = 1_u64.to_ne_bytes();
    let mut completed = 0;
    for out in old.chunks_exact_mut(8) {
        assert_eq!(start(&pair, (0, KEY), (U64, SUM), &ones, None, None), 0);
        assert_eq!(start(&pair, (0, KEY), (U64, SUM), &ones, None, Some(out)), 0);
        completed += pair.one.poll().is_some() as usize;
    }
    let [ends, _] = pair.drive(2 * COUNT - completed);
    assert!(ends.iter().all(|(_, error, _)| *error == 0));
    for (at, old) in old.chunks_exact(8).enumerate() {
        assert_eq!(u64::from_ne_bytes(old.try_into().unwrap()), 2 * at as u64 + 1);
    }
    assert_eq!(pair.one.count(), 2 * COUNT as u64);
}
