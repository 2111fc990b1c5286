//! What this kernel can do.

use std::sync::Arc;

use node_sys::netlink::{Batch, BatchError, KernelError, Protocol, Socket, Subsystem};
use proxy_core::node::{NodeFacts, NodePortAddresses};
use proxy_core::rules::RuleSet;
use proxy_core::table::{TableError, TableErrorKind};

use crate::compile::{Compiler, Rules, TableConfig};
use crate::expr::Expr;
use crate::layout;
use crate::model::{Key, Rule, RuleSpec};
use crate::table::netlink_error;
use crate::wire::Writer;

/// Number of the trial's message that makes its table.
const TABLE: u32 = 1;

/// Names of the table that is tried, which never comes to exist, and of one whose deletion fails,
/// so that nothing of the trial is kept. Nobody else has tables of these names.
fn names() -> (String, String) {
    let process = std::process::id();
    (format!("proxyd-probe-{process}"), format!("proxyd-absent-{process}"))
}

/// Tries whether this kernel takes everything the table is made of. Nothing is changed.
///
/// The error names each missing feature, or the missing privilege.
pub fn detect(config: &TableConfig) -> Result<(), TableError> {
    let mut socket = Socket::open(Protocol::NETFILTER)
        .map_err(|error| netlink_error("open a netlink socket", error))?;
    let trial = Trial::new(config);
    let mut batch = trial.batch;
    match socket.commit(&mut batch) {
        Err(BatchError::Rejected { errors, .. }) => {
            // The last message is the one that has to fail.
            let errors = errors.iter().filter(|error| error.sequence != batch.count());
            let missing = missing(errors, &trial.features);
            if missing.is_empty() {
                return Ok(());
            }
            let operation = format!(
                "use nftables for {}: this kernel lacks {}",
                config.family,
                missing.join(", ")
            );
            Err(TableError::new(TableErrorKind::Unsupported, operation))
        }
        Err(error) if error.is_permission() => {
            let operation = "use nftables: capability CAP_NET_ADMIN is missing";
            Err(TableError::new(TableErrorKind::Permission, operation).with_source(error))
        }
        Err(error) => {
            let operation = "use nftables: this kernel has none (CONFIG_NF_TABLES)";
            Err(TableError::new(TableErrorKind::Unsupported, operation).with_source(error))
        }
        // Without the failure the trial's table exists now.
        Ok(()) => {
            let (probe, _) = names();
            let writer = Writer { family: config.family, table: &probe };
            let mut batch = Batch::new(Subsystem::NFTABLES, None);
            writer.delete_table(&mut batch);
            let removed = socket.commit(&mut batch);
            let operation = format!("try nftables without effect; table {probe} was removed");
            let error = TableError::new(TableErrorKind::Unsupported, operation);
            Err(match removed {
                Ok(()) => error,
                Err(cause) => error.with_source(cause),
            })
        }
    }
}

/// What the kernel lacks, each thing once. In a table that could not be made nothing else can be:
/// then the table is all there is to tell.
fn missing<'a>(
    errors: impl Iterator<Item = &'a KernelError> + Clone,
    features: &[String],
) -> Vec<String> {
    let table = errors.clone().find(|error| error.sequence == TABLE);
    let told = table.into_iter().chain(errors.filter(|_| table.is_none()));
    let mut missing = Vec::new();
    for line in told.map(|error| describe(error, features)) {
        if !missing.contains(&line) {
            missing.push(line);
        }
    }
    missing
}

fn describe(error: &KernelError, features: &[String]) -> String {
    let feature = usize::try_from(error.sequence)
        .ok()
        .and_then(|number| features.get(number.checked_sub(1)?))
        .map_or("an unknown feature", String::as_str);
    format!("{feature} ({error})")
}

/// A batch with one object of each sort, and what each of its messages needs.
struct Trial {
    batch: Batch,
    features: Vec<String>,
}

