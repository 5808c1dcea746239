//! Gantt charts of predicted and measured stays, as SVG and as a Chrome trace.
//!
//! The trace is a JSON array of complete events, which Perfetto and Chrome's tracing page open.

use std::fmt::Write as _;

use crate::timing::Row;

/// Height of one bar in pixels.
const BAR: f64 = 22.0;
const WIDTH: f64 = 900.0;
const LEFT: f64 = 120.0;
const TOP: f64 = 34.0;

/// A chart: a title and its bars. Several charts share one time axis.
#[derive(Clone, Debug, PartialEq)]
pub struct Chart<'a> {
    /// The title above the chart, such as `predicted`.
    pub title: &'a str,
    /// The bars.
    pub rows: &'a [Row],
}

/// Draws charts one above the other, on one time axis. `names` are those of the stages; a stage
/// without a name is numbered.
#[must_use]
pub fn svg(charts: &[Chart<'_>], names: &[&str]) -> String {
    let stages =
        charts.iter().flat_map(|chart| chart.rows).map(|row| row.stage + 1).max().unwrap_or(1);
    let end =
        charts.iter().flat_map(|chart| chart.rows).map(|row| row.end.get()).fold(0.0, f64::max);
    let scale = if end > 0.0 { (WIDTH - LEFT - 20.0) / end } else { 1.0 };
    let height = TOP + stages as f64 * (BAR + 4.0) + 10.0;
    let whole = height * charts.len() as f64 + 30.0;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{whole}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    );
    for (index, chart) in charts.iter().enumerate() {
        draw(&mut out, chart, names, (stages, height * index as f64, scale));
    }
    axis(&mut out, end, scale, height * charts.len() as f64);
    out.push_str("</svg>\n");
    out
}

fn draw(
    out: &mut String,
    chart: &Chart<'_>,
    names: &[&str],
    (stages, top, scale): (usize, f64, f64),
) {
    let last = chart.rows.iter().map(|row| row.end.get()).fold(0.0, f64::max);
    text(out, 8.0, top + 20.0, &format!("{}: {last:.1} us", escape(chart.title)));
    for stage in 0..stages {
        let name = names.get(stage).map_or_else(|| format!("stage {stage}"), |name| escape(name));
        text(out, 8.0, top + TOP + stage as f64 * (BAR + 4.0) + 15.0, &name);
    }
    for row in chart.rows {
        let (x, y) = (LEFT + row.start.get() * scale, top + TOP + row.stage as f64 * (BAR + 4.0));
        let width = ((row.end.get() - row.start.get()) * scale).max(0.2);
        let hue = row.fragment * 137 % 360;
        let _ = writeln!(
            out,
            "<rect x=\"{x:.2}\" y=\"{y:.1}\" width=\"{width:.2}\" height=\"{BAR}\" fill=\"hsl({hue},55%,70%)\" stroke=\"#333\" \
             stroke-width=\"0.5\"><title>fragment {}, {:.0} B, {:.2} to {:.2} us</title></rect>",
            row.fragment,
            row.bytes,
            row.start.get(),
            row.end.get()
        );
        if width > 18.0 {
            text(out, x + 3.0, y + 15.0, &row.fragment.to_string());
        }
    }
}

fn axis(out: &mut String, end: f64, scale: f64, y: f64) {
    for tick in 0..=5 {
        let at = end * f64::from(tick) / 5.0;
        // The last label ends where the axis ends, so that long numbers stay on the page.
        let anchor = if tick == 5 { "end" } else { "middle" };
        let (x, y) = (LEFT + at * scale, y + 16.0);
        let _ = writeln!(
            out,
            "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{at:.0} us</text>"
        );
    }
}

fn text(out: &mut String, x: f64, y: f64, text: &str) {
    let _ = writeln!(out, "<text x=\"{x:.1}\" y=\"{y:.1}\">{text}</text>");
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// Writes charts as a Chrome trace: a process for each chart, a thread for each stage, an event for each bar.
#[must_use]
pub fn chrome_trace(charts: &[Chart<'_>], names: &[&str]) -> String {
    let mut events = Vec::new();
    for (process, chart) in charts.iter().enumerate() {
        let title = quote(chart.title);
        events.push(format!("{{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":{process},\"args\":{{\"name\":{title}}}}}"));
        let stages = chart.rows.iter().map(|row| row.stage + 1).max().unwrap_or(0);
        for stage in 0..stages {
            let name =
                names.get(stage).map_or_else(|| format!("\"stage {stage}\""), |name| quote(name));
            let ids = format!("\"pid\":{process},\"tid\":{stage}");
            events.push(format!(
                "{{\"ph\":\"M\",\"name\":\"thread_name\",{ids},\"args\":{{\"name\":{name}}}}}"
            ));
        }
        for row in chart.rows {
            events.push(format!(
                "{{\"ph\":\"X\",\"name\":\"fragment {}\",\"pid\":{process},\"tid\":{},\"ts\":{:.3},\"dur\":{:.3},\"args\":{{\"bytes\":{}}}}}",
                row.fragment,
                row.stage,
                row.start.get(),
                row.end.get() - row.start.get(),
                row.bytes
            ));
        }
    }
    format!("[\n{}\n]\n", events.join(",\n"))
}

fn quote(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            c if c.is_control() => out.push(' '),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}
