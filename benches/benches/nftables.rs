//! Mode nftables: what starting, changing and restarting cost, at two sizes of the cluster.
//!
//! Every group runs in network namespaces of its own. A change is measured from the event to the
//! end of the commit, by the way of store and table.

use std::hint::black_box;
use std::time::{Duration, Instant};

use backend_nftables::NftablesTable;
use benches::cluster::{Cluster, applied, deleted};
use benches::rig::{self, Rig, new_namespace};
use criterion::measurement::WallTime;
use criterion::{
    BatchSize, BenchmarkGroup, BenchmarkId, Criterion, SamplingMode, criterion_group,
    criterion_main,
};
use proxy_core::address::IpFamily;
use proxy_core::event::{Object, SourceEvent};
use proxy_core::resolved::ResolvedService;
use proxy_core::rules::{RuleSet, reconcile};
use proxy_core::store::Store;
use proxy_core::table::ServiceTable as _;

/// Clusters that changes are compared over: their cost must not follow the size.
const CLUSTERS: [Cluster; 3] = [
    Cluster::new(IpFamily::V4, 1_000),
    Cluster::new(IpFamily::V4, 10_000),
    Cluster::new(IpFamily::V6, 1_000),
];

fn id(cluster: &Cluster) -> BenchmarkId {
    BenchmarkId::new(cluster.family.to_string(), cluster.services)
}

/// A group whose measurements take some hundred milliseconds each.
fn slow<'c>(criterion: &'c mut Criterion, name: &str) -> BenchmarkGroup<'c, WallTime> {
    let mut group = criterion.benchmark_group(name);
    group
        .sample_size(10)
        .sampling_mode(SamplingMode::Flat)
        .warm_up_time(Duration::from_millis(100))
        .measurement_time(Duration::from_secs(3));
    group
}

/// A group whose measurements take microseconds.
fn fast<'c>(criterion: &'c mut Criterion, name: &str) -> BenchmarkGroup<'c, WallTime> {
    let mut group = criterion.benchmark_group(name);
    group
        .sample_size(50)
        .warm_up_time(Duration::from_millis(200))
        .measurement_time(Duration::from_secs(1));
    group
}

fn store_of(cluster: &Cluster) -> Store {
    let mut store = Store::new(cluster.options());
    cluster.lists().for_each(|event| store.apply(event));
    store
}

/// A rig in a namespace of its own, with everything committed.
fn loaded(cluster: &Cluster) -> Rig {
    new_namespace();
    let mut rig = Rig::new(cluster.options(), &[cluster.family]);
    rig.step(cluster.lists());
    rig
}

fn slice(cluster: &Cluster, number: usize, pods: impl IntoIterator<Item = usize>) -> Object {
    Object::EndpointSlice(cluster.slice(number, pods))
}

/// Times changes, each of which is undone outside the measurement.
fn there_and_back(
    rig: &mut Rig,
    times: u64,
    mut there: impl FnMut(usize) -> Vec<SourceEvent>,
    mut back: impl FnMut(usize) -> Vec<SourceEvent>,
) -> Duration {
    let mut elapsed = Duration::ZERO;
    for change in 0..usize::try_from(times).unwrap_or(usize::MAX) {
        let events = there(change);
        let started = Instant::now();
        let report = rig.step(events);
        elapsed += started.elapsed();
        assert!(report.changed_objects > 0 && !report.full, "{report:?}");
        rig.step(back(change));
    }
    elapsed
}

// === without the kernel ===

fn resolve(criterion: &mut Criterion) {
    let mut group = slow(criterion, "resolve/everything");
    for cluster in CLUSTERS {
        group.bench_function(id(&cluster), |bencher| {
            bencher.iter_batched(
                || cluster.lists().collect::<Vec<_>>(),
                |events| {
                    let mut store = Store::new(cluster.options());
                    for event in events {
                        store.apply(event);
                    }
                    let changes = store.take_changes(cluster.family);
                    (store, changes)
                },
                BatchSize::PerIteration,
            );
        });
    }
    group.finish();
    let mut group = fast(criterion, "resolve/one_slice");
    for cluster in CLUSTERS {
        let mut store = store_of(&cluster);
        store.take_changes(cluster.family);
        let mut turn = 0;
        group.bench_function(id(&cluster), |bencher| {
            bencher.iter_batched(
                || {
                    turn += 1;
                    let pods = cluster.pods(7).skip(1).chain([cluster.spare_pod(7, turn % 2)]);
                    applied(slice(&cluster, 7, pods))
                },
                |event| {
                    store.apply(event);
                    store.take_changes(cluster.family)
                },
                BatchSize::SmallInput,
            );
        });
    }
}

