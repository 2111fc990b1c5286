use super::*;
use crate::model::RealSpec;
use proxy_core::names::Protocol;

const LIMIT: Duration = Duration::from_secs(60);

fn server(port: u16) -> ServerKey {
    ServerKey { address: IpAddr::from([192, 0, 2, 1]), port, protocol: Protocol::Tcp }
}

fn real(number: u8) -> Real {
    (IpAddr::from([10, 0, 0, number]), 8080)
}

fn listed(number: u8, connections: u32) -> ListedReal {
    let (address, port) = real(number);
    ListedReal { address, port, spec: RealSpec::DRAINING, connections }
}

/// A drain with real servers 1 to 3 of port 80, all since `start`.
fn draining(start: Instant) -> Drain {
    let mut drain = Drain::default();
    for number in 1..=3 {
        drain.begin(server(80), real(number), start);
    }
    drain
}

#[test]
fn failure_47_a_server_goes_with_its_last_connection() {
    let start = Instant::now();
    let mut drain = draining(start);
    let found = [listed(1, 0), listed(2, 1), listed(3, 7)];
    let due = drain.due(&server(80), &found, LIMIT, start);
    assert_eq!(due, Due { idle: vec![real(1)], overdue: Vec::new() });
    drain.end(&server(80), real(1));
    let found = [listed(2, 0), listed(3, 7)];
    let due = drain.due(&server(80), &found, LIMIT, start + LIMIT / 2);
    assert_eq!(due, Due { idle: vec![real(2)], overdue: Vec::new() });
}

#[test]
fn failure_49_nobody_holds_a_server_for_ever() {
    let start = Instant::now();
    let mut drain = draining(start);
    let found = [listed(1, 1), listed(2, 1), listed(3, 0)];
    // A second removal does not begin anew.
    drain.begin(server(80), real(1), start + LIMIT / 2);
    let due = drain.due(&server(80), &found, LIMIT, start + LIMIT);
    assert_eq!(due, Due { idle: vec![real(3)], overdue: vec![real(1), real(2)] });
}

#[test]
fn one_that_comes_back_gets_all_its_time_the_next_time() {
    let start = Instant::now();
    let mut drain = draining(start);
    drain.end(&server(80), real(1));
    drain.begin(server(80), real(1), start + LIMIT / 2);
    let due = drain.due(&server(80), &[listed(1, 1)], LIMIT, start + LIMIT);
    assert_eq!(due, Due::default());
}

#[test]
fn what_somebody_else_removed_is_forgotten() {
    let start = Instant::now();
    let mut drain = draining(start);
    assert_eq!(drain.due(&server(80), &[listed(2, 1)], LIMIT, start), Due::default());
    drain.end(&server(80), real(2));
    assert!(drain.is_empty() && !drain.is_draining(&server(80)));
    assert_eq!(drain.servers(), []);
}

#[test]
fn servers_drain_apart() {
    let start = Instant::now();
    let mut drain = draining(start);
    drain.begin(server(81), real(1), start);
    assert_eq!(drain.servers(), [server(80), server(81)]);
    let due = drain.due(&server(81), &[listed(1, 0)], LIMIT, start);
    assert_eq!(due.idle, [real(1)]);
    drain.end(&server(81), real(1));
    assert!(drain.is_draining(&server(80)) && !drain.is_draining(&server(81)));
    drain.retain(|_, kept| kept == real(2));
    assert!(drain.is_draining(&server(80)));
    drain.retain(|_, _| false);
    assert!(drain.is_empty());
}
