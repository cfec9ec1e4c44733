//! The figures of a run as a picture: one group of bars for each row, on a scale of powers of ten.

use anyhow::{Result, anyhow};
use plotters::prelude::*;
use std::path::Path;

const COLOURS: [RGBColor; 5] = [
    RGBColor(0, 90, 170),
    RGBColor(230, 150, 0),
    RGBColor(120, 120, 120),
    RGBColor(170, 60, 60),
    RGBColor(200, 215, 200),
];
const ROW_HEIGHT: u32 = 64;

/// One row of the picture.
pub struct Bars {
    /// What was done.
    pub what: String,
    /// What it took each program, in the order of their names; nothing where that is not known.
    pub seconds: Vec<Option<f64>>,
}

/// Draws rows into an SVG file, for up to five programs.
pub fn draw(names: &[&str], rows: &[Bars], path: &Path) -> Result<()> {
    draw_rows(names, rows, path).map_err(|error| anyhow!("draw {}: {error}", path.display()))
}

fn draw_rows(
    names: &[&str],
    rows: &[Bars],
    path: &Path,
) -> std::result::Result<(), Box<dyn std::error::Error>> {
    let seconds = rows.iter().flat_map(|row| row.seconds.iter().flatten().copied());
    let (least, most) = seconds.fold((1.0_f64, 1.0_f64), |(least, most), s| (least.min(s), most.max(s)));
    let least = (least / 2.0).max(0.001);
    let height = 90 + ROW_HEIGHT * u32::try_from(rows.len())?;
    let area = SVGBackend::new(path, (1200, height)).into_drawing_area();
    area.fill(&WHITE)?;
    let depth = rows.len() as f64;
    let mut chart = ChartBuilder::on(&area)
        .margin(10)
        .caption("seconds, shorter is better", ("sans-serif", 18))
        .x_label_area_size(30)
        .build_cartesian_2d((least..most * 1.5).log_scale(), depth..0.0)?;
    chart
        .configure_mesh()
        .disable_y_mesh()
        .disable_y_axis()
        .x_label_formatter(&|x| format!("{x:.2}"))
        .draw()?;
    for (number, (name, colour)) in names.iter().copied().zip(COLOURS).enumerate() {
        let bars = rows.iter().enumerate().filter_map(|(at, row)| {
            let top = at as f64 + 0.3 + 0.13 * number as f64;
            Some(Rectangle::new(
                [(least, top), (row.seconds.get(number).copied().flatten()?, top + 0.115)],
                colour.filled(),
            ))
        });
        chart
            .draw_series(bars)?
            .label(name)
            .legend(move |(x, y)| Rectangle::new([(x, y - 5), (x + 12, y + 5)], colour.filled()));
    }
    chart.draw_series(rows.iter().enumerate().map(|(at, row)| {
        let style = ("sans-serif", 13).into_font().color(&BLACK);
        Text::new(row.what.clone(), (least, at as f64 + 0.05), style)
    }))?;
    chart.configure_series_labels().background_style(WHITE.mix(0.8)).border_style(BLACK).draw()?;
    area.present()?;
    Ok(())
}
