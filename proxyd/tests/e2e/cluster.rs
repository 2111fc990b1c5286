//! Objects from a cluster: a fake API server in the node's namespace.

use anyhow::{Context, Result, ensure};
use testbed::apiserver::ApiServer;
use testbed::builders::{self, Port};
use testbed::world::{Families, NODE_NAME};

use crate::rig::{Rig, is_answer};

pub(crate) const WEB: &str = "172.30.0.10:80/TCP";
const LATE: &str = "172.30.0.11:80/TCP";

/// A rig whose program watches a cluster with one Service.
pub(crate) fn cluster() -> Result<Option<(Rig, ApiServer)>> {
    prepared(|_| ())
}

/// The same, with the server prepared before the program starts.
pub(crate) fn prepared(prepare: impl FnOnce(&ApiServer)) -> Result<Option<(Rig, ApiServer)>> {
    let Some(mut rig) = Rig::new(Families::Ipv4)? else { return Ok(None) };
    let server = rig.world.node().run(ApiServer::start)?;
    for object in builders::cluster(Families::Ipv4) {
        server.apply(object);
    }
    server.apply(builders::service("web", "172.30.0.10", &[Port::HTTP]));
    server.apply(endpoints("web", &["10.180.0.11"]));
    prepare(&server);
    start(&mut rig, &server)?;
    Ok(Some((rig, server)))
}

pub(crate) fn endpoints(service: &str, pods: &[&str]) -> serde_json::Value {
    let pods: Vec<_> = pods.iter().map(|pod| (*pod, NODE_NAME)).collect();
    builders::endpoint_slice(service, &[Port::HTTP], &pods)
}

pub(crate) fn start(rig: &mut Rig, server: &ApiServer) -> Result<()> {
    let mut command = crate::rig::program();
    command.args(["--hostname-override", NODE_NAME, "--master", &server.url()]);
    command.arg("--config").arg(rig.write_config()?);
    rig.launch_as(&mut command)
}

#[test]
fn a_cluster_is_followed_through_an_outage() -> Result<()> {
    let Some((mut rig, server)) = cluster()? else { return Ok(()) };
    rig.wait_for_answer(WEB)?;

    // What changes is in effect, by watch.
    server.apply(builders::service("late", "172.30.0.11", &[Port::HTTP]));
    server.apply(endpoints("late", &["10.180.0.12"]));
    rig.wait_for_answer(LATE)?;

    // The server is gone: rules stay, the program lives.
    rig.world.node().run(|| server.stop());
    ensure!(is_answer(&rig.dial(testbed::Place::LocalPod, WEB)?), "rules went with the server");
    server.delete("services", "default", "late");
    server.delete("endpointslices", "default", "late-1");
    server.expire_history();
    rig.world.node().run(|| server.resume())?;

    // What vanished meanwhile is found, although nobody told of it.
    rig.wait("late is gone", crate::rig::LIMIT, |rig| {
        rig.dial(testbed::Place::LocalPod, LATE).is_ok_and(|outcome| !is_answer(&outcome))
    })?;
    ensure!(is_answer(&rig.dial(testbed::Place::LocalPod, WEB)?), "web went with late");

    // kill -9 and start again while the server is gone: the rules are still there.
    rig.world.node().run(|| server.stop());
    rig.kill()?;
    start(&mut rig, &server)?;
    rig.wait_for_log("api server").context("an unreachable server is not told of")?;
    ensure!(is_answer(&rig.dial(testbed::Place::LocalPod, WEB)?), "a restart took rules away");
    rig.world.node().run(|| server.resume())?;
    server.apply(builders::service("late", "172.30.0.11", &[Port::HTTP]));
    server.apply(endpoints("late", &["10.180.0.12"]));
    rig.wait_for_answer(LATE)?;
    Ok(())
}
