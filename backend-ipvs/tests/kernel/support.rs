//! Services, and a table in a network namespace of its own.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::pin::pin;
use std::process::Command;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use backend_ipvs::{IpvsConfig, IpvsTable, TableConfig, find_tool};
use libtest_mimic::Completion;
use proxy_core::address::{Cidr, IpFamily};
use proxy_core::names::{Protocol, ServiceName, ServicePortName};
use proxy_core::node::{LocalDetector, NodeFacts, NodePortAddresses};
use proxy_core::resolved::{
    Endpoint, Frontend, FrontendKey, FrontendKind, HealthCheck, Pool, PoolKind, PoolReason,
    ResolvedPort, ResolvedService, Route, Routes,
};
use proxy_core::scheduler::Scheduler;
use proxy_core::sync::{SyncReport, Synchronizer, TableSync as _};
use testbed::Netns;
use testbed::uml::GuestTest;

/// A test that has a network namespace to itself, with loopback up.
pub(crate) fn test(name: &str, run: fn() -> Result<()>) -> GuestTest {
    GuestTest::new(name, move || {
        let netns = Netns::with_loopback().map_err(|error| format!("{error:#}"))?;
        netns.run(run).map_err(|error| format!("{error:#}"))?;
        Ok(Completion::Completed)
    })
}

/// An address by its first and last part.
pub(crate) fn address(family: IpFamily, net: u8, host: u8) -> IpAddr {
    match family {
        IpFamily::V4 => Ipv4Addr::new(net, 30, 0, host).into(),
        IpFamily::V6 => Ipv6Addr::new(0xfd00, net.into(), 0, 0, 0, 0, 0, host.into()).into(),
    }
}

pub(crate) fn config(family: IpFamily) -> IpvsConfig {
    IpvsConfig {
        table: TableConfig {
            family,
            detector: Cidr::new(address(family, 10, 0), 16).map(LocalDetector::Source),
            masquerade_bit: 14,
            scheduler: Scheduler::Rr,
        },
        exclude: Vec::new(),
        drain_limit: IpvsConfig::DRAIN_LIMIT,
    }
}

/// The node's own address.
pub(crate) fn node_address(family: IpFamily) -> IpAddr {
    address(family, 192, 2)
}

fn node(family: IpFamily) -> NodeFacts {
    NodeFacts {
        family,
        node_port_addresses: NodePortAddresses::All,
        service_ranges: Vec::new(),
        addresses: BTreeSet::from([node_address(family)]),
    }
}

/// A table and what is wanted in it.
pub(crate) struct Rig {
    pub(crate) sync: Synchronizer<IpvsTable>,
    family: IpFamily,
}

impl Rig {
    /// As a new process has it.
    pub(crate) fn open(config: &IpvsConfig) -> Result<Self> {
        let family = config.table.family;
        let mut sync = Synchronizer::new(IpvsTable::open(config, find_tool(family)?)?);
        sync.stage(Vec::new(), Some(node(family)));
        Ok(Self { sync, family })
    }

    pub(crate) fn want(&mut self, services: &[ResolvedService]) {
        let wanted = services.iter().map(|it| (it.name.clone(), Some(Arc::new(it.clone()))));
        self.sync.stage(wanted.collect(), None);
    }

    pub(crate) fn forget(&mut self, service: &ResolvedService) {
        self.sync.stage(vec![(service.name.clone(), None)], None);
    }

    pub(crate) fn sync(&mut self) -> Result<SyncReport> {
        Ok(now(self.sync.sync())?)
    }

    pub(crate) fn tend(&mut self) -> Result<()> {
        Ok(now(self.sync.tend())?)
    }

    /// Compares everything; says how many objects had to be written.
    pub(crate) fn compare(&mut self) -> Result<usize> {
        self.sync.distrust();
        let report = self.sync()?;
        ensure!(report.left_out.is_empty(), "left out for {}: {report:?}", self.family);
        Ok(report.changed_objects)
    }

    pub(crate) fn clear(&mut self) -> Result<()> {
        Ok(now(self.sync.clear())?)
    }
}

