//! A store with a node in it, objects by their YAML shape, and short texts to compare.

use std::fmt::Write;
use std::net::IpAddr;

use proxy_core::address::{Cidr, IpFamily, parse_ip};
use proxy_core::api;
use proxy_core::event::{Kind, Object, ObjectRef, SourceEvent};
use proxy_core::names::ServiceName;
use proxy_core::options::{DetectLocal, Options};
use proxy_core::resolved::{Pool, PoolKind, ResolvedPort, ResolvedService, Route, Routes};
use proxy_core::store::{FamilyChanges, Store};
use serde_json::{Value, json};

/// The world's node is `n0` in zone `a`, with this address.
pub(crate) const NODE_IP: &str = "192.168.0.2";

/// A store and what it said.
pub(crate) struct World {
    pub(crate) store: Store,
}

/// Options in which pods are told by a range of each family.
pub(crate) fn options() -> Options {
    let ranges = ["10.180.0.0/16", "fd00:10:180::/48"];
    let ranges = ranges.iter().map(|text| Cidr::parse(text).unwrap()).collect();
    Options { detect_local: DetectLocal::ClusterCidr(ranges), ..Options::new("n0") }
}

/// The node's object.
pub(crate) fn node() -> Value {
    json!({
        "kind": "Node",
        "metadata": {"name": "n0", "labels": {"topology.kubernetes.io/zone": "a"}},
        "spec": {"podCIDRs": ["10.180.0.0/24", "fd00:10:180::/64"]},
        "status": {"addresses": [
            {"type": "InternalIP", "address": NODE_IP},
            {"type": "InternalIP", "address": "fd00:192:168::2"},
        ]},
    })
}

/// The Service `default/web`, with `spec` over a spec with one unnamed TCP port 80.
pub(crate) fn service(spec: Value) -> Value {
    named_service("web", "172.30.0.1", spec)
}

/// A Service of this name and cluster IP.
pub(crate) fn named_service(name: &str, cluster_ip: &str, spec: Value) -> Value {
    let mut service = json!({
        "kind": "Service",
        "metadata": {"namespace": "default", "name": name},
        "spec": {"type": "ClusterIP", "clusterIP": cluster_ip, "ports": [{"port": 80}]},
    });
    merge(&mut service["spec"], spec);
    if let Some(vips) = service["spec"].as_object_mut().unwrap().remove("vips") {
        let ips = vips.as_array().unwrap().iter();
        let ingress: Vec<Value> = ips.map(|ip| json!({"ip": ip})).collect();
        service["status"] = json!({"loadBalancer": {"ingress": ingress}});
    }
    service
}

/// A slice of `default/web` for its unnamed port, target 8080; endpoints as [`endpoint`] reads.
pub(crate) fn slice(name: &str, endpoints: &[&str]) -> Value {
    slice_of("web", name, endpoints)
}

/// A slice of this Service.
pub(crate) fn slice_of(service: &str, name: &str, endpoints: &[&str]) -> Value {
    let endpoints: Vec<Value> = endpoints.iter().map(|text| endpoint(text)).collect();
    json!({
        "kind": "EndpointSlice",
        "metadata": {
            "namespace": "default",
            "name": name,
            "labels": {"kubernetes.io/service-name": service},
        },
        "addressType": "IPv4",
        "ports": [{"name": "", "port": 8080}],
        "endpoints": endpoints,
    })
}

/// An endpoint from words: an address or `e1` (10.180.0.1); `R` ready, `ST` serving and
/// terminating, `S` serving only, `T` terminating only, none of these: neither; `L` on this node;
/// `z:a,b` hinted to zones; `n:n1` hinted to nodes.
pub(crate) fn endpoint(text: &str) -> Value {
    let mut words = text.split_whitespace();
    let address = words.next().unwrap();
    let address =
        address.strip_prefix('e').map_or_else(|| address.to_owned(), |n| format!("10.180.0.{n}"));
    let (mut ready, mut serving, mut terminating, mut node) = (false, false, false, "other");
    let mut hints = json!({});
    let names = |text: &str| -> Value { text.split(',').map(|it| json!({"name": it})).collect() };
    for word in words {
        match word.split_once(':') {
            Some(("z", zones)) => hints["forZones"] = names(zones),
            Some(("n", nodes)) => hints["forNodes"] = names(nodes),
            _ => match word {
                "R" => (ready, serving) = (true, true),
                "ST" => (serving, terminating) = (true, true),
                "S" => serving = true,
                "T" => terminating = true,
                "L" => node = "n0",
                other => panic!("no such word: {other}"),
            },
        }
    }
    json!({
        "addresses": [address],
        "nodeName": node,
        "conditions": {"ready": ready, "serving": serving, "terminating": terminating},
        "hints": hints,
    })
}

/// Puts the fields of `over` into `value`, level by level.
pub(crate) fn merge(value: &mut Value, over: Value) {
    match (value, over) {
        (Value::Object(fields), Value::Object(over)) => {
            for (name, over) in over {
                merge(fields.entry(name).or_insert(Value::Null), over);
            }
        }
        (value, over) => *value = over,
    }
}