impl Trial {
    fn new(config: &TableConfig) -> Self {
        let (probe, absent) = names();
        let writer = Writer { family: config.family, table: &probe };
        let mut trial = Self { batch: Batch::new(Subsystem::NFTABLES, None), features: Vec::new() };
        writer.table(&mut trial.batch);
        trial.needs(&format!("tables of family {}", config.family));
        for (key, rule) in &fixed_objects(config) {
            match (key, rule) {
                (Key::Set(name), Rule::Set(spec)) => {
                    writer.set(name, spec, &mut trial.batch);
                    trial.needs(if spec.interval {
                        "sets of ranges over several fields"
                    } else {
                        "sets and maps"
                    });
                }
                (Key::Chain(name), Rule::Chain(spec)) => {
                    writer.chain(&name.0, spec, &mut trial.batch);
                    trial.needs(if spec.base.is_some() {
                        "nat and filter chains (CONFIG_NFT_NAT)"
                    } else {
                        "chains"
                    });
                    for rule in &spec.rules {
                        writer.rule(&name.0, rule, &mut trial.batch);
                        trial.needs(&features_of(rule));
                    }
                }
                _ => {}
            }
        }
        Writer { family: config.family, table: &absent }.delete_table(&mut trial.batch);
        trial.needs("nothing");
        trial
    }

    fn needs(&mut self, feature: &str) {
        let count = usize::try_from(self.batch.count()).unwrap_or(usize::MAX);
        self.features.resize(count, feature.to_owned());
    }
}

/// Everything that is there without any Service, and a map that packets fill.
fn fixed_objects(config: &TableConfig) -> Rules {
    let mut objects = RuleSet::new();
    let facts = NodeFacts {
        family: config.family,
        node_port_addresses: NodePortAddresses::All,
        addresses: [].into(),
        service_ranges: Vec::new(),
    };
    Compiler::new(config).node(&facts, &mut objects);
    let affinity = Arc::new(layout::pool_affinity_set());
    objects.insert(Key::Set(layout::POOL_AFFINITY.into()), Rule::Set(affinity));
    objects
}

/// The kernel modules behind a rule's less common steps.
fn features_of(rule: &RuleSpec) -> String {
    let mut features: Vec<&str> = rule
        .exprs
        .iter()
        .filter_map(|expr| match expr {
            Expr::Random { .. } => Some("random numbers (CONFIG_NFT_NUMGEN)"),
            Expr::FibType { .. } => Some("route look-ups (CONFIG_NFT_FIB_IPV4, _IPV6)"),
            Expr::Dnat { .. } => Some("address translation (CONFIG_NFT_NAT)"),
            Expr::Masquerade => Some("masquerading (CONFIG_NFT_MASQ)"),
            Expr::Reject(_) => Some("refusals (CONFIG_NFT_REJECT)"),
            Expr::Ct { .. } => Some("connection tracking (CONFIG_NFT_CT)"),
            _ => None,
        })
        .collect();
    features.dedup();
    if features.is_empty() { "basic rules".to_owned() } else { features.join(" or ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(refused: &[u32], expected: &[&str]) {
        let features = ["tables", "chains", "chains", "connection tracking"].map(str::to_owned);
        let errors: Vec<_> = refused
            .iter()
            .map(|sequence| KernelError {
                errno: 2,
                message: None,
                offset: None,
                sequence: *sequence,
            })
            .collect();
        let missing = missing(errors.iter(), &features);
        let names = missing.iter().map(|line| line.split(" (").next().unwrap_or_default());
        assert_eq!(names.collect::<Vec<_>>(), expected);
    }

    #[test]
    fn each_lack_is_named_once_and_without_what_follows_from_it() {
        check(&[], &[]);
        check(&[2, 3, 4], &["chains", "connection tracking"]);
        check(&[1, 2, 3, 4], &["tables"]);
        check(&[9], &["an unknown feature"]);
    }
}
