//! Values of metrics, by their definitions.

use std::collections::BTreeMap;

use prometheus::core::Collector;
use prometheus::{CounterVec, GaugeVec, HistogramOpts, HistogramVec, Opts, Registry, TextEncoder};

use super::catalog::{ALL, Definition, Kind};
use crate::config::Mode;

/// The values of all metrics that a mode has.
///
/// A metric of another mode can be written to as well, to no effect, so that callers need not
/// know which exist.
#[derive(Clone, Debug)]
pub(super) struct Values {
    registry: Registry,
    by_name: BTreeMap<&'static str, Series>,
}

#[derive(Clone, Debug)]
enum Series {
    Counter(CounterVec),
    Gauge(GaugeVec),
    Histogram(HistogramVec),
}

impl Series {
    fn new(definition: &Definition) -> prometheus::Result<Self> {
        let Definition { name, help, labels, .. } = *definition;
        Ok(match definition.kind {
            Kind::Counter => Self::Counter(CounterVec::new(Opts::new(name, help), labels)?),
            Kind::Gauge => Self::Gauge(GaugeVec::new(Opts::new(name, help), labels)?),
            Kind::Histogram(buckets) => {
                let options = HistogramOpts::new(name, help).buckets(buckets.to_vec());
                Self::Histogram(HistogramVec::new(options, labels)?)
            }
        })
    }

    fn collector(&self) -> Box<dyn Collector> {
        match self.clone() {
            Self::Counter(series) => Box::new(series),
            Self::Gauge(series) => Box::new(series),
            Self::Histogram(series) => Box::new(series),
        }
    }
}

impl Values {
    pub(super) fn new(mode: Mode) -> prometheus::Result<Self> {
        let registry = Registry::new();
        let mut by_name = BTreeMap::new();
        for definition in ALL.iter().filter(|it| it.modes.contains(&mode)) {
            let series = Series::new(definition)?;
            registry.register(series.collector())?;
            by_name.insert(definition.name, series);
        }
        Ok(Self { registry, by_name })
    }

    /// Adds to a counter.
    pub(super) fn add(&self, counter: &Definition, labels: &[&str], count: f64) {
        if let Some(Series::Counter(series)) = self.by_name.get(counter.name)
            && let Ok(counter) = series.get_metric_with_label_values(labels)
        {
            counter.inc_by(count);
        }
    }

    /// Brings a counter that somebody else counts to its present value.
    pub(super) fn follow(&self, counter: &Definition, labels: &[&str], value: f64) {
        if let Some(Series::Counter(series)) = self.by_name.get(counter.name)
            && let Ok(counter) = series.get_metric_with_label_values(labels)
        {
            counter.reset();
            counter.inc_by(value);
        }
    }

    /// Sets a gauge.
    pub(super) fn set(&self, gauge: &Definition, labels: &[&str], value: f64) {
        if let Some(Series::Gauge(series)) = self.by_name.get(gauge.name)
            && let Ok(gauge) = series.get_metric_with_label_values(labels)
        {
            gauge.set(value);
        }
    }

    /// Adds an observation to a histogram.
    pub(super) fn observe(&self, histogram: &Definition, labels: &[&str], value: f64) {
        if let Some(Series::Histogram(series)) = self.by_name.get(histogram.name)
            && let Ok(histogram) = series.get_metric_with_label_values(labels)
        {
            histogram.observe(value);
        }
    }

    /// Forgets a series. One that does not exist is gone already.
    pub(super) fn remove(&self, definition: &Definition, labels: &[&str]) {
        let _absent = match self.by_name.get(definition.name) {
            Some(Series::Counter(series)) => series.remove_label_values(labels),
            Some(Series::Gauge(series)) => series.remove_label_values(labels),
            Some(Series::Histogram(series)) => series.remove_label_values(labels),
            None => Ok(()),
        };
    }

    /// Everything in the text format. Metrics without a series are left out.
    pub(super) fn text(&self) -> prometheus::Result<String> {
        TextEncoder::new().encode_to_string(&self.registry.gather())
    }
}
