//! From facts to chains and rules. Pure.

use std::net::SocketAddr;

use proxy_core::address::{Cidr, IpFamily};
use proxy_core::names::ServicePortName;
use proxy_core::node::{LocalDetector, NodeFacts, NodePortAddresses};
use proxy_core::resolved::{
    Endpoint, Frontend, FrontendKey, FrontendKind, PoolKind, ResolvedPort, ResolvedService, Route,
    Routes,
};
use proxy_core::rules::RuleSet;

use crate::layout::{self, MARK_MASQ};
use crate::model::{Key, Rule, Rules, Table, Text};
use crate::text;

/// What the rules of one family depend on besides objects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableConfig {
    /// The family.
    pub family: IpFamily,
    /// How local pods' traffic is told; `None`: not at all.
    pub detector: Option<LocalDetector>,
    /// The mark's bit, 0 to 31, that asks for masquerading (S6.3).
    pub masquerade_bit: u8,
    /// Whether node ports answer on 127.0.0.1; IPv4 only.
    pub localhost_node_ports: bool,
    /// Whether the kernel is to route 127.0.0.0/8 (`route_localnet`), without which these answer
    /// nobody; IPv4 only. Set once what keeps neighbours out is installed.
    pub routes_localnet: bool,
    /// Whether forwarded packets of no valid connection are dropped: not where
    /// `nf_conntrack_tcp_be_liberal` is set.
    pub drops_invalid: bool,
}

/// Everything that the tables of one family hold of ours, for these Services on this node.
pub fn compile<'a>(
    config: &TableConfig,
    node: &NodeFacts,
    services: impl IntoIterator<Item = &'a ResolvedService>,
) -> RuleSet<Key, Rule> {
    let mut rules = RuleSet::new();
    config.node(node, &mut rules);
    for service in services {
        config.service(service, &mut rules);
    }
    rules
}

fn chain(table: Table, name: &Text, rules: Vec<String>, out: &mut Rules) {
    let rules = rules.into_iter().map(Text::from).collect();
    out.insert(Key::chain(table, name), Rule::Chain(rules));
}

fn entry(table: Table, chain: &Text, rule: String, out: &mut Rules) {
    out.insert(Key::entry(table, chain, &rule.into()), Rule::Entry);
}

/// The route to the endpoints, if it leads there.
fn pool_of(route: Route) -> Option<PoolKind> {
    match route {
        Route::Forward { pool, .. } => Some(pool),
        Route::Reject | Route::Drop => None,
    }
}

fn is_masqueraded(route: Route) -> bool {
    matches!(route, Route::Forward { masquerade: true, .. })
}

fn kind_word(kind: FrontendKind) -> &'static str {
    match kind {
        FrontendKind::ClusterIp => " cluster IP",
        FrontendKind::ExternalIp => " external IP",
        FrontendKind::LoadBalancerIp => " loadbalancer IP",
        FrontendKind::NodePort => "",
    }
}

/// A service port while its rules are made.
struct Port<'a> {
    port: &'a ResolvedPort,
    /// `namespace/name:port`.
    name: String,
}

impl Port<'_> {
    fn id(&self) -> &ServicePortName {
        &self.port.name
    }

    fn pool_chain(&self, pool: PoolKind) -> Text {
        let prefix = match pool {
            PoolKind::Cluster => layout::SVC,
            PoolKind::Local => layout::SVL,
        };
        layout::port_chain(prefix, self.id())
    }

    /// What is dialled, in words, with a comment.
    fn dialled(&self, key: FrontendKey, comment: &str) -> String {
        let comment = text::comment(&format!("{}{comment}", self.name));
        let port = text::port(key.protocol(), &comment, key.port());
        match key {
            FrontendKey::Address { address, .. } => format!("-d {} {port}", text::host(address)),
            FrontendKey::NodePort { .. } => port,
        }
    }
}

impl TableConfig {
    fn mark(&self) -> u32 {
        1_u32.checked_shl(self.masquerade_bit.into()).unwrap_or(1 << 14)
    }

