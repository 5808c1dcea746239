//! Draws the ratio of each row as a bar.

use std::path::Path;

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use crate::rows::Row;

/// Pixels of a row's height, of the picture's width, and of the labels at the left.
const HEIGHT: i32 = 34;
const WIDTH: i32 = 900;
const WORDS: i32 = 420;
/// Blue and orange that color-blind readers can tell apart (Okabe and Ito).
const AHEAD: RGBColor = RGBColor(0, 114, 178);
const BEHIND: RGBColor = RGBColor(213, 94, 0);
/// Ratios at the picture's edges, as powers of ten.
const EDGES: (f64, f64) = (-1.0, 2.5);

/// Draws the rows into a file.
///
/// # Errors
/// One line that names the file.
pub(crate) fn draw(path: &Path, rows: &[Row]) -> Result<(), String> {
    let mut text = String::new();
    render(&mut text, rows).map_err(|error| format!("the plot could not be drawn: {error}"))?;
    std::fs::write(path, text).map_err(|error| format!("--plot {}: {error}", path.display()))
}

/// Returns the horizontal position of a ratio, in pixels.
fn across(ratio: f64) -> i32 {
    let part = (ratio.log10().clamp(EDGES.0, EDGES.1) - EDGES.0) / (EDGES.1 - EDGES.0);
    WORDS + (part * f64::from(WIDTH - WORDS - 70)) as i32
}

fn render<'a>(text: &'a mut String, rows: &[Row]) -> Result<(), Box<dyn std::error::Error + 'a>> {
    let height = HEIGHT * (rows.len() as i32 + 2);
    let root = SVGBackend::with_string(text, (WIDTH as u32, height as u32)).into_drawing_area();
    root.fill(&WHITE)?;
    let words = ("sans-serif", 14).into_font();
    let middle =
        |color: &RGBColor, at: HPos| words.clone().color(color).pos(Pos::new(at, VPos::Center));
    let title = "times that ours is ahead of plain TCP or UDP (logarithmic)";
    root.draw(&Text::new(title, (WIDTH / 2, HEIGHT / 2), middle(&BLACK, HPos::Center)))?;
    for (at, row) in (1..).zip(rows) {
        let y = HEIGHT * at + HEIGHT / 2;
        root.draw(&Text::new(row.what, (WORDS - 12, y), middle(&BLACK, HPos::Right)))?;
        let Some(ratio) = row.compared.map(|found| found.ratio) else {
            root.draw(&Text::new("no number", (across(1.0) + 6, y), middle(&BEHIND, HPos::Left)))?;
            continue;
        };
        let color = if ratio >= 1.0 { AHEAD } else { BEHIND };
        let (from, to) = (across(ratio.min(1.0)), across(ratio.max(1.0)));
        root.draw(&Rectangle::new([(from, y - 9), (to, y + 9)], color.filled()))?;
        let label = format!("{ratio:.2}");
        root.draw(&Text::new(label, (to + 6, y), middle(&BLACK, HPos::Left)))?;
    }
    let bottom = height - HEIGHT + 4;
    root.draw(&PathElement::new(vec![(across(1.0), HEIGHT), (across(1.0), bottom)], BLACK))?;
    for ratio in [0.1, 1.0, 10.0, 100.0] {
        let at = (across(ratio), bottom + 10);
        root.draw(&Text::new(format!("{ratio}"), at, middle(&BLACK, HPos::Center)))?;
    }
    root.present()?;
    Ok(())
}
