//! The rights that the manifests give, enforced: they are enough, and none is idle.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use testbed::apiserver::{Access, ApiServer, PolicyRule, Streaming};

use crate::cluster;
use crate::rig::LIMIT;

/// The rules of the role under `deploy/`.
fn rules() -> Result<Vec<PolicyRule>> {
    let path =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/overlays/standalone/rbac.yaml");
    let documents: Vec<Value> = serde_saphyr::from_multiple(&std::fs::read_to_string(path)?)?;
    let role = documents.iter().find(|it| it["kind"] == "ClusterRole").context("no ClusterRole")?;
    Ok(serde_json::from_value(role["rules"].clone())?)
}

/// Everything that a program asks of a server that allows just this.
fn asked_for(rules: &[PolicyRule], streaming: Streaming) -> Result<Option<BTreeSet<Access>>> {
    let prepare = |server: &ApiServer| {
        server.set_allowed(rules.to_vec());
        server.set_streaming(streaming);
    };
    let Some((rig, server)) = cluster::prepared(prepare)? else { return Ok(None) };
    rig.wait_for_answer(cluster::WEB)?;
    for resource in ["nodes", "services", "endpointslices", "servicecidrs"] {
        ensure!(server.wait_for_watchers(resource, 1, LIMIT), "{resource}: {}", rig.log());
    }
    // The first is an Event, the second makes it a series.
    for _ in 0..2 {
        crate::events::damage(&rig)?;
    }
    rig.wait("a series of Events", LIMIT, |_| {
        server.objects("events").iter().any(|event| event["series"]["count"] == 2)
    })?;
    let mut asked = BTreeSet::new();
    for request in server.requests() {
        let access = request.access().with_context(|| format!("no resource: {request:?}"))?;
        ensure!(rules.iter().any(|rule| rule.allows(&access)), "refused: {access}");
        asked.insert(access);
    }
    ensure!(!rig.log().contains("orbidden"), "{}", rig.log());
    Ok(Some(asked))
}

#[test]
fn s2_3_the_role_is_enough_and_no_more() -> Result<()> {
    let rules = rules()?;
    let mut used = BTreeSet::new();
    // Servers of every age: `list` serves those without streaming lists.
    for streaming in [Streaming::On, Streaming::Refused] {
        let Some(asked) = asked_for(&rules, streaming)? else { return Ok(()) };
        used.extend(asked);
    }
    let granted: BTreeSet<_> = rules.iter().flat_map(PolicyRule::grants).collect();
    let idle: Vec<_> = granted.difference(&used).map(ToString::to_string).collect();
    ensure!(idle.is_empty(), "granted and never used: {idle:?}");
    Ok(())
}

#[test]
fn a_right_that_is_missing_is_named() -> Result<()> {
    let prepare = |server: &ApiServer| server.set_allowed(Vec::new());
    let Some((rig, server)) = cluster::prepared(prepare)? else { return Ok(()) };
    rig.wait_for_log("cannot watch services")?;
    rig.wait_for_log("cannot watch endpointslices.discovery.k8s.io")?;
    ensure!(rig.nft("list ruleset")?.is_empty(), "rules without a list");
    // What was missing is given: no restart is needed.
    server.set_allowed(rules()?);
    rig.wait_for_answer(cluster::WEB).map(drop)
}
