//! Scale trial.
use std::time::Instant;
#[path = "../tests/support/mod.rs"]
mod support;
use proxy_core::address::IpFamily;
use proxy_core::sync::{Synchronizer, TableSync};
use proxy_core::table::ServiceTable as _;
use std::sync::Arc;
use support::*;
fn main() {
    for s in [1000u32, 10000] {
        in_namespace(|| {
            block_on(async {
                let f = IpFamily::V4;
                let services: Vec<_> =
                    (1..=s).map(|n| Arc::new(cluster_ip_service(f, n, 10))).collect();
                let rss = |w: &str| {
                    println!(
                        "   rss {w} {}",
                        node_sys::host::resident_memory_bytes().unwrap() >> 20
                    )
                };
                println!(
                    "sizes key {} rule {} svc {}",
                    size_of::<backend_nftables::Key>(),
                    size_of::<backend_nftables::Rule>(),
                    size_of::<proxy_core::resolved::ResolvedPort>()
                );
                rss("services");
                let mut sync = Synchronizer::new(table(f));
                let t = Instant::now();
                sync.stage(
                    services.iter().map(|s| (s.name.clone(), Some(s.clone()))).collect(),
                    Some(node(f)),
                );
                let r = sync.sync().await.unwrap();
                rss("loaded");
                println!("{s}: load {:?} {:?}", t.elapsed(), r.changed_objects);
                let mut times = vec![];
                let mut up = vec![];
                let mut down = vec![];
                for i in 0..200usize {
                    let i = (i * 37) % services.len();
                    let mut x = (*services[i]).clone();
                    let orig = services[i].clone();
                    x.ports[0].cluster.endpoints[3].address = address(f, 11, i as u32);
                    let t = Instant::now();
                    sync.stage(vec![(x.name.clone(), Some(Arc::new(x)))], None);
                    sync.sync().await.unwrap();
                    times.push(t.elapsed());
                    let mut y = (*orig).clone();
                    let mut e = y.ports[0].cluster.endpoints[0];
                    e.address = address(f, 12, i as u32);
                    y.ports[0].cluster.endpoints.push(e);
                    sync.stage(vec![(orig.name.clone(), Some(orig.clone()))], None);
                    sync.sync().await.unwrap();
                    let t = Instant::now();
                    sync.stage(vec![(y.name.clone(), Some(Arc::new(y)))], None);
                    sync.sync().await.unwrap();
                    up.push(t.elapsed());
                    let t = Instant::now();
                    sync.stage(vec![(orig.name.clone(), Some(orig.clone()))], None);
                    sync.sync().await.unwrap();
                    down.push(t.elapsed());
                }
                for (n, mut v) in [("replace", times), ("up", up), ("down", down)] {
                    v.sort();
                    println!("  {n}: p50 {:?} p99 {:?}", v[100], v[197]);
                }
                let t = Instant::now();
                sync.distrust();
                let r = sync.sync().await.unwrap();
                println!("  full compare {:?} changed {}", t.elapsed(), r.changed_objects);
                rss("full");
                // new service add/remove
                let x = Arc::new(cluster_ip_service(f, s + 1, 10));
                let t = Instant::now();
                sync.stage(vec![(x.name.clone(), Some(x.clone()))], None);
                sync.sync().await.unwrap();
                println!("  add service {:?}", t.elapsed());
                let t = Instant::now();
                sync.stage(vec![(x.name.clone(), None)], None);
                sync.sync().await.unwrap();
                println!("  remove service {:?}", t.elapsed());
                println!("  rss {:?}", node_sys::host::resident_memory_bytes().unwrap() >> 20);
                drop(sync);
                let mut s2 = Synchronizer::new(table(f));
                let t = Instant::now();
                s2.stage(
                    services.iter().map(|s| (s.name.clone(), Some(s.clone()))).collect(),
                    Some(node(f)),
                );
                let r = s2.sync().await.unwrap();
                println!("  restart {:?} changed {}", t.elapsed(), r.changed_objects);
            })
        });
    }
}
