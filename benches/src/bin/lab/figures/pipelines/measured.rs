//! Figures 8 and 9: messages through the simulated machine, compared with the models of its instrumented stages (clear
//! box) and of its times from outside (black box).

use midplane::pipeline::estimate::BlackBox;
use midplane::pipeline::fixed::Signature;
use midplane::pipeline::{Pipeline, Request, fixed};
use midplane_benches::anchors::gam::{self, COPY, equal, message_us};

use super::paper::near;
use crate::figures::rows::Row;
use crate::plot::Line;

/// The message of Figure 8, its most fragments, and GAM's own fragments, in bytes.
const MESSAGE: usize = 4096;
const MOST: usize = 16;
/// Fragments of FM, in bytes.
const FM: usize = 128;
/// Messages of Figure 9: multiples of this many bytes, up to 16 KiB.
const STEP: usize = 256;
const STEPS: usize = 64;

/// The curves of both figures.
pub(super) struct Measured {
    clear: Pipeline,
    black: BlackBox,
    /// Figure 8: the message in 1, 2, ... fragments, in microseconds.
    by_count: Vec<f64>,
    /// Figure 9: for each size the times of FM's, GAM's, and the best equal fragments by clear and by black box, in
    /// microseconds.
    by_size: Vec<(usize, [f64; 4])>,
}

impl Measured {
    /// Runs every message of both figures.
    pub(super) fn new() -> Self {
        let (clear, black) = (gam::clear_box(COPY), gam::black_box());
        let by_count = (1..=MOST).map(|count| message_us(COPY, equal(MESSAGE, count))).collect();
        let signature = Signature::new(&clear);
        let cuts = |bytes: usize| {
            let counts = [signature.count(bytes as f64, 1, bytes), black.count(bytes as f64)];
            let [clear, black] = counts.map(|count| equal(bytes, count));
            [of_size(bytes, FM), of_size(bytes, MESSAGE), clear, black]
        };
        let sizes = (1..=STEPS).map(|step| step * STEP);
        let by_size =
            sizes.map(|bytes| (bytes, cuts(bytes).map(|cut| message_us(COPY, cut)))).collect();
        Self { clear, black, by_count, by_size }
    }

    /// Returns the curves of Figure 8.
    pub(super) fn figure_8(&self) -> Vec<Line> {
        let curve = |label: &str, us: &dyn Fn(usize) -> f64| {
            let points = (1..=MOST).map(|count| (count as f64, us(count))).collect();
            Line { label: label.to_owned(), points }
        };
        let parts = |count: usize| self.clear.parts(&exact(MESSAGE, count), None);
        vec![
            curve("T, measured", &|count| self.by_count[count - 1]),
            curve("T, model, clear box", &|count| self.model(count)),
            curve("T, model, black box", &|count| self.black.latency(MESSAGE as f64, count).get()),
            curve("T_b, model", &|count| parts(count).busy.get()),
            curve("T_f + T_l, model", &|count| parts(count).first.get() + parts(count).last.get()),
        ]
    }

    /// Returns the curves of Figure 9.
    pub(super) fn figure_9(&self) -> Vec<Line> {
        let curve = |label: &str, us: &dyn Fn(usize, &[f64; 4]) -> f64| {
            let point =
                |(bytes, times): &(usize, [f64; 4])| (*bytes as f64 / 1024.0, us(*bytes, times));
            Line { label: label.to_owned(), points: self.by_size.iter().map(point).collect() }
        };
        let model = |bytes: usize| {
            let plan = fixed(&self.clear, &Request::new(bytes as f64));
            plan.expect("the stages have overheads").latency().get()
        };
        vec![
            curve("FM: 128 B", &|_, times| times[0]),
            curve("GAM: 4 KB", &|_, times| times[1]),
            curve("fixed-sized, clear box", &|_, times| times[2]),
            curve("fixed-sized, black box", &|_, times| times[3]),
            curve("fixed-sized, model", &|bytes, _| model(bytes)),
        ]
    }

    /// Returns the numbers of both figures that the paper prints.
    pub(super) fn rows(&self) -> Vec<Row> {
        let errors =
            (1..).zip(&self.by_count).map(|(count, us)| (self.model(count) / us - 1.0).abs());
        let error = 100.0 * errors.sum::<f64>() / MOST as f64;
        let best = (1..).zip(&self.by_count).min_by(|a, b| a.1.total_cmp(b.1));
        let best = best.map_or(0.0, |(count, _)| f64::from(count));
        let gain = |planned: usize| {
            let gains = self.by_size.iter();
            gains
                .map(|(bytes, times)| (*bytes, 100.0 * (times[1] / times[planned] - 1.0)))
                .max_by(|a, b| a.1.total_cmp(&b.1))
                .expect("there are sizes")
        };
        let ((at, clear), (_, black)) = (gain(2), gain(3));
        vec![
            near("Figure 8: mean error of the model, clear box", error, 5.9, "%")
                .note("smaller is better"),
            near("Figure 8: best number of fragments, measured", best, 5.0, "fragments"),
            near("Figure 9: most that fixed-sized gains over GAM, clear box", clear, 51.0, "%"),
            near("Figure 9: the same, black box", black, 51.0, "%"),
            near("Figure 9: size of the largest gain", at as f64, 4096.0, "bytes"),
        ]
    }

    /// Predicts the message of Figure 8 in microseconds.
    fn model(&self, count: usize) -> f64 {
        self.clear.latency(&exact(MESSAGE, count), None).get()
    }
}

/// Cuts a message into fragments of one size, and the rest.
fn of_size(bytes: usize, fragment: usize) -> Vec<usize> {
    (0..bytes).step_by(fragment).map(|at| fragment.min(bytes - at)).collect()
}

/// Returns equal sizes, fractions of a byte included.
fn exact(bytes: usize, count: usize) -> Vec<f64> {
    vec![bytes as f64 / count as f64; count]
}
