//! Programming by the program nft, where netlink is no choice for writing.
//!
//! nft's JSON has no maps to addresses with ports and no random numbers in keys, so a whole table
//! goes to it as text; changes of elements, which are nearly all changes, go as JSON. Nothing of
//! both reaches a shell, and names come from users only in a form that needs no quotes.

use std::time::Duration;

use async_trait::async_trait;
use node_sys::program;
use proxy_core::address::IpFamily;
use proxy_core::node::NodeFacts;
use proxy_core::resolved::{PoolKind, ResolvedPort, ResolvedService};
use proxy_core::rules::{Change, RuleDelta, RuleSet};
use proxy_core::table::{ServiceTable, TableError, TableErrorKind};
use serde_json::json;

use crate::compile::{Rules, TableConfig};
use crate::expr::Expr;
use crate::json::{self, Command};
use crate::layout::TABLE;
use crate::model::{ChainSpec, Key, Rule};
use crate::table::NftablesTable;
use crate::text::{Script, Unsaid, remembers};

/// No load takes longer, whatever the machine.
const LIMIT: Duration = Duration::from_secs(300);

/// The program nft, for the table of one family.
#[derive(Clone, Debug)]
pub struct NftTool {
    program: String,
    family: IpFamily,
}

impl NftTool {
    /// The program of this name or path.
    pub fn new(program: impl Into<String>, family: IpFamily) -> Self {
        Self { program: program.into(), family }
    }

    /// Refuses a program that is not there or does not start.
    pub fn check(program: &str) -> Result<(), TableError> {
        Self::new(program, IpFamily::V4).run(&["--version"], b"", "nothing")
    }

    /// Replaces the table by one with these objects, in one transaction. Returns what nft has no
    /// syntax for, which only remembers clients.
    pub fn load(&self, rules: &RuleSet<Key, Rule>) -> Result<Vec<Unsaid>, TableError> {
        let script = Script::of(rules, self.family);
        if let Some(unsaid) = script.unsaid.iter().find(|unsaid| !unsaid.remembers) {
            let operation = format!("write {:?} of table {TABLE} for nft", unsaid.place);
            return Err(TableError::new(TableErrorKind::Rejected, operation));
        }
        self.run(&["-f", "-"], script.text.as_bytes(), "everything")?;
        Ok(script.unsaid)
    }

    /// Changes elements, in one transaction; `rules` says what sets there are.
    fn change(
        &self,
        changes: &[Change<Key, Rule>],
        rules: &RuleSet<Key, Rule>,
    ) -> Result<(), TableError> {
        let (mut gone, mut come) = (RuleSet::new(), RuleSet::new());
        for change in changes {
            match change.clone() {
                Change::Add { key, rule } => drop(come.insert(key, rule)),
                Change::Remove { key, rule } => drop(gone.insert(key, rule)),
                Change::Replace { key, old, new } => {
                    gone.insert(key.clone(), old);
                    come.insert(key, new);
                }
            }
        }
        let mut commands = json::elements(&gone, rules, self.family, Command::Delete);
        commands.extend(json::elements(&come, rules, self.family, Command::Add));
        let document = json!({ "nftables": commands });
        self.run(&["-j", "-f", "-"], document.to_string().as_bytes(), "elements")
    }

    fn run(&self, arguments: &[&str], input: &[u8], what: &str) -> Result<(), TableError> {
        let operation = format!("load {what} of table {TABLE} with {}", self.program);
        let output = program::run(&self.program, arguments, input, LIMIT).map_err(|error| {
            TableError::new(TableErrorKind::Transient, &operation).with_source(error)
        })?;
        if output.status.success() {
            return Ok(());
        }
        // The text is for people: nothing is decided by it.
        let text = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        let cause = format!("{}: {text}", output.status);
        Err(TableError::new(TableErrorKind::Rejected, operation).with_source(cause))
    }
}

