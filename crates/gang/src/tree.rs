//! The tree of daemons, along which orders go down and reports go up.

/// A complete tree of nodes 0 to n - 1, of which any can be the root.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Tree {
    arity: u16,
    nodes: u16,
    root: u16,
}

/// SCore-D's arity, the fastest in its measurements (SCore-D paper, section 3.1).
pub const DEFAULT_ARITY: u16 = 16;

impl Tree {
    /// Creates a tree of `nodes` nodes (at least 1), each with up to `arity` children (at least 1).
    pub(crate) const fn new(nodes: u16, arity: u16) -> Self {
        Self {
            arity: if arity == 0 { 1 } else { arity },
            nodes: if nodes == 0 { 1 } else { nodes },
            root: 0,
        }
    }

    /// Returns the tree of the same nodes with another root: the places of all nodes shift by the same number.
    pub(crate) const fn rooted_at(self, root: u16) -> Self {
        Self { root: root % self.nodes, ..self }
    }

    /// Returns a node's place in the tree. The root has place 0.
    const fn place(&self, node: u16) -> u16 {
        ((node as u32 + self.nodes as u32 - self.root as u32) % self.nodes as u32) as u16
    }

    /// Returns the node at a place.
    const fn node(&self, place: u16) -> u16 {
        ((place as u32 + self.root as u32) % self.nodes as u32) as u16
    }

    /// Returns the parent of `node`; `None` for the root.
    pub(crate) const fn parent(&self, node: u16) -> Option<u16> {
        match self.place(node) {
            0 => None,
            place => Some(self.node((place - 1) / self.arity)),
        }
    }

    /// Returns the nodes above `node`, beginning with its parent.
    pub(crate) fn above(&self, node: u16) -> impl Iterator<Item = u16> + use<> {
        let tree = *self;
        std::iter::successors(tree.parent(node), move |above| tree.parent(*above))
    }

    /// Returns the children of `node`.
    pub(crate) fn children(&self, node: u16) -> impl Iterator<Item = u16> + use<> {
        let first = u32::from(self.place(node)) * u32::from(self.arity) + 1;
        let last = (first + u32::from(self.arity)).min(self.nodes.into());
        let tree = *self;
        (first..last).map(move |place| tree.node(place as u16))
    }

    /// Returns whether `node` is in the subtree of `above`, which includes `above` itself.
    #[must_use]
    pub(crate) fn is_within(&self, node: u16, above: u16) -> bool {
        node < self.nodes && (node == above || self.above(node).any(|node| node == above))
    }

    /// Returns the number of levels below `node`.
    pub(crate) fn depth_below(&self, node: u16) -> u32 {
        // In a complete tree, the first child's subtree is the deepest.
        self.children(node).next().map_or(0, |child| 1 + self.depth_below(child))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_node_but_the_root_has_one_parent(
            nodes in 1_u16..5_000, arity in 1_u16..70, root: u16,
        ) {
            let root = root % nodes;
            let tree = Tree::new(nodes, arity).rooted_at(root);
            let mut parents = vec![0; usize::from(nodes)];
            for node in 0..nodes {
                for child in tree.children(node) {
                    prop_assert_eq!(tree.parent(child), Some(node));
                    parents[usize::from(child)] += 1;
                }
            }
            prop_assert_eq!(parents.remove(root.into()), 0);
            prop_assert!(parents.iter().all(|times| *times == 1));
            prop_assert_eq!(tree.above(root).next(), None);
        }

        #[test]
        fn a_node_is_within_its_ancestors(
            nodes in 1_u16..300, arity in 1_u16..9, node: u16, root: u16,
        ) {
            let (tree, node) = (Tree::new(nodes, arity).rooted_at(root), node % nodes);
            let within: Vec<u16> = (0..nodes).filter(|above| tree.is_within(node, *above)).collect();
            let ancestors = std::iter::successors(Some(node), |node| tree.parent(*node));
            let mut ancestors: Vec<u16> = ancestors.collect();
            ancestors.sort_unstable();
            prop_assert_eq!(within, ancestors);
            prop_assert!(!tree.is_within(nodes, 0));
        }
    }

    #[test]
    fn the_papers_tree_reaches_4096_nodes_in_three_steps() {
        assert_eq!(Tree::new(64, DEFAULT_ARITY).depth_below(0), 2);
        assert_eq!(Tree::new(4096, DEFAULT_ARITY).depth_below(0), 3);
    }
}
