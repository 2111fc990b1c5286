//! A table whose syncs are measured.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use proxy_core::address::IpFamily;
use proxy_core::names::ServiceName;
use proxy_core::node::NodeFacts;
use proxy_core::resolved::{FrontendKind, ResolvedPort, ResolvedService, Route};
use proxy_core::sync::{SyncReport, TableSync};
use proxy_core::table::{DriftSignal, TableError};

use super::{Metrics, catalog, number};

/// Rules in one table of iptables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RuleCount {
    /// The table's name.
    pub table: &'static str,
    /// How many are installed.
    pub installed: usize,
    /// How many were written since the last time that was asked.
    pub written: usize,
}

/// Counts the rules in each table of iptables.
pub type RuleCounter = Box<dyn FnMut() -> Vec<RuleCount> + Send>;

/// Stands between the driver and a table and measures what passes.
pub struct MeasuredTable {
    table: Box<dyn TableSync>,
    metrics: Metrics,
    rules: Option<RuleCounter>,
    /// Whether the next sync will compare everything, which a failed one does not tell.
    is_distrusted: bool,
    services: BTreeSet<ServiceName>,
    /// Services with ports that want a local endpoint and have none.
    no_local: BTreeMap<ServiceName, NoLocal>,
}

/// How many ports of a Service have no local endpoint although a policy asks for one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct NoLocal {
    internal: usize,
    external: usize,
}

impl std::fmt::Debug for MeasuredTable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MeasuredTable")
            .field("family", &self.table.family())
            .finish_non_exhaustive()
    }
}

impl MeasuredTable {
    /// Measures this table.
    pub fn new(table: Box<dyn TableSync>, metrics: Metrics) -> Self {
        Self {
            table,
            metrics,
            rules: None,
            is_distrusted: true,
            services: BTreeSet::new(),
            no_local: BTreeMap::new(),
        }
    }

    /// Shows how many rules there are as well.
    pub fn with_rules(self, rules: RuleCounter) -> Self {
        Self { rules: Some(rules), ..self }
    }

    fn note(&mut self, name: &ServiceName, service: Option<&ResolvedService>) {
        let no_local = service.map_or_else(NoLocal::default, no_local);
        if no_local == NoLocal::default() {
            self.no_local.remove(name);
        } else {
            self.no_local.insert(name.clone(), no_local);
        }
        let is_news = match service {
            Some(_) => self.services.insert(name.clone()),
            None => self.services.remove(name),
        };
        if is_news {
            self.metrics.note_service(self.table.family(), name, service.is_some());
        }
    }

    fn show(&mut self) {
        self.show_rules();
        let family = self.table.family().to_string();
        let values = &self.metrics.shared.values;
        values.set(&catalog::SERVICES, &[&family], number(self.services.len()));
        let internal = self.no_local.values().map(|it| it.internal).sum();
        let external = self.no_local.values().map(|it| it.external).sum();
        for (policy, count) in [("internal", internal), ("external", external)] {
            values.set(&catalog::NO_LOCAL_ENDPOINTS, &[policy, &family], number(count));
        }
    }
}

impl MeasuredTable {
    fn show_rules(&mut self) {
        let family = self.table.family().to_string();
        let values = &self.metrics.shared.values;
        for count in self.rules.as_mut().map_or(Vec::new(), |rules| rules()) {
            let labels = [count.table, &family];
            values.set(&catalog::IPTABLES_RULES, &labels, number(count.installed));
            values.set(&catalog::IPTABLES_RULES_LAST, &labels, number(count.written));
        }
    }
}

/// Under policy Local, and only there, outside traffic is not answered if there are endpoints,
/// but none on this node.
fn no_local(service: &ResolvedService) -> NoLocal {
    let drops = |port: &ResolvedPort, internal: bool| {
        port.frontends.iter().any(|frontend| {
            (frontend.kind == FrontendKind::ClusterIp) == internal
                && frontend.routes.outside == Route::Drop
        })
    };
    let count = |internal| service.ports.iter().filter(|port| drops(port, internal)).count();
    NoLocal { internal: count(true), external: count(false) }
}

#[async_trait]
impl TableSync for MeasuredTable {
    fn family(&self) -> IpFamily {
        self.table.family()
    }

    fn stage(
        &mut self,
        services: Vec<(ServiceName, Option<Arc<ResolvedService>>)>,
        node: Option<NodeFacts>,
    ) {
        for (name, service) in &services {
            self.note(name, service.as_deref());
        }
        self.table.stage(services, node);
    }

    fn is_pending(&self) -> bool {
        self.table.is_pending()
    }

    fn distrust(&mut self) {
        self.is_distrusted = true;
        self.table.distrust();
    }

    async fn sync(&mut self) -> Result<SyncReport, TableError> {
        let started = Instant::now();
        let result = self.table.sync().await;
        let is_full = result.as_ref().map_or(self.is_distrusted, |report| report.full);
        self.is_distrusted = result.is_err();
        self.metrics.note_duration(self.family(), started.elapsed(), is_full, result.is_err());
        if result.is_ok() {
            self.show();
        }
        result
    }

    async fn clear(&mut self) -> Result<(), TableError> {
        self.is_distrusted = true;
        self.table.clear().await
    }

    fn tend_in(&self) -> Option<Duration> {
        self.table.tend_in()
    }

    async fn tend(&mut self) -> Result<(), TableError> {
        self.table.tend().await
    }

    fn drift_signal(&mut self) -> Result<Option<Box<dyn DriftSignal>>, TableError> {
        self.table.drift_signal()
    }
}
