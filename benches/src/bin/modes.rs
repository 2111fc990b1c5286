//! The backends side by side: what a start, a change and a restart cost, children included.
//!
//! ```sh
//! cargo run --release -p benches --bin modes -- [SERVICES ...]
//! ```
//!
//! Prints a table in Markdown: medians of changes, single runs of the rest. A backend whose first
//! write would take minutes is measured with as many Services as it is given all the same.

use std::io::Write as _;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use benches::cluster::{Cluster, applied};
use benches::rig::{Backend, Rig, new_namespace};
use proxy_core::address::IpFamily;
use proxy_core::event::Object;

/// Changes of each kind.
const CHANGES: usize = 20;

fn main() -> anyhow::Result<()> {
    let sizes: Vec<usize> = std::env::args()
        .skip(1)
        .map(|text| text.parse().with_context(|| format!("not a number: {text}")))
        .collect::<anyhow::Result<_>>()?;
    let mut out = std::io::stdout().lock();
    writeln!(
        out,
        "| backend | Services | start ms | endpoint replaced ms | one more ms | restart ms |"
    )?;
    writeln!(out, "| --- | --- | --- | --- | --- | --- |")?;
    for services in if sizes.is_empty() { vec![1_000] } else { sizes } {
        for backend in Backend::ALL {
            let row = std::thread::spawn(move || measure(backend, services)).join();
            writeln!(out, "{}", row.ok().context("the measurement panicked")??)?;
        }
    }
    Ok(())
}

fn measure(backend: Backend, services: usize) -> anyhow::Result<String> {
    let cluster = Cluster::new(IpFamily::V4, services);
    new_namespace();
    let mut rig = Rig::of(backend, cluster.options(), &[cluster.family]);
    let start = timed(|| rig.step(cluster.lists()).full);
    let mut change = |turn: usize, more: bool| {
        let number = turn * 37 % services;
        let spare = cluster.spare_pod(number, turn);
        let stay = cluster.pods(number).skip(usize::from(!more));
        let slice = cluster.slice(number, stay.chain([spare]));
        let time = timed(|| rig.step([applied(Object::EndpointSlice(slice))]));
        // Outside the measurement.
        rig.step([applied(Object::EndpointSlice(cluster.slice(number, cluster.pods(number))))]);
        time
    };
    let replaced = median((0..CHANGES).map(|turn| change(turn, false)).collect());
    let more = median((0..CHANGES).map(|turn| change(turn, true)).collect());
    let mut second = Rig::of(backend, cluster.options(), &[cluster.family]);
    let mut written = 0;
    let restart = timed(|| written = second.step(cluster.lists()).changed_objects);
    anyhow::ensure!(written == 0, "{backend}: a restart wrote {written} objects");
    let ms = |time: Duration| format!("{:.3}", time.as_secs_f64() * 1e3);
    let (start, replaced, more) = (ms(start), ms(replaced), ms(more));
    Ok(format!("| {backend} | {services} | {start} | {replaced} | {more} | {} |", ms(restart)))
}

fn timed<T>(work: impl FnOnce() -> T) -> Duration {
    let start = Instant::now();
    let _result = work();
    start.elapsed()
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or_default()
}
