//! Draws the picture of the documentation: 4 KB through Myrinet GAM, whole, in equal fragments, and as a ramp.

use midplane_pipeline::gantt::{Chart, svg};
use midplane_pipeline::{Pipeline, Request, Stage, fixed, ramp};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let gam = [(7.2, 0.0072), (5.2, 0.0249), (7.5, 0.0249), (7.4, 0.0079)];
    let stages: Result<Vec<Stage>, _> =
        gam.iter().map(|&(us, us_per_byte)| Stage::new(us, us_per_byte)).collect();
    let gam = Pipeline::new(stages?)?;
    let request = Request::new(4000.0);
    let (equal, ramped) = (fixed(&gam, &request)?, ramp(&gam, &request)?);
    let rows = [gam.rows(&[4000.0], None), equal.rows(&gam, None), ramped.rows(&gam, None)];
    let titles = ["one fragment", "equal fragments", "ramp"];
    let charts: Vec<Chart<'_>> =
        titles.iter().zip(&rows).map(|(title, rows)| Chart { title, rows }).collect();
    print!("{}", svg(&charts, &["host copy", "host DMA", "network", "host copy"]));
    Ok(())
}
