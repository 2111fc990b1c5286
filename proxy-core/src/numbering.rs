//! Numbers for the endpoints of a pool, for kernel layouts that number them.
//!
//! Which endpoint has which number does not matter, so the numbering follows what is installed:
//! one endpoint more or less of thousands then changes two or three kernel objects. Everything
//! else about the wanted state is a function of the objects alone.

use std::collections::HashMap;
use std::net::IpAddr;

use crate::resolved::{Endpoint, Pool};

/// Puts a pool's endpoints in an order that keeps as many installed numbers as possible.
///
/// `installed` gives the known numbers; entries about endpoints that are not in the pool, or that
/// contradict each other, are ignored. An endpoint keeps its number if the pool still has that
/// many; the others, in their present order, fill the gaps.
pub fn renumber<I>(pool: &Pool, installed: I) -> Pool
where
    I: IntoIterator<Item = (usize, (IpAddr, u16))>,
{
    let installed: Vec<_> = installed.into_iter().collect();
    if installed.iter().copied().eq(numbers(pool)) {
        return pool.clone();
    }
    let mut homeless: HashMap<(IpAddr, u16), Endpoint> = pool
        .endpoints
        .iter()
        .map(|endpoint| ((endpoint.address, endpoint.port), *endpoint))
        .collect();
    let mut slots: Vec<Option<Endpoint>> = vec![None; pool.endpoints.len()];
    for (number, identity) in installed {
        if let Some(slot @ None) = slots.get_mut(number) {
            *slot = homeless.remove(&identity);
        }
    }
    let mut rest = pool
        .endpoints
        .iter()
        .filter(|endpoint| homeless.contains_key(&(endpoint.address, endpoint.port)));
    let endpoints = slots.into_iter().filter_map(|slot| slot.or_else(|| rest.next().copied()));
    Pool { endpoints: endpoints.collect(), reason: pool.reason }
}

/// The numbers that a pool's endpoints have now, in the form [`renumber`] takes.
pub fn numbers(pool: &Pool) -> impl Iterator<Item = (usize, (IpAddr, u16))> + '_ {
    pool.endpoints
        .iter()
        .enumerate()
        .map(|(number, endpoint)| (number, (endpoint.address, endpoint.port)))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::net::Ipv4Addr;

    use proptest::prelude::*;

    use super::*;
    use crate::resolved::PoolReason;

    fn pool(hosts: impl IntoIterator<Item = u8>) -> Pool {
        let endpoints = hosts
            .into_iter()
            .map(|host| Endpoint {
                address: Ipv4Addr::new(10, 0, 0, host).into(),
                port: 80,
                is_local: false,
            })
            .collect();
        Pool { endpoints, reason: PoolReason::Ready }
    }

    fn hosts(pool: &Pool) -> Vec<u8> {
        let octet = |endpoint: &Endpoint| match endpoint.address {
            IpAddr::V4(address) => address.octets()[3],
            IpAddr::V6(_) => 0,
        };
        pool.endpoints.iter().map(octet).collect()
    }

    fn check(installed: &[u8], wanted: &[u8], expected: &[u8]) {
        let installed = pool(installed.iter().copied());
        let result = renumber(&pool(wanted.iter().copied()), numbers(&installed));
        assert_eq!(hosts(&result), expected);
    }

    #[test]
    fn a_newcomer_takes_the_next_number() {
        check(&[1, 2, 3], &[0, 1, 2, 3], &[1, 2, 3, 0]);
    }

    #[test]
    fn the_last_one_moves_into_the_gap() {
        check(&[1, 2, 3, 4], &[1, 3, 4], &[1, 4, 3]);
    }

    #[test]
    fn a_replacement_takes_the_number_of_the_replaced() {
        check(&[1, 2, 3], &[1, 3, 9], &[1, 9, 3]);
    }

    #[test]
    fn unknown_numbers_are_ignored() {
        let installed = [(7, 1), (0, 2), (0, 1), (1, 2)]
            .map(|(number, host)| (number, (Ipv4Addr::new(10, 0, 0, host).into(), 80)));
        assert_eq!(hosts(&renumber(&pool([1, 2]), installed)), [2, 1]);
    }

    proptest! {
        #[test]
        fn the_set_is_kept_and_few_move(
            old in proptest::collection::btree_set(any::<u8>(), 0..30),
            new in proptest::collection::btree_set(any::<u8>(), 0..30),
        ) {
            let installed = pool(old.iter().copied());
            let result = renumber(&pool(new.iter().copied()), numbers(&installed));
            let before = hosts(&installed);
            let after = hosts(&result);
            prop_assert_eq!(&after.iter().copied().collect::<BTreeSet<_>>(), &new);
            prop_assert_eq!(after.len(), new.len());
            let changed = after.iter().zip(&before).filter(|(a, b)| a != b).count()
                + after.len().abs_diff(before.len());
            let came = new.difference(&old).count();
            let left = old.difference(&new).count();
            prop_assert!(changed <= came + 2 * left, "{changed} > {came} + 2 * {left}");
        }
    }
}
