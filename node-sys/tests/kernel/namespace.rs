//! Network namespaces and the settings in them.

use std::os::fd::AsFd;

use crate::common::in_namespace;
use node_sys::{host, namespace, sysctl};
use rustix::fs::{Stat, fstat};

fn identity() -> (u64, u64) {
    let Stat { st_dev, st_ino, .. } =
        fstat(namespace::current().expect("namespace")).expect("status");
    (st_dev, st_ino)
}

#[test]
fn a_thread_moves_and_comes_back() {
    let outside = identity();
    in_namespace(move || {
        let first = namespace::current().unwrap();
        let inside = identity();
        assert_ne!(inside, outside);
        namespace::enter_new_network_namespace().unwrap();
        assert_ne!(identity(), inside);
        namespace::enter(first.as_fd()).unwrap();
        assert_eq!(identity(), inside);
    });
    assert_eq!(identity(), outside);
}

#[test]
fn settings_are_those_of_the_namespace() {
    in_namespace(|| {
        const NAME: &str = "net.ipv4.conf.lo.route_localnet";
        assert_eq!(sysctl::read_number(NAME).unwrap(), 0);
        assert!(sysctl::ensure(NAME, "1").unwrap());
        assert_eq!(sysctl::read(NAME).unwrap(), "1");
        assert!(!sysctl::ensure(NAME, "1").unwrap());
        let refused = sysctl::write(NAME, "many").unwrap_err();
        assert!(matches!(refused, sysctl::SysctlError::Refused { .. }), "{refused:?}");
    });
}

#[test]
fn ipv6_can_be_switched_off() {
    in_namespace(|| {
        if host::has_ipv6() {
            sysctl::write("net.ipv6.conf.all.disable_ipv6", "1").unwrap();
            assert!(!host::has_ipv6());
        }
        assert!(host::capabilities().unwrap().has_net_admin());
    });
}
