//! What is read from the kernel whenever somebody asks for metrics.

use node_sys::{conntrack, process};

use super::catalog::{self, Definition};
use super::registry::Values;

/// What the kernel tells; what it does not tell is `None`, and its metric is absent.
#[derive(Debug, Default)]
pub(super) struct Machine {
    flows: Option<conntrack::Usage>,
    statistics: conntrack::Statistics,
    process: Option<process::Usage>,
}

impl Machine {
    /// Reads all of it. Connection tracking is that of the calling thread's network namespace.
    pub(super) fn read() -> Self {
        Self {
            // Both fail where conntrack is not loaded.
            flows: conntrack::usage().ok(),
            statistics: conntrack::statistics().unwrap_or_default(),
            process: process::usage().ok(),
        }
    }

    pub(super) fn show(&self, values: &Values) {
        let gauge = |definition: &Definition, value: Option<u64>| match value {
            Some(value) => values.set(definition, &[], number(value)),
            None => values.remove(definition, &[]),
        };
        gauge(&catalog::FLOWS, self.flows.map(|flows| flows.count));
        gauge(&catalog::FLOWS_LIMIT, self.flows.map(|flows| flows.max));
        for (counter, event) in [
            (&catalog::INSERT_FAILED, "insert_failed"),
            (&catalog::FLOWS_DROPPED, "drop"),
            (&catalog::FLOWS_EARLY_DROPPED, "early_drop"),
        ] {
            match self.statistics.get(event) {
                Some(count) => values.follow(counter, &[], number(count)),
                None => values.remove(counter, &[]),
            }
        }
        let Some(process) = self.process else { return };
        values.follow(&catalog::PROCESS_CPU, &[], process.cpu.as_secs_f64());
        gauge(&catalog::PROCESS_THREADS, Some(process.threads));
        gauge(&catalog::PROCESS_RESIDENT, Some(process.resident_memory_bytes));
        gauge(&catalog::PROCESS_VIRTUAL, Some(process.virtual_memory_bytes));
        gauge(&catalog::PROCESS_FDS, Some(process.open_files));
        // As other Prometheus clients show that there is no limit.
        let limit = |limit: Option<u64>| Some(limit.unwrap_or(u64::MAX));
        gauge(&catalog::PROCESS_MAX_FDS, limit(process.max_open_files));
        gauge(&catalog::PROCESS_MAX_VIRTUAL, limit(process.max_virtual_memory_bytes));
    }
}

/// The text format has floating point numbers only.
#[expect(clippy::cast_precision_loss, reason = "see above")]
fn number(value: u64) -> f64 {
    value as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Mode;

    #[test]
    fn what_is_not_told_is_absent() {
        let values = Values::new(Mode::Nftables).unwrap();
        let flows = Some(conntrack::Usage { count: 7, max: 100 });
        Machine { flows, ..Machine::default() }.show(&values);
        let text = values.text().unwrap();
        assert!(text.contains("\nproxyd_conntrack_entries 7\n"), "{text}");
        assert!(text.contains("\nproxyd_conntrack_entries_limit 100\n"));
        assert!(!text.contains("insert_failed") && !text.contains("process_"));
        Machine::default().show(&values);
        assert!(!values.text().unwrap().contains("proxyd_conntrack"));
    }

    #[test]
    fn this_process_is_shown() {
        let values = Values::new(Mode::Nftables).unwrap();
        Machine::read().show(&values);
        Machine::read().show(&values);
        assert!(values.text().unwrap().contains("\n# TYPE process_cpu_seconds_total counter\n"));
    }
}
