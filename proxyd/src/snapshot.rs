//! The objects as they are now, for commands that look at them once.

#[cfg(feature = "kube")]
use std::time::Duration;

#[cfg(feature = "kube")]
use anyhow::{Context as _, bail};
#[cfg(feature = "kube")]
use proxy_core::event::{Kind, SourceEvent};
use proxy_core::options::Options;
use proxy_core::store::Store;
#[cfg(feature = "kube")]
use tokio::sync::mpsc;

use crate::objects::ObjectSource;
use crate::run;

/// How long a cluster may take to list everything.
#[cfg(feature = "kube")]
const LIMIT: Duration = Duration::from_secs(60);

/// Lists everything once and resolves it for the machine as it is.
///
/// Changes are not taken yet: the first [`Store::take_changes`] gives every Service.
pub fn take(source: ObjectSource, options: Options) -> anyhow::Result<Store> {
    let mut store = Store::new(options);
    store.set_interface_addresses(&run::interface_addresses()?);
    match source {
        // A folder is there or not; only a daemon waits for it.
        ObjectSource::Files(files) => files.load()?.into_iter().for_each(|it| store.apply(it)),
        #[cfg(feature = "kube")]
        source @ ObjectSource::Kube(_) => watch_once(source, &mut store)?,
    }
    Ok(store)
}

#[cfg(feature = "kube")]
fn watch_once(source: ObjectSource, store: &mut Store) -> anyhow::Result<()> {
    let runtime = run::runtime()?;
    let listed = runtime.block_on(async {
        tokio::time::timeout(LIMIT, list(source, store)).await.with_context(|| {
            format!("the source did not list all objects within {} s", LIMIT.as_secs())
        })?
    });
    // What still watches the source is cut off.
    runtime.shutdown_background();
    listed
}

#[cfg(feature = "kube")]
async fn list(source: ObjectSource, store: &mut Store) -> anyhow::Result<()> {
    let (events, mut queue) = mpsc::channel(run::EVENT_BUFFER);
    let source = tokio::spawn(source.run(events));
    let mut missing = Kind::ALL.to_vec();
    while !missing.is_empty() {
        let Some(event) = queue.recv().await else {
            source.await??;
            bail!("the source of objects ended before it had listed all of them");
        };
        if let SourceEvent::ListDone(done) = event {
            missing.retain(|kind| *kind != done);
        }
        store.apply(event);
    }
    // What the source found out about the objects follows the lists.
    while let Ok(event) = queue.try_recv() {
        store.apply(event);
    }
    Ok(())
}
