//! Go's spelling of durations, Kubernetes' spelling of quantities.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// A signed time span in nanoseconds with Go's spelling, because a file may hold a negative one
/// in a section that is not in use.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct GoDuration(pub(super) i64);

/// Units from the longest down; the order of [`fmt::Display`].
const UNITS: [(&str, i128); 8] = [
    ("h", 3_600_000_000_000),
    ("m", 60_000_000_000),
    ("s", 1_000_000_000),
    ("ms", 1_000_000),
    ("us", 1_000),
    ("µs", 1_000),
    ("μs", 1_000),
    ("ns", 1),
];

/// Digits after the point that can still matter: an hour has less than 10¹³ nanoseconds.
const FRACTION_DIGITS: usize = 15;

/// A text that is no Go duration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not a duration like 30s, 1h2m, 1.5h or 100ms")]
pub struct ParseDurationError;

impl GoDuration {
    /// A whole number of seconds.
    pub(super) const fn seconds(seconds: i64) -> Self {
        Self(seconds * 1_000_000_000)
    }

    /// The span as the standard library knows it; zero for negative spans.
    #[must_use]
    pub fn to_std(self) -> Duration {
        Duration::from_nanos(u64::try_from(self.0).unwrap_or(0))
    }
}

impl serde::Serialize for GoDuration {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl FromStr for GoDuration {
    type Err = ParseDurationError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (sign, mut rest) = match text.strip_prefix('-') {
            Some(rest) => (-1, rest),
            None => (1, text.strip_prefix('+').unwrap_or(text)),
        };
        if rest == "0" {
            return Ok(Self(0));
        }
        if rest.is_empty() {
            return Err(ParseDurationError);
        }
        let mut total: i128 = 0;
        while !rest.is_empty() {
            let (span, tail) = leading_span(rest).ok_or(ParseDurationError)?;
            total = total.checked_add(span).ok_or(ParseDurationError)?;
            rest = tail;
        }
        i64::try_from(total * sign).map(Self).map_err(|_| ParseDurationError)
    }
}

/// Takes one `1.5h` off the front.
fn leading_span(text: &str) -> Option<(i128, &str)> {
    let number_len = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, rest) = text.split_at(number_len);
    let unit_len = rest.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(rest.len());
    let (unit, rest) = rest.split_at(unit_len);
    let (_, scale) = UNITS.iter().find(|(name, _)| *name == unit)?;
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.len() + fraction.len() == 0 || fraction.contains('.') {
        return None;
    }
    let whole: i128 = if whole.is_empty() { 0 } else { whole.parse().ok()? };
    let fraction = &fraction[..fraction.len().min(FRACTION_DIGITS)];
    let mut span = whole.checked_mul(*scale)?;
    if !fraction.is_empty() {
        let digits = u32::try_from(fraction.len()).ok()?;
        span = span.checked_add(fraction.parse::<i128>().ok()? * scale / 10_i128.pow(digits))?;
    }
    (span <= i128::from(i64::MAX) + 1).then_some((span, rest))
}

impl fmt::Display for GoDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 < 0 {
            f.write_str("-")?;
        }
        let nanos = self.0.unsigned_abs();
        let (hours, minutes) = (nanos / 3_600_000_000_000, nanos / 60_000_000_000 % 60);
        match nanos {
            0 => f.write_str("0s"),
            1..1_000 => write!(f, "{nanos}ns"),
            1_000..1_000_000 => decimal(f, nanos, 1_000, "µs"),
            1_000_000..1_000_000_000 => decimal(f, nanos, 1_000_000, "ms"),
            _ => {
                if hours > 0 {
                    write!(f, "{hours}h")?;
                }
                if hours + minutes > 0 {
                    write!(f, "{minutes}m")?;
                }
                decimal(f, nanos % 60_000_000_000, 1_000_000_000, "s")
            }
        }
    }
}

/// Writes `nanos / unit` without trailing zeros.
fn decimal(f: &mut fmt::Formatter<'_>, nanos: u64, unit: u64, name: &str) -> fmt::Result {
    write!(f, "{}", nanos / unit)?;
    let digits = unit.ilog10() as usize;
    let fraction = format!("{:0digits$}", nanos % unit);
    let fraction = fraction.trim_end_matches('0');
    if !fraction.is_empty() {
        write!(f, ".{fraction}")?;
    }
    f.write_str(name)
}

/// Reads a Kubernetes quantity of bytes: `512`, `1K`, `2Ki`.
pub(super) fn parse_quantity(text: &str) -> Option<u64> {
    const SUFFIXES: [(&str, u64); 11] = [
        ("Ki", 1 << 10),
        ("Mi", 1 << 20),
        ("Gi", 1 << 30),
        ("Ti", 1 << 40),
        ("Pi", 1 << 50),
        ("k", 1_000),
        ("K", 1_000),
        ("M", 1_000_000),
        ("G", 1_000_000_000),
        ("T", 1_000_000_000_000),
        ("", 1),
    ];
    SUFFIXES.iter().find_map(|(suffix, scale)| {
        let number: u64 = text.strip_suffix(suffix)?.parse().ok()?;
        number.checked_mul(*scale)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_as_go_reads_and_writes_them() {
        for (text, nanos, written) in [
            ("30s", 30_000_000_000, "30s"),
            ("1h2m", 3_720_000_000_000, "1h2m0s"),
            ("1.5h", 5_400_000_000_000, "1h30m0s"),
            ("100ms", 100_000_000, "100ms"),
            ("0", 0, "0s"),
            ("-0", 0, "0s"),
            ("0s", 0, "0s"),
            ("+5s", 5_000_000_000, "5s"),
            ("-1.5s", -1_500_000_000, "-1.5s"),
            (".5s", 500_000_000, "500ms"),
            ("1.s", 1_000_000_000, "1s"),
            ("1us2ns", 1_002, "1.002µs"),
            ("1µs", 1_000, "1µs"),
            ("15m", 900_000_000_000, "15m0s"),
            ("24h", 86_400_000_000_000, "24h0m0s"),
        ] {
            assert_eq!(text.parse(), Ok(GoDuration(nanos)), "{text}");
            assert_eq!(GoDuration(nanos).to_string(), written);
            assert_eq!(written.parse(), Ok(GoDuration(nanos)));
        }
    }

    #[test]
    fn texts_that_are_no_duration() {
        for text in ["", "-", "30", "s", ".s", "1.2.3s", "1d", "30 s", "1e3s", "9999999999h"] {
            assert_eq!(text.parse::<GoDuration>(), Err(ParseDurationError), "{text}");
        }
    }

    #[test]
    fn quantities() {
        for (text, bytes) in
            [("0", 0), ("512", 512), ("1K", 1_000), ("2Ki", 2_048), ("5Mi", 5 << 20)]
        {
            assert_eq!(parse_quantity(text), Some(bytes), "{text}");
        }
        assert_eq!(parse_quantity("many"), None);
        assert_eq!(parse_quantity("-1"), None);
        assert_eq!(parse_quantity("999999999999999Pi"), None);
    }
}
