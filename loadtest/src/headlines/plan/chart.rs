//! Lines and lanes, as SVG.

use anyhow::Result;
use plotters::coord::Shift;
use plotters::prelude::*;

use crate::headlines::timeline::Timeline;

/// Size in pixels; a README shows it without scaling.
const SIZE: (u32, u32) = (860, 440);
const HALF: i32 = 430;
/// Where commit and machine are written.
const FOOTNOTE: (i32, i32) = (14, 422);
const GRID: RGBColor = RGBColor(225, 225, 225);
const INK: RGBColor = RGBColor(60, 60, 60);
const GENERATES: RGBColor = RGBColor(31, 97, 168);
const TRAINS: RGBColor = RGBColor(214, 93, 14);
const IDLE: RGBColor = RGBColor(238, 238, 238);
const COLOURS: [RGBColor; 3] = [GENERATES, TRAINS, RGBColor(120, 120, 120)];

/// A line of a chart.
pub(super) struct Line {
    pub(super) name: String,
    /// By the first of the two numbers.
    pub(super) points: Vec<(f64, f64)>,
}

/// Lines over one axis.
pub(super) struct Chart<'a> {
    pub(super) title: &'a str,
    pub(super) x: &'a str,
    pub(super) y: &'a str,
    pub(super) lines: Vec<Line>,
    /// Commit and machine.
    pub(super) origin: &'a str,
}

/// The chart as SVG.
///
/// # Errors
/// It cannot be drawn.
pub(super) fn lines(chart: &Chart<'_>) -> Result<String> {
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
        area.fill(&WHITE)?;
        footnote(&area, chart.origin)?;
        let points = || chart.lines.iter().flat_map(|line| &line.points);
        let right = points().map(|(x, _)| *x).fold(0.0, f64::max) * 1.02;
        let top = points().map(|(_, y)| *y).fold(0.0, f64::max) * 1.08;
        let mut on = ChartBuilder::on(&area)
            .caption(chart.title, ("sans-serif", 22))
            .margin(14)
            .margin_bottom(30)
            .x_label_area_size(46)
            .y_label_area_size(62)
            .build_cartesian_2d(0.0..right, 0.0..top)?;
        on.configure_mesh()
            .max_light_lines(0)
            .bold_line_style(GRID)
            .axis_desc_style(("sans-serif", 16))
            .label_style(("sans-serif", 14))
            .x_desc(chart.x)
            .y_desc(chart.y)
            .y_label_formatter(&|y| format!("{y:.1} ×"))
            .draw()?;
        for (line, colour) in chart.lines.iter().zip(COLOURS.into_iter().cycle()) {
            on.draw_series(LineSeries::new(line.points.iter().copied(), colour.stroke_width(2)))?
                .label(&line.name)
                .legend(move |(x, y)| PathElement::new(vec![(x, y), (x + 20, y)], colour.stroke_width(2)));
            on.draw_series(line.points.iter().map(|at| Circle::new(*at, 3, colour.filled())))?;
        }
        on.configure_series_labels()
            .position(SeriesLabelPosition::LowerRight)
            .background_style(WHITE.mix(0.85))
            .border_style(GRID)
            .label_font(("sans-serif", 14))
            .draw()?;
        area.present()?;
    }
    Ok(svg)
}

/// What GPUs do when, a lane each, the sides beside each other. From the first version on that both
/// have published, for so many seconds.
///
/// # Errors
/// It cannot be drawn.
pub(super) fn lanes(
    title: &str,
    sides: &[(String, &Timeline); 2],
    seconds: f64,
    origin: &str,
) -> Result<String> {
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
        area.fill(&WHITE)?;
        footnote(&area, origin)?;
        let area = area.margin(0, 30, 0, 0).titled(title, ("sans-serif", 22))?;
        let (left, right) = area.split_horizontally(HALF);
        for (area, (name, timeline)) in [left, right].iter().zip(sides) {
            side(area, name, timeline, seconds)?;
        }
        area.present()?;
    }
    Ok(svg)
}

/// Steps that are not shown: the window fills.
const WARM: usize = 3;

fn side(
    area: &DrawingArea<SVGBackend<'_>, Shift>,
    name: &str,
    timeline: &Timeline,
    seconds: f64,
) -> Result<()> {
    let begin = timeline.published.get(WARM).copied().unwrap_or(0.0);
    let gpus = timeline.gpus.len() as f64;
    let mut on = ChartBuilder::on(area)
        .caption(name, ("sans-serif", 15))
        .margin(10)
        .x_label_area_size(40)
        .y_label_area_size(46)
        .build_cartesian_2d(0.0..seconds, 0.0..gpus)?;
    on.configure_mesh()
        .disable_mesh()
        .label_style(("sans-serif", 12))
        .axis_desc_style(("sans-serif", 14))
        .x_desc("seconds (blue generates, orange trains, grey idles)")
        .y_desc("GPU")
        .y_label_formatter(&|_| String::new())
        .draw()?;
    let bar = |lane: usize, (from, to): (f64, f64), colour: RGBColor| {
        let (low, from, to) = (lane as f64, (from - begin).max(0.0), (to - begin).min(seconds));
        (from < to).then(|| Rectangle::new([(from, low + 0.1), (to, low + 0.9)], colour.filled()))
    };
    for (at, lane) in timeline.gpus.iter().enumerate() {
        on.draw_series(bar(at, (begin, begin + seconds), IDLE))?;
        on.draw_series(lane.generates.iter().filter_map(|span| bar(at, *span, GENERATES)))?;
        on.draw_series(lane.trains.iter().filter_map(|span| bar(at, *span, TRAINS)))?;
    }
    let steps = timeline.published.iter().map(|at| at - begin).filter(|at| (0.0..seconds).contains(at));
    on.draw_series(steps.map(|at| PathElement::new([(at, 0.0), (at, gpus)], INK.stroke_width(1))))?;
    Ok(())
}

/// Commit and machine, at the lower edge.
fn footnote(area: &DrawingArea<SVGBackend<'_>, Shift>, origin: &str) -> Result<()> {
    let style = ("sans-serif", 11).into_font().color(&INK);
    area.draw(&Text::new(origin.to_owned(), FOOTNOTE, style))?;
    Ok(())
}
