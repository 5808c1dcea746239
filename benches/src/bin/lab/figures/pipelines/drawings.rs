//! The paper's figures 2 and 8 to 14: 8 and 9 measured, the others drawn from the planners.

use std::path::Path;

use midplane::pipeline::fixed::Signature;
use midplane::pipeline::hierarchical::{Base, linear_model};
use midplane::pipeline::{Pipeline, Request, fixed};

use super::measured::Measured;
use super::paper::{OVERHEADS_MS, algorithms, chain, disk_chain};
use crate::plot::{self, Line, Panel};
use crate::report::text;

/// Draws all figures.
pub(super) fn draw(directory: &Path, measured: &Measured) -> Result<(), String> {
    let bandwidth = ("disk bandwidth, MB/s", "improvement, %");
    let size = ("log2 of the message, bytes", "improvement, %");
    let figures = [
        (
            ("fragments", "latency, us"),
            vec![
                ("2a: one bottleneck", signature(&[(2.0, 30.0), (8.0, 60.0)], 30.0)),
                ("2b: the bottleneck moves", signature(&[(5.0, 60.0), (90.0, 25.0)], 10.0)),
            ],
        ),
        (("fragments", "us"), vec![("8: GAM, 4 KB", measured.figure_8())]),
        (
            ("message, KB", "latency, us"),
            vec![("9: against static fragments", measured.figure_9())],
        ),
        (bandwidth, vec![("10: B over A, 64 KB", by_bandwidth(|a, b, _| a / b))]),
        (bandwidth, vec![("11: C over A, 64 KB", by_bandwidth(|a, _, c| a / c))]),
        (size, vec![("12: B over A, 5 MB/s", by_size(|a, b, _| a / b))]),
        (size, vec![("13: C over A, 5 MB/s", by_size(|a, _, c| a / c))]),
        (("A, B, C; then A, B, C'", "us"), vec![("14: 64 KB, disk 4 ms and 5 MB/s", figure_14())]),
    ];
    for ((x, y), panels) in figures {
        let number = panels[0].0.split(['a', ':']).next().unwrap_or_default();
        let path = directory.join(format!("figure-{number}.svg"));
        let panels = panels
            .into_iter()
            .map(|(title, lines)| Panel { title: format!("Figure {title}"), lines });
        plot::draw(&path, x, y, &panels.collect::<Vec<_>>()).map_err(text)?;
    }
    Ok(())
}

fn line(label: impl Into<String>, points: Vec<(f64, f64)>) -> Line {
    Line { label: label.into(), points }
}

/// Computes the latency and each stage's signature curve over the number of fragments, up to `most`.
fn signature(stages: &[(f64, f64)], most: f64) -> Vec<Line> {
    let whole = chain(stages);
    let counts = || (0..=120).map(move |step| 1.0 + f64::from(step) / 120.0 * (most - 1.0));
    let latency = Signature::new(&whole);
    let points = counts().map(|k| (k, latency.latency(8000.0, k).get()));
    let mut curves = vec![line("latency", points.collect())];
    for (index, stage) in whole.stages().iter().enumerate() {
        let sum: f64 = whole.stages().iter().map(|s| s.overhead().get()).sum();
        let bytes: f64 = whole.stages().iter().map(|s| s.per_byte().get()).sum();
        let at = |k: f64| sum + 8000.0 / k * bytes + (k - 1.0) * stage.time(8000.0 / k).get();
        let label = format!("stage {index} as the bottleneck");
        curves.push(line(label, counts().map(|k| (k, at(k))).collect()));
    }
    curves
}

fn by_bandwidth(ratio: impl Fn(f64, f64, f64) -> f64) -> Vec<Line> {
    let curve = |overhead: f64| {
        let points = (1..=20).map(|bandwidth| {
            let (chain, groups) = disk_chain(overhead, f64::from(bandwidth), false);
            let (a, b, c) = algorithms(&chain, &groups, 65536.0, false);
            (f64::from(bandwidth), 100.0 * (ratio(a, b.latency, c.latency) - 1.0))
        });
        line(format!("g = {overhead} ms"), points.collect())
    };
    OVERHEADS_MS.into_iter().map(curve).collect()
}

fn by_size(ratio: impl Fn(f64, f64, f64) -> f64) -> Vec<Line> {
    let curve = |overhead: f64| {
        let (chain, groups) = disk_chain(overhead, 5.0, false);
        let points = (24..=44).map(|half| {
            let (a, b, c) = algorithms(&chain, &groups, (f64::from(half) / 2.0).exp2(), false);
            (f64::from(half) / 2.0, 100.0 * (ratio(a, b.latency, c.latency) - 1.0))
        });
        line(format!("g = {overhead} ms"), points.collect())
    };
    OVERHEADS_MS.into_iter().map(curve).collect()
}

/// Computes the times of each algorithm before, in and after the disk.
fn figure_14() -> Vec<Line> {
    let mut columns = Vec::new();
    for second in [false, true] {
        let (chain, groups) = disk_chain(4.0, 5.0, second);
        let request = Request::new(65536.0);
        let plan = fixed(&chain, &request).expect("the paper's chains have overheads");
        columns.push(parts_around(&chain, plan.fragments(), 4));
        for top in [Base::Fixed, if second { Base::RampUpDown } else { Base::RampUp }] {
            let model = linear_model(&chain, &request, &groups, top).expect("two or three groups");
            columns.push(parts_around(&model.top, &model.fragments, 1));
        }
    }
    let part = |(part, label): (usize, &str)| {
        let points = columns.iter().enumerate().map(|(at, parts)| (at as f64 + 1.0, parts[part]));
        line(label, points.collect())
    };
    ["T_f", "T_b", "T_l"].into_iter().enumerate().map(part).collect()
}

/// Returns the times before the disk, in it and after it.
fn parts_around(chain: &Pipeline, sizes: &[f64], disk: usize) -> [f64; 3] {
    let rows = chain.rows(sizes, None);
    let at_disk = || rows.iter().filter(|row| row.stage == disk);
    let start = at_disk().next().map_or(0.0, |row| row.start.get());
    let end = at_disk().map(|row| row.end.get()).fold(0.0, f64::max);
    let whole = rows.iter().map(|row| row.end.get()).fold(0.0, f64::max);
    [start, end - start, whole - end]
}
