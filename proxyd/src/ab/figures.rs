//! From samples to figures.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

use super::protocol::{Activity, Programmed, Sample};

/// What is compared, in the order of reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Metric {
    /// From the objects to all rules in the kernel, milliseconds.
    ProgramMs,
    /// Time on a processor meanwhile, milliseconds.
    ProgramCpuMs,
    /// Memory of the process with everything programmed (resident set size), MiB.
    ResidentMib,
    /// The most memory of one program that was run, MiB.
    LargestChildMib,
    /// Median time of a change, from the object to the kernel, milliseconds.
    ChangeP50Ms,
    /// 99th percentile of the same.
    ChangeP99Ms,
    /// Mean time on a processor per change, milliseconds.
    ChangeCpuMs,
    /// Median time of connect(2) through a Service, microseconds.
    ConnectP50Us,
    /// 99th percentile of the same.
    ConnectP99Us,
    /// Connections per second, one after the other.
    ConnectsPerS,
    /// Datagrams of one flow that arrive, per second.
    DatagramsPerS,
    /// One long TCP connection, Gbit per second.
    StreamGbitPerS,
}

impl Metric {
    /// All of them.
    pub const ALL: [Self; 12] = [
        Self::ProgramMs,
        Self::ProgramCpuMs,
        Self::ResidentMib,
        Self::LargestChildMib,
        Self::ChangeP50Ms,
        Self::ChangeP99Ms,
        Self::ChangeCpuMs,
        Self::ConnectP50Us,
        Self::ConnectP99Us,
        Self::ConnectsPerS,
        Self::DatagramsPerS,
        Self::StreamGbitPerS,
    ];

    /// What people call it, and its unit.
    pub fn title(self) -> (&'static str, &'static str) {
        match self {
            Self::ProgramMs => ("program everything", "ms"),
            Self::ProgramCpuMs => ("programming, CPU", "ms"),
            Self::ResidentMib => ("resident memory", "MiB"),
            Self::LargestChildMib => ("largest child process", "MiB"),
            Self::ChangeP50Ms => ("one change, p50", "ms"),
            Self::ChangeP99Ms => ("one change, p99", "ms"),
            Self::ChangeCpuMs => ("one change, CPU", "ms"),
            Self::ConnectP50Us => ("connect, p50", "µs"),
            Self::ConnectP99Us => ("connect, p99", "µs"),
            Self::ConnectsPerS => ("connections", "1/s"),
            Self::DatagramsPerS => ("UDP, one flow", "packets/s"),
            Self::StreamGbitPerS => ("TCP, one flow", "Gbit/s"),
        }
    }

    /// Whether more is better.
    pub fn is_rate(self) -> bool {
        matches!(self, Self::ConnectsPerS | Self::DatagramsPerS | Self::StreamGbitPerS)
    }
}

/// A figure, with the least and the greatest that one slice of time gave for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Figure {
    /// Of all slices together; for rates, the median of the slices.
    pub value: f64,
    /// The least of one slice.
    pub low: f64,
    /// The greatest of one slice.
    pub high: f64,
}

impl Figure {
    /// A figure that was measured once.
    pub fn once(value: f64) -> Self {
        Self { value, low: value, high: value }
    }
}

/// What one mode did.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ModeResult {
    /// Name of the mode, with its variant.
    pub mode: String,
    /// Number of changes that were measured.
    pub changes: u64,
    /// Number of connections that were measured.
    pub connections: u64,
    /// Every metric has its figure.
    pub figures: BTreeMap<Metric, Figure>,
}

impl ModeResult {
    /// The figure of a metric.
    pub fn figure(&self, metric: Metric) -> Figure {
        self.figures.get(&metric).copied().unwrap_or_default()
    }
}

/// The samples of one mode.
#[derive(Clone, Debug, Default)]
pub(super) struct Samples {
    programmed: Programmed,
    changes: Vec<Sample>,
    connections: Vec<Sample>,
    datagrams: Vec<Sample>,
    streams: Vec<Sample>,
}

impl Samples {
    /// Those of a mode that has programmed everything.
    pub(super) fn new(programmed: Programmed) -> Self {
        Self { programmed, ..Self::default() }
    }

    /// Adds a slice.
    pub(super) fn add(&mut self, activity: Activity, sample: Sample) {
        match activity {
            Activity::Changes => self.changes.push(sample),
            Activity::Connections => self.connections.push(sample),
            Activity::Datagrams => self.datagrams.push(sample),
            Activity::Stream => self.streams.push(sample),
        }
    }

    /// What they amount to.
    pub(super) fn result(&self, mode: &str) -> ModeResult {
        let amount = |slices: &[Sample]| slices.iter().map(|slice| slice.amount).sum();
        let figures = Metric::ALL.into_iter().map(|metric| (metric, self.figure(metric)));
        ModeResult {
            mode: mode.to_owned(),
            changes: amount(&self.changes),
            connections: amount(&self.connections),
            figures: figures.collect(),
        }
    }

