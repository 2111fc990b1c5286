//! Makes the connections of a check and compares what became of them with what is expected.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use serde_json::Value;

use crate::cases::{
    Check, ConnectionCheck, Expectation, Fair, HealthCheck, HealthStatus, Mode, SeenSource, Verdict,
};
use crate::dial::{self, Answer, Flow, Origin, Outcome};
use crate::http;
use crate::wait::pause;
use crate::world::{PATIENCE, Place, World};

/// Chance with which a check may overlook a server that has its fair share of connections.
const OVERLOOK: f64 = 1e-9;
/// How long a datagram of a flow with a fixed port may take; some are lost while rules change.
const DATAGRAM_PATIENCE: Duration = Duration::from_millis(300);
/// Pause before a check is tried again.
const RETRY: Duration = Duration::from_millis(20);

/// What a case's checks have left open so far.
pub(super) struct Judge {
    mode: Mode,
    flows: BTreeMap<String, Flow>,
    datagrams: BTreeMap<(Place, Option<IpAddr>, u16), UdpSocket>,
}

impl Judge {
    pub(super) fn new(mode: Mode) -> Self {
        Self { mode, flows: BTreeMap::new(), datagrams: BTreeMap::new() }
    }

    /// Tries a check until it holds, `limit` has passed or `hopeless` says so.
    pub(super) fn until_true(
        &mut self,
        limit: Duration,
        mut hopeless: impl FnMut() -> bool,
        mut check: impl FnMut(&mut Self) -> Result<()>,
    ) -> Result<()> {
        let start = Instant::now();
        loop {
            match check(self) {
                Ok(()) => return Ok(()),
                Err(error) if start.elapsed() >= limit || hopeless() => return Err(error),
                Err(_) => pause(RETRY),
            }
        }
    }

    pub(super) fn check(&mut self, world: &World, check: &Check) -> Result<()> {
        match check {
            Check::Connection(check) => self.connection(world, check),
            Check::Health(check) => health(world, check),
        }
    }

    pub(super) fn connection(&mut self, world: &World, check: &ConnectionCheck) -> Result<()> {
        let expected = check.expectation(self.mode);
        let origin = world.origin(check.from, check.source, check.to.ip());
        let judged = match (&check.flow, check.source_port) {
            (Some(name), _) => self.over_flow(world, check, &origin, name),
            (None, Some(port)) => self.over_port(world, check, &origin, port),
            (None, None) => world.at(check.from, || series(world, check, expected, &origin)),
        };
        judged.with_context(|| {
            let why = expected.why.as_ref().map(|why| format!(" ({why})")).unwrap_or_default();
            format!("{check}: expected {}{why}", describe(expected))
        })
    }

    /// One exchange over a connection that outlives the check.
    fn over_flow(
        &mut self,
        world: &World,
        check: &ConnectionCheck,
        origin: &Origin,
        name: &str,
    ) -> Result<()> {
        let outcome = match self.flows.get_mut(name) {
            Some(flow) => flow.speak(PATIENCE),
            None => match world.at(check.from, || dial::connect(origin, &check.to, PATIENCE)) {
                Ok((flow, answer)) => {
                    self.flows.insert(name.to_owned(), flow);
                    Outcome::Answered(answer)
                }
                Err(error) => dial::outcome_of(&error),
            },
        };
        one(world, check, check.expectation(self.mode), &outcome)
    }

    /// One datagram from a fixed port, over a socket that outlives the check.
    fn over_port(
        &mut self,
        world: &World,
        check: &ConnectionCheck,
        origin: &Origin,
        port: u16,
    ) -> Result<()> {
        let expected = check.expectation(self.mode);
        let answered = expected.result.as_slice() == [Verdict::Connect];
        let patience = if answered { DATAGRAM_PATIENCE } else { PATIENCE };
        let origin = Origin { port: Some(port), ..*origin };
        let key = (check.from, origin.source, port);
        let socket = match self.datagrams.entry(key) {
            Entry::Occupied(bound) => bound.into_mut(),
            Entry::Vacant(unbound) => {
                unbound.insert(world.at(check.from, || dial::bind_datagram(&origin, &check.to))?)
            }
        };
        socket.connect(check.to.address)?;
        one(world, check, expected, &dial::ask(socket, patience))
    }
}

/// Judges a single try.
fn one(
    world: &World,
    check: &ConnectionCheck,
    expected: &Expectation,
    outcome: &Outcome,
) -> Result<()> {
    let answer = judge(check, expected, outcome)?;
    answer.map_or(Ok(()), |answer| source(world, check, expected, &answer))
}

/// Makes as many tries as it takes to be sure; runs in the namespace of the check's place.
fn series(
    world: &World,
    check: &ConnectionCheck,
    expected: &Expectation,
    origin: &Origin,
) -> Result<()> {
    let mut reached: BTreeMap<SocketAddr, usize> = BTreeMap::new();
    let tries = check.fair.map_or_else(|| tries(expected), |fair| fair.tries);
    for _ in 0..tries {
        let outcome = dial::dial(origin, &check.to, PATIENCE);
        if let Some(answer) = judge(check, expected, &outcome)? {
            source(world, check, expected, &answer)?;
            *reached.entry(answer.backend).or_default() += 1;
        }
    }
    spread(expected, check.fair, &reached)
}

