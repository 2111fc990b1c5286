//! A driver, the kernels it writes to, and a script that plays the source. Time is simulated.

use std::future::poll_fn;
use std::net::IpAddr;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use proxy_core::address::IpFamily;
use proxy_core::driver::{Driver, DriverEvent, DriverOptions};
use proxy_core::event::SourceEvent;
use proxy_core::options::Options;
use proxy_core::store::Store;
use proxy_core::sync::{Synchronizer, TableSync};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use crate::cluster::{Cluster, list};
use crate::fake::{FakeTable, Kernel, Rng, SharedKernel};

/// Longer than everything that happens without a fault, and shorter than every period.
pub(crate) const SOON: Duration = Duration::from_millis(50);

/// What the driver told, and when.
pub(crate) type Told = Arc<Mutex<Vec<(Instant, DriverEvent)>>>;

/// What outlives a driver.
#[derive(Debug, Default)]
pub(crate) struct Rig {
    kernels: [SharedKernel; 2],
    pub(crate) options: DriverOptions,
    told: Told,
}

/// The driver's surroundings, for a script.
#[derive(Debug)]
pub(crate) struct Link {
    /// Where events go.
    pub(crate) events: mpsc::Sender<SourceEvent>,
    /// The machine's addresses.
    pub(crate) addresses: watch::Sender<Vec<IpAddr>>,
    /// Ends the driver.
    pub(crate) stop: watch::Sender<bool>,
}

impl Link {
    /// Hands over events; they are taken in when the script waits.
    pub(crate) async fn send(&self, events: impl IntoIterator<Item = SourceEvent>) {
        for event in events {
            self.events.send(event).await.unwrap();
        }
    }

    /// Waits until what can happen at once has happened.
    pub(crate) async fn settle(&self) {
        wait(SOON).await;
    }
}

/// Lets simulated time pass.
pub(crate) async fn wait(time: Duration) {
    tokio::time::sleep(time).await;
}

/// A runtime whose time is simulated.
pub(crate) fn runtime() -> Runtime {
    Builder::new_current_thread().enable_time().start_paused(true).build().unwrap()
}

fn table(family: IpFamily, kernel: SharedKernel) -> Synchronizer<FakeTable> {
    Synchronizer::new(FakeTable { family, kernel })
}

impl Rig {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    fn shared(&self, family: IpFamily) -> &SharedKernel {
        match family {
            IpFamily::V4 => &self.kernels[0],
            IpFamily::V6 => &self.kernels[1],
        }
    }

    /// One family's kernel.
    pub(crate) fn kernel(&self, family: IpFamily) -> MutexGuard<'_, Kernel> {
        self.shared(family).lock()
    }

    /// The IPv4 kernel.
    pub(crate) fn v4(&self) -> MutexGuard<'_, Kernel> {
        self.kernel(IpFamily::V4)
    }

    /// What was told since the last call.
    pub(crate) fn told(&self) -> Vec<DriverEvent> {
        self.told_with_times().into_iter().map(|(_, event)| event).collect()
    }

    /// The same, with the times.
    pub(crate) fn told_with_times(&self) -> Vec<(Instant, DriverEvent)> {
        std::mem::take(&mut *self.told.lock().unwrap())
    }

    fn driver(&self) -> Driver<impl FnMut(DriverEvent) + Send + 'static> {
        let tables = IpFamily::ALL.map(|family| {
            Box::new(table(family, self.shared(family).clone())) as Box<dyn TableSync>
        });
        let told = Arc::clone(&self.told);
        Driver::new(Store::new(Options::new("n0")), tables.into(), self.options, move |event| {
            told.lock().unwrap().push((Instant::now(), event));
        })
    }

    /// The driver's future and its surroundings.
    pub(crate) fn start(&self) -> (Link, impl Future<Output = ()> + Send + 'static) {
        let (events, queue) = mpsc::channel(1024);
        let (addresses, watched) = watch::channel(vec!["192.168.0.2".parse().unwrap()]);
        let (stop, stopped) = watch::channel(false);
        let driver = self.driver().run(queue, watched, stopped);
        (Link { events, addresses, stop }, driver)
    }

    /// Runs a new driver until the script ends; what it wrote stays.
    pub(crate) fn run<T>(&self, script: impl AsyncFnOnce(&Link) -> T) -> T {
        self.run_for(usize::MAX, script).unwrap()
    }

    /// Runs a new driver until the script ends, or until driver and script had to wait so many
    /// times; it then dies where it stands.
    pub(crate) fn run_for<T>(
        &self,
        mut waits: usize,
        script: impl AsyncFnOnce(&Link) -> T,
    ) -> Option<T> {
        runtime().block_on(async {
            let (link, driver) = self.start();
            let mut both = Box::pin(async {
                tokio::select! {
                    biased;
                    () = driver => panic!("the driver ended"),
                    result = script(&link) => result,
                }
            });
            poll_fn(|context| {
                if waits == 0 {
                    return Poll::Ready(None);
                }
                waits -= 1;
                both.as_mut().poll(context).map(Some)
            })
            .await
        })
    }

    /// Asserts that both kernels hold what this cluster amounts to, and nothing else.
    pub(crate) fn check(&self, cluster: &Cluster) {
        for family in IpFamily::ALL {
            assert_eq!(self.kernel(family).view(), expected(cluster, family), "{family}");
        }
    }

    /// Number of objects written in both families so far.
    pub(crate) fn writes(&self) -> usize {
        IpFamily::ALL.into_iter().map(|family| self.kernel(family).writes).sum()
    }

    /// Lets reads and writes of both families fail at random.
    pub(crate) fn fail_one_in(&self, one_in: usize, rng: &mut Rng) {
        for family in IpFamily::ALL {
            let seed = u64::try_from(rng.below(1 << 30)).unwrap();
            self.kernel(family).fail_one_in(one_in, seed);
        }
    }

    /// No more random faults.
    pub(crate) fn heal(&self) {
        for family in IpFamily::ALL {
            self.kernel(family).heal();
        }
    }
}

/// What one sync into an empty kernel makes of a cluster.
pub(crate) fn expected(cluster: &Cluster, family: IpFamily) -> Vec<String> {
    let mut store = Store::new(Options::new("n0"));
    store.set_interface_addresses(&["192.168.0.2".parse().unwrap()]);
    for event in list(cluster) {
        store.apply(event);
    }
    let kernel = SharedKernel::default();
    let mut table = table(family, kernel.clone());
    let changes = store.take_changes(family);
    table.stage(changes.services, changes.node);
    complete(table.sync()).unwrap();
    kernel.lock().view()
}

/// Completes a future that waits for nothing but its next turn.
pub(crate) fn complete<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(result) = future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            return result;
        }
    }
}