fn compile_into(table: &NftablesTable, services: &[&ResolvedService], out: &mut Objects) {
    for service in services {
        table.compile_service(service, out);
    }
}

type Objects = RuleSet<backend_nftables::Key, backend_nftables::Rule>;

fn compile(criterion: &mut Criterion) {
    for cluster in CLUSTERS {
        let mut store = store_of(&cluster);
        store.take_changes(cluster.family);
        let table = rig::table(&store, cluster.family);
        let services: Vec<_> = store.services(cluster.family).map(AsRef::as_ref).collect();
        let compile = |services: &[&ResolvedService]| {
            let mut objects = RuleSet::new();
            compile_into(table.table(), services, &mut objects);
            objects
        };
        slow(criterion, "compile/everything")
            .bench_function(id(&cluster), |bencher| bencher.iter(|| compile(&services)));
        fast(criterion, "compile/one_service")
            .bench_function(id(&cluster), |bencher| bencher.iter(|| compile(&services[7..8])));

        let installed = compile(&services);
        slow(criterion, "reconcile/everything").bench_function(id(&cluster), |bencher| {
            bencher.iter(|| reconcile(black_box(&installed), black_box(&installed)));
        });
        let installed = compile(&services[7..8]);
        let wanted = compile(&services[8..9]);
        fast(criterion, "reconcile/one_service").bench_function(id(&cluster), |bencher| {
            bencher.iter(|| reconcile(black_box(&wanted), black_box(&installed)));
        });
    }
}

// === with the kernel ===

fn programmed(criterion: &mut Criterion) {
    let mut group = slow(criterion, "programmed");
    for cluster in CLUSTERS {
        group.bench_function(id(&cluster), |bencher| {
            bencher.iter_batched(
                || {
                    new_namespace();
                    let rig = Rig::new(cluster.options(), &[cluster.family]);
                    (rig, cluster.lists().collect::<Vec<_>>())
                },
                |(mut rig, events)| {
                    rig.step(events);
                    rig
                },
                BatchSize::PerIteration,
            );
        });
    }
}

/// Changes the endpoints of one Service after the other.
fn endpoints_changed(
    criterion: &mut Criterion,
    name: &str,
    pods: impl Fn(&Cluster, usize) -> Vec<usize>,
    cluster: &Cluster,
    rig: &mut Rig,
) {
    // A large step, so that neighbours in the tables are not neighbours in time.
    let number = |change: usize| change * 37 % cluster.services;
    fast(criterion, name).bench_function(id(cluster), |bencher| {
        bencher.iter_custom(|times| {
            there_and_back(
                rig,
                times,
                |change| {
                    let number = number(change);
                    vec![applied(slice(cluster, number, pods(cluster, number)))]
                },
                |change| {
                    let number = number(change);
                    vec![applied(slice(cluster, number, cluster.pods(number)))]
                },
            )
        });
    });
}

fn service_changed(criterion: &mut Criterion, cluster: &Cluster, rig: &mut Rig) {
    // Numbers past the end are new Services with their own endpoints.
    let number = |change: usize| cluster.services + 1 + change % 100;
    let objects = |number| {
        [Object::Service(cluster.service(number)), slice(cluster, number, cluster.pods(number))]
    };
    let come = |change| objects(number(change)).map(applied).to_vec();
    let go = |change| objects(number(change)).iter().map(deleted).collect::<Vec<_>>();
    fast(criterion, "service_added").bench_function(id(cluster), |bencher| {
        bencher.iter_custom(|times| there_and_back(rig, times, come, go));
    });
    rig.step(come(0));
    fast(criterion, "service_removed").bench_function(id(cluster), |bencher| {
        bencher.iter_custom(|times| there_and_back(rig, times, |_| go(0), |_| come(0)));
    });
    rig.step(go(0));
}