/// The object in the form in which sources hand it over, if it can be decoded.
pub(crate) fn decode(value: &Value) -> Option<Object> {
    let kind = value.get("kind")?.as_str()?;
    let value = value.clone();
    match kind {
        "Service" => serde_json::from_value(value).ok().map(Object::Service),
        "EndpointSlice" => serde_json::from_value(value).ok().map(Object::EndpointSlice),
        "Node" => serde_json::from_value::<api::Node>(value).ok().map(Object::Node),
        "ServiceCIDR" => serde_json::from_value(value).ok().map(Object::ServiceCidr),
        _ => None,
    }
}

impl World {
    /// The node, and these objects.
    pub(crate) fn new(objects: &[Value]) -> Self {
        Self::with(options(), objects)
    }

    /// The same, for these options.
    pub(crate) fn with(options: Options, objects: &[Value]) -> Self {
        let mut world = Self::without_node(options);
        world.apply(&node());
        for object in objects {
            world.apply(object);
        }
        world
    }

    /// A world that knows no Node object.
    pub(crate) fn without_node(options: Options) -> Self {
        Self { store: Store::new(options) }
    }

    pub(crate) fn apply(&mut self, object: &Value) {
        let object = decode(object).expect("the object can be decoded");
        self.store.apply(SourceEvent::Applied(object));
    }

    pub(crate) fn delete(&mut self, kind: Kind, name: &str) {
        let namespace = "default".to_owned();
        self.store.apply(SourceEvent::Deleted(ObjectRef { kind, namespace, name: name.into() }));
    }

    pub(crate) fn take(&mut self) -> FamilyChanges {
        self.store.take_changes(IpFamily::V4)
    }

    /// The names of the Services that are different since the last call.
    pub(crate) fn changed(&mut self) -> Vec<String> {
        self.take().services.into_iter().map(|(name, _)| name.name.to_string()).collect()
    }

    /// The Service in IPv4, if it exists there.
    pub(crate) fn find(&mut self, name: &str) -> Option<ResolvedService> {
        self.find_in(IpFamily::V4, name)
    }

    pub(crate) fn find_in(&mut self, family: IpFamily, name: &str) -> Option<ResolvedService> {
        self.store.take_changes(family);
        let name = ServiceName::new("default", name);
        self.store.service(family, &name).map(|service| (**service).clone())
    }

    /// The first port of `default/web` in IPv4.
    pub(crate) fn port(&mut self) -> ResolvedPort {
        self.find("web").expect("the Service exists").ports.remove(0)
    }

    /// The endpoints of the cluster pool and of the local pool, and why these.
    pub(crate) fn pools(&mut self) -> (String, String) {
        let port = self.port();
        (pool(&port.cluster), pool(&port.local))
    }

    /// The frontends of `default/web`.
    pub(crate) fn frontends(&mut self) -> Vec<String> {
        self.frontends_of("web")
    }

    /// One line for each frontend of the Service, as in `192.0.2.1:80/tcp external IP C C* L`.
    pub(crate) fn frontends_of(&mut self, service: &str) -> Vec<String> {
        let service = self.find(service).expect("the Service exists");
        let frontends = service.ports.iter().flat_map(|port| &port.frontends);
        frontends
            .map(|it| format!("{} {} {}", it.key, it.kind.as_str(), routes(it.routes)))
            .collect()
    }

    /// The routes of the frontend of `default/web` whose key reads like this.
    pub(crate) fn routes(&mut self, key: &str) -> String {
        let service = self.find("web").expect("the Service exists");
        let mut frontends = service.ports.iter().flat_map(|port| &port.frontends);
        let frontend = frontends.find(|frontend| frontend.key.to_string() == key);
        routes(frontend.expect("the frontend exists").routes)
    }

    pub(crate) fn diagnostics(&mut self) -> Vec<String> {
        self.take();
        self.store.diagnostics().iter().map(ToString::to_string).collect()
    }
}

/// `C` or `L` for a pool, `*` if masqueraded, `reject`, `drop`; for pods, host and outside.
pub(crate) fn routes(routes: Routes) -> String {
    let words: Vec<String> = routes.iter().map(route).collect();
    words.join(" ")
}

fn route(route: Route) -> String {
    match route {
        Route::Forward { pool, masquerade } => {
            let pool = if pool == PoolKind::Cluster { "C" } else { "L" };
            format!("{pool}{}", if masquerade { "*" } else { "" })
        }
        Route::Reject => "reject".into(),
        Route::Drop => "drop".into(),
    }
}

/// `e1 e2` for 10.180.0.1:8080 and 10.180.0.2:8080; other endpoints in full.
pub(crate) fn pool(pool: &Pool) -> String {
    let mut text = String::new();
    for endpoint in &pool.endpoints {
        let full = std::net::SocketAddr::new(endpoint.address, endpoint.port).to_string();
        let host = full.strip_prefix("10.180.0.").and_then(|rest| rest.strip_suffix(":8080"));
        let short = host.map(|host| format!("e{host}"));
        write!(text, "{}{}", if text.is_empty() { "" } else { " " }, short.unwrap_or(full))
            .unwrap();
    }
    text
}

pub(crate) fn ip(text: &str) -> IpAddr {
    parse_ip(text).unwrap()
}
