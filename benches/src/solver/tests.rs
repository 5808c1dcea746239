//! Runs in virtual time of a small system, under each control and iteration.

use std::sync::Arc;

use clap::Parser as _;
use indicatif::ProgressBar;
use midplane::warp::iterate::matrix::Linear;
use midplane::warp::iterate::{FixedPoint as _, Order, Part, residual};

use super::arguments::Arguments;
use super::fabrics::simulate;
use super::problem;
use super::rank::{Job, Outcome};
use super::run::Run;

/// Solves a system with `words` on the solver's command line, in virtual time.
fn solve(words: &str) -> (Job, Outcome) {
    let words = ["solver", "--fabric=sim", "--seconds=60"].into_iter().chain(words.split(' '));
    let arguments = Arguments::try_parse_from(words).expect("valid arguments");
    let problem = Arc::new(problem::read(&arguments).expect("a valid system"));
    let mut settings = arguments.settings(arguments.ranks(), problem.unknowns(), 0);
    let setting = settings.pop().expect("one run");
    assert!(settings.is_empty(), "the arguments describe one run");
    let job = Job::new(setting, &problem, &ProgressBar::hidden());
    let outcome = simulate(&job).unwrap_or_else(|failure| panic!("{failure}"));
    (job, outcome)
}

/// Reports a run with `words` on the solver's command line.
fn run(words: &str) -> Run {
    let (job, outcome) = solve(words);
    Run::new(&job.setting, &job.problem, problem::solve_directly(&job.problem).as_deref(), outcome)
}

/// Returns the answer of Jacobi's iteration on one processor, and its number of rounds.
fn sequential_jacobi(problem: &Linear, tolerance: f64) -> (Vec<f64>, usize) {
    let mut part = Part::new(Arc::new(problem.clone()), 0..problem.unknowns(), Order::Jacobi);
    for round in 1.. {
        part.sweep();
        if residual(problem, part.x()) <= tolerance {
            return (part.x().to_vec(), round);
        }
    }
    unreachable!("it converges")
}

/// Tests Figure 3: under load the paper's loop makes messages larger and fewer, and their delays change less.
#[test]
fn the_papers_loop_calms_a_congested_cable_by_larger_messages() {
    let with = |control| run(&format!("--trefethen 300 --background 0.5 --control {control}"));
    let (fixed, looped) = (with("static"), with("warp-paper"));
    assert!(looped.converged);
    let lambda = &looped.traces.lambda;
    let (first, last) = (lambda[0].1, lambda[lambda.len() - 1].1);
    assert!(last > 2.0 * first, "Lambda went from {first} to {last}");
    let (wild, calm) = (fixed.traces.warp_deviation(), looped.traces.warp_deviation());
    assert!(calm < 0.75 * wild, "the warp's deviation is {calm}, without control {wild}");
    assert!(4 * looped.messages < 3 * fixed.messages, "{} messages", looped.messages);
}

/// Tests the synchronous iteration with and without losses: the values of each round are those of one processor.
#[test]
fn synchronous_ranks_take_the_rounds_of_sequential_jacobi_to_the_same_bits() {
    for words in [
        "--medium switch --control static --buffer 128",
        "--medium switch --control none --background 0.9",
        "--medium cable --control static --buffer 8 --background 0.5",
        "--medium cable --control static --buffer 128 --transport broadcast --ranks 3",
        "--medium cable --control static --ranks 1",
    ] {
        let (job, outcome) = solve(&format!("--trefethen 200 --iteration jacobi {words}"));
        let (x, rounds) = sequential_jacobi(&job.problem, job.setting.tolerance);
        println!("{words}: {rounds} rounds in {:.3} s, {:?}", outcome.seconds, outcome.tally);
        assert_eq!(outcome.traces.residual.len(), rounds, "{words}");
        assert_eq!(outcome.answer, Some(x), "{words}");
        assert!(outcome.lost.is_empty());
    }
}

/// Regression: a rank that is alone sends nothing, and reported that all of it was lost.
#[test]
fn a_run_that_sends_nothing_has_no_loss() {
    let with = |ranks| {
        run(&format!("--trefethen 200 --iteration jacobi --control static --buffer 128 {ranks}"))
    };
    let (alone, together) = (with("--ranks 1"), with("--ranks 2"));
    assert!(alone.converged && alone.messages == 0);
    assert_eq!(alone.loss, None);
    assert!(together.converged && together.loss.is_some());
}

/// Tests that both iterations end at the same fixed point.
#[test]
fn jacobi_and_the_asynchronous_iteration_find_the_direct_solution() {
    for iteration in ["jacobi", "asynchronous"] {
        let words = "--trefethen 200 --control static --buffer 32 --tolerance 1e-12";
        let run = run(&format!("{words} --iteration {iteration}"));
        assert!(run.converged && run.error.is_some_and(|error| error < 1e-10), "{iteration}");
    }
}

/// Tests the paper's stack: slow writes to Mermera's memory, as conditional sends on Warp.
#[test]
fn ranks_that_share_mermeras_memory_find_the_direct_solution() {
    for words in ["--medium switch", "--medium switch --background 0.5", "--medium cable"] {
        let words = format!("{words} --trefethen 200 --memory mermera --tolerance 1e-12");
        let with = |control| run(&format!("{words} --control {control}"));
        let (unpaced, conditional) = (with("none"), with("warp+csend"));
        println!("{words}: {} messages, unpaced {}", conditional.messages, unpaced.messages);
        println!("{:.3} s, unpaced {:.3} s", conditional.seconds, unpaced.seconds);
        assert!(conditional.error.is_some_and(|error| error < 1e-10), "{words}");
        // A rank writes 10 locations a sweep. Were each write sent to 4 ranks, there would be 40 messages.
        assert!(conditional.messages > 0, "{words}");
        assert!(2 * conditional.messages < 40 * conditional.iterations, "{words}");
    }
}

/// Tests that the repaired law with conditional send follows a load that comes and goes.
#[test]
fn under_a_changing_load_warp_takes_at_most_a_tenth_longer_than_the_best_static_buffer() {
    let load = "--medium switch --random 400 --seed 103 --background 0.6 --background-period 0.25";
    let seconds = |control: &str| {
        let run = run(&format!("{load} --tolerance 1e-10 --control {control}"));
        run.reached_seconds.expect("it converges")
    };
    let best = ["8", "16", "32", "128"].map(|size| seconds(&format!("static --buffer {size}")));
    let best = best.into_iter().fold(f64::INFINITY, f64::min);
    let ours = seconds("warp+csend");
    println!("{ours:.2} s, best static buffer {best:.2} s");
    assert!(ours < 1.1 * best, "{ours:.2} s instead of {best:.2} s");
}
