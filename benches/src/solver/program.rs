//! The solver as a program: all runs from one process, or one run as one of its ranks.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use indicatif::ProgressBar;
use midplane::simhw::launch::ProcessGroup;
use midplane::simhw::udp::SwitchConfig;
use midplane::warp::iterate::FixedPoint as _;
use midplane::warp::iterate::matrix::Linear;
use midplane_kit::command_line::name_of;
use midplane_kit::processes;
use midplane_kit::report::{Failure, progress};

use super::arguments::Arguments;
use super::fabrics::{simulate, take_part};
use super::rank::{Job, Outcome};
use super::run::{self, Run};
use super::setting::{RATE_IN, Setting};
use super::{figures, problem};
use crate::meeting::lost;
use crate::nodes::{self, Fabric, Nodes, Place, Program};

/// Steps of the progress bar of one run.
const DIGITS_DRAWN: usize = 1_000;

fn digits() -> ProgressBar {
    progress(DIGITS_DRAWN, "{bar:30} {percent:>3} % of the digits, {msg}")
}

impl Arguments {
    /// Returns the settings of all runs, if each rank has at least one unknown.
    fn runs(&self, ranks: u16, problem: &Linear) -> Result<Vec<Setting>, Failure> {
        self.check()?;
        let unknowns = problem.unknowns();
        if unknowns < usize::from(ranks) {
            let what =
                format!("--ranks {ranks}: must be at most {unknowns}, the number of unknowns");
            return Err(what.into());
        }
        Ok(self.settings(ranks, unknowns, problem::number(problem)))
    }

    /// Solves a system in virtual time, or as rank 0 of ranks that are child processes.
    fn solve(&self, job: &Job) -> Result<Outcome, Failure> {
        let setting = &job.setting;
        if setting.fabric == Fabric::Sim {
            return simulate(job);
        }
        let (words, wait) = (self.for_child(setting), self.nodes.wait());
        let part = async |place: Place| take_part(job.clone(), &place, wait).await;
        let (outcome, _) = nodes::with_children(&words, setting.fabric, setting.nodes(), part)?;
        outcome.ok_or_else(|| Failure::of_run("rank 0 has no outcome"))
    }
}

impl Program for Arguments {
    type Run = Run;

    fn nodes(&self) -> &Nodes {
        &self.nodes
    }

    fn switch(&self, config: SwitchConfig) -> SwitchConfig {
        let setting = self.settings(self.ranks(), 0, 0).remove(0);
        let config = config.link(setting.link()).rate_in(RATE_IN);
        config.profile(setting.switch()).seed(setting.seed)
    }

    fn compare(&self) -> Result<Vec<Run>, Failure> {
        let problem = Arc::new(problem::read(self)?);
        let settings = self.runs(self.ranks(), &problem)?;
        let direct = problem::solve_directly(&problem);
        let bar = digits();
        let mut runs = Vec::new();
        for (at, setting) in settings.into_iter().enumerate() {
            let (control, buffer) = (name_of(&setting.control), setting.buffer);
            let load = setting.load.share;
            bar.set_message(format!("run {}: {control} {buffer}, background {load}", at + 1));
            let job = Job::new(setting, &problem, &bar);
            let outcome = self.solve(&job)?;
            runs.push(Run::new(&job.setting, &problem, direct.as_deref(), outcome));
        }
        bar.finish_and_clear();
        Ok(runs)
    }

    fn take_part(&self, place: &ProcessGroup) -> Result<Vec<Run>, Failure> {
        let problem = Arc::new(problem::read(self)?);
        let ranks = self.ranks_among(place.size())?;
        let [setting] = self.runs(ranks, &problem)?.try_into().map_err(|_| {
            Failure::from("--control: name one; across hosts there is one run".to_owned())
        })?;
        let place = self.nodes.seat(place, setting.nodes())?;
        let bar = if place.rank == 0 { digits() } else { ProgressBar::hidden() };
        let job = Job::new(setting, &problem, &bar);
        let outcome = processes::run(take_part(job.clone(), &place, self.nodes.wait()))?;
        bar.finish_and_clear();
        let Some(outcome) = outcome else { return Ok(Vec::new()) };
        let direct = problem::solve_directly(&problem);
        Ok(vec![Run::new(&job.setting, &problem, direct.as_deref(), outcome)])
    }

    fn text(&self, runs: &[Run]) -> String {
        run::text(runs)
    }

    fn picture(&self) -> Option<&'static str> {
        self.is_comparison().then_some("solver.svg")
    }

    fn draw(&self, path: &Path, runs: &[Run]) -> Result<Vec<PathBuf>, Failure> {
        figures::draw(path, runs)
    }

    /// Checks that all runs converged; of a comparison one suffices: it shows that uncontrolled ones do not.
    fn check(&self, runs: &[Run]) -> Result<(), Failure> {
        if let Some(run) = runs.iter().find(|run| !run.converged && !run.lost_ranks.is_empty()) {
            return Err(lost(&run.lost_ranks));
        }
        match runs.iter().filter(|run| !run.converged).count() {
            0 => Ok(()),
            count if self.is_comparison() && count < runs.len() => Ok(()),
            count => {
                let all = runs.len();
                let what = format!("{count} of {all} runs did not converge within --seconds");
                Err(Failure::of_run(what))
            }
        }
    }
}
