//! Draws panels of lines as SVG, each with its legend below it.

use std::path::Path;

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

/// Scale of an axis.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Scale {
    /// Linear, from 0.
    Linear,
    /// Logarithmic to base 2, as for message sizes.
    Binary,
    /// Logarithmic to base 10.
    Decimal,
}

/// An axis of all panels.
#[derive(Clone, Copy, Debug)]
pub struct Axis<'a> {
    /// Quantity and unit. If empty, each panel's title names the quantity, and each panel has a range of its own.
    pub label: &'a str,
    /// Scale of the axis.
    pub scale: Scale,
}

impl<'a> From<&'a str> for Axis<'a> {
    fn from(label: &'a str) -> Self {
        Self { label, scale: Scale::Linear }
    }
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

/// Draws `panels` into the file `path`.
///
/// # Errors
/// One line that names the file.
pub fn draw<'a>(
    path: &Path,
    x: impl Into<Axis<'a>>,
    y: impl Into<Axis<'a>>,
    panels: &[Panel],
) -> Result<(), String> {
    let mut text = String::new();
    render(&mut text, [x.into(), y.into()], panels)
        .map_err(|error| format!("the plot could not be drawn: {error}"))?;
    std::fs::write(path, text).map_err(|error| format!("--plot {}: {error}", path.display()))
}

fn render<'a>(
    text: &'a mut String,
    axes: [Axis<'_>; 2],
    panels: &[Panel],
) -> Result<(), Fault<'a>> {
    let rows = panels.len().div_ceil(COLUMNS).max(1);
    let columns = panels.len().div_ceil(rows).max(1);
    let legend = panels.iter().map(|panel| legend(panel).1).max().unwrap_or_default();
    let size = (PANEL.0 * columns as u32, (PANEL.1 + legend as u32) * rows as u32);
    let root = SVGBackend::with_string(text, size).into_drawing_area();
    root.fill(&WHITE)?;
    let all = extent(panels, axes);
    for (area, panel) in root.split_evenly((rows, columns)).iter().zip(panels) {
        let own = extent(std::slice::from_ref(panel), axes);
        let y = if axes[1].label.is_empty() { own[1] } else { all[1] };
        let (plane, below) = area.split_vertically(PANEL.1);
        draw_panel(&plane, panel, axes, [all[0], y])?;
        draw_legend(&below, panel)?;
    }
    root.present()?;
    Ok(())
}

impl Axis<'_> {
    /// Returns the position of a number; `None` if it has no logarithm.
    fn place(self, number: f64) -> Option<f64> {
        let place = match self.scale {
            Scale::Linear => number,
            Scale::Binary => number.log2(),
            Scale::Decimal => number.log10(),
        };
        place.is_finite().then_some(place)
    }

    /// Returns the label at a position of an axis that ends at `most`.
    fn mark(self, place: f64, most: f64) -> String {
        match self.scale {
            Scale::Linear if most < 10.0 => format!("{place:.1}"),
            Scale::Linear => format!("{place:.0}"),
            // Positions between two powers get a line without a label.
            Scale::Binary | Scale::Decimal if place.fract() != 0.0 => String::new(),
            Scale::Binary => binary(place.exp2()),
            Scale::Decimal => decimal(10_f64.powf(place)),
        }
    }

    /// Returns the range of the positions on the axis.
    fn range(self, places: impl Iterator<Item = f64>) -> (f64, f64) {
        let (low, high) = places.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), place| {
            (low.min(place), high.max(place))
        });
        match self.scale {
            _ if low > high => (0.0, 1.0),
            Scale::Linear if high <= 0.0 => (low.min(-1.0), 0.0),
            Scale::Linear => (low.min(0.0), high),
            Scale::Binary | Scale::Decimal => (low.floor(), high.ceil().max(low.floor() + 1.0)),
        }
    }
}

/// Formats a power of two as a size.
fn binary(number: f64) -> String {
    match number {
        number if number >= 1_048_576.0 => format!("{} Mi", number / 1_048_576.0),
        number if number >= 1_024.0 => format!("{} Ki", number / 1_024.0),
        number => format!("{number}"),
    }
}

/// Formats a power of ten, shortened.
fn decimal(number: f64) -> String {
    match number {
        number if number >= 1e6 => format!("{:.0} M", number / 1e6),
        number if number >= 1e4 => format!("{:.0} k", number / 1e3),
        number if number >= 1.0 => format!("{number:.0}"),
        number => format!("{number}"),
    }
}

fn extent(panels: &[Panel], [x, y]: [Axis<'_>; 2]) -> Extent {
    let points = || panels.iter().flat_map(|panel| &panel.lines).flat_map(|line| &line.points);
    let x = x.range(points().filter_map(|point| x.place(point.0)));
    let (low, high) = y.range(points().filter_map(|point| y.place(point.1)));
    // Leave room above: a line along the upper edge would be hard to see.
    let over = if y.scale == Scale::Linear { 0.08 * (high - low) } else { 0.0 };
    [x, (low, high + over)]
}

fn draw_panel<'a>(
    area: &Area<'a>,
    panel: &Panel,
    [x, y]: [Axis<'_>; 2],
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
        .x_desc(x.label)
        .y_desc(y.label)
        .x_labels(6)
        .x_label_formatter(&|place| x.mark(*place, right))
        .y_label_formatter(&|place| y.mark(*place, high))
        .light_line_style(TRANSPARENT)
        .draw()?;
    for (line, color) in panel.lines.iter().zip(COLORS.iter().cycle()) {
        let place = |point: &(f64, f64)| Some((x.place(point.0)?, y.place(point.1)?));
        let points: Vec<_> = line.points.iter().filter_map(place).collect();
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
