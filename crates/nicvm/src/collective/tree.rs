//! Trees and partners: which members exchange messages.

/// Rounds of an operation that doubles the number of informed members in each: the base-2 logarithm, rounded up.
pub(super) const fn rounds(size: u16) -> u8 {
    (u16::BITS - size.saturating_sub(1).leading_zeros()) as u8
}

/// Returns the members that a member sends to and receives from in a round of a barrier. If the size is a power of two,
/// the two are the same, and answers carry the acknowledgements.
pub(super) fn partners(rank: u16, round: u8, size: u16) -> (u16, u16) {
    if size.is_power_of_two() {
        return (rank ^ 1 << round, rank ^ 1 << round);
    }
    let (at, all, distance) = (u32::from(rank), u32::from(size), 1 << round);
    (((at + distance) % all) as u16, ((at + all - distance) % all) as u16)
}

/// Returns a member's place in a tree whose root is at place 0.
pub(super) fn place_of(rank: u16, root: u16, size: u16) -> u16 {
    ((u32::from(rank) + u32::from(size) - u32::from(root)) % u32::from(size)) as u16
}

/// Returns the rank of a place.
pub(super) fn rank_at(place: u16, root: u16, size: u16) -> u16 {
    ((u32::from(place) + u32::from(root)) % u32::from(size)) as u16
}

/// Returns the parent of a place in the binomial tree.
pub(super) const fn parent(place: u16) -> u16 {
    place & place.wrapping_sub(1)
}

/// Returns the children of a place in the binomial tree, the one with the largest subtree first.
pub(super) fn children(place: u16, size: u16) -> impl DoubleEndedIterator<Item = u16> {
    let below = if place == 0 { rounds(size) } else { place.trailing_zeros() as u8 };
    (0..below)
        .rev()
        .map(move |bit| u32::from(place) | 1 << bit)
        .filter(move |child| *child < u32::from(size))
        .map(|child| child as u16)
}

/// Returns the children of a place in the binary tree.
pub(super) fn two_children(place: u16, size: u16) -> impl Iterator<Item = u16> {
    let first = 2 * u32::from(place) + 1;
    (first..first + 2).filter(move |child| *child < u32::from(size)).map(|child| child as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_place_but_the_root_is_the_child_of_its_parent_once() {
        for size in 1..200 {
            let mut seen = vec![0; usize::from(size)];
            let mut seen_by_two = seen.clone();
            for place in 0..size {
                for child in children(place, size) {
                    seen[usize::from(child)] += 1;
                    assert_eq!(parent(child), place);
                }
                for child in two_children(place, size) {
                    seen_by_two[usize::from(child)] += 1;
                }
            }
            for counts in [seen, seen_by_two] {
                assert_eq!(counts[0], 0);
                assert!(counts[1..].iter().all(|count| *count == 1), "{size}");
            }
        }
    }

    #[test]
    fn the_depth_is_the_logarithm() {
        for (size, expected) in [(1, 0), (2, 1), (3, 2), (4, 2), (5, 3), (64, 6), (65, 7)] {
            assert_eq!(rounds(size), expected);
            let deepest = (0..size).map(|place: u16| place.count_ones()).max();
            assert!(deepest.unwrap() <= expected.into());
        }
    }
}
