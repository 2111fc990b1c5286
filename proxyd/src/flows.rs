//! Forgetting UDP flows whose endpoints are gone (S11), beside the rules and never in their way.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use node_sys::conntrack::{Conntrack, Family, IpProtocol};
use proxy_core::address::IpFamily;
use proxy_core::conntrack::FlowCleaner;
use proxy_core::table::error_chain;

use crate::metrics::Metrics;

/// Pause after a failure.
const RETRY: Duration = Duration::from_secs(1);
/// Longest pause after repeated failures.
const MAX_RETRY: Duration = Duration::from_secs(60);

/// Hands work to the thread that forgets flows. The thread ends when this is dropped.
#[derive(Debug)]
pub struct FlowWorker {
    work: Sender<(IpFamily, FlowCleaner)>,
}

impl FlowWorker {
    /// Starts the thread, in the network namespace of the caller.
    pub fn start(metrics: Metrics) -> std::io::Result<Self> {
        let (work, queue) = channel();
        std::thread::Builder::new()
            .name("flows".to_owned())
            .spawn(move || run(&queue, &metrics))?;
        Ok(Self { work })
    }

    /// Adds work. It is kept until it has succeeded.
    pub fn clean(&self, family: IpFamily, cleaner: FlowCleaner) {
        if !cleaner.is_empty() && self.work.send((family, cleaner)).is_err() {
            tracing::error!("the thread that forgets flows has ended");
        }
    }
}

/// What is still to do in one family.
#[derive(Default)]
struct Pending {
    cleaner: FlowCleaner,
    failures: u32,
    not_before: Option<Instant>,
}

fn run(queue: &Receiver<(IpFamily, FlowCleaner)>, metrics: &Metrics) {
    let mut pending = IpFamily::ALL.map(|family| (family, Pending::default()));
    loop {
        let next = pending.iter().filter_map(|(_, pending)| pending.not_before).min();
        match receive(queue, next) {
            Ok(Some((family, cleaner))) => {
                let work = pending.iter_mut().find(|(known, _)| *known == family);
                if let Some((_, work)) = work {
                    work.cleaner.merge(cleaner);
                    work.not_before = Some(now());
                    metrics.set_flows_pending(family, true);
                }
                // What else has gathered is done in the same pass over the kernel's table.
                continue;
            }
            Ok(None) => {}
            Err(()) => return,
        }
        for (family, pending) in &mut pending {
            pending.work_off(*family, metrics);
        }
    }
}

/// The next piece of work; `None` when what is pending is due; an error at the end.
fn receive(
    queue: &Receiver<(IpFamily, FlowCleaner)>,
    due: Option<Instant>,
) -> Result<Option<(IpFamily, FlowCleaner)>, ()> {
    let Some(due) = due else { return queue.recv().map(Some).map_err(drop) };
    match queue.recv_timeout(due.saturating_duration_since(now())) {
        Ok(work) => Ok(Some(work)),
        Err(RecvTimeoutError::Timeout) => Ok(None),
        Err(RecvTimeoutError::Disconnected) => Err(()),
    }
}

fn now() -> Instant {
    Instant::now()
}

impl Pending {
    fn work_off(&mut self, family: IpFamily, metrics: &Metrics) {
        if self.not_before.is_none_or(|due| due > now()) {
            return;
        }
        let started = now();
        match forget_stale_flows(family, &self.cleaner) {
            Ok(deleted) => {
                metrics.flows_cleaned(family, started.elapsed(), deleted);
                metrics.set_flows_pending(family, false);
                if deleted > 0 {
                    tracing::info!(%family, deleted, "forgot flows whose endpoints are gone");
                }
                *self = Self::default();
            }
            Err(error) => {
                let pause = RETRY.saturating_mul(1 << self.failures.min(6)).min(MAX_RETRY);
                self.failures = self.failures.saturating_add(1);
                self.not_before = now().checked_add(pause);
                let error = error_chain(&error);
                tracing::warn!(%family, error, ?pause, "failed to forget flows; trying again");
            }
        }
    }
}

fn forget_stale_flows(
    family: IpFamily,
    cleaner: &FlowCleaner,
) -> Result<usize, node_sys::netlink::NetlinkError> {
    let kernel_family = match family {
        IpFamily::V4 => Family::V4,
        IpFamily::V6 => Family::V6,
    };
    let deleted =
        Conntrack::open()?.delete_matching(kernel_family, Some(IpProtocol::UDP), |flow| {
            cleaner.is_stale(
                (flow.original.dst, flow.original.dst_port),
                (flow.reply.src, flow.reply.src_port),
            )
        })?;
    Ok(deleted.deleted)
}
