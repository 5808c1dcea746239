//! Panels of lines side by side, as SVG.

use std::path::Path;

use plotters::prelude::*;

/// One line of a panel.
#[derive(Clone, Debug)]
pub(crate) struct Line {
    /// What the legend calls it.
    pub(crate) label: String,
    /// Its points, from left to right.
    pub(crate) points: Vec<(f64, f64)>,
}

/// One panel: lines over the same axes as its neighbours'.
#[derive(Clone, Debug)]
pub(crate) struct Panel {
    /// What stands above it.
    pub(crate) title: String,
    /// Its lines.
    pub(crate) lines: Vec<Line>,
}

/// Pixels of a panel.
const PANEL: (u32, u32) = (340, 320);
/// Told apart by those who see few colours, too (Okabe and Ito).
const COLORS: [RGBColor; 6] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
];

/// Draws `panels` in a row into the file `path`.
///
/// # Errors
/// One line that names the file.
pub(crate) fn draw(
    path: &Path,
    x_label: &str,
    y_label: &str,
    panels: &[Panel],
) -> Result<(), String> {
    let mut text = String::new();
    render(&mut text, (x_label, y_label), panels)
        .map_err(|error| format!("the plot could not be drawn: {error}"))?;
    std::fs::write(path, text).map_err(|error| format!("--plot {}: {error}", path.display()))
}

fn render<'a>(
    text: &'a mut String,
    labels: (&str, &str),
    panels: &[Panel],
) -> Result<(), Box<dyn std::error::Error + 'a>> {
    let columns = panels.len().max(1);
    let width = PANEL.0 * u32::try_from(columns).unwrap_or(1);
    let root = SVGBackend::with_string(text, (width, PANEL.1)).into_drawing_area();
    root.fill(&WHITE)?;
    let points = || panels.iter().flat_map(|panel| &panel.lines).flat_map(|line| &line.points);
    let x_most = points().map(|point| point.0).fold(1.0, f64::max);
    let y_most = points().map(|point| point.1).fold(1.0, f64::max);
    for (area, panel) in root.split_evenly((1, columns)).iter().zip(panels) {
        draw_panel(area, panel, (x_most, y_most * 1.08), labels)?;
    }
    root.present()?;
    Ok(())
}

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;

fn draw_panel<'a>(
    area: &Area<'a>,
    panel: &Panel,
    (x_most, y_most): (f64, f64),
    (x_label, y_label): (&str, &str),
) -> Result<(), Box<dyn std::error::Error + 'a>> {
    let mut chart = ChartBuilder::on(area)
        .caption(&panel.title, ("sans-serif", 16))
        .margin(8)
        .x_label_area_size(38)
        .y_label_area_size(46)
        .build_cartesian_2d(0.0..x_most, 0.0..y_most)?;
    chart
        .configure_mesh()
        .x_desc(x_label)
        .y_desc(y_label)
        .x_labels(6)
        .x_label_formatter(&|x| format!("{x:.0}"))
        .y_label_formatter(&|y| if y_most < 10.0 { format!("{y:.1}") } else { format!("{y:.0}") })
        .light_line_style(TRANSPARENT)
        .draw()?;
    for (line, color) in panel.lines.iter().zip(COLORS.iter().cycle()) {
        let series = LineSeries::new(line.points.iter().copied(), color.stroke_width(2));
        chart.draw_series(series)?.label(&line.label).legend(move |(x, y)| {
            PathElement::new(vec![(x, y), (x + 16, y)], color.stroke_width(2))
        });
        let dots = line.points.iter().map(|point| Circle::new(*point, 3, color.filled()));
        chart.draw_series(dots)?;
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::MiddleRight)
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK.mix(0.3))
        .draw()?;
    Ok(())
}
