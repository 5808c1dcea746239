//! Runs in virtual time of a small system, under each control.

use std::sync::Arc;

use clap::Parser as _;
use indicatif::ProgressBar;
use midplane::warp::iterate::FixedPoint as _;

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
