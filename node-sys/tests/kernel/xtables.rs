//! Tables of ip_tables.

use std::process::Command;

use node_sys::xtables::Reader;

use crate::common::in_namespace;

fn run(program: &str, arguments: &str) {
    let status = Command::new(program).args(arguments.split(' ')).status().expect("iptables");
    assert!(status.success(), "{program} {arguments}");
}

#[test]
fn every_change_but_that_of_a_counter_is_seen() {
    for (program, is_ipv6) in [("iptables-legacy", false), ("ip6tables-legacy", true)] {
        in_namespace(|| {
            run(program, "-t nat -N A");
            let reader = Reader::open(is_ipv6).expect("a socket");
            let look = || {
                let outline = reader.outline("nat").expect("an outline");
                let digest = reader.digest("nat", &outline).expect("a digest").expect("the same");
                (outline, digest)
            };
            let empty = look();
            run(program, "-t nat -A A -p tcp -j RETURN");
            let (outline, digest) = look();
            assert_eq!(outline.entries(), empty.0.entries() + 1);
            assert_eq!(reader.digest("nat", &empty.0).expect("an answer"), None);
            // As many rules, and as large.
            run(program, "-t nat -R A 1 -p udp -j RETURN");
            let (replaced, other) = look();
            assert_eq!(replaced, outline);
            assert_ne!(other, digest);
            run(program, "-t nat -R A 1 -c 7 700 -p tcp -j RETURN");
            assert_eq!(look(), (outline, digest));
            run(program, "-t nat -F");
            assert_eq!(look(), empty);
            run(program, "-t nat -X");
            assert_eq!(look().0.entries() + 2, empty.0.entries());
        });
    }
}
