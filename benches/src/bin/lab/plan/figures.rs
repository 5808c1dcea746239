//! The paper's figures 2 and 8 to 14, drawn from the planners.

use std::path::{Path, PathBuf};

use midplane::pipeline::fixed::Signature;
use midplane::pipeline::hierarchical::{Base, linear_model};
use midplane::pipeline::{Pipeline, Request, Stage, fixed};
use plotters::prelude::*;

use super::paper::{GAM, algorithms, chain, disk_chain};

type Curve = (String, Vec<(f64, f64)>);
type Fault = Box<dyn std::error::Error>;
type Aside<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;

/// Name of the curve that the others are compared with.
const LATENCY: &str = "latency";

/// Width of a figure in pixels, and where its legend begins.
const WIDTH: u32 = 940;
const LEGEND: u32 = 740;

const OVERHEADS_MS: [f64; 7] = [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0];

/// Draws all figures; returns the files' names.
pub(crate) fn draw(directory: &Path) -> Result<Vec<PathBuf>, Fault> {
    std::fs::create_dir_all(directory)?;
    let mut names = Vec::new();
    let mut figure = |number: &str,
                      caption: &str,
                      (x, y): (&str, &str),
                      curves: &[Curve]|
     -> Result<(), Fault> {
        let name = directory.join(format!("figure-{number}.svg"));
        lines(&name, caption, (x, y), curves)?;
        names.push(name);
        Ok(())
    };
    figure(
        "2a",
        "Figure 2a: one bottleneck",
        ("fragments", "latency, us"),
        &signature(&[(2.0, 30.0), (8.0, 60.0)], 30.0),
    )?;
    figure(
        "2b",
        "Figure 2b: the bottleneck moves",
        ("fragments", "latency, us"),
        &signature(&[(5.0, 60.0), (90.0, 25.0)], 10.0),
    )?;
    figure("8", "Figure 8: GAM, 4 KB", ("fragments", "us"), &figure_8())?;
    figure("9", "Figure 9: against static fragments", ("message, KB", "latency, us"), &figure_9())?;
    let bandwidth = ("disk bandwidth, MB/s", "improvement, %");
    figure("10", "Figure 10: B over A, 64 KB", bandwidth, &by_bandwidth(|a, b, _| a / b))?;
    figure("11", "Figure 11: C over A, 64 KB", bandwidth, &by_bandwidth(|a, _, c| a / c))?;
    let size = ("log2 of the message, bytes", "improvement, %");
    figure("12", "Figure 12: B over A, 5 MB/s", size, &by_size(|a, b, _| a / b))?;
    figure("13", "Figure 13: C over A, 5 MB/s", size, &by_size(|a, _, c| a / c))?;
    let name = directory.join("figure-14.svg");
    bars(&name)?;
    names.push(name);
    Ok(names)
}

/// Computes the latency and each stage's signature curve over the number of fragments, up to `most`.
fn signature(stages: &[(f64, f64)], most: f64) -> Vec<Curve> {
    let whole = chain(stages);
    let counts = || (0..=120).map(move |step| 1.0 + f64::from(step) / 120.0 * (most - 1.0));
    let latency = Signature::new(&whole);
    let mut curves = vec![(
        LATENCY.to_owned(),
        counts().map(|k| (k, latency.latency(8000.0, k).get())).collect(),
    )];
    for (index, stage) in whole.stages().iter().enumerate() {
        let sum: f64 = whole.stages().iter().map(|s| s.overhead().get()).sum();
        let bytes: f64 = whole.stages().iter().map(|s| s.per_byte().get()).sum();
        let at = |k: f64| sum + 8000.0 / k * bytes + (k - 1.0) * stage.time(8000.0 / k).get();
        curves.push((
            format!("stage {index} as the bottleneck"),
            counts().map(|k| (k, at(k))).collect(),
        ));
    }
    curves
}

