//! A forecast as an SVG file: attempts and what waits, over time.

use std::error::Error;

use plotters::{
    coord::{Shift, types::RangedCoordf64},
    prelude::*,
};

use super::{
    PolicyForecast, SimulationArgs,
    format::short,
    report::{attempts_curve, waiting_curve},
};
use crate::error::CliError;

const SIZE: (u32, u32) = (960, 720);
const COLOURS: [RGBColor; 2] = [RGBColor(0, 110, 160), RGBColor(200, 110, 0)];
const GREY: RGBColor = RGBColor(120, 120, 120);
/// Of what the outage is shaded with.
const PALE_RED: RGBAColor = RGBAColor(220, 50, 50, 0.12);

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Chart<'a, 'b> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<RangedCoordf64, RangedCoordf64>>;

/// The text of the file.
pub(super) fn draw(
    question: &SimulationArgs,
    answers: &[PolicyForecast],
) -> Result<String, CliError> {
    let mut svg = String::new();
    paint(&mut svg, question, answers)
        .map_err(|why| CliError::failed(format!("cannot draw the plot: {why}")))?;
    Ok(svg)
}

fn paint(
    svg: &mut String,
    question: &SimulationArgs,
    answers: &[PolicyForecast],
) -> Result<(), Box<dyn Error>> {
    let root = SVGBackend::with_string(svg, SIZE).into_drawing_area();
    root.fill(&WHITE)?;
    let (upper, lower) = root.split_vertically(SIZE.1 / 2);
    let curves = |of: fn(&retryrmq::Forecast) -> Vec<f64>| -> Vec<Vec<f64>> {
        answers.iter().map(|answer| of(&answer.forecast)).collect()
    };
    plot(
        &upper,
        "attempts a second",
        question,
        answers,
        &curves(attempts_curve),
        Some(question.rate),
    )?;
    plot(
        &lower,
        "messages that wait for a retry",
        question,
        answers,
        &curves(waiting_curve),
        None,
    )?;
    root.present()?;
    Ok(())
}

fn plot(
    area: &Area<'_>,
    title: &str,
    question: &SimulationArgs,
    answers: &[PolicyForecast],
    curves: &[Vec<f64>],
    arrivals: Option<f64>,
) -> Result<(), Box<dyn Error>> {
    // Minutes, or seconds where there are few.
    let (unit, name) = match question.lasts.as_secs() {
        0..180 => (1.0, "s"),
        180..18_000 => (60.0, "min"),
        _ => (3_600.0, "h"),
    };
    let end = question.lasts.as_secs_f64() / unit;
    let top = curves
        .iter()
        .flatten()
        .copied()
        .fold(arrivals.unwrap_or(0.0), f64::max)
        .max(1.0);
    let mut chart: Chart<'_, '_> = ChartBuilder::on(area)
        .caption(title, ("sans-serif", 20))
        .margin(12)
        .x_label_area_size(34)
        .y_label_area_size(64)
        .build_cartesian_2d(0.0..end, 0.0..top * 1.05)?;
    if let Some((start, length)) = question.outage {
        let (from, to) = (
            start.as_secs_f64() / unit,
            (start + length).as_secs_f64() / unit,
        );
        let shade = Rectangle::new([(from, 0.0), (to, top * 1.05)], PALE_RED.filled());
        chart
            .draw_series([shade])?
            .label("outage")
            .legend(|(x, y)| Rectangle::new([(x, y - 5), (x + 18, y + 5)], PALE_RED.filled()));
    }
    chart
        .configure_mesh()
        .light_line_style(WHITE)
        .x_desc(name)
        .y_label_formatter(&|number| short(*number))
        .draw()?;
    if let Some(rate) = arrivals {
        chart
            .draw_series(LineSeries::new([(0.0, rate), (end, rate)], GREY))?
            .label("arrivals")
            .legend(|(x, y)| PathElement::new([(x, y), (x + 18, y)], GREY));
    }
    for ((answer, curve), colour) in answers.iter().zip(curves).zip(COLOURS) {
        let step = end / curve.len().max(1) as f64;
        let points = curve
            .iter()
            .enumerate()
            .map(|(index, value)| ((index as f64 + 0.5) * step, *value));
        chart
            .draw_series(LineSeries::new(points, colour.stroke_width(2)))?
            .label(answer.policy.to_string())
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], colour.stroke_width(2)));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperRight)
        .background_style(WHITE.mix(0.85))
        .border_style(GREY)
        .draw()?;
    Ok(())
}
