//! A directed graph with weighted edges.

use std::collections::BTreeSet;
use std::path::Path;

/// Largest file in bytes.
const MAX_FILE: u64 = 64 << 20;
/// Most nodes of a graph.
const MAX_NODES: usize = 1_000_000;

/// A small graph: pages that link to each other, or places with the minutes between them.
const BUILT_IN: &str = "\
# from to weight
home news 3
home shop 2
news home 4
news sport 1
news weather 2
shop home 2
shop cart 1
cart pay 1
sport news 2
sport scores 5
weather home 3
scores sport 1
pay home 6
blog home 1
blog news 9
";

/// A directed graph, whose nodes are numbered in the order of their names.
#[derive(Clone, Debug)]
pub struct Graph {
    /// Names of the nodes.
    pub names: Vec<String>,
    /// Edges as (from, to, weight); weights are finite and above zero.
    pub edges: Vec<(usize, usize, f64)>,
}

impl Graph {
    /// Reads the graph of a file, or the built-in one.
    ///
    /// # Errors
    /// One line that names the file, the line in it, and what to write there.
    pub fn read(path: Option<&Path>) -> Result<Self, String> {
        let Some(path) = path else { return Self::parse(BUILT_IN) };
        let name = path.display();
        let refuse = |error: &dyn std::fmt::Display| format!("{name}: {error}");
        let length = path.metadata().map_err(|error| refuse(&error))?.len();
        if length > MAX_FILE {
            return Err(refuse(&format!(
                "{length} bytes; give a file of {MAX_FILE} bytes at most"
            )));
        }
        let text = std::fs::read_to_string(path).map_err(|error| refuse(&error))?;
        Self::parse(&text).map_err(|error| refuse(&error))
    }

    /// Parses lines of `from to` or `from to weight`; `#` begins a comment.
    ///
    /// # Errors
    /// One line that names the line, and what to write there.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut lines = Vec::new();
        for (number, line) in (1..).zip(text.lines()) {
            let line = line.split('#').next().unwrap_or_default();
            let words: Vec<&str> = line.split_whitespace().collect();
            let (from, to, weight) = match words[..] {
                [] => continue,
                [from, to] => (from, to, "1"),
                [from, to, weight] => (from, to, weight),
                _ => return Err(format!("line {number}: write an edge as `from to weight`")),
            };
            let weight =
                weight.parse().ok().filter(|weight: &f64| weight.is_finite() && *weight > 0.0);
            let weight = weight.ok_or_else(|| {
                format!("line {number}: write the weight as a number above 0, such as 1.5")
            })?;
            lines.push((from, to, weight));
        }
        // Else shares of weights, and the lengths of paths, would be wrong.
        if !lines.iter().map(|(_, _, weight)| weight).sum::<f64>().is_finite() {
            return Err("the sum of all weights is no finite number; give smaller ones".into());
        }
        let names: BTreeSet<&str> = lines.iter().flat_map(|(from, to, _)| [*from, *to]).collect();
        let names: Vec<String> = names.into_iter().map(str::to_owned).collect();
        if names.is_empty() || names.len() > MAX_NODES {
            let count = names.len();
            return Err(format!(
                "the graph has {count} nodes; give 1 to {MAX_NODES}, one edge a line"
            ));
        }
        let number = |name: &str| names.binary_search_by(|other| other.as_str().cmp(name));
        let edge = |(from, to, weight): &(&str, &str, f64)| {
            Some((number(from).ok()?, number(to).ok()?, *weight))
        };
        let edges = lines.iter().filter_map(edge).collect();
        Ok(Self { names, edges })
    }

    /// Returns the number of the node with a name.
    ///
    /// # Errors
    /// One line with some names of the graph.
    pub fn find(&self, name: &str) -> Result<usize, String> {
        let some = self.names.iter().take(8).map(String::as_str).collect::<Vec<_>>().join(", ");
        let missing = || format!("{name}: there is no such node; the graph has {some} and so on");
        self.names.iter().position(|other| other == name).ok_or_else(missing)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bad_line_is_named_with_its_cure() {
        for (text, words) in [
            ("a b\na b c d\n", "line 2: write an edge"),
            ("a b much", "line 1: write the weight"),
            ("\n# one\na b -1", "line 3: write the weight"),
            ("a b inf", "line 1: write the weight"),
            ("a b NaN", "line 1: write the weight"),
            ("a", "line 1: write an edge"),
            ("a b 1e308\na c 1e308", "the sum of all weights"),
            ("# nothing\n", "the graph has 0 nodes"),
        ] {
            let error = Graph::parse(text).expect_err(text);
            assert!(error.contains(words) && !error.contains('\n'), "{error}");
        }
        assert!(Graph::read(None).expect("it is well-formed").find("nowhere").is_err());
        assert!(Graph::read(Some(Path::new("/nowhere"))).is_err());
    }

    #[test]
    fn nodes_are_numbered_by_name_and_weights_default_to_one() {
        let graph = Graph::parse("b a # back\na c 2.5").expect("it is well-formed");
        assert_eq!(graph.names, ["a", "b", "c"]);
        assert_eq!(graph.edges, [(1, 0, 1.0), (0, 2, 2.5)]);
    }
}
