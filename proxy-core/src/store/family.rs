//! What one IP family makes of the objects, and what of it has been taken.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use time::OffsetDateTime;

use super::StoredServices;
use super::slice::Slices;
use crate::claims::Claims;
use crate::conntrack::FlowCleaner;
use crate::diagnostic::Diagnostic;
use crate::names::ServiceName;
use crate::node::NodeFacts;
use crate::resolve::{Context, Subject, claims_of};
use crate::resolved::ResolvedService;

/// A change of a Service's endpoints.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Trigger {
    /// When it happened.
    pub time: OffsetDateTime,
    /// The Service.
    pub service: ServiceName,
}

/// What changed in one IP family since the last time it was asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FamilyChanges {
    /// The Services that differ, by name, as they are now; `None` for those that are gone.
    pub services: Vec<(ServiceName, Option<Arc<ResolvedService>>)>,
    /// The facts about the node, if they differ or are given for the first time.
    pub node: Option<NodeFacts>,
    /// The changes of slices that came in since the last time (S10.3), in order of their times.
    /// A change that says nothing new about endpoints counts too.
    pub trigger_times: Vec<Trigger>,
    /// The UDP flows that these changes leave behind (S11).
    pub stale_flows: FlowCleaner,
}

/// Resolved state of one IP family.
#[derive(Debug, Default)]
pub(super) struct Family {
    /// What the last resolution depended on; `None` until the family was asked for once. Until
    /// then nothing is noted: the first resolution looks at everything, and a family that is
    /// never asked for must not gather memory.
    context: Option<Context>,
    facts: Option<NodeFacts>,
    dirty: BTreeSet<ServiceName>,
    trigger_times: BTreeMap<ServiceName, Vec<OffsetDateTime>>,
    claims: Claims,
    resolved: BTreeMap<ServiceName, Arc<ResolvedService>>,
    findings: BTreeMap<ServiceName, Box<[Diagnostic]>>,
}

/// The objects a resolution starts from.
#[derive(Clone, Copy)]
pub(super) struct Objects<'a> {
    pub(super) services: &'a StoredServices,
    pub(super) slices: &'a Slices,
}

impl Family {
    /// Whether anybody asked for this family yet.
    pub(super) fn is_served(&self) -> bool {
        self.context.is_some()
    }

    /// The Services, by name.
    pub(super) fn resolved(&self) -> &BTreeMap<ServiceName, Arc<ResolvedService>> {
        &self.resolved
    }

    /// What is wrong with Services in this family only.
    pub(super) fn findings(&self) -> impl Iterator<Item = &Diagnostic> {
        self.findings.values().flatten()
    }

    /// Notes that the Service must be resolved anew.
    pub(super) fn mark(&mut self, service: &ServiceName) {
        if self.is_served() && !self.dirty.contains(service) {
            self.dirty.insert(service.clone());
        }
    }

    /// Notes when a change of the Service's endpoints happened.
    pub(super) fn note_trigger(&mut self, service: &ServiceName, time: OffsetDateTime) {
        if self.is_served() {
            self.trigger_times.entry(service.clone()).or_default().push(time);
        }
    }

    /// Forgets the times noted for the Service: how long the removal of a slice took to take
    /// effect says nothing about how long changes take (S10.3).
    pub(super) fn forget_triggers(&mut self, service: &ServiceName) {
        self.trigger_times.remove(service);
    }

    /// Resolves what is dirty and tells what is different.
    pub(super) fn take(
        &mut self,
        context: Context,
        facts: NodeFacts,
        objects: Objects<'_>,
        flows: FlowCleaner,
    ) -> FamilyChanges {
        let trigger_times = self.take_trigger_times(&context, objects.slices);
        if self.context.as_ref() != Some(&context) {
            self.dirty = objects.services.keys().chain(self.resolved.keys()).cloned().collect();
        }
        let mut changes = FamilyChanges { trigger_times, stale_flows: flows, ..Default::default() };
        self.claim(&context, objects.services);
        for name in std::mem::take(&mut self.dirty) {
            self.resolve_into(name, &context, objects, &mut changes);
        }
        self.context = Some(context);
        if self.facts.as_ref() != Some(&facts) {
            self.facts = Some(facts.clone());
            changes.node = Some(facts);
        }
        changes
    }

    fn take_trigger_times(&mut self, context: &Context, slices: &Slices) -> Vec<Trigger> {
        let mut times: Vec<Trigger> = if self.is_served() {
            let noted = std::mem::take(&mut self.trigger_times).into_iter();
            noted.flat_map(|(service, times)| triggers(&service, times)).collect()
        } else {
            let ours = slices.iter().filter(|(_, slice)| slice.family() == Some(context.family));
            ours.flat_map(|(key, slice)| triggers(&key.service, slice.trigger_time)).collect()
        };
        times.sort_unstable();
        times
    }

    /// Brings the claims up to date, and adds to the dirty Services those that win or lose a
    /// frontend by it.
    fn claim(&mut self, context: &Context, services: &StoredServices) {
        let mut affected = BTreeSet::new();
        for name in &self.dirty {
            let claims = services.get(name).and_then(|it| claims_of(name, &it.service, context));
            self.claims.replace(name, claims, &mut affected);
        }
        self.dirty.append(&mut affected);
    }

    fn resolve_into(
        &mut self,
        name: ServiceName,
        context: &Context,
        objects: Objects<'_>,
        changes: &mut FamilyChanges,
    ) {
        let mut findings = Vec::new();
        let after = objects.services.get(&name).and_then(|stored| {
            let slices = objects.slices.of(&name).filter_map(|slice| slice.content.as_ref());
            let slices = slices.filter(|slice| slice.family() == context.family).collect();
            let subject = Subject { name: &name, service: &stored.service, slices, context };
            subject.resolve(&self.claims, &mut findings)
        });
        if findings.is_empty() {
            self.findings.remove(&name);
        } else {
            self.findings.insert(name.clone(), findings.into());
        }
        let before = self.resolved.get(&name);
        if before.map(|before| &**before) == after.as_ref() {
            return;
        }
        changes.stale_flows.add_change(before.map(|before| &**before), after.as_ref());
        let after = after.map(Arc::new);
        match &after {
            Some(service) => self.resolved.insert(name.clone(), Arc::clone(service)),
            None => self.resolved.remove(&name),
        };
        changes.services.push((name, after));
    }
}

fn triggers(
    service: &ServiceName,
    times: impl IntoIterator<Item = OffsetDateTime>,
) -> Vec<Trigger> {
    let trigger = |time| Trigger { time, service: service.clone() };
    times.into_iter().map(trigger).collect()
}