    fn figure(&self, metric: Metric) -> Figure {
        let programmed = &self.programmed;
        let once = |value: f64| Figure::once(value);
        match metric {
            Metric::ProgramMs => once(millis(programmed.time)),
            Metric::ProgramCpuMs => once(millis(programmed.cpu)),
            Metric::ResidentMib => once(mib(programmed.resident_bytes)),
            Metric::LargestChildMib => once(mib(programmed.largest_child_bytes)),
            Metric::ChangeP50Ms => percentile(&self.changes, 0.5, 1e6),
            Metric::ChangeP99Ms => percentile(&self.changes, 0.99, 1e6),
            Metric::ChangeCpuMs => cpu_each(&self.changes),
            Metric::ConnectP50Us => percentile(&self.connections, 0.5, 1e3),
            Metric::ConnectP99Us => percentile(&self.connections, 0.99, 1e3),
            Metric::ConnectsPerS => rate(&self.connections, 1.0),
            Metric::DatagramsPerS => rate(&self.datagrams, 1.0),
            Metric::StreamGbitPerS => rate(&self.streams, 8e-9),
        }
    }
}

/// A percentile of all times; `nanos` is the unit.
fn percentile(slices: &[Sample], share: f64, nanos: f64) -> Figure {
    let of = |times: Vec<u64>| number(rank(times, share)) / nanos;
    let each = slices.iter().map(|slice| of(slice.nanos.clone()));
    spread(of(slices.iter().flat_map(|slice| slice.nanos.clone()).collect()), each)
}

fn cpu_each(slices: &[Sample]) -> Figure {
    let of = |cpu: Duration, amount: u64| millis(cpu) / number(amount.max(1));
    let all = slices.iter().map(|slice| slice.cpu).sum();
    let amount = slices.iter().map(|slice| slice.amount).sum();
    spread(of(all, amount), slices.iter().map(|slice| of(slice.cpu, slice.amount)))
}

/// The median of the rates of the slices, in this unit.
fn rate(slices: &[Sample], unit: f64) -> Figure {
    let of = |slice: &Sample| number(slice.amount) * unit / slice.time.as_secs_f64().max(1e-9);
    let mut rates: Vec<f64> = slices.iter().map(of).collect();
    rates.sort_by(f64::total_cmp);
    let middle = rates.get(rates.len() / 2).copied().unwrap_or_default();
    spread(middle, rates.into_iter())
}

fn spread(value: f64, each: impl Iterator<Item = f64>) -> Figure {
    each.fold(Figure::once(value), |figure, of_slice| Figure {
        low: figure.low.min(of_slice),
        high: figure.high.max(of_slice),
        ..figure
    })
}

/// The nearest rank: the least value that this share of all values does not exceed.
fn rank(mut values: Vec<u64>, share: f64) -> u64 {
    values.sort_unstable();
    let mut below = number(u64::try_from(values.len()).unwrap_or(u64::MAX)) * share;
    let index = values.iter().position(|_| {
        below -= 1.0;
        below <= 0.0
    });
    index.and_then(|index| values.get(index)).copied().unwrap_or_default()
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

fn mib(bytes: u64) -> f64 {
    number(bytes) / f64::from(1 << 20)
}

#[expect(clippy::cast_precision_loss, reason = "figures for people have three digits")]
fn number(count: u64) -> f64 {
    count as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_values_that_occurred() {
        let check = |share, expected| assert_eq!(rank((1..=100).rev().collect(), share), expected);
        check(0.5, 50);
        check(0.99, 99);
        check(1.0, 100);
        assert_eq!(rank(vec![7], 0.5), 7);
        assert_eq!(rank(vec![7], 0.99), 7);
        assert_eq!(rank(Vec::new(), 0.5), 0);
    }

    #[test]
    fn figures_pool_slices_and_keep_their_spread() {
        let slice = |nanos: &[u64], cpu| Sample {
            nanos: nanos.to_vec(),
            time: Duration::from_secs(1),
            cpu: Duration::from_millis(cpu),
            amount: u64::try_from(nanos.len()).unwrap(),
        };
        let mut samples = Samples::default();
        samples.add(Activity::Changes, slice(&[1_000_000, 3_000_000], 8));
        samples.add(Activity::Changes, slice(&[2_000_000], 1));
        let result = samples.result("nftables");
        assert_eq!(result.changes, 3);
        let p50 = result.figure(Metric::ChangeP50Ms);
        assert_eq!(p50, Figure { value: 2.0, low: 1.0, high: 2.0 });
        let cpu = result.figure(Metric::ChangeCpuMs);
        assert_eq!(cpu, Figure { value: 3.0, low: 1.0, high: 4.0 });
    }

    #[test]
    fn rates_are_medians_of_slices() {
        let mut samples = Samples::default();
        for (amount, seconds) in [(1_000_000_000, 1), (1_000_000_000, 2), (1_000_000_000, 4)] {
            let time = Duration::from_secs(seconds);
            samples.add(Activity::Stream, Sample { time, amount, ..Sample::default() });
        }
        let figure = samples.result("").figure(Metric::StreamGbitPerS);
        assert_eq!(figure, Figure { value: 4.0, low: 2.0, high: 8.0 });
    }

    #[test]
    fn every_metric_has_a_figure() {
        assert_eq!(Samples::default().result("").figures.len(), Metric::ALL.len());
    }
}