    fn loopback(&self) -> &'static str {
        match self.family {
            IpFamily::V4 => "127.0.0.0/8",
            IpFamily::V6 => "::1/128",
        }
    }

    /// Whether the node's 127.0.0.1 is reached by node ports, and has to be guarded.
    pub(crate) fn guards_loopback(&self) -> bool {
        self.family == IpFamily::V4 && self.localhost_node_ports
    }

    /// The test for a local pod, and its opposite.
    fn pod_test(&self) -> Option<(String, String)> {
        let test = match self.detector.as_ref()? {
            LocalDetector::Source(range) => format!("-s {range}"),
            LocalDetector::Interface(name) => format!("-i {name}"),
            LocalDetector::InterfacePrefix(prefix) => format!("-i {prefix}+"),
        };
        Some((test.clone(), format!("! {test}")))
    }

    // === the node ===

    /// What is there whatever the Services are.
    pub(crate) fn node(&self, node: &NodeFacts, out: &mut Rules) {
        use Table::{Filter, Nat};
        for (table, root) in [
            (Nat, layout::SERVICES),
            (Nat, layout::NODEPORTS),
            (Filter, layout::SERVICES),
            (Filter, layout::EXTERNAL_SERVICES),
            (Filter, layout::NODEPORTS),
            (Filter, layout::NODEPORTS_REJECT),
            (Filter, layout::FIREWALL),
        ] {
            out.insert(Key::chain(table, &root.into()), Rule::Shared);
        }
        self.node_ports(node, out);
        self.masquerading(out);
        self.forwarding(out);
        if self.guards_loopback() {
            let firewall = layout::LOCALNET_FIREWALL.into();
            out.insert(Key::chain(Filter, &firewall), Rule::Shared);
            entry(Filter, &firewall, localnet_rule(), out);
        }
        self.jumps(out);
    }

    fn jumps(&self, out: &mut Rules) {
        let mut from: Vec<(Table, &str)> =
            layout::JUMPS.iter().map(|jump| (jump.table, jump.from)).collect();
        from.dedup();
        for (table, name) in from {
            let jumps = layout::JUMPS.iter().filter(|it| it.table == table && it.from == name);
            let wanted =
                jumps.filter(|it| it.to != layout::LOCALNET_FIREWALL || self.guards_loopback());
            let texts = wanted.map(layout::Jump::text).collect();
            out.insert(Key::Jumps(table, name.into()), Rule::Jumps(texts));
        }
    }

    /// Where node ports are looked at: after everything else, so that a specific address wins.
    fn node_ports(&self, node: &NodeFacts, out: &mut Rules) {
        let note = text::comment(
            "kubernetes service nodeports; NOTE: this must be the last rule in this chain",
        );
        let tests: Vec<String> = match &node.node_port_addresses {
            NodePortAddresses::All if self.guards_loopback() => {
                vec![format!("{note} -m addrtype --dst-type LOCAL")]
            }
            NodePortAddresses::All => {
                vec![format!("! -d {} {note} -m addrtype --dst-type LOCAL", self.loopback())]
            }
            NodePortAddresses::Only(addresses) => addresses
                .iter()
                .map(|address| format!("-d {} {note}", text::host(*address)))
                .collect(),
        };
        for test in tests {
            let to = |chain| format!("{test} -j {chain}");
            entry(Table::Nat, &layout::SERVICES.into(), to(layout::NODEPORTS), out);
            let external = layout::EXTERNAL_SERVICES.into();
            entry(Table::Filter, &external, to(layout::NODEPORTS_REJECT), out);
        }
    }

    fn masquerading(&self, out: &mut Rules) {
        let mark = format!("{:#x}", self.mark());
        let note = text::comment("kubernetes service traffic requiring SNAT");
        let rules = vec![
            format!("-m mark ! --mark {mark}/{mark} -j RETURN"),
            // Cleared first, so that an encapsulated copy of the packet is not masqueraded again.
            format!("-j MARK --set-xmark {mark}/0x0"),
            format!("{note} -j MASQUERADE --random-fully"),
        ];
        chain(Table::Nat, &layout::POSTROUTING.into(), rules, out);
        let set = vec![format!("-j MARK --set-xmark {mark}/{mark}")];
        chain(Table::Nat, &MARK_MASQ.into(), set, out);
    }

    fn forwarding(&self, out: &mut Rules) {
        let mark = format!("{:#x}", self.mark());
        let mut rules = Vec::new();
        if self.drops_invalid {
            rules.push("-m conntrack --ctstate INVALID -j DROP".to_owned());
        }
        let note = text::comment("kubernetes forwarding rules");
        rules.push(format!("{note} -m mark --mark {mark}/{mark} -j ACCEPT"));
        let note = text::comment("kubernetes forwarding conntrack rule");
        rules.push(format!("{note} -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT"));
        chain(Table::Filter, &layout::FORWARD.into(), rules, out);
    }

    // === Services ===

    /// The chains and rules of one Service.
    pub(crate) fn service(&self, service: &ResolvedService, out: &mut Rules) {
        for port in &service.ports {
            let port = Port { port, name: port.name.to_string() };
            self.endpoints(&port, out);
            self.external(&port, out);
            for frontend in &port.port.frontends {
                self.frontend(&port, frontend, out);
            }
        }
        if let Some(check) = &service.health_check {
            let note = text::comment(&format!("{} health check node port", service.name));
            let rule = format!("-p tcp {note} -m tcp --dport {} -j ACCEPT", check.port);
            entry(Table::Filter, &layout::NODEPORTS.into(), rule, out);
        }
    }

    /// The chains of the pools that are used, and of their endpoints.
    fn endpoints(&self, port: &Port<'_>, out: &mut Rules) {
        for kind in [PoolKind::Cluster, PoolKind::Local] {
            let frontends = port.port.frontends.iter();
            if !frontends.flat_map(|it| it.routes.iter()).any(|it| pool_of(it) == Some(kind)) {
                continue;
            }
            let mut endpoints: Vec<&Endpoint> = port.port.pool(kind).endpoints.iter().collect();
            // Chances go by position, so all that matters is that equal sets have equal rules.
            endpoints.sort_by_cached_key(|it| SocketAddr::new(it.address, it.port).to_string());
            let mut rules: Vec<String> =
                self.cluster_ip_masquerade(port, kind).into_iter().collect();
            let chains: Vec<Text> =
                endpoints.iter().map(|endpoint| self.endpoint(port, endpoint, out)).collect();
            if let Some(affinity) = port.port.affinity {
                for (endpoint, name) in endpoints.iter().zip(&chains) {
                    let note = endpoint_note(port, endpoint);
                    let recent = self
                        .recent(name, &format!("--rcheck --seconds {} --reap", affinity.as_secs()));
                    rules.push(format!("{note} {recent} -j {name}"));
                }
            }
            for (index, (endpoint, name)) in endpoints.iter().zip(&chains).enumerate() {
                let note = endpoint_note(port, endpoint);
                let left = endpoints.len() - index;
                let chance =
                    if left > 1 { format!(" {}", text::one_in(left)) } else { String::new() };
                rules.push(format!("{note}{chance} -j {name}"));
            }
            chain(Table::Nat, &port.pool_chain(kind), rules, out);
        }
    }

    /// The rule that marks what is dialled at the cluster IP. It names the address, since other
    /// traffic, whose source may be kept, comes through the same chain.
    fn cluster_ip_masquerade(&self, port: &Port<'_>, kind: PoolKind) -> Option<String> {
        let is_it = |it: &&Frontend| it.kind == FrontendKind::ClusterIp;
        let frontend = port.port.frontends.iter().find(is_it)?;
        let routes = self.effective(frontend.routes);
        if pool_of(routes.outside) != Some(kind) || !is_masqueraded(routes.outside) {
            return None;
        }
        let dialled = port.dialled(frontend.key, kind_word(frontend.kind));
        let test = match self.pod_test() {
            Some((_, not_pod)) if !is_masqueraded(routes.pod) => {
                // iptables prints source, destination, interface, in this order.
                if not_pod.starts_with("! -i") {
                    let (address, rest) = dialled.split_once(" -p ").unwrap_or((&dialled, ""));
                    format!("{address} {not_pod} -p {rest}")
                } else {
                    format!("{not_pod} {dialled}")
                }
            }
            _ => dialled,
        };
        Some(format!("{test} -j {MARK_MASQ}"))
    }

    /// The chain that translates to an endpoint; returns its name.
    fn endpoint(&self, port: &Port<'_>, endpoint: &Endpoint, out: &mut Rules) -> Text {
        let target = SocketAddr::new(endpoint.address, endpoint.port).to_string();
        let name = layout::endpoint_chain(port.id(), &target);
        let key = Key::chain(Table::Nat, &name);
        if out.get(&key).is_some() {
            // Both pools have it.
            return name;
        }
        let note = text::comment(&port.name);
        let recent = match port.port.affinity {
            Some(_) => format!(" {}", self.recent(&name, "--set")),
            None => String::new(),
        };
        let protocol = port.id().protocol.as_str();
        let rules = [
            // A pod that reaches itself would answer itself directly.
            format!("-s {} {note} -j {MARK_MASQ}", text::host(endpoint.address)),
            format!("-p {protocol} {note}{recent} -m {protocol} -j DNAT --to-destination {target}"),
        ];
        out.insert(key, Rule::Chain(rules.map(Text::from).into()));
        name
    }

    /// The match that remembers clients of a chain, or finds them.
    fn recent(&self, chain: &str, what: &str) -> String {
        let mask = match self.family {
            IpFamily::V4 => "255.255.255.255",
            IpFamily::V6 => "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff",
        };
        format!("-m recent {what} --name {chain} --mask {mask} --rsource")
    }

    /// The chain for addresses that are dialled from anywhere.
    fn external(&self, port: &Port<'_>, out: &mut Rules) {
        let is_external = |it: &&Frontend| it.kind != FrontendKind::ClusterIp;
        let Some(frontend) = port.port.frontends.iter().find(is_external) else { return };
        let routes = self.effective(frontend.routes);
        if routes.iter().all(|route| pool_of(route).is_none()) {
            return;
        }
        let mut rules = Vec::new();
        if routes.pod != routes.outside
            && let Some((pod, _)) = self.pod_test()
        {
            let words = ("masquerade pod traffic for", "pod traffic for");
            rules.extend(lead(port, &pod, words, routes.pod));
        }
        if routes.host != routes.outside {
            let words = ("masquerade LOCAL traffic for", "route LOCAL traffic for");
            rules.extend(lead(port, "-m addrtype --src-type LOCAL", words, routes.host));
        }
        rules.extend(lead(port, "", ("masquerade traffic for", ""), routes.outside));
        chain(Table::Nat, &layout::port_chain(layout::EXT, port.id()), rules, out);
    }

    fn frontend(&self, port: &Port<'_>, frontend: &Frontend, out: &mut Rules) {
        if let Some(ranges) = &frontend.source_ranges {
            Self::firewall(port, frontend, ranges, out);
        }
        let routes = self.effective(frontend.routes);
        if routes.iter().any(|route| pool_of(route).is_some()) {
            let target = Self::target(port, frontend, routes);
            let rule =
                format!("{} -j {target}", port.dialled(frontend.key, kind_word(frontend.kind)));
            let branch = match frontend.key {
                FrontendKey::Address { address, .. } => {
                    layout::address_branch(Table::Nat, layout::SERVICES, address, out)
                }
                FrontendKey::NodePort { port, protocol } => {
                    layout::port_branch(Table::Nat, layout::NODEPORTS, protocol, port, out)
                }
            };
            entry(Table::Nat, &branch, rule, out);
        }
        if let Some(refusal) = routes.refusal() {
            self.refuse(port, frontend, refusal, out);
        }
    }

    /// The chain that a frontend leads to.
    fn target(port: &Port<'_>, frontend: &Frontend, routes: Routes) -> Text {
        match frontend.kind {
            FrontendKind::ClusterIp => {
                let pool = routes.iter().find_map(pool_of).unwrap_or(PoolKind::Cluster);
                port.pool_chain(pool)
            }
            _ if frontend.source_ranges.is_some() => layout::port_chain(layout::FW, port.id()),
            _ => layout::port_chain(layout::EXT, port.id()),
        }
    }

    /// Admits only the source ranges: others are not translated, and what is not translated is
    /// dropped.
    fn firewall(port: &Port<'_>, frontend: &Frontend, ranges: &[Cidr], out: &mut Rules) {
        let name = layout::port_chain(layout::FW, port.id());
        let forwards = frontend.routes.iter().any(|route| pool_of(route).is_some());
        let note = text::comment(&format!("{} loadbalancer IP", port.name));
        let admit = |target: &str| {
            let range = |range: &Cidr| {
                let test =
                    if range.prefix_len() == 0 { String::new() } else { format!("-s {range} ") };
                format!("{test}{note} -j {target}")
            };
            ranges.iter().map(range).collect::<Vec<_>>()
        };
        let note = " traffic not accepted by ";
        let refuse = port.dialled(frontend.key, &format!("{note}{name}"));
        let target = if forwards {
            let external = layout::port_chain(layout::EXT, port.id());
            chain(Table::Nat, &name, admit(&external), out);
            "DROP"
        } else {
            // Sources that are admitted get the refusal of a Service without endpoints.
            let mut rules = admit("RETURN");
            rules.push("-j DROP".to_owned());
            chain(Table::Filter, &name, rules, out);
            &*name
        };
        if let FrontendKey::Address { address, .. } = frontend.key {
            let branch = layout::address_branch(Table::Filter, layout::FIREWALL, address, out);
            entry(Table::Filter, &branch, format!("{refuse} -j {target}"), out);
        }
    }

    /// Refuses what was not translated.
    fn refuse(&self, port: &Port<'_>, frontend: &Frontend, refusal: Route, out: &mut Rules) {
        let (words, target) = match refusal {
            Route::Drop => (" has no local endpoints", "DROP"),
            // A reset, which IPv6 clients notice at once.
            _ if frontend.key.protocol() == proxy_core::names::Protocol::Tcp => {
                (" has no endpoints", "REJECT --reject-with tcp-reset")
            }
            _ => (" has no endpoints", self.unreachable()),
        };
        let rule = format!("{} -j {target}", port.dialled(frontend.key, words));
        let branch = match frontend.key {
            FrontendKey::Address { address, .. } => {
                let root = match frontend.kind {
                    FrontendKind::ClusterIp => layout::SERVICES,
                    _ => layout::EXTERNAL_SERVICES,
                };
                layout::address_branch(Table::Filter, root, address, out)
            }
            FrontendKey::NodePort { port, protocol } => {
                layout::port_branch(Table::Filter, layout::NODEPORTS_REJECT, protocol, port, out)
            }
        };
        entry(Table::Filter, &branch, rule, out);
    }

    fn unreachable(&self) -> &'static str {
        match self.family {
            IpFamily::V4 => "REJECT --reject-with icmp-port-unreachable",
            IpFamily::V6 => "REJECT --reject-with icmp6-port-unreachable",
        }
    }

    /// Without a detector nobody is a pod.
    fn effective(&self, routes: Routes) -> Routes {
        match self.detector {
            Some(_) => routes,
            None => Routes { pod: routes.outside, ..routes },
        }
    }
}

