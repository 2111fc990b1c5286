//! Interface addresses of the running kernel.

use std::net::IpAddr;
use std::time::Duration;

use crate::common::{in_namespace, wait_readable};
use node_sys::addresses::{self, AddressMonitor, Scope};
use node_sys::netlink::{MessageBuffer, Protocol, Socket, flags};

/// Adds an address to the loopback interface, as `ip address add` does.
fn add_address(last: u8) {
    const RTM_NEWADDR: u16 = 20;
    const IFA_LOCAL: u16 = 2;
    let mut socket = Socket::open(Protocol::ROUTE).expect("route socket");
    let mut request = MessageBuffer::new();
    let kind = flags::REQUEST | flags::ACK | flags::CREATE;
    request.begin(RTM_NEWADDR, kind, socket.next_sequence());
    // struct ifaddrmsg: family, prefix length, flags, scope, index.
    request.put(&[2, 24, 0, 0]);
    request.put(&1_u32.to_ne_bytes());
    request.attr_bytes(IFA_LOCAL, &[192, 0, 2, last]);
    request.end();
    socket.request(&request).expect("address added");
}

#[test]
fn loopback_is_listed() {
    in_namespace(|| {
        add_address(7);
        let list = addresses::list().unwrap();
        let find = |text: &str| {
            let wanted: IpAddr = text.parse().unwrap();
            list.iter().find(|address| address.address == wanted)
        };
        let loopback = find("127.0.0.1").unwrap();
        assert_eq!((loopback.prefix_len, loopback.scope), (8, Scope::Host));
        assert_eq!((loopback.interface.as_deref(), loopback.interface_index), (Some("lo"), 1));
        let added = find("192.0.2.7").unwrap();
        assert_eq!((added.prefix_len, added.scope), (24, Scope::Global));
        assert!(!added.is_tentative() && !added.is_duplicate() && !added.is_deprecated());
        assert_eq!(find("::1").is_some(), node_sys::host::has_ipv6());
    });
}

#[test]
fn monitor_sees_changes_and_counts_bursts_once() {
    in_namespace(|| {
        let mut monitor = AddressMonitor::open().unwrap();
        assert!(!monitor.poll_changed().unwrap());
        (1..50).for_each(add_address);
        assert!(wait_readable(&monitor, Duration::from_secs(5)));
        assert!(monitor.poll_changed().unwrap());
        assert!(!monitor.poll_changed().unwrap());
    });
}

#[cfg(feature = "tokio")]
#[test]
fn monitor_can_be_awaited() {
    in_namespace(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let mut monitor = addresses::AsyncAddressMonitor::open().unwrap();
            let short = Duration::from_millis(50);
            assert!(tokio::time::timeout(short, monitor.changed()).await.is_err());
            (1..10).for_each(add_address);
            let long = Duration::from_secs(5);
            tokio::time::timeout(long, monitor.changed()).await.unwrap().unwrap();
            assert!(tokio::time::timeout(short, monitor.changed()).await.is_err());
        });
    });
}