fn figure_8() -> Vec<Curve> {
    let gam = chain(&GAM);
    let (mut t, mut busy, mut ends) = (Vec::new(), Vec::new(), Vec::new());
    for k in 1..=16_usize {
        let sizes = vec![4000.0 / k as f64; k];
        let parts = gam.parts(&sizes, None);
        t.push((k as f64, gam.latency(&sizes, None).get()));
        busy.push((k as f64, parts.busy.get()));
        ends.push((k as f64, parts.first.get() + parts.last.get()));
    }
    vec![("T, model".into(), t), ("T_b".into(), busy), ("T_f + T_l".into(), ends)]
}

fn figure_9() -> Vec<Curve> {
    let gam = chain(&GAM);
    let sizes = || (1..=160).map(|step| f64::from(step) * 100.0);
    let fixed_size = |bytes: f64, fragment: f64| {
        let mut cut = vec![fragment; (bytes / fragment) as usize];
        let rest = bytes - fragment * cut.len() as f64;
        if rest > 0.0 {
            cut.push(rest);
        }
        gam.latency(&cut, None).get()
    };
    let kb = |f: &dyn Fn(f64) -> f64| sizes().map(|bytes| (bytes / 1000.0, f(bytes))).collect();
    vec![
        ("FM: 128 B".into(), kb(&|bytes| fixed_size(bytes, 128.0))),
        ("GAM: 4 KB".into(), kb(&|bytes| fixed_size(bytes, 4000.0))),
        ("fixed-sized".into(), kb(&|bytes| best_fixed(&gam, bytes))),
    ]
}

fn best_fixed(chain: &Pipeline, bytes: f64) -> f64 {
    fixed(chain, &Request::new(bytes)).expect("the paper's chains have overheads").latency().get()
}

fn by_bandwidth(ratio: impl Fn(f64, f64, f64) -> f64) -> Vec<Curve> {
    let curve = |overhead: f64| {
        let points = (1..=20).map(|bandwidth| {
            let (chain, groups) = disk_chain(overhead, f64::from(bandwidth), false);
            let (a, b, c) = algorithms(&chain, &groups, 65536.0, false);
            (f64::from(bandwidth), 100.0 * (ratio(a, b.latency, c.latency) - 1.0))
        });
        (format!("g = {overhead} ms"), points.collect())
    };
    OVERHEADS_MS.into_iter().map(curve).collect()
}

fn by_size(ratio: impl Fn(f64, f64, f64) -> f64) -> Vec<Curve> {
    let curve = |overhead: f64| {
        let (chain, groups) = disk_chain(overhead, 5.0, false);
        let points = (24..=44).map(|half| {
            let (a, b, c) = algorithms(&chain, &groups, (f64::from(half) / 2.0).exp2(), false);
            (f64::from(half) / 2.0, 100.0 * (ratio(a, b.latency, c.latency) - 1.0))
        });
        (format!("g = {overhead} ms"), points.collect())
    };
    OVERHEADS_MS.into_iter().map(curve).collect()
}

fn lines(
    file: &Path,
    caption: &str,
    (x_name, y_name): (&str, &str),
    curves: &[Curve],
) -> Result<(), Fault> {
    let points = || curves.iter().flat_map(|(_, points)| points.iter().copied());
    let range = |values: &mut dyn Iterator<Item = f64>| {
        values.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), v| (low.min(v), high.max(v)))
    };
    let (left, right) = range(&mut points().map(|(x, _)| x));
    let (low, high) = range(&mut points().map(|(_, y)| y));
    let root = SVGBackend::new(file, (WIDTH, 480)).into_drawing_area();
    root.fill(&WHITE)?;
    let (plane, aside) = root.split_horizontally(LEGEND);
    let mut chart = ChartBuilder::on(&plane)
        .caption(caption, ("sans-serif", 20))
        .margin(12)
        .x_label_area_size(40)
        .y_label_area_size(60)
        .build_cartesian_2d(left..right, low.min(0.0)..high * 1.05)?;
    chart.configure_mesh().x_desc(x_name).y_desc(y_name).draw()?;
    for (index, (name, points)) in curves.iter().enumerate() {
        let width = if name == LATENCY { 6 } else { 2 };
        let style = Palette99::pick(index).stroke_width(width);
        chart.draw_series(LineSeries::new(points.iter().copied(), style))?;
        legend(&aside, index, name, style)?;
    }
    root.present()?;
    Ok(())
}

