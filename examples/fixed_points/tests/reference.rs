//! The answers of ranks on simulated hosts, compared with sequential algorithms.

use std::sync::Arc;

use fixed_points::graph::Graph;
use fixed_points::page_rank::PageRank;
use fixed_points::ranks::{collect, work};
use fixed_points::shortest_paths::ShortestPaths;
use midplane::Sim;
use midplane::warp::iterate::FixedPoint;
use proptest::prelude::*;

/// Solves `problem` by `ranks` simulated hosts on a network that loses packets.
fn solve<P>(problem: &Arc<P>, ranks: usize, seed: u64, tolerance: f64) -> Vec<f64>
where
    P: FixedPoint + Send + Sync + 'static,
{
    let answer = Arc::new(std::sync::Mutex::new(None));
    let (problem, found) = (Arc::clone(problem), Arc::clone(&answer));
    let mut sim = Sim::builder().seed(seed).loss(0.02).build();
    for rank in 0..ranks {
        let problem = Arc::clone(&problem);
        sim.host(format!("rank-{rank}"), move |node| {
            let problem = Arc::clone(&problem);
            async move { Ok(work(&node, problem, rank, ranks).await?) }
        });
    }
    sim.client(move |node| {
        let (problem, found) = (Arc::clone(&problem), Arc::clone(&found));
        async move {
            *found.lock().expect("not poisoned") = collect(&node, &problem, tolerance).await?;
            Ok(())
        }
    });
    sim.run().expect("the collector finds an answer");
    let answer = answer.lock().expect("not poisoned").take();
    answer.expect("the node was not shut down").0
}

/// Returns the page rank by power iteration, in which readers without a link jump to any page.
fn by_power_iteration(graph: &Graph) -> Vec<f64> {
    let n = graph.names.len();
    let mut sums = vec![0.0; n];
    graph.edges.iter().for_each(|(from, _, weight)| sums[*from] += weight);
    let mut x = vec![1.0 / n as f64; n];
    for _ in 0..500 {
        let lost: f64 = (0..n).filter(|i| sums[*i] == 0.0).map(|i| x[i]).sum();
        let mut next = vec![0.15 / n as f64 + 0.85 * lost / n as f64; n];
        for &(from, to, weight) in &graph.edges {
            next[to] += 0.85 * x[from] * weight / sums[from];
        }
        x = next;
    }
    x
}

/// Returns the distances to `target`: settles the nearest node, one after the other (Dijkstra 1959).
fn by_dijkstra(graph: &Graph, target: usize) -> Vec<f64> {
    let n = graph.names.len();
    let (mut x, mut is_settled) = (vec![f64::INFINITY; n], vec![false; n]);
    x[target] = 0.0;
    while let Some(near) = (0..n).filter(|i| !is_settled[*i]).min_by(|a, b| x[*a].total_cmp(&x[*b]))
    {
        is_settled[near] = true;
        for &(from, to, length) in &graph.edges {
            if to == near {
                x[from] = x[from].min(length + x[near]);
            }
        }
    }
    x
}

fn check(graph: &Graph, ranks: usize, seed: u64) {
    let found = PageRank::normalized(solve(&Arc::new(PageRank::new(graph)), ranks, seed, 1e-10));
    for (value, expected) in found.iter().zip(by_power_iteration(graph)) {
        assert!((value - expected).abs() < 1e-9, "{value} instead of {expected}");
    }
    let target = seed as usize % graph.names.len();
    let found = solve(&Arc::new(ShortestPaths::new(graph, target)), ranks, seed, 0.0);
    for (value, expected) in found.iter().zip(by_dijkstra(graph, target)) {
        assert!(value.total_cmp(&expected).is_eq() || (value - expected).abs() < 1e-12 * expected);
    }
}

#[test]
fn ranks_find_what_sequential_algorithms_find_on_the_built_in_graph() {
    let graph = Graph::read(None).expect("it is well-formed");
    for ranks in [1, 2, 4, 9] {
        check(&graph, ranks, ranks as u64);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(8))]
    #[test]
    fn ranks_find_what_sequential_algorithms_find_on_random_graphs(
        lines in proptest::collection::vec((0..40_u8, 0..40_u8, 1..100_u8), 1..150),
        seed: u64,
    ) {
        let line = |(from, to, weight): &(u8, u8, u8)| format!("{from} {to} {weight}\n");
        let text: String = lines.iter().map(line).collect();
        let graph = Graph::parse(&text).expect("it is well-formed");
        check(&graph, graph.names.len().min(3), seed);
    }
}
