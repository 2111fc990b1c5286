use node_sys::netlink::{Messages, Subsystem};
use proptest::prelude::*;

use super::*;

/// Attributes that are nearly well formed: random types and lengths, nests inside.
fn attributes() -> impl Strategy<Value = Vec<u8>> {
    let leaf = proptest::collection::vec(any::<u8>(), 0..24);
    let list = |payload: BoxedStrategy<Vec<u8>>| {
        proptest::collection::vec((0..12_u16, payload), 0..8).prop_map(|attributes| {
            let mut bytes = Vec::new();
            for (kind, payload) in attributes {
                let len = u16::try_from(payload.len() + 4).unwrap();
                bytes.extend(len.to_ne_bytes());
                bytes.extend(kind.to_ne_bytes());
                bytes.extend(payload);
                bytes.resize(bytes.len().next_multiple_of(4), 0);
            }
            bytes
        })
    };
    let mut nested = leaf.boxed();
    for _ in 0..4 {
        nested = prop_oneof![nested.clone(), list(nested)].boxed();
    }
    nested
}

fn read_everything(kind: u16, payload: &[u8]) {
    let message = Message { kind, flags: 0, sequence: 1, port: 2, payload };
    for family in IpFamily::ALL {
        let _any = read_table(&message, layout::TABLE);
        let _any = read_set(&message, layout::TABLE, family);
        let _any = read_chain(&message, layout::TABLE);
        let _any = read_rule(&message, layout::TABLE, family);
        let _any = describe_notification(&message, layout::TABLE, family);
        let _any = changing_process(&message);
        let names = layout::fixed_sets().into_iter().map(|(name, _)| name);
        for name in names.chain(["endpoints-x/y", "affinity-x/y", "x"]) {
            let name = Arc::from(name);
            for element in listed_elements(&message) {
                let _any = read_element(&name, &element.nested(), family);
            }
            let _any = read_element(&name, &Attributes::new(payload), family);
        }
    }
    let _any = Expr::read(&Attributes::new(payload), IpFamily::V4);
    let _any = read_comment(payload);
}

proptest! {
    #[test]
    fn garbage_is_read_without_panic(
        kind in any::<u16>(),
        noise in proptest::collection::vec(any::<u8>(), 0..200),
        attributes in attributes(),
    ) {
        read_everything(kind, &noise);
        let mut payload = vec![2, 0, 0, 0];
        payload.extend(attributes);
        read_everything(kind, &payload);
    }

    /// Captured messages with some bytes changed.
    #[test]
    fn damaged_messages_are_read_without_panic(
        message in any::<prop::sample::Index>(),
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
    ) {
        let bytes = sample();
        let messages: Vec<_> = Messages::new(&bytes).collect();
        let message = messages[message.index(messages.len())];
        let mut payload = message.payload.to_vec();
        for (at, value) in changes {
            if !payload.is_empty() {
                let at = at.index(payload.len());
                payload[at] = value;
            }
        }
        read_everything(message.kind, &payload);
    }
}

/// Messages of every kind as this program writes them.
fn sample() -> Vec<u8> {
    let config = crate::TableConfig { family: IpFamily::V4, detector: None, masquerade_bit: 14 };
    let facts = proxy_core::node::NodeFacts {
        family: IpFamily::V4,
        node_port_addresses: proxy_core::node::NodePortAddresses::All,
        addresses: [].into(),
        service_ranges: Vec::new(),
    };
    let mut rules = proxy_core::rules::RuleSet::new();
    crate::compile::Compiler::new(&config).node(&facts, &mut rules);
    let writer = Writer { family: IpFamily::V4, table: layout::TABLE };
    let mut batch = Batch::new(Subsystem::NFTABLES, None);
    writer.table(&mut batch);
    for (key, rule) in &rules {
        match (key, rule) {
            (Key::Set(name), Rule::Set(spec)) => {
                let _number = writer.set(name, spec, &mut batch);
            }
            (Key::Chain(name), Rule::Chain(spec)) => {
                writer.chain(&name.0, spec, &mut batch);
                for rule in &spec.rules {
                    writer.rule(&name.0, rule, &mut batch);
                }
            }
            _ => {}
        }
    }
    let frontend =
        FrontendKey::Address { address: [10, 0, 0, 1].into(), port: 80, protocol: Protocol::Tcp };
    let verdict = Action { verdict: Verdict::Goto("pick-4".into()), comment: "a/b:c".into() };
    let objects = [
        (Key::Frontend(frontend), Rule::Verdict(Arc::new(verdict))),
        (Key::Endpoint(frontend, 7), Rule::Endpoint([10, 0, 0, 2].into(), 8080)),
        (Key::SourceRange(Box::new((frontend, Cidr::parse("10.0.0.0/9").unwrap()))), Rule::Member),
    ];
    for (key, rule) in &objects {
        writer.elements(msg::NEWSETELEM, std::iter::once((key, Some(rule))), &mut batch);
    }
    batch.finish().unwrap().to_vec()
}

#[test]
fn elements_written_are_read() {
    let bytes = sample();
    let mut read = Vec::new();
    for message in Messages::new(&bytes).filter(|message| message.command() == msg::NEWSETELEM) {
        let set = message.netfilter_attributes().get(element::LIST_SET).unwrap();
        let set = Arc::from(set.str().unwrap());
        for element in listed_elements(&message) {
            read.push(read_element(&set, &element.nested(), IpFamily::V4).unwrap());
        }
    }
    let keys: Vec<_> = read.iter().map(|(key, _)| key.to_string()).collect();
    assert_eq!(
        keys,
        [
            "frontend 10.0.0.1:80/tcp",
            "endpoint 7 of 10.0.0.1:80/tcp",
            "source range 10.0.0.0/9 of 10.0.0.1:80/tcp",
        ]
    );
    let Rule::Verdict(action) = &read[0].1 else { panic!("{:?}", read[0].1) };
    assert_eq!(&*action.comment, "a/b:c");
    assert_eq!(read[1].1, Rule::Endpoint([10, 0, 0, 2].into(), 8080));
}

#[test]
fn comments_of_other_makers_are_read() {
    assert_eq!(read_comment(&[0, 3, b'a', b'b', 0]), Some("ab"));
    assert_eq!(read_comment(&[1, 2, 9, 9, 0, 2, b'x', 0]), Some("x"));
    assert_eq!(read_comment(&[0, 9, b'a']), None);
    assert_eq!(read_comment(&[]), None);
    assert_eq!(comment_data(""), None);
    assert_eq!(comment_data("ab").as_deref(), Some(&[0, 3, b'a', b'b', 0][..]));
}