/// Leads sources that pass a test where their route goes, marked if they are to be masqueraded. The
/// words are those of the comments on either rule.
fn lead(
    port: &Port<'_>,
    test: &str,
    (marking, leading): (&str, &str),
    route: Route,
) -> Vec<String> {
    let rule = |words: &str, target: &str| {
        let note = match words {
            "" => String::new(),
            words => text::comment(&format!("{words} {} external destinations", port.name)),
        };
        let tests = note_first(test, &note);
        if tests.is_empty() { format!("-j {target}") } else { format!("{tests} -j {target}") }
    };
    let mark = is_masqueraded(route).then(|| rule(marking, MARK_MASQ));
    let lead = match pool_of(route) {
        Some(pool) => Some(rule(leading, &port.pool_chain(pool))),
        // What is not led anywhere is refused as not translated.
        None => (!test.is_empty()).then(|| rule(leading, "RETURN")),
    };
    mark.into_iter().chain(lead).collect()
}

/// iptables prints the tests of addresses and interfaces before a comment, and those of modules
/// in the order in which they were given.
fn note_first(test: &str, note: &str) -> String {
    match (test.is_empty(), note.is_empty()) {
        (true, _) => note.to_owned(),
        (_, true) => test.to_owned(),
        _ if test.starts_with("-m") => format!("{note} {test}"),
        _ => format!("{test} {note}"),
    }
}

fn endpoint_note(port: &Port<'_>, endpoint: &Endpoint) -> String {
    let target = SocketAddr::new(endpoint.address, endpoint.port);
    text::comment(&format!("{} -> {target}", port.name))
}

/// Packets to 127.0.0.0/8 that come from elsewhere: `route_localnet` would let them in.
pub(crate) fn localnet_rule() -> String {
    let note = text::comment("block incoming localnet connections");
    format!(
        "! -s 127.0.0.0/8 -d 127.0.0.0/8 {note} -m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT \
         -j DROP"
    )
}