/// The result of a future that blocks instead of waiting.
pub(crate) fn now<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(result) => result,
        Poll::Pending => unreachable!("the table never waits"),
    }
}

/// Output of a program, which must succeed.
pub(crate) fn output(program: &str, arguments: &[&str]) -> Result<String> {
    let output = Command::new(program).args(arguments).output().context(program.to_owned())?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{program} {arguments:?}: {said}");
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The virtual servers, by ipvsadm.
pub(crate) fn listed() -> Result<String> {
    output("ipvsadm", &["-Ln"])
}

// === services ===

fn forward(pool: PoolKind, masquerade: bool) -> Route {
    Route::Forward { pool, masquerade }
}

pub(crate) fn pool(family: IpFamily, hosts: &[u8], port: u16) -> Pool {
    let endpoints = hosts.iter().map(|host| Endpoint {
        address: address(family, 10, *host),
        port,
        is_local: host % 2 == 0,
    });
    Pool { endpoints: endpoints.collect(), reason: PoolReason::Ready }
}

pub(crate) fn at(address: IpAddr, port: u16, protocol: Protocol) -> FrontendKey {
    FrontendKey::Address { address, port, protocol }
}

/// A Service with one port and these endpoints, at a cluster IP.
pub(crate) fn service(
    family: IpFamily,
    number: u8,
    protocol: Protocol,
    hosts: &[u8],
) -> ResolvedService {
    let cluster_ip = address(family, 172, number);
    let routes = if hosts.is_empty() {
        Routes::all(Route::Reject)
    } else {
        Routes {
            pod: forward(PoolKind::Cluster, false),
            host: forward(PoolKind::Cluster, true),
            outside: forward(PoolKind::Cluster, true),
        }
    };
    let name = ServiceName::new("default", format!("s{number}"));
    let frontend = Frontend {
        key: at(cluster_ip, 80, protocol),
        kind: FrontendKind::ClusterIp,
        source_ranges: None,
        routes,
    };
    ResolvedService {
        name: name.clone(),
        cluster_ip,
        scheduler: None,
        ports: vec![ResolvedPort {
            name: ServicePortName { service: name, port: "p".into(), protocol },
            frontends: vec![frontend],
            cluster: pool(family, hosts, 8080),
            local: Pool::empty(),
            affinity: None,
            flow_endpoints: Vec::new(),
        }],
        health_check: None,
    }
}

/// Services that need every kind of object.
pub(crate) fn of_every_kind(family: IpFamily) -> Vec<ResolvedService> {
    let mut services: Vec<_> = Protocol::ALL
        .into_iter()
        .zip(1..)
        .map(|(protocol, number)| service(family, number, protocol, &[1, 2, 3]))
        .collect();
    services.push(service(family, 4, Protocol::Tcp, &[]));
    services[0].scheduler = Some(Scheduler::Mh);
    services[1].health_check = Some(HealthCheck { port: 32000, local_endpoints: 1 });
    services[2].ports[0].affinity = Some(Duration::from_secs(10_800));
    let everyone = Cidr::new(family.unspecified(), 0);
    let some = Cidr::new(address(family, 203, 0), 24);
    for (host, ranges) in [(1, everyone), (2, some)] {
        services[0].ports[0].frontends.push(Frontend {
            key: at(address(family, 198, host), 443, Protocol::Tcp),
            kind: FrontendKind::LoadBalancerIp,
            source_ranges: ranges.map(|range| [range].into()),
            routes: Routes::all(forward(PoolKind::Cluster, true)),
        });
    }
    services[0].ports[0].frontends.push(Frontend {
        key: FrontendKey::NodePort { port: 30080, protocol: Protocol::Tcp },
        kind: FrontendKind::NodePort,
        source_ranges: None,
        routes: Routes {
            pod: forward(PoolKind::Cluster, false),
            host: forward(PoolKind::Cluster, true),
            outside: Route::Drop,
        },
    });
    services[3].ports[0].frontends.push(Frontend {
        key: at(address(family, 198, 3), 443, Protocol::Tcp),
        kind: FrontendKind::ExternalIp,
        source_ranges: None,
        routes: Routes::all(Route::Drop),
    });
    services
}