fn compared(criterion: &mut Criterion, cluster: &Cluster, rig: &mut Rig) {
    slow(criterion, "full_compare").bench_function(id(cluster), |bencher| {
        bencher.iter(|| assert_eq!(rig.compare().changed_objects, 0));
    });
    slow(criterion, "restart_unchanged").bench_function(id(cluster), |bencher| {
        bencher.iter_batched(
            || (Rig::new(cluster.options(), &[cluster.family]), cluster.lists().collect()),
            |(mut rig, events): (Rig, Vec<_>)| {
                assert_eq!(rig.step(events).changed_objects, 0);
                rig
            },
            BatchSize::PerIteration,
        );
    });
}

fn changes(criterion: &mut Criterion) {
    for cluster in &CLUSTERS {
        let rig = &mut loaded(cluster);
        endpoints_changed(
            criterion,
            "endpoint_replaced",
            |cluster, number| {
                cluster.pods(number).skip(1).chain([cluster.spare_pod(number, 0)]).collect()
            },
            cluster,
            rig,
        );
        endpoints_changed(
            criterion,
            "endpoint_added",
            |cluster, number| cluster.pods(number).chain([cluster.spare_pod(number, 0)]).collect(),
            cluster,
            rig,
        );
        endpoints_changed(
            criterion,
            "endpoint_removed",
            |cluster, number| cluster.pods(number).skip(1).collect(),
            cluster,
            rig,
        );
        // From 10 to 8: the only change of size that also changes a verdict.
        endpoints_changed(
            criterion,
            "endpoints_halved",
            |cluster, number| cluster.pods(number).skip(2).collect(),
            cluster,
            rig,
        );
        service_changed(criterion, cluster, rig);
        compared(criterion, cluster, rig);
    }
}

fn one_large_service(criterion: &mut Criterion) {
    let cluster = Cluster { endpoints: 3_000, ..Cluster::new(IpFamily::V4, 1) };
    let rig = &mut loaded(&cluster);
    endpoints_changed(
        criterion,
        "one_large_service/endpoint_replaced",
        |cluster, number| {
            cluster.pods(number).skip(1).chain([cluster.spare_pod(number, 0)]).collect()
        },
        &cluster,
        rig,
    );
    endpoints_changed(
        criterion,
        "one_large_service/endpoint_added",
        |cluster, number| cluster.pods(number).chain([cluster.spare_pod(number, 0)]).collect(),
        &cluster,
        rig,
    );
    endpoints_changed(
        criterion,
        "one_large_service/endpoint_removed",
        |cluster, number| cluster.pods(number).skip(1).collect(),
        &cluster,
        rig,
    );
}

/// A thousand frontends on one pool: the cluster IP and 999 external IPs.
fn many_frontends(criterion: &mut Criterion) {
    let cluster = Cluster { endpoints: 200, ..Cluster::new(IpFamily::V4, 1) };
    let mut service = cluster.service(0);
    service.spec.external_ips = (0..999_u32)
        .map(|number| std::net::Ipv4Addr::from(0xc612_0000 + number + 1).to_string())
        .collect();
    let rig = &mut loaded(&cluster);
    rig.step([applied(Object::Service(service))]);
    endpoints_changed(
        criterion,
        "many_frontends/endpoint_replaced",
        |cluster, number| {
            cluster.pods(number).skip(1).chain([cluster.spare_pod(number, 0)]).collect()
        },
        &cluster,
        rig,
    );
    endpoints_changed(
        criterion,
        "many_frontends/endpoint_added",
        |cluster, number| cluster.pods(number).chain([cluster.spare_pod(number, 0)]).collect(),
        &cluster,
        rig,
    );
}

criterion_group!(
    nftables,
    resolve,
    compile,
    programmed,
    changes,
    one_large_service,
    many_frontends
);
criterion_main!(nftables);