/// Draws one line of the legend next to a chart.
fn legend(aside: &Aside<'_>, index: usize, name: &str, style: ShapeStyle) -> Result<(), Fault> {
    let y = 50 + 22 * i32::try_from(index)?;
    aside.draw(&PathElement::new([(8, y), (30, y)], style))?;
    aside.draw(&Text::new(name.to_owned(), (38, y - 6), ("sans-serif", 13)))?;
    Ok(())
}

/// Draws Figure 14: the time of each algorithm before, in and after the disk.
fn bars(file: &Path) -> Result<(), Fault> {
    let columns = figure_14();
    let highest = columns.iter().map(|(_, parts)| parts.iter().sum::<f64>()).fold(0.0, f64::max);
    let root = SVGBackend::new(file, (WIDTH, 480)).into_drawing_area();
    root.fill(&WHITE)?;
    let (plane, aside) = root.split_horizontally(LEGEND);
    let mut chart = ChartBuilder::on(&plane)
        .caption("Figure 14: 64 KB, disk 4 ms and 5 MB/s", ("sans-serif", 20))
        .margin(12)
        .x_label_area_size(40)
        .y_label_area_size(60)
        .build_cartesian_2d((0..columns.len() - 1).into_segmented(), 0.0..highest * 1.05)?;
    let label = |x: &SegmentValue<usize>| match x {
        SegmentValue::CenterOf(index) => {
            columns.get(*index).map_or_else(String::new, |(name, _)| name.clone())
        }
        _ => String::new(),
    };
    chart
        .configure_mesh()
        .x_labels(columns.len())
        .x_label_formatter(&label)
        .y_desc("us")
        .disable_x_mesh()
        .draw()?;
    for (part, name) in ["T_f", "T_b", "T_l"].into_iter().enumerate() {
        let colour = Palette99::pick(part).mix(0.7);
        let boxes = columns.iter().enumerate().map(|(index, (_, parts))| {
            let below: f64 = parts[..part].iter().sum();
            let (from, to) = (SegmentValue::Exact(index), SegmentValue::Exact(index + 1));
            let corners = [(from, below), (to, below + parts[part])];
            let mut bar = Rectangle::new(corners, colour.filled());
            bar.set_margin(0, 0, 18, 18);
            bar
        });
        chart.draw_series(boxes)?;
        legend(&aside, part, name, colour.stroke_width(12))?;
    }
    root.present()?;
    Ok(())
}

fn figure_14() -> Vec<(String, [f64; 3])> {
    let mut columns = Vec::new();
    for second in [false, true] {
        let suffix = if second { "net+disk+net" } else { "net+disk" };
        let (chain, groups) = disk_chain(4.0, 5.0, second);
        let request = Request::new(65536.0);
        let plan = fixed(&chain, &request).expect("the paper's chains have overheads");
        columns.push((format!("A {suffix}"), parts_around(&chain, plan.fragments(), 4)));
        let last = if second { ("C'", Base::RampUpDown) } else { ("C", Base::RampUp) };
        for (name, top) in [("B", Base::Fixed), last] {
            let model = linear_model(&chain, &request, &groups, top).expect("two or three groups");
            columns
                .push((format!("{name} {suffix}"), parts_around(&model.top, &model.fragments, 1)));
        }
    }
    columns
}

/// Returns the times before the disk, in it and after it.
fn parts_around(chain: &Pipeline, sizes: &[f64], disk: usize) -> [f64; 3] {
    let rows = chain.rows(sizes, None);
    let mut at_disk = rows.iter().filter(|row| row.stage == disk);
    let start = at_disk.next().map_or(0.0, |row| row.start.get());
    let end =
        rows.iter().filter(|row| row.stage == disk).map(|row| row.end.get()).fold(0.0, f64::max);
    let whole = rows.iter().map(|row| row.end.get()).fold(0.0, f64::max);
    debug_assert!(
        chain.stages().get(disk).is_some_and(|stage: &Stage| stage.overhead().get() > 0.0)
    );
    [start, end - start, whole - end]
}
