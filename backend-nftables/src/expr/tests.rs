use node_sys::netlink::Messages;
use proptest::prelude::*;

use super::*;

fn register() -> impl Strategy<Value = Register> {
    (0..16_u8).prop_map(Register)
}

fn text() -> impl Strategy<Value = Arc<str>> {
    "[a-z./-]{1,250}".prop_map(Arc::from)
}

fn bytes() -> impl Strategy<Value = Vec<u8>> {
    proptest::collection::vec(any::<u8>(), 1..=16)
}

fn verdicts() -> impl Strategy<Value = Verdict> {
    prop_oneof![
        Just(Verdict::Drop),
        Just(Verdict::Accept),
        Just(Verdict::Return),
        text().prop_map(Verdict::Jump),
        text().prop_map(Verdict::Goto),
    ]
}

fn loads(family: IpFamily) -> impl Strategy<Value = Expr> {
    let header = proptest::sample::select(vec![Header::Network, Header::Transport]);
    let ct =
        vec![Ct::State, Ct::Status, Ct::OriginalDestination(family), Ct::OriginalDestinationPort];
    let address = proptest::sample::select(vec![FibAddress::Source, FibAddress::Destination]);
    prop_oneof![
        (header, any::<u32>(), any::<u32>(), register())
            .prop_map(|(header, offset, len, to)| Expr::Payload { header, offset, len, to }),
        (proptest::sample::select(&Meta::ALL[..]), register())
            .prop_map(|(key, to)| Expr::Meta { key, to }),
        register().prop_map(|from| Expr::SetMark { from }),
        (proptest::sample::select(ct), register()).prop_map(|(key, to)| Expr::Ct { key, to }),
        (address, register()).prop_map(|(address, to)| Expr::FibType { address, to }),
        (any::<u32>(), any::<u32>(), register()).prop_map(|(modulus, offset, to)| Expr::Random {
            modulus,
            offset,
            to
        }),
        (register(), any::<bool>(), bytes()).prop_map(|(register, differs, bytes)| Expr::Cmp {
            register,
            differs,
            bytes
        }),
        (register(), register(), bytes(), bytes())
            .prop_map(|(from, to, mask, xor)| Expr::Bitwise { from, to, mask, xor }),
    ]
}

fn actions(family: IpFamily) -> impl Strategy<Value = Expr> {
    let refusals = vec![Refusal::TcpReset, Refusal::PortUnreachable(family)];
    prop_oneof![
        (text(), register()).prop_map(|(set, key)| Expr::Contains { set, key }),
        (text(), register(), register()).prop_map(|(map, key, to)| Expr::Map { map, key, to }),
        (text(), register()).prop_map(|(map, key)| Expr::VerdictMap { map, key }),
        (register(), register()).prop_map(move |(address, port)| Expr::Dnat {
            family,
            address,
            port
        }),
        Just(Expr::Masquerade),
        (text(), register(), register(), any::<u64>()).prop_map(|(map, key, value, timeout_ms)| {
            Expr::UpdateMap { map, key, value, timeout_ms }
        }),
        proptest::sample::select(refusals).prop_map(Expr::Reject),
        verdicts().prop_map(Expr::Verdict),
    ]
}

fn check(expr: &Expr, family: IpFamily) {
    let mut buffer = MessageBuffer::new();
    buffer.begin(0, 0, 1);
    expr.write(&mut buffer);
    buffer.end();
    let mut messages = Messages::new(buffer.finish().unwrap());
    let mut attributes = messages.next().unwrap().attributes(0);
    let element = attributes.next().unwrap();
    assert_eq!(Expr::read(&element.nested(), family), *expr);
}

proptest! {
    #[test]
    fn what_is_written_is_read(v4 in loads(IpFamily::V4), v6 in loads(IpFamily::V6)) {
        check(&v4, IpFamily::V4);
        check(&v6, IpFamily::V6);
    }

    #[test]
    fn actions_written_are_read(v4 in actions(IpFamily::V4), v6 in actions(IpFamily::V6)) {
        check(&v4, IpFamily::V4);
        check(&v6, IpFamily::V6);
    }

    #[test]
    fn registers_have_the_numbers_that_the_kernel_reports(number in 0..64_u32) {
        let known = Register::from_number(number);
        prop_assert_eq!(known.is_some(), (1..=4).contains(&number) || (8..=23).contains(&number));
        let same = known.is_none_or(|register| {
            Register::from_number(register.number()) == Some(register)
        });
        prop_assert!(same);
    }
}
