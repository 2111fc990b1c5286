//! The report as one HTML file: charts and a table, without scripts and without anything from
//! elsewhere.

use std::fmt::Write as _;

use super::figures::{Figure, Metric};
use super::report::Report;
use super::text::{cell, heading, short};

const STYLE: &str = include_str!("report.css");

/// Width of a chart, in its own units, and of the parts of a bar's line.
const WIDTH: f64 = 640.0;
const LABEL: f64 = 130.0;
const BARS: f64 = 400.0;
const LINE: f64 = 26.0;

/// The whole file.
pub fn render(report: &Report) -> String {
    let mut page = format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>proxyd ab</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n\
         <h1>Modes side by side</h1>\n<p>{}</p>\n",
        escape(heading(report).trim_end())
    );
    if let Some(it) = &report.recommendation {
        let (mode, reason) = (escape(&it.mode), escape(&it.reason));
        let _infallible = writeln!(
            page,
            "<p class=\"advice\"><strong>Recommended: {mode}</strong>: {reason}.</p>"
        );
    }
    if !report.modes.is_empty() {
        page += "<div class=\"charts\">\n";
        page.extend(Metric::ALL.map(|metric| chart(report, metric)));
        page += "</div>\n";
        page += "<p>Thin lines and brackets: from the least to the greatest of one slice of time.</p>\n";
        page += &table(report);
    }
    page += &missing(report);
    page + "</body>\n</html>\n"
}

/// Bars of one metric, one for each mode.
fn chart(report: &Report, metric: Metric) -> String {
    let (title, unit) = metric.title();
    let better = if metric.is_rate() { "more is better" } else { "less is better" };
    let most = report
        .modes
        .iter()
        .map(|mode| mode.figure(metric))
        .fold(0.0, |most: f64, it| most.max(it.high).max(it.value));
    let mut height = 0.0;
    let mut bars = String::new();
    for (number, mode) in report.modes.iter().enumerate() {
        bars += &bar(number, &mode.mode, mode.figure(metric), most, height);
        height += LINE;
    }
    format!(
        "<figure>\n<figcaption>{title}, {unit} <small>({better})</small></figcaption>\n\
         <svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"{title}\">\n{bars}</svg>\n\
         </figure>\n"
    )
}

fn bar(number: usize, mode: &str, figure: Figure, most: f64, top: f64) -> String {
    let scale = |value: f64| if most > 0.0 { value / most * BARS } else { 0.0 };
    let (name, value) = (escape(mode), short(figure.value));
    let (length, low, high) = (scale(figure.value), scale(figure.low), scale(figure.high));
    let (text, middle) = (top + 17.0, top + 12.5);
    let mut svg = format!(
        "<text x=\"{:.1}\" y=\"{text}\" text-anchor=\"end\">{name}</text>\n\
         <rect class=\"mode{}\" x=\"{LABEL}\" y=\"{}\" width=\"{length:.1}\" height=\"17\">\
         <title>{name}: {}</title></rect>\n",
        LABEL - 8.0,
        number % 4,
        top + 4.0,
        cell(figure)
    );
    if high > low {
        let _infallible = writeln!(
            svg,
            "<line x1=\"{:.1}\" x2=\"{:.1}\" y1=\"{middle}\" y2=\"{middle}\"/>",
            LABEL + low,
            LABEL + high
        );
    }
    let end = LABEL + length.max(high) + 8.0;
    let _infallible = writeln!(svg, "<text x=\"{end:.1}\" y=\"{text}\">{value}</text>");
    svg
}

fn table(report: &Report) -> String {
    let mut html = "<table>\n<tr><th></th>".to_owned();
    html.extend(report.modes.iter().map(|mode| format!("<th>{}</th>", escape(&mode.mode))));
    html += "</tr>\n";
    for metric in Metric::ALL {
        let (title, unit) = metric.title();
        let _infallible = write!(html, "<tr><th>{title}, {unit}</th>");
        let cells = report.modes.iter().map(|mode| cell(mode.figure(metric)));
        html.extend(cells.map(|cell| format!("<td>{cell}</td>")));
        html += "</tr>\n";
    }
    html + "</table>\n"
}

fn missing(report: &Report) -> String {
    let modes = report.not_measured.iter().map(|it| format!("mode {}: {}", it.mode, it.reason));
    let lines = modes.chain(report.limits.iter().map(|limit| (*limit).to_owned()));
    let items = lines.map(|line| format!("<li>{}</li>\n", escape(&line)));
    format!("<h2>Not measured</h2>\n<ul>\n{}</ul>\n", items.collect::<String>())
}

/// Text that means itself, in content and in quoted attributes.
fn escape(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => safe += "&amp;",
            '<' => safe += "&lt;",
            '>' => safe += "&gt;",
            '"' => safe += "&quot;",
            '\'' => safe += "&#39;",
            other => safe.push(other),
        }
    }
    safe
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_cannot_become_markup() {
        assert_eq!(escape("<b a=\"'&'\">"), "&lt;b a=&quot;&#39;&amp;&#39;&quot;&gt;");
    }

    #[test]
    fn a_figure_of_nothing_has_a_bar_without_length() {
        let svg = bar(0, "nftables", Figure::default(), 0.0, 0.0);
        assert!(svg.contains("width=\"0.0\"") && !svg.contains("NaN"), "{svg}");
    }
}
