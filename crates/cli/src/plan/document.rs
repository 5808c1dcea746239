//! Parses the JSON document of pipelines, plans them, and builds the document of plans.

use std::fmt::Display;

use midplane::pipeline::auto::Refragment;
use midplane::pipeline::hierarchical::{self, Base};
use midplane::pipeline::{
    Grouping, Limits, Pipeline, Plan, PlanError, Request, Stage, auto, fixed, optimum, plan, ramp,
    ramp_up, ramp_up_down,
};
use serde::Deserialize;
use serde_json::{Value, json};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    pipelines: Vec<Entry>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct StageEntry {
    overhead_us: f64,
    us_per_byte: f64,
    first_overhead_us: Option<f64>,
    error: Option<f64>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    stages: Vec<StageEntry>,
    bytes: f64,
    #[serde(default)]
    planner: Planner,
    fragments: Option<usize>,
    vector: Option<Vec<f64>>,
    groups: Option<Vec<Vec<usize>>>,
    mtu: Option<f64>,
    align: Option<f64>,
    min_fragment: Option<f64>,
    max_fragments: Option<usize>,
    #[serde(default)]
    equal_but_last: bool,
    max_in_flight: Option<usize>,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Planner {
    Fixed,
    Ramp,
    RampUp,
    RampUpDown,
    Hierarchical,
    #[default]
    Auto,
    Lp,
}

/// A pipeline and its plan.
#[derive(Debug)]
pub(crate) struct Solved {
    pub(crate) pipeline: Pipeline,
    pub(crate) plan: Plan,
    pub(crate) max_in_flight: Option<usize>,
}

/// Plans every pipeline of a document.
///
/// # Errors
///
/// One line that names the pipeline's index and the field.
pub(crate) fn solve(text: &str) -> Result<Vec<Solved>, String> {
    let wrong = |error: &dyn Display| format!("standard input: {error}; --help shows a document");
    let mut reader = serde_json::Deserializer::from_str(text);
    let document: Document =
        serde_path_to_error::deserialize(&mut reader).map_err(|error| wrong(&error))?;
    reader.end().map_err(|error| wrong(&error))?;
    let solved = document.pipelines.iter().enumerate().map(|(index, entry)| {
        solve_one(entry).map_err(|problem| format!("pipelines[{index}]: {problem}"))
    });
    solved.collect()
}

fn solve_one(entry: &Entry) -> Result<Solved, String> {
    let mut stages = Vec::with_capacity(entry.stages.len());
    for (index, stage) in entry.stages.iter().enumerate() {
        let named = |error| format!("stages[{index}].{error}");
        let mut made = Stage::new(stage.overhead_us, stage.us_per_byte).map_err(named)?;
        if let Some(first) = stage.first_overhead_us {
            made = made.with_first_overhead(first).map_err(named)?;
        }
        if let Some(relative) = stage.error {
            made = made.with_error(relative).map_err(named)?;
        }
        stages.push(made);
    }
    let pipeline = Pipeline::new(stages).map_err(|error| error.to_string())?;
    let plan = plan_one(entry, &pipeline).map_err(|error| describe(&error))?;
    Ok(Solved { plan, pipeline, max_in_flight: entry.max_in_flight })
}

fn describe(error: &PlanError) -> String {
    match error {
        PlanError::NoCut { .. } => format!("mtu, align, min_fragment: {error}"),
        PlanError::Unbounded => format!("overhead_us: {error}"),
        PlanError::Solver { .. } | PlanError::TooLarge { .. } => format!("planner: {error}"),
        _ => error.to_string(),
    }
}

/// Planner of a pipeline without groups.
type FlatPlanner = fn(&Pipeline, &Request) -> Result<Plan, PlanError>;

/// Sets a value, if there is one.
fn with<T, V>(builder: T, value: Option<V>, set: impl FnOnce(T, V) -> T) -> T {
    match value {
        Some(value) => set(builder, value),
        None => builder,
    }
}

fn plan_one(entry: &Entry, pipeline: &Pipeline) -> Result<Plan, PlanError> {
    let limits = Limits::new().equal_but_last(entry.equal_but_last);
    let limits = with(limits, entry.mtu, Limits::mtu);
    let limits = with(limits, entry.align, Limits::align);
    let limits = with(limits, entry.min_fragment, Limits::min_fragment);
    let limits = with(limits, entry.max_fragments, Limits::max_fragments);
    let limits = with(limits, entry.max_in_flight, Limits::max_in_flight);
    let request = Request::new(entry.bytes).limits(limits);
    let request = with(request, entry.fragments, Request::fragments);
    let stages = pipeline.stages().len();
    let groups = entry.groups.as_ref().map(|groups| Grouping::new(stages, groups)).transpose()?;
    let groups = groups.as_ref();
    if let Some(vector) = &entry.vector {
        return plan::time(pipeline, &request, vector, groups);
    }
    let (base, flat): (_, FlatPlanner) = match entry.planner {
        Planner::Fixed => (Base::Fixed, fixed),
        Planner::Ramp => (Base::Ramp, ramp),
        Planner::RampUp => (Base::RampUp, ramp_up),
        Planner::RampUpDown => (Base::RampUpDown, ramp_up_down),
        Planner::Hierarchical => return hierarchical::hierarchical(pipeline, &request, groups),
        Planner::Auto => return auto(pipeline, &request, groups, Refragment::WhereItHelps),
        Planner::Lp if groups.is_some() => {
            let needs = "a chain without groups: drop them, or choose hierarchical or auto";
            return Err(PlanError::NotApplicable { planner: "lp", needs, stages });
        }
        Planner::Lp => return optimum(pipeline, &request),
    };
    match groups {
        Some(groups) => hierarchical::with_bases(pipeline, &request, groups, base, Base::Fixed),
        None => flat(pipeline, &request),
    }
}

/// Builds the document of plans.
pub(crate) fn answer(solved: &[Solved]) -> Value {
    let plans: Vec<Value> = solved
        .iter()
        .map(|Solved { plan, .. }| {
            let mut out = json!({
                "family": format!("{:?}", plan.family()),
                "fragments": plan.fragments(),
                "latency_us": plan.latency().get(),
                "lower_bound_us": plan.lower_bound().get(),
                "gap": plan.gap(),
                "bottleneck": plan.bottleneck(),
            });
            if !plan.levels().is_empty() {
                let levels = plan.levels().iter().map(|level| {
                    json!({"stages": level.stages.clone().collect::<Vec<_>>(), "fragments": level.fragments})
                });
                out["levels"] = levels.collect();
            }
            out
        })
        .collect();
    json!({ "plans": plans })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn family(stages: &str) -> Result<String, String> {
        let text = format!(r#"{{"pipelines":[{{"bytes":4096,"stages":[{stages}]}}]}}"#);
        solve(&text).map(|solved| format!("{:?}", solved[0].plan.family()))
    }

    #[test]
    fn uncertain_stages_get_equal_fragments() {
        let stages = |error: &str| {
            let stage = |us: f64, byte: f64| {
                format!(r#"{{"overhead_us":{us},"us_per_byte":{byte}{error}}}"#)
            };
            [stage(7.2, 0.0072), stage(5.2, 0.0249), stage(7.4, 0.0079)].join(",")
        };
        assert_eq!(family(&stages("")).as_deref(), Ok("Ramp"));
        assert_eq!(family(&stages(r#","error":0.1"#)).as_deref(), Ok("Ramp"));
        assert_eq!(family(&stages(r#","error":0.5"#)).as_deref(), Ok("Fixed"));
    }

    #[test]
    fn lp_refuses_groups() {
        let stage = r#"{"overhead_us":1,"us_per_byte":1}"#;
        let lp = |groups: &str| {
            let text = format!(
                r#"{{"pipelines":[{{"bytes":64,"fragments":2,"planner":"lp"{groups},"stages":[{stage},{stage}]}}]}}"#
            );
            solve(&text)
        };
        assert!(lp("").is_ok());
        let refused = lp(r#","groups":[[0],[1]]"#).unwrap_err();
        assert!(refused.contains("planner lp needs a chain without groups"), "{refused}");
    }

    #[test]
    fn text_after_the_document_is_refused() {
        assert!(solve("{\"pipelines\":[]}\n").is_ok());
        let refused = solve(r#"{"pipelines":[]} x"#).unwrap_err();
        assert!(refused.contains("standard input: trailing characters at line 1"), "{refused}");
    }

    #[test]
    fn errors_name_the_pipeline_the_stage_and_the_field() {
        let negative = r#"{"overhead_us":1,"us_per_byte":-1}"#;
        let text = "pipelines[0]: stages[0].us_per_byte must be a number from 0 to 1e12, not -1";
        assert_eq!(family(negative), Err(text.into()));
        let uncertain = r#"{"overhead_us":1,"us_per_byte":1,"error":-1}"#;
        assert!(
            family(uncertain).unwrap_err().starts_with("pipelines[0]: stages[0].error must be")
        );
        let unknown = family(r#"{"overhead_us":1,"us_per_bytes":1}"#).unwrap_err();
        assert!(unknown.contains("pipelines[0].stages[0]"), "{unknown}");
    }
}
