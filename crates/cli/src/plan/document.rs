//! Parses the JSON document of pipelines, plans them, and builds the document of plans.

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
    pipelines: Vec<Value>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct StageEntry {
    overhead_us: f64,
    us_per_byte: f64,
    first_overhead_us: Option<f64>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    stages: Vec<StageEntry>,
    bytes: f64,
    planner: Option<String>,
    fragments: Option<u64>,
    vector: Option<Vec<f64>>,
    groups: Option<Vec<Vec<usize>>>,
    mtu: Option<f64>,
    align: Option<f64>,
    min_fragment: Option<f64>,
    max_fragments: Option<u64>,
    #[serde(default)]
    equal_but_last: bool,
    max_in_flight: Option<u64>,
}

/// A pipeline and its plan.
#[derive(Debug)]
pub(crate) struct Solved {
    pub(crate) pipeline: Pipeline,
    pub(crate) plan: Plan,
    pub(crate) max_in_flight: Option<usize>,
}

/// Plans every pipeline of a document, on all processors.
///
/// # Errors
///
/// One line that names the pipeline's index and the field.
pub(crate) fn solve(text: &str) -> Result<Vec<Solved>, String> {
    let document: Document = serde_json::from_str(text)
        .map_err(|error| format!("standard input: {error}; --help shows a document"))?;
    let entries = document.pipelines;
    let workers =
        std::thread::available_parallelism().map_or(1, usize::from).min(entries.len().max(1));
    let share = entries.len().div_ceil(workers).max(1);
    let mut results = Vec::with_capacity(entries.len());
    std::thread::scope(|scope| {
        let handles: Vec<_> = entries
            .chunks(share)
            .enumerate()
            .map(|(chunk, entries)| scope.spawn(move || solve_all(chunk * share, entries)))
            .collect();
        for handle in handles {
            results.push(handle.join().expect("planners do not panic"));
        }
    });
    let mut solved = Vec::with_capacity(entries.len());
    for result in results {
        solved.extend(result?);
    }
    Ok(solved)
}

fn solve_all(first: usize, entries: &[Value]) -> Result<Vec<Solved>, String> {
    let name =
        |index: usize| move |problem: String| format!("pipelines[{}]: {problem}", first + index);
    entries.iter().enumerate().map(|(index, entry)| solve_one(entry).map_err(name(index))).collect()
}

fn solve_one(value: &Value) -> Result<Solved, String> {
    let entry = Entry::deserialize(value).map_err(|error| field_of(value, &error))?;
    let mut stages = Vec::with_capacity(entry.stages.len());
    for (index, stage) in entry.stages.iter().enumerate() {
        let named = |error| format!("stages[{index}].{error}");
        let mut made = Stage::new(stage.overhead_us, stage.us_per_byte).map_err(named)?;
        if let Some(first) = stage.first_overhead_us {
            made = made.with_first_overhead(first).map_err(named)?;
        }
        stages.push(made);
    }
    let pipeline = Pipeline::new(stages).map_err(|error| error.to_string())?;
    let plan = plan_one(&entry, &pipeline).map_err(|error| describe(&error))?;
    Ok(Solved { plan, pipeline, max_in_flight: entry.max_in_flight.map(as_count) })
}

/// Finds the first field that is missing or has a wrong type, and returns a line that names it.
fn field_of(value: &Value, error: &serde_json::Error) -> String {
    let Some(map) = value.as_object() else { return format!("must be an object: {error}") };
    for (field, kind) in [("stages", "an array"), ("bytes", "a number")] {
        let good = map
            .get(field)
            .is_some_and(|v| if field == "stages" { v.is_array() } else { v.is_number() });
        if !good {
            return format!("{field} is missing or not {kind}: {error}");
        }
    }
    for (index, stage) in map["stages"].as_array().into_iter().flatten().enumerate() {
        for field in ["overhead_us", "us_per_byte"] {
            if !stage.get(field).is_some_and(Value::is_number) {
                return format!("stages[{index}].{field} is missing or not a number: {error}");
            }
        }
        if let Err(error) = StageEntry::deserialize(stage) {
            return format!("stages[{index}]: {error}");
        }
    }
    for (field, value) in map {
        let mut alone = json!({"stages": [], "bytes": 1});
        alone[field] = value.clone();
        if let Err(error) = Entry::deserialize(&alone) {
            return format!("{field}: {error}");
        }
    }
    error.to_string()
}

fn describe(error: &PlanError) -> String {
    match error {
        PlanError::NoCut { .. } => format!("mtu, align, min_fragment: {error}"),
        PlanError::Unbounded => format!("overhead_us: {error}"),
        PlanError::Solver { .. } | PlanError::TooLarge { .. } => format!("planner: {error}"),
        _ => error.to_string(),
    }
}

fn as_count(count: u64) -> usize {
    usize::try_from(count).unwrap_or(usize::MAX)
}

fn plan_one(entry: &Entry, pipeline: &Pipeline) -> Result<Plan, PlanError> {
    let mut limits = Limits::new().equal_but_last(entry.equal_but_last);
    if let Some(bytes) = entry.mtu {
        limits = limits.mtu(bytes);
    }
    if let Some(bytes) = entry.align {
        limits = limits.align(bytes);
    }
    if let Some(bytes) = entry.min_fragment {
        limits = limits.min_fragment(bytes);
    }
    if let Some(count) = entry.max_fragments {
        limits = limits.max_fragments(as_count(count));
    }
    if let Some(count) = entry.max_in_flight {
        limits = limits.max_in_flight(as_count(count));
    }
    let mut request = Request::new(entry.bytes).limits(limits);
    if let Some(count) = entry.fragments {
        request = request.fragments(as_count(count));
    }
    let groups = match &entry.groups {
        Some(groups) => Some(Grouping::new(pipeline.stages().len(), groups)?),
        None => None,
    };
    if let Some(vector) = &entry.vector {
        return plan::time(pipeline, &request, vector, groups.as_ref());
    }
    let compound = |base| match &groups {
        Some(groups) => {
            hierarchical::with_bases(pipeline, &request, groups, base, Base::Fixed).map(Some)
        }
        None => Ok(None),
    };
    let planner = entry.planner.as_deref().unwrap_or("auto");
    match planner {
        "fixed" => compound(Base::Fixed)?.map_or_else(|| fixed(pipeline, &request), Ok),
        "ramp" => compound(Base::Ramp)?.map_or_else(|| ramp(pipeline, &request), Ok),
        "ramp-up" => compound(Base::RampUp)?.map_or_else(|| ramp_up(pipeline, &request), Ok),
        "ramp-up-down" => {
            compound(Base::RampUpDown)?.map_or_else(|| ramp_up_down(pipeline, &request), Ok)
        }
        "hierarchical" => hierarchical::hierarchical(pipeline, &request, groups.as_ref()),
        "auto" => auto(pipeline, &request, groups.as_ref(), Refragment::WhereItHelps),
        "lp" => optimum(pipeline, &request),
        _ => {
            let needs = "one of fixed, ramp, ramp-up, ramp-up-down, hierarchical, auto, lp";
            Err(PlanError::NotApplicable {
                planner: "by that name",
                needs,
                stages: pipeline.stages().len(),
            })
        }
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