/// Service rules of one family, written by the program nft.
///
/// The second driver: the same table as [`NftablesTable`]'s, which also reads it. It costs a
/// process for each commit and a new table for each change of chains, and does not remember
/// clients of Services with session affinity, for which nft has no syntax.
#[derive(Debug)]
pub struct NftToolTable {
    table: NftablesTable,
    tool: NftTool,
    /// What the kernel holds.
    installed: Rules,
}

impl NftToolTable {
    /// A table that the program of this name or path writes.
    pub fn open(config: &TableConfig, program: impl Into<String>) -> Result<Self, TableError> {
        Ok(Self {
            table: NftablesTable::open(config)?,
            tool: NftTool::new(program, config.family),
            installed: RuleSet::new(),
        })
    }
}

/// Takes rules out of chains.
fn keep_steps(rule: &mut Rule, keep: impl Fn(&Expr) -> bool) {
    let Rule::Chain(spec) = rule else { return };
    if spec.rules.iter().flat_map(|rule| rule.exprs.iter()).all(&keep) {
        return;
    }
    let mut changed = ChainSpec::clone(spec);
    for rule in &mut changed.rules {
        rule.exprs = rule.exprs.iter().filter(|expr| keep(expr)).cloned().collect();
    }
    *spec = changed.into();
}

fn without_memory(rules: Rules, out: &mut Rules) {
    out.extend(rules.into_iter().map(|(key, mut rule)| {
        if let Rule::Chain(spec) = &mut rule
            && spec.rules.iter().any(remembers)
        {
            let mut sayable = ChainSpec::clone(spec);
            sayable.rules.retain(|rule| !remembers(rule));
            *spec = sayable.into();
        }
        (key, rule)
    }));
}

/// Whether a change is one of elements that nft can change in place. Source ranges overlap, which
/// only a new set gets right whatever the order.
fn is_simple(change: &Change<Key, Rule>) -> bool {
    !matches!(
        change.key(),
        Key::Table | Key::Set(_) | Key::Chain(_) | Key::SourceRange(_) | Key::StaleClient { .. }
    )
}

#[async_trait]
impl ServiceTable for NftToolTable {
    type Key = Key;
    type Rule = Rule;

    fn family(&self) -> IpFamily {
        self.table.family()
    }

    fn compile_node(&self, node: &NodeFacts, out: &mut Rules) {
        let mut rules = RuleSet::new();
        self.table.compile_node(node, &mut rules);
        without_memory(rules, out);
    }

    fn compile_service(&self, service: &ResolvedService, out: &mut Rules) {
        let mut rules = RuleSet::new();
        self.table.compile_service(service, &mut rules);
        without_memory(rules, out);
    }

    fn is_shared(key: &Key) -> bool {
        NftablesTable::is_shared(key)
    }

    fn installed_numbers(
        &self,
        installed: &Rules,
        port: &ResolvedPort,
        pool: PoolKind,
    ) -> Vec<(usize, (std::net::IpAddr, u16))> {
        self.table.installed_numbers(installed, port, pool)
    }

    async fn observe(&mut self) -> Result<Rules, TableError> {
        let mut observed = self.table.observe().await?;
        // Where a key is a range, nft converts the byte order of protocols, which have one byte.
        let conversion = Expr::Unknown("byteorder".into());
        observed.retain(|_, rule| {
            keep_steps(rule, |expr| *expr != conversion);
            true
        });
        self.installed = observed.clone();
        Ok(observed)
    }

    async fn commit(&mut self, delta: &RuleDelta<Key, Rule>) -> Result<(), TableError> {
        // After an error comes a new look at the kernel.
        delta.apply_to(&mut self.installed);
        if !self.table.replaces_all() && delta.changes.iter().all(is_simple) {
            return self.tool.change(&delta.changes, &self.installed);
        }
        let _without_memory_of_clients = self.tool.load(&self.installed)?;
        self.table.note_replaced();
        Ok(())
    }

    fn replaces_all(&self) -> bool {
        self.table.replaces_all()
    }

    async fn clear(&mut self) -> Result<(), TableError> {
        self.installed = RuleSet::new();
        self.table.clear().await
    }
}
