//! The report as a table for the terminal.

use std::fmt::Write as _;

use super::figures::{Figure, Metric};
use super::report::Report;

/// The whole report, each line with its end.
pub fn render(report: &Report) -> String {
    let mut text = heading(report) + "\n";
    if !report.modes.is_empty() {
        text += &table(report);
        text += "\nIn brackets: the least and the greatest of one slice of time.\n";
    }
    if let Some(recommendation) = &report.recommendation {
        let _infallible =
            writeln!(text, "\nRecommended: {}: {}.", recommendation.mode, recommendation.reason);
    }
    text += "\nNot measured:\n";
    let modes = report.not_measured.iter().map(|it| format!("mode {}: {}", it.mode, it.reason));
    for line in modes.chain(report.limits.iter().map(|limit| (*limit).to_owned())) {
        let _infallible = writeln!(text, "- {line}");
    }
    text
}

/// Where and what, in one line.
pub(super) fn heading(report: &Report) -> String {
    let setup = &report.setup;
    format!(
        "{} Services x {} endpoints, Linux {}, {} CPUs; {} rounds of {} ms slices\n",
        setup.services, setup.endpoints, setup.kernel, setup.cpus, setup.rounds, setup.slice_ms
    )
}

fn table(report: &Report) -> String {
    let mut rows = vec![vec![String::new()]];
    rows[0].extend(report.modes.iter().map(|mode| mode.mode.clone()));
    for metric in Metric::ALL {
        let (title, unit) = metric.title();
        let cells = report.modes.iter().map(|mode| cell(mode.figure(metric)));
        rows.push(std::iter::once(format!("{title}, {unit}")).chain(cells).collect());
    }
    align(&rows)
}

/// A figure with its spread.
pub(super) fn cell(figure: Figure) -> String {
    let (low, value, high) = (short(figure.low), short(figure.value), short(figure.high));
    if low == value && high == value { value } else { format!("{value} ({low}..{high})") }
}

/// Columns side by side: the first one to the left, the others to the right.
fn align(rows: &[Vec<String>]) -> String {
    let width = |column: usize| {
        rows.iter().filter_map(|row| row.get(column)).map(|it| it.chars().count()).max()
    };
    let mut text = String::new();
    for row in rows {
        let cells = row.iter().enumerate().map(|(column, cell)| {
            let width = width(column).unwrap_or(0);
            if column == 0 { format!("{cell:<width$}") } else { format!("  {cell:>width$}") }
        });
        let line: String = cells.collect();
        text += line.trim_end();
        text.push('\n');
    }
    text
}

/// A number with about three digits that count, and no more.
pub(super) fn short(value: f64) -> String {
    let digits = match value.abs() {
        100.0.. => 0,
        10.0.. => 1,
        1.0.. => 2,
        0.1.. => 3,
        _ => 4,
    };
    let text = format!("{value:.digits$}");
    if !text.contains('.') {
        return group(&text);
    }
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Thousands set off by commas.
fn group(digits: &str) -> String {
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        let left = digits.len() - place;
        if place > 0 && left.is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_the_digits_that_count() {
        let check = |value, expected: &str| assert_eq!(short(value), expected);
        check(0.0, "0");
        check(0.04231, "0.0423");
        check(0.5, "0.5");
        check(1.234, "1.23");
        check(12.0, "12");
        check(123.4, "123");
        check(1_234_567.8, "1,234,568");
    }

    #[test]
    fn a_spread_is_shown_where_there_is_one() {
        assert_eq!(cell(Figure::once(3.0)), "3");
        assert_eq!(cell(Figure { value: 3.0, low: 2.0, high: 4.5 }), "3 (2..4.5)");
    }
}