/// Whether an outcome is among the expected ones; its answer, if it is one.
fn judge(
    check: &ConnectionCheck,
    expected: &Expectation,
    outcome: &Outcome,
) -> Result<Option<Answer>> {
    let (verdict, answer) = match outcome {
        Outcome::Answered(answer) if expected.backends.contains(&answer.backend) => {
            (Verdict::Connect, Some(*answer))
        }
        Outcome::Answered(answer) if answer.backend == check.to.address => {
            (Verdict::Pass, Some(*answer))
        }
        Outcome::Answered(answer) => bail!("was answered by {}", answer.backend),
        Outcome::Refused => (Verdict::Reject, None),
        Outcome::Silent => (Verdict::Drop, None),
        Outcome::Failed(error) => bail!("failed: {error}"),
    };
    ensure!(expected.result.as_slice().contains(&verdict), "came out as {verdict:?}");
    Ok(answer)
}

/// Whether the server saw the expected source; packets that are not touched keep theirs.
fn source(
    world: &World,
    check: &ConnectionCheck,
    expected: &Expectation,
    answer: &Answer,
) -> Result<()> {
    let (seen, own) = (answer.seen.ip(), answer.own.ip());
    let wanted = if expected.backends.is_empty() {
        SeenSource::Preserved
    } else {
        *expected.source_by_backend.get(&answer.backend).unwrap_or(&expected.source)
    };
    let fits = match wanted {
        SeenSource::Any => true,
        SeenSource::Masqueraded => world.node_addresses().contains(&seen),
        SeenSource::Preserved => {
            seen == own || (check.from == Place::Node && world.is_on_node(seen))
        }
    };
    ensure!(fits, "{} saw {seen} as the source of {own}, not {wanted:?}", answer.backend);
    Ok(())
}

/// Whether the right servers were reached, and each often enough.
fn spread(
    expected: &Expectation,
    fair: Option<Fair>,
    reached: &BTreeMap<SocketAddr, usize>,
) -> Result<()> {
    if expected.sticky {
        ensure!(reached.len() == 1, "one client reached {reached:?}");
        return Ok(());
    }
    let missing: Vec<_> = expected.backends.iter().filter(|b| !reached.contains_key(b)).collect();
    ensure!(missing.is_empty(), "never reached {missing:?}, only {reached:?}");
    let Some(fair) = fair else { return Ok(()) };
    let share = to_float(fair.tries) / to_float(expected.backends.len());
    for (backend, count) in reached {
        let off = (to_float(*count) / share - 1.0).abs();
        ensure!(off <= fair.tolerance, "{backend} got {count} of {} tries", fair.tries);
    }
    Ok(())
}

/// How many tries an expectation takes.
///
/// Where servers are chosen at random, as many as it takes that one of them, or one that should not
/// be among them, is hardly ever overlooked.
fn tries(expected: &Expectation) -> usize {
    if expected.backends.is_empty() {
        // A drop takes as long as our patience; the others are quick.
        return if expected.result.as_slice().contains(&Verdict::Drop) { 1 } else { 2 };
    }
    let choices = to_float(expected.backends.len()) + 1.0;
    let mut tries = 0;
    let mut chance = choices;
    while chance > OVERLOOK {
        chance *= 1.0 - 1.0 / choices;
        tries += 1;
    }
    tries
}

fn to_float(number: usize) -> f64 {
    f64::from(u32::try_from(number).unwrap_or(u32::MAX))
}

fn describe(expected: &Expectation) -> String {
    let results = format!("{:?}", expected.result.as_slice());
    if expected.backends.is_empty() {
        return results;
    }
    let sticky = if expected.sticky { "one of " } else { "" };
    format!("{results} {sticky}{:?} source {:?}", expected.backends, expected.source)
}

/// Asks a health check port, as a balancer beside the other nodes would.
fn health(world: &World, check: &HealthCheck) -> Result<()> {
    let first = || world.node_addresses().first().copied().context("node without address");
    let address = SocketAddr::new(check.address.map_or_else(first, Ok)?, check.port);
    let origin = world.origin(Place::RemoteNode, None, address.ip());
    let asked = world.at(Place::RemoteNode, || http::get(&origin, address, "/healthz", PATIENCE));
    answered(check, asked.map_err(|error| dial::outcome_of(&error)))
        .with_context(|| format!("health check of {address}: expected {:?}", check.status))
}

fn answered(check: &HealthCheck, asked: Result<http::Response, Outcome>) -> Result<()> {
    match (&check.status, asked) {
        (HealthStatus::Refused(_), Err(Outcome::Refused)) => Ok(()),
        (HealthStatus::Code(code), Ok(response)) if *code == response.status => {
            let Some(expected) = check.local_endpoints else { return Ok(()) };
            let body: Value = serde_json::from_str(&response.body).context("body of the answer")?;
            ensure!(body["localEndpoints"] == expected, "answered {body}, expected {expected}");
            Ok(())
        }
        (_, other) => Err(anyhow!("got {other:?}")),
    }
}

#[cfg(test)]
mod tests;
