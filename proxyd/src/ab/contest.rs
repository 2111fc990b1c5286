//! The course of a comparison.

use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use node_sys::host;
use node_sys::worker::Worker;

use super::contender::Contender;
use super::figures::Samples;
use super::progress::Progress;
use super::protocol::{Activity, Answer, Request};
use super::report::{LIMITS, NotMeasured, Report, Setup};
use super::{AbArgs, WORKER_COMMAND, recommend};

/// A mode that has not programmed everything after this time is left out.
const PROGRAM_LIMIT: Duration = Duration::from_secs(300);
/// How much longer than its slice a worker may take: one change that was begun, or a lost packet.
const SLICE_LIMIT: Duration = Duration::from_secs(60);
/// Length of a slice if there is time for many: long enough for some changes of a slow mode, short
/// enough for what else happens on the machine to meet all modes.
const USUAL_SLICE: Duration = Duration::from_millis(250);
/// Each mode has at least so many turns, for a spread to be seen.
const MIN_ROUNDS: u32 = 3;

/// Holds the comparison.
pub(super) fn hold(arguments: &AbArgs, contenders: &[Contender]) -> anyhow::Result<Report> {
    let mut not_measured = Vec::new();
    let mut sides = Vec::new();
    let mut progress = Progress::new(contenders.len());
    for (place, contender) in contenders.iter().enumerate() {
        progress.begin(&format!("{}: programming", contender.name));
        match Side::start(*contender, place, arguments) {
            Ok(side) => sides.push(side),
            Err(error) => not_measured.push(skipped(contender.name, &error)),
        }
    }
    drop(progress);
    let time = arguments.duration.to_std();
    let (rounds, slice) = plan(time, sides.len());
    let rounds = take_turns(&mut sides, &mut not_measured, (rounds, slice), time);
    let modes: Vec<_> = sides.iter().map(|side| side.samples.result(side.name)).collect();
    Ok(Report {
        setup: Setup {
            kernel: host::kernel_release()?,
            cpus: std::thread::available_parallelism().map_or(1, usize::from),
            services: arguments.services,
            endpoints: arguments.endpoints,
            rounds,
            slice_ms: u64::try_from(slice.as_millis()).unwrap_or(u64::MAX),
        },
        recommendation: recommend(&modes),
        modes,
        not_measured,
        limits: LIMITS.to_vec(),
    })
}

fn skipped(mode: &str, error: &anyhow::Error) -> NotMeasured {
    NotMeasured { mode: mode.to_owned(), reason: format!("{error:#}") }
}

/// How many rounds, and how long a slice is, for this time and number of modes.
fn plan(time: Duration, sides: usize) -> (u32, Duration) {
    let slices = u32::try_from(sides * Activity::ALL.len()).unwrap_or(u32::MAX).max(1);
    let usual = USUAL_SLICE.saturating_mul(slices);
    let rounds = time.as_millis() / usual.as_millis().max(1);
    let rounds = u32::try_from(rounds).unwrap_or(u32::MAX).max(MIN_ROUNDS);
    (rounds, time / rounds.saturating_mul(slices))
}

/// Lets each side have its slices, beginning with another one each round. A side that fails is
/// left out from then on. Ends early when single changes take so long that the time is over.
/// Returns the number of rounds.
fn take_turns(
    sides: &mut Vec<Side>,
    not_measured: &mut Vec<NotMeasured>,
    (rounds, slice): (u32, Duration),
    time: Duration,
) -> u32 {
    let start = Instant::now();

    let per_round = sides.len() * Activity::ALL.len();
    let mut progress = Progress::new(per_round * usize::try_from(rounds).unwrap_or(usize::MAX));
    let mut done = 0;
    let goes_on = |done| done < rounds && (done < MIN_ROUNDS || start.elapsed() < time);
    while !sides.is_empty() && goes_on(done) {
        for activity in Activity::ALL {
            let mut index = 0;
            while let Some(side) = sides.get_mut(index) {
                progress.begin(&format!("{}: {}", side.name, activity.as_str()));
                match side.measure(activity, slice) {
                    Ok(()) => index += 1,
                    Err(error) => {
                        let error = error.context(activity.as_str());
                        not_measured.push(skipped(side.name, &error));
                        sides.remove(index);
                    }
                }
            }
        }
        let shift = sides.len().min(1);
        sides.rotate_left(shift);
        done += 1;
    }
    sides.sort_by_key(|side| side.place);
    done
}

/// One side, and what is known of it.
struct Side {
    name: &'static str,
    /// Its place in the report.
    place: usize,
    worker: Worker,
    samples: Samples,
}

impl Side {
    /// Starts its process and lets it program everything.
    fn start(contender: Contender, place: usize, arguments: &AbArgs) -> anyhow::Result<Self> {
        if !contender.is_built() {
            bail!("not in this build");
        }
        let (services, endpoints) =
            (arguments.services.to_string(), arguments.endpoints.to_string());
        let command = [WORKER_COMMAND, contender.name, &services, &endpoints];
        // Ordinary users lack the folders of system programs, and the lock that all users of
        // iptables on this machine share is not ours to hold.
        let path = std::env::var("PATH").unwrap_or_default() + ":/usr/sbin:/sbin";
        let variables = [("PATH", path.as_str()), ("XTABLES_LOCKFILE", "/dev/null")];
        let mut worker = Worker::start(&command, &variables)?;
        match ask(&mut worker, Request::Prepare, SLICE_LIMIT)? {
            Answer::Prepared => {}
            other => bail!("unexpected answer {other:?}"),
        }
        let programmed = match ask(&mut worker, Request::Program, PROGRAM_LIMIT)? {
            Answer::Programmed(programmed) => programmed,
            other => bail!("unexpected answer {other:?}"),
        };
        Ok(Self { name: contender.name, place, worker, samples: Samples::new(programmed) })
    }

    fn measure(&mut self, activity: Activity, time: Duration) -> anyhow::Result<()> {
        let request = Request::Slice { activity, time };
        match ask(&mut self.worker, request, time.saturating_add(SLICE_LIMIT))? {
            Answer::Measured(sample) => self.samples.add(activity, sample),
            other => bail!("unexpected answer {other:?}"),
        }
        Ok(())
    }
}

fn ask(worker: &mut Worker, request: Request, limit: Duration) -> anyhow::Result<Answer> {
    let answer = worker.ask(&serde_json::to_string(&request)?, limit)?;
    match serde_json::from_str(&answer).context("failed to read the answer")? {
        Answer::Failed(reason) => bail!(reason),
        answer => Ok(answer),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_is_shared_out() {
        let check = |seconds, sides, expected| {
            assert_eq!(plan(Duration::from_secs(seconds), sides), expected);
        };
        check(30, 3, (10, Duration::from_millis(250)));
        check(60, 1, (60, Duration::from_millis(250)));
        check(3, 4, (3, Duration::from_micros(62_500)));
        // Without sides nothing is done.
        assert!(plan(Duration::from_secs(1), 0).0 >= MIN_ROUNDS);
    }
}
