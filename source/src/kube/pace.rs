//! How long to wait: after failures, and between requests.

use std::hash::{BuildHasher as _, RandomState};
use std::time::Duration;

use tokio::time::Instant;

/// How long a source waits for what.
///
/// The defaults suit clusters of any size. Tests make them shorter.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Timing {
    /// The pause after a first failure; it doubles with each further one in a row. Pauses are
    /// shortened by up to a half at random, so that nodes do not ask in step.
    pub first_pause: Duration,
    /// The longest pause.
    pub longest_pause: Duration,
    /// How long until a kind that the server does not have is asked for again.
    pub absent_pause: Duration,
    /// How long until an answer begins.
    pub answer: Duration,
    /// How long a list may stand still.
    pub silence: Duration,
    /// How long a watch may be silent on which the server has sent bookmarks, about one a minute.
    pub watch_silence: Duration,
    /// How long a watch is asked to last; up to twice that, at random.
    pub watch: Duration,
    /// A watch that lasted this long makes up for all failures before it.
    pub steady: Duration,
    /// How long repetitions of an Event are gathered before its count is written.
    pub series: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            first_pause: Duration::from_millis(500),
            longest_pause: Duration::from_secs(15),
            absent_pause: Duration::from_secs(600),
            answer: Duration::from_secs(60),
            silence: Duration::from_secs(60),
            watch_silence: Duration::from_secs(150),
            watch: Duration::from_secs(300),
            steady: Duration::from_secs(30),
            series: Duration::from_secs(60),
        }
    }
}

impl Timing {
    /// The pause after so many failures before this one. `random` is from 0 to 1.
    pub(super) fn backoff(&self, failures: u32, random: f64) -> Duration {
        let factor = 2_u32.saturating_pow(failures.min(16));
        let pause = self.first_pause.saturating_mul(factor).min(self.longest_pause);
        pause.mul_f64(1.0 - random / 2.0)
    }

    /// How long a watch is to last.
    pub(super) fn lifetime(&self, random: f64) -> Duration {
        self.watch.mul_f64(1.0 + random)
    }
}

/// A number from 0 to 1.
pub(super) fn random() -> f64 {
    let bits = u32::try_from(RandomState::new().hash_one(()) >> 32).unwrap_or_default();
    f64::from(bits) / f64::from(u32::MAX)
}

/// Limits how often the server is asked: so many requests at once, so many a second from then on.
#[derive(Debug)]
pub(super) struct Limiter {
    /// Time between two requests; zero for no limit.
    interval: Duration,
    burst: u32,
    /// When all of the burst would be there again.
    full_at: Option<Instant>,
}

impl Limiter {
    /// No limit if `qps` is negative; zero is the API's default, as in kube-proxy.
    pub(super) fn new(qps: f64, burst: u32) -> Self {
        let qps = if qps == 0.0 { 5.0 } else { qps };
        let interval = Duration::try_from_secs_f64(1.0 / qps).unwrap_or_default();
        Self { interval, burst: if burst == 0 { 10 } else { burst }, full_at: None }
    }

    /// Books a request. Returns how long it has to wait.
    pub(super) fn book(&mut self, now: Instant) -> Duration {
        let full_at = self.full_at.map_or(now, |full_at| full_at.max(now)) + self.interval;
        self.full_at = Some(full_at);
        full_at.saturating_duration_since(now).saturating_sub(self.interval * self.burst)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_a_limit() {
        let timing = Timing::default();
        let longest: Vec<_> =
            (0..7).map(|failures| timing.backoff(failures, 0.0).as_millis()).collect();
        assert_eq!(longest, [500, 1000, 2000, 4000, 8000, 15_000, 15_000]);
        assert_eq!(timing.backoff(u32::MAX, 1.0).as_millis(), 7500);
    }

    #[test]
    fn requests_come_in_a_burst_and_then_in_step() {
        let now = Instant::now();
        let mut limiter = Limiter::new(5.0, 3);
        let waits: Vec<_> = (0..6).map(|_| limiter.book(now).as_millis()).collect();
        assert_eq!(waits, [0, 0, 0, 200, 400, 600]);
        assert_eq!(limiter.book(now + Duration::from_secs(9)), Duration::ZERO);
        let mut unlimited = Limiter::new(-1.0, 1);
        assert!((0..99).all(|_| unlimited.book(now).is_zero()));
    }

    #[test]
    fn random_numbers_differ_and_stay_in_range() {
        let numbers: Vec<_> = (0..100).map(|_| random()).collect();
        assert!(numbers.iter().all(|number| (0.0..=1.0).contains(number)));
        assert!(numbers.windows(2).any(|pair| pair[0] < pair[1]));
    }
}
