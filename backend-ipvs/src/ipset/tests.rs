use super::*;
use node_sys::netlink::Messages;

/// Bytes from hexadecimal digits.
fn bytes(hex: &str) -> Vec<u8> {
    let digits: Vec<u32> = hex.chars().filter_map(|c| c.to_digit(16)).collect();
    digits.chunks(2).map(|pair| u8::try_from(pair[0] * 16 + pair[1]).unwrap()).collect()
}

fn port(address: &str, port: u16, protocol: Protocol) -> ServerKey {
    ServerKey { address: address.parse().unwrap(), port, protocol }
}

fn listed(hex: &str, family: IpFamily, set: SetName) -> ListedSet {
    let bytes = bytes(hex);
    let mut listed = ListedSet::default();
    // The last message is the end of the list.
    let messages = Messages::new(&bytes).filter(|message| message.kind == 0x0607);
    messages.for_each(|message| read_list(&message, family, set, &mut listed));
    listed.entries.sort();
    listed
}

/// Linux 6.1 after `ipset create a hash:ip,port maxelem 1000; ipset add a 192.0.2.1,tcp:80;
/// ipset add a 192.0.2.1,sctp:81`.
const IP_PORT: &str = "\
    c80000000706020009000000b2020000020000000500010006000000060002006100000011000300\
    686173683a69702c706f727400000000050005000200000005000400060000003c00078008001240\
    0000040008001340000003e8050015000c0000000800114020e18c1b080019400000000008001a40\
    00000120080018400000000244000880200007800c00018008000100c00002010600044000500000\
    0500070006000000200007800c00018008000100c000020106000440005100000500070084000000\
    140000000300020009000000b202000000000000";

/// After `ipset create b hash:ip,port,net family inet6;
/// ipset add b 2001:db8::1,udp:53,fd00::/8`.
const IP_PORT_NET: &str = "\
    d80000000706020009000000b2020000020000000500010006000000060002006200000015000300\
    686173683a69702c706f72742c6e657400000000050005000a00000005000400080000003c000780\
    08001240000004000800134000010000050015000c000000080011408c0d515f0800194000000000\
    08001a40000005480800184000000001500008804c000780180001801400020020010db800000000\
    00000000000000011800148014000200fd0000000000000000000000000000000600044000350000\
    05001500080000000500070011000000140000000300020009000000b202000000000000";

/// After `ipset create c hash:ip; ipset add c 192.0.2.9`.
const IP: &str = "\
    900000000706020009000000b202000002000000050001000600000006000200630000000c000300\
    686173683a697000050005000200000005000400050000003c000780080012400000040008001340\
    00010000050015000c00000008001140ae10bc7b080019400000000008001a40000000e808001840\
    0000000114000880100007800c00018008000100c0000209140000000300020009000000b2020000\
    00000000";

#[test]
#[cfg(target_endian = "little")]
fn listed_sets_are_read() {
    let ports = listed(IP_PORT, IpFamily::V4, SetName::Servers);
    assert!(ports.is_ours);
    let expected = [
        Entry::IpPort(port("192.0.2.1", 80, Protocol::Tcp)),
        Entry::IpPort(port("192.0.2.1", 81, Protocol::Sctp)),
    ];
    assert_eq!(ports.entries, expected);
    let ranges = listed(IP_PORT_NET, IpFamily::V6, SetName::Allowed);
    assert!(ranges.is_ours);
    let key = port("2001:db8::1", 53, Protocol::Udp);
    let range = Cidr::parse("fd00::/8").unwrap();
    assert_eq!(ranges.entries, [Entry::IpPortNet(key, range)]);
    let addresses = listed(IP, IpFamily::V4, SetName::Addresses);
    assert_eq!(addresses.entries, [Entry::Ip("192.0.2.9".parse().unwrap())]);
}

#[test]
#[cfg(target_endian = "little")]
fn a_set_of_another_make_is_not_ours() {
    assert!(!listed(IP, IpFamily::V4, SetName::Servers).is_ours, "another type");
    assert!(!listed(IP, IpFamily::V6, SetName::Addresses).is_ours, "another family");
}

/// The element of `ipset add n 192.0.2.1,sctp:80,10.0.0.0/8`, as captured from ipset 7.17, without
/// the line number.
const ELEMENT: &str = "0c00018008000140c00002010600044000500000050007008400000\
    00c001480080001400a0000000500150008000000";

#[test]
#[cfg(target_endian = "little")]
fn elements_are_those_of_ipset() {
    let key = port("192.0.2.1", 80, Protocol::Sctp);
    let mut buffer = MessageBuffer::new();
    buffer.begin(1, 0, 1);
    write_entry(&mut buffer, &Entry::IpPortNet(key, Cidr::parse("10.0.0.0/8").unwrap()));
    buffer.end();
    let message = Messages::new(buffer.finish().unwrap()).next().unwrap();
    assert_eq!(message.payload, bytes(ELEMENT));
}

#[test]
fn what_is_written_is_read() {
    for (set, entries) in [
        (SetName::Addresses, vec![Entry::Ip("fd00::1".parse().unwrap())]),
        (SetName::HealthPorts, vec![Entry::Port(1), Entry::Port(u16::MAX)]),
        (SetName::Live, vec![Entry::IpPort(port("fd00::1", 80, Protocol::Udp))]),
        (
            SetName::Hairpin,
            vec![Entry::IpPortNet(
                port("fd00::1", 80, Protocol::Udp),
                Cidr::parse("fd00::1/128").unwrap(),
            )],
        ),
    ] {
        let mut buffer = MessageBuffer::new();
        write_change(&mut buffer, 1, IpFamily::V6, cmd::ADD, "name", &entries);
        let message = Messages::new(buffer.finish().unwrap()).next().unwrap();
        let mut listed = ListedSet::default();
        read_list(&message, IpFamily::V6, set, &mut listed);
        assert_eq!(listed.entries, entries);
    }
}

proptest::proptest! {
    #[test]
    fn garbage_never_panics(payload: Vec<u8>) {
        let message = Message { kind: 0x0607, flags: 0, sequence: 0, port: 0, payload: &payload };
        for set in SetName::ALL {
            read_list(&message, IpFamily::V4, set, &mut ListedSet::default());
        }
    }
}
