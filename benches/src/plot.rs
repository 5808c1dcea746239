//! Draws panels of lines as SVG, each with its legend below it.

use std::path::Path;

use midplane_kit::report::Failure;
use plotters::prelude::*;

/// One line of a panel.
#[derive(Clone, Debug)]
pub struct Line {
    /// Name in the legend.
    pub label: String,
    /// Points, from left to right.
    pub points: Vec<(f64, f64)>,
}

/// One panel; all panels of a picture have the same axes.
#[derive(Clone, Debug)]
pub struct Panel {
    /// Title above the panel.
    pub title: String,
    /// Lines of the panel.
    pub lines: Vec<Line>,
}

/// Pixels of a panel without its legend.
const PANEL: (u32, u32) = (340, 320);
/// Most panels in a row.
const COLUMNS: usize = 4;
/// Pixels of a legend line, of its sample, and approximately of a letter.
const LEGEND_LINE: i32 = 18;
const SAMPLE: i32 = 22;
const LETTER: i32 = 7;
/// Largest number of points of a line that is drawn with dots.
const MAX_DOTS: usize = 40;
/// Colours that colour-blind readers can distinguish (Okabe and Ito).
const COLORS: [RGBColor; 7] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(60, 60, 60),
];

type Fault<'a> = Box<dyn std::error::Error + 'a>;
type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;
/// Drawn range of x and of y.
type Extent = [(f64, f64); 2];

/// Draws `panels` into the file `path`; `x` and `y` name the quantities and units of the axes of all panels.
///
/// # Errors
/// One line that names the file.
pub fn draw(path: &Path, x: &str, y: &str, panels: &[Panel]) -> Result<(), Failure> {
    let mut text = String::new();
    render(&mut text, [x, y], panels)
        .map_err(|error| Failure::of_run(format!("the plot could not be drawn: {error}")))?;
    std::fs::write(path, text).map_err(|error| {
        Failure::of_write(error.kind(), format!("--plot {}: {error}", path.display()))
    })
}

fn render<'a>(text: &'a mut String, axes: [&str; 2], panels: &[Panel]) -> Result<(), Fault<'a>> {
    let rows = panels.len().div_ceil(COLUMNS).max(1);
    let columns = panels.len().div_ceil(rows).max(1);
    let legend = panels.iter().map(|panel| legend(panel).1).max().unwrap_or_default();
    let size = (PANEL.0 * columns as u32, (PANEL.1 + legend as u32) * rows as u32);
    let root = SVGBackend::with_string(text, size).into_drawing_area();
    root.fill(&WHITE)?;
    let all = extent(panels);
    for (area, panel) in root.split_evenly((rows, columns)).iter().zip(panels) {
        let (plane, below) = area.split_vertically(PANEL.1);
        draw_panel(&plane, panel, axes, all)?;
        draw_legend(&below, panel)?;
    }
    root.present()?;
    Ok(())
}

/// Returns the label at a position of an axis that ends at `most`.
fn mark(place: f64, most: f64) -> String {
    if most < 10.0 { format!("{place:.1}") } else { format!("{place:.0}") }
}

/// Returns the ranges of x and y, which contain 0.
fn extent(panels: &[Panel]) -> Extent {
    let points = || panels.iter().flat_map(|panel| &panel.lines).flat_map(|line| &line.points);
    let range = |places: &mut dyn Iterator<Item = f64>| {
        let places = places.filter(|place| place.is_finite());
        places.fold((0.0, 0.0), |(low, high): (f64, f64), place| (low.min(place), high.max(place)))
    };
    let x = range(&mut points().map(|point| point.0));
    let (low, high) = range(&mut points().map(|point| point.1));
    // Leave room above: a line along the upper edge would be hard to see.
    [x, (low, high + 0.08 * (high - low).max(f64::MIN_POSITIVE))]
}

fn draw_panel<'a>(
    area: &Area<'a>,
    panel: &Panel,
    [x, y]: [&str; 2],
    [(left, right), (low, high)]: Extent,
) -> Result<(), Fault<'a>> {
    let mut chart = ChartBuilder::on(area)
        .caption(&panel.title, ("sans-serif", 15))
        .margin(8)
        .margin_right(16)
        .x_label_area_size(38)
        .y_label_area_size(52)
        .build_cartesian_2d(left..right, low..high)?;
    chart
        .configure_mesh()
        .x_desc(x)
        .y_desc(y)
        .x_labels(6)
        .x_label_formatter(&|place| mark(*place, right))
        .y_label_formatter(&|place| mark(*place, high))
        .light_line_style(TRANSPARENT)
        .draw()?;
    for (line, color) in panel.lines.iter().zip(COLORS.iter().cycle()) {
        let points = line.points.iter().filter(|point| point.0.is_finite() && point.1.is_finite());
        let points: Vec<_> = points.copied().collect();
        chart.draw_series(LineSeries::new(points.iter().copied(), color.stroke_width(2)))?;
        if points.len() <= MAX_DOTS {
            let dots = points.iter().map(|point| Circle::new(*point, 3, color.filled()));
            chart.draw_series(dots)?;
        }
    }
    Ok(())
}

/// Returns the position of each entry of a panel's legend, and the height of all.
fn legend(panel: &Panel) -> (Vec<(i32, i32)>, i32) {
    let (left, right) = (14, PANEL.0 as i32 - 8);
    let mut at = (left, 0);
    let mut places = Vec::new();
    for line in &panel.lines {
        let width = SAMPLE + 6 + LETTER * line.label.chars().count() as i32 + 12;
        if at.0 > left && at.0 + width > right {
            at = (left, at.1 + LEGEND_LINE);
        }
        places.push(at);
        at.0 += width;
    }
    (places, at.1 + LEGEND_LINE + 6)
}

fn draw_legend<'a>(area: &Area<'a>, panel: &Panel) -> Result<(), Fault<'a>> {
    let entries = panel.lines.iter().zip(legend(panel).0).zip(COLORS.iter().cycle());
    for ((line, (x, y)), color) in entries {
        let sample = vec![(x, y + 6), (x + SAMPLE, y + 6)];
        area.draw(&PathElement::new(sample, color.stroke_width(2)))?;
        area.draw(&Text::new(line.label.clone(), (x + SAMPLE + 6, y), ("sans-serif", 12)))?;
    }
    Ok(())
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use midplane_kit::report::{BAD_INPUT, FAILED};

    use super::*;

    /// Regression: a picture on a full disk was bad input.
    #[test]
    fn a_picture_that_cannot_be_written_is_bad_input_only_if_its_path_is_wrong() {
        let lines = vec![Line { label: "a line".into(), points: vec![(0.0, 1.0), (1.0, 2.0)] }];
        let panels = [Panel { title: "a panel".into(), lines }];
        let code = |path: &str| draw(Path::new(path), "x", "y", &panels).unwrap_err().code();
        assert_eq!(code("/dev/full"), FAILED);
        assert_eq!(code("/nowhere/picture.svg"), BAD_INPUT);
    }
}
