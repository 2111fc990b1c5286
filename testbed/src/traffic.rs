//! A steady stream of new connections in the background, to see whether a change costs any.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::dial::{Outcome, dial};
use crate::target::Target;
use crate::world::{PATIENCE, Place, World};

/// What became of a stream of connections.
#[derive(Debug, Clone, Default)]
pub struct TrafficReport {
    /// Connections tried.
    pub tried: usize,
    /// How many each server answered.
    pub backends: BTreeMap<SocketAddr, usize>,
    /// Tries that were not answered, and when they began, counted from the start.
    pub failures: Vec<(Duration, Outcome)>,
}

impl TrafficReport {
    /// How many connections were answered.
    pub fn answered(&self) -> usize {
        self.backends.values().sum()
    }

    fn add(&mut self, began: Duration, outcome: Outcome) {
        self.tried += 1;
        match outcome {
            Outcome::Answered(answer) => *self.backends.entry(answer.backend).or_default() += 1,
            failure => self.failures.push((began, failure)),
        }
    }
}

/// A running stream of connections; it ends when dropped.
#[derive(Debug)]
pub struct Traffic {
    stop: Sender<()>,
    tried: Arc<AtomicUsize>,
    thread: JoinHandle<TrafficReport>,
}

impl Traffic {
    /// Makes a new connection (or asks with a new datagram socket) from `place` every `interval`.
    ///
    /// A try that gets no answer delays the next by its time-out. Start several streams if that
    /// matters.
    pub fn start(world: &World, place: Place, target: Target, interval: Duration) -> Self {
        let origin = world.origin(place, None, target.ip());
        let (stop, stopped) = channel();
        let tried = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&tried);
        let thread = world.netns(place).spawn_thread(move || {
            let mut report = TrafficReport::default();
            let start = Instant::now();
            while stopped.recv_timeout(interval) == Err(RecvTimeoutError::Timeout) {
                let began = start.elapsed();
                report.add(began, dial(&origin, &target, PATIENCE));
                counter.fetch_add(1, Ordering::Relaxed);
            }
            report
        });
        Self { stop, tried, thread }
    }

    /// How many tries are over by now, for waiting until some more were made.
    pub fn tried(&self) -> usize {
        self.tried.load(Ordering::Relaxed)
    }

    /// Ends the stream and tells what became of it.
    pub fn stop(self) -> Result<TrafficReport> {
        drop(self.stop);
        self.thread.join().ok().context("traffic thread ended early")
    }
}
