//! Compares heaps with a plain count of their bytes.

use proptest::prelude::*;

use super::*;

#[derive(Clone, Debug)]
enum Op {
    New(usize),
    Copy(usize),
    Push(usize),
    Reserve(usize, usize),
    Pop(usize),
    Drop(usize),
}

fn op() -> impl Strategy<Value = Op> {
    let many = prop_oneof![4 => 0..200_usize, 1 => Just(usize::MAX)];
    prop_oneof![
        (0..100_usize).prop_map(Op::New),
        (0..100_usize).prop_map(Op::Copy),
        (0..8_usize).prop_map(Op::Push),
        (0..8_usize, many).prop_map(|(at, more)| Op::Reserve(at, more)),
        (0..8_usize).prop_map(Op::Pop),
        (0..8_usize).prop_map(Op::Drop),
    ]
}

proptest! {
    #[test]
    fn a_heap_counts_the_bytes_of_its_vectors_and_never_exceeds_its_limit(
        limit in 0..2_000_usize, ops in prop::collection::vec(op(), 1..200),
    ) {
        let heap = Heap::new(limit);
        let mut vectors: Vec<Vector<u32>> = Vec::new();
        let mut model: Vec<usize> = Vec::new();
        for op in ops {
            let before = heap.used();
            let refused = match op {
                Op::New(room) => heap.vector(room).map(|vector| {
                    vectors.push(vector);
                    model.push(0);
                }),
                Op::Copy(count) => heap.copy(&vec![7; count]).map(|vector| {
                    vectors.push(vector);
                    model.push(count);
                }),
                Op::Push(at) if at < vectors.len() => {
                    vectors[at].push(7).map(|()| model[at] += 1)
                }
                Op::Reserve(at, more) if at < vectors.len() => vectors[at].reserve(more),
                Op::Pop(at) if at < vectors.len() => {
                    model[at] -= usize::from(vectors[at].pop().is_some());
                    Ok(())
                }
                Op::Drop(at) if at < vectors.len() => {
                    vectors.swap_remove(at);
                    model.swap_remove(at);
                    Ok(())
                }
                _ => Ok(()),
            };
            if let Err(full) = refused {
                prop_assert_eq!(heap.used(), before, "what is refused takes nothing");
                prop_assert!(full.wanted > limit - full.used);
            }
            let rooms: usize = vectors.iter().map(|vector| VECTOR_BYTES + 4 * vector.room).sum();
            prop_assert_eq!(heap.used(), rooms);
            prop_assert!(heap.used() <= heap.most() && heap.most() <= limit);
            let lengths: Vec<usize> = vectors.iter().map(|vector| vector.len()).collect();
            prop_assert_eq!(&lengths, &model);
        }
        drop(vectors);
        prop_assert_eq!(heap.used(), 0);
    }
}

#[test]
fn pushed_elements_are_popped_in_order() {
    let heap = Heap::new(DEFAULT_BYTES);
    let mut vector = heap.vector(0).unwrap();
    let pushed = (0..).take_while(|n: &u64| vector.push(*n).is_ok()).count();
    assert_eq!(pushed, (DEFAULT_BYTES - VECTOR_BYTES) / 8, "to the last byte");
    assert!(vector.iter().copied().eq(0..pushed as u64));
    vector[3] = 99;
    assert_eq!((vector.swap_remove(3), vector.pop()), (99, Some(pushed as u64 - 2)));
    vector.clear();
    assert!(vector.is_empty() && heap.vector::<u8>(1).is_err(), "its memory stays lent");
}
