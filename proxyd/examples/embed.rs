//! A node agent that embeds proxyd's crates: its own objects in, kernel rules out.
//!
//! ```sh
//! cargo build --example embed -p proxyd
//! unshare --user --map-root-user --net target/debug/examples/embed
//! ```

use backend_nftables::{NftablesTable, TableConfig};
use proxy_core::address::IpFamily;
use proxy_core::api;
use proxy_core::event::{Kind, Object, SourceEvent};
use proxy_core::options::Options;
use proxy_core::store::Store;
use proxy_core::sync::{Synchronizer, TableSync as _};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // Objects may come from anywhere; here they are written out.
    let mut store = Store::new(Options::new("node-1"));
    for (kind, objects) in [
        (Kind::Service, vec![Object::Service(service())]),
        (Kind::EndpointSlice, vec![Object::EndpointSlice(endpoint_slice())]),
    ] {
        store.apply(SourceEvent::ListStarted(kind));
        for object in objects {
            store.apply(SourceEvent::Applied(object));
        }
        store.apply(SourceEvent::ListDone(kind));
    }

    // Nothing is written before the first lists are complete.
    assert!(store.is_ready());
    let family = IpFamily::V4;
    let changes = store.take_changes(family);

    let config = TableConfig { family, detector: store.detector(family), masquerade_bit: 14 };
    let mut table = Synchronizer::new(NftablesTable::open(&config)?);
    table.stage(changes.services, changes.node);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let report = runtime.block_on(table.sync())?;
    tracing::info!(changed = report.changed_objects, "in step");

    // A second comparison with the kernel finds nothing to do.
    table.distrust();
    assert_eq!(runtime.block_on(table.sync())?.changed_objects, 0);
    Ok(())
}

fn service() -> api::Service {
    api::Service {
        metadata: metadata("web"),
        spec: api::ServiceSpec {
            cluster_ip: "172.30.0.10".to_owned(),
            ports: vec![api::ServicePort { port: 80, ..Default::default() }],
            ..Default::default()
        },
        ..Default::default()
    }
}

fn endpoint_slice() -> api::EndpointSlice {
    let mut metadata = metadata("web-1");
    metadata.labels.service_name = Some("web".to_owned());
    let port = api::EndpointPort { name: Some(String::new()), port: Some(8080), protocol: None };
    let endpoint =
        api::SliceEndpoint { addresses: vec!["10.180.0.11".to_owned()], ..Default::default() };
    api::EndpointSlice {
        metadata,
        address_type: "IPv4".to_owned(),
        ports: vec![port],
        endpoints: vec![endpoint],
    }
}

fn metadata(name: &str) -> api::Metadata {
    api::Metadata { name: name.to_owned(), namespace: "default".to_owned(), ..Default::default() }
}
