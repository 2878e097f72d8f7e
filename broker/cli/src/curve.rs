//! The learning curve as SVG.

use std::path::Path;

use anyhow::{Context, Result};
use millrace_schemas::api::{Evaluation, Status};
use plotters::prelude::*;

use super::evaluation::leading;

/// Size in pixels; a README shows it without scaling.
const SIZE: (u32, u32) = (860, 460);
const POINT: RGBColor = RGBColor(158, 188, 218);
const MEAN: RGBColor = RGBColor(31, 97, 168);
const EVALUATED: RGBColor = RGBColor(214, 93, 14);
const GRID: RGBColor = RGBColor(225, 225, 225);

/// Mean of each value and those before it, at most `window` in all. Same length as `values`.
pub(super) fn moving_mean(values: &[f64], window: usize) -> Vec<f64> {
    let window = window.max(1);
    (0..values.len())
        .map(|end| {
            let part = &values[(end + 1).saturating_sub(window)..=end];
            part.iter().sum::<f64>() / part.len() as f64
        })
        .collect()
}

/// Number of steps in the moving mean: fewer in short runs, which a long window would flatten.
pub(super) fn mean_window(steps: u64) -> usize {
    usize::try_from(steps / 10).unwrap_or(usize::MAX).clamp(1, 10)
}

/// Draws success by step: each batch, the moving mean, the evaluations on held-out prompts.
///
/// # Errors
/// The file cannot be written.
pub(super) fn draw(status: &Status, to: &Path) -> Result<()> {
    let svg = render(status)?;
    std::fs::write(to, svg).with_context(|| format!("failed to write path={}", to.display()))
}

fn render(status: &Status) -> Result<String> {
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
        area.fill(&WHITE)?;
        let last = status.steps.max(status.version.0).max(1) as f64;
        let title = format!("{}: success by train step", status.run);
        let mut chart = ChartBuilder::on(&area)
            .caption(title, ("sans-serif", 22))
            .margin(14)
            .x_label_area_size(48)
            .y_label_area_size(62)
            .build_cartesian_2d(0.0..last * 1.02, 0.0..104.0)?;
        chart
            .configure_mesh()
            .max_light_lines(0)
            .bold_line_style(GRID)
            .axis_desc_style(("sans-serif", 16))
            .label_style(("sans-serif", 14))
            .x_desc("train step (policy version)")
            .y_desc("rollouts that reached the goal")
            .x_label_formatter(&|x| format!("{x:.0}"))
            .y_label_formatter(&|y| format!("{y:.0} %"))
            .draw()?;
        draw_series(&mut chart, status)?;
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::LowerRight)
            .background_style(WHITE.mix(0.85))
            .border_style(GRID)
            .label_font(("sans-serif", 14))
            .draw()?;
        area.present()?;
    }
    Ok(svg)
}

type Chart<'a, 'b> = ChartContext<
    'a,
    SVGBackend<'b>,
    Cartesian2d<plotters::coord::types::RangedCoordf64, plotters::coord::types::RangedCoordf64>,
>;

fn draw_series(chart: &mut Chart<'_, '_>, status: &Status) -> Result<()> {
    let success: Vec<f64> = status.curve.iter().map(|point| 100.0 * point.success).collect();
    let steps = status.curve.iter().map(|point| point.version as f64);
    let raw = steps.clone().zip(success.iter().copied()).map(|at| Circle::new(at, 2, POINT.filled()));
    chart
        .draw_series(raw)?
        .label("batch of the step, as sampled")
        .legend(|(x, y)| Circle::new((x + 10, y), 3, POINT.filled()));
    let window = mean_window(status.steps);
    let mean = steps.zip(moving_mean(&success, window));
    chart
        .draw_series(LineSeries::new(mean, MEAN.stroke_width(2)))?
        .label(format!("mean of {window} points"))
        .legend(|(x, y)| PathElement::new(vec![(x, y), (x + 20, y)], MEAN.stroke_width(2)));
    // Bars of one standard error below and above.
    let bars = leading(&status.evaluations).filter_map(|e| {
        let (at, success, error) = (e.version as f64, 100.0 * e.success?, 100.0 * e.standard_error?);
        let ends = [(at, (success - error).max(0.0)), (at, (success + error).min(100.0))];
        Some(PathElement::new(ends, EVALUATED.stroke_width(2)))
    });
    chart.draw_series(bars)?;
    let first = status.evaluations.first().map_or(0.0, |e| e.temperature);
    let others = status.evaluations.iter().filter(|e| e.temperature != first);
    let played = |e: &Evaluation| Some((e.version as f64, 100.0 * e.success?));
    chart.draw_series(others.filter_map(played).map(|at| Circle::new(at, 5, EVALUATED)))?;
    let evaluations = leading(&status.evaluations).filter_map(played);
    chart
        .draw_series(evaluations.clone().map(|at| Circle::new(at, 5, EVALUATED.filled())))?
        .label(format!("held-out prompts, temperature {first}; rings: other temperatures"))
        .legend(|(x, y)| Circle::new((x + 10, y), 5, EVALUATED.filled()));
    let middle = status.steps as f64 / 2.0;
    chart.draw_series(evaluations.map(|(x, y)| {
        // The number is placed where there is room: towards the middle, and clear of the upper
        // edge.
        let dx = if x > middle { -46 } else { 10 };
        let dy = if y > 90.0 { 8 } else { -16 };
        EmptyElement::at((x, y))
            + Text::new(format!("{y:.0} %"), (dx, dy), ("sans-serif", 15).into_font().color(&EVALUATED))
    }))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mean_starts_with_what_there_is() {
        assert_eq!(moving_mean(&[1.0, 3.0, 5.0, 7.0], 2), [1.0, 2.0, 4.0, 6.0]);
        assert_eq!(moving_mean(&[], 5), [0.0; 0]);
    }

    #[test]
    fn the_plot_has_every_point_and_both_axes() {
        let status = crate::sample::status(40);
        let svg = render(&status).unwrap();
        assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"));
        let evaluations = status.evaluations.len();
        // One circle for each point, and one in the legend for each of the two kinds.
        assert_eq!(svg.matches("<circle").count(), status.curve.len() + evaluations + 2);
        for text in ["success by train step", "train step (policy version)", "rollouts that reached the goal"]
        {
            assert!(svg.contains(text), "{text}");
        }
    }
}
