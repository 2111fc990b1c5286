//! A configuration file that changes while the program runs (C5).
//!
//! What counts is the configuration that the file means together with the flags, not its text or
//! time: a comment changes nothing. The folder is watched, so that a mounted ConfigMap, whose
//! files change by a swap of symbolic links, is noticed like any other (C5.2). A change is taken
//! in as a whole by a fresh start or not at all, so that no setting is in force by halves.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use notify::event::{AccessKind, AccessMode};
use notify::{Event, EventKind, RecursiveMode, Watcher as _};
use serde_json::Value;
use tokio::sync::mpsc;

use crate::config::{self, ConfigChange, Flags, KubeProxyConfiguration, Loaded};
use crate::events::Events;
use crate::metrics::{ConfigFileState, Metrics};
use crate::tables;

/// The file is read when nothing has happened to it for this long.
const QUIET: Duration = Duration::from_millis(50);
/// How often that is waited for: others may write to the folder all the time.
const MAX_QUIET: usize = 20;

/// Watches the file of `--config` and asks for a new start when its content says so.
#[derive(Debug)]
pub struct ConfigWatch {
    path: PathBuf,
    flags: Flags,
    in_force: KubeProxyConfiguration,
    metrics: Metrics,
    events: Events,
    /// What was last said, so that it is not said for each event.
    said: Option<Finding>,
}

/// What the file means compared to what is in force.
#[derive(Debug, Clone, PartialEq)]
enum Finding {
    Same,
    Unusable(String),
    Other { config: Box<KubeProxyConfiguration>, fields: Vec<String> },
}

impl ConfigWatch {
    /// A watch for the file of `--config`, if there is one.
    pub fn new(loaded: &Loaded, flags: &Flags, metrics: Metrics, events: Events) -> Option<Self> {
        let path = flags.config.clone()?;
        let in_force = loaded.config.clone();
        Some(Self { path, flags: flags.clone(), in_force, metrics, events, said: None })
    }

    /// Watches until a change is to be taken in; returns how.
    ///
    /// Where the file cannot be watched, that is logged, and changes go unnoticed.
    pub async fn changed(mut self) -> ConfigChange {
        let (signal, mut happened) = mpsc::channel(1);
        let mut watcher = match notify::recommended_watcher(move |event| tell(&event, &signal)) {
            Ok(watcher) => watcher,
            Err(error) => return self.unwatched(&error).await,
        };
        loop {
            // Before the look, so that nothing goes unnoticed between the two.
            let places: BTreeSet<_> = self.places().into_iter().filter(|it| it.exists()).collect();
            let watch = |path: &PathBuf| watcher.watch(path, RecursiveMode::NonRecursive);
            if let Err(error) = places.iter().try_for_each(watch) {
                return self.unwatched(&error).await;
            }
            if let Some(change) = self.look() {
                return change;
            }
            if happened.recv().await.is_none() {
                return std::future::pending().await;
            }
            for _ in 0..MAX_QUIET {
                if tokio::time::timeout(QUIET, happened.recv()).await.is_err() {
                    break;
                }
            }
            // What was replaced is another file under the same name, and no longer watched.
            for path in places {
                let _gone_already = watcher.unwatch(&path);
            }
        }
    }

    /// Where something happens if the file changes: its folder, and where symbolic links lead. A
    /// file that is mounted by itself changes without a sign in its folder.
    fn places(&self) -> Vec<PathBuf> {
        let parent = |path: &Path| match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
            _ => PathBuf::from("."),
        };
        let mut places = vec![parent(&self.path)];
        if let Ok(target) = self.path.canonicalize() {
            places.push(parent(&target));
            places.push(target);
        }
        places
    }

    async fn unwatched(&self, error: &notify::Error) -> ConfigChange {
        let file = self.path.display();
        tracing::warn!(%file, %error, "cannot watch the configuration file; changes need a restart");
        std::future::pending().await
    }

    /// Reads the file; returns whether and how to take it in.
    fn look(&mut self) -> Option<ConfigChange> {
        let finding = self.find();
        if self.said.as_ref() == Some(&finding) {
            return None;
        }
        let file = self.path.display();
        self.metrics.set_config_file(match finding {
            Finding::Same => ConfigFileState::InForce,
            Finding::Unusable(_) => ConfigFileState::Unusable,
            Finding::Other { .. } => ConfigFileState::Pending,
        });
        let mut change = None;
        match &finding {
            Finding::Same if self.said.is_none() => {}
            Finding::Same => tracing::info!(%file, "the configuration file means what is in force"),
            Finding::Unusable(error) => {
                tracing::error!(%file, error, "the changed configuration cannot be used; the old one stays in force");
                self.events.config_unusable(&file.to_string(), error);
            }
            Finding::Other { config, fields } => {
                let fields = fields.join(", ");
                let wanted = config.settings.config_change;
                match wanted {
                    ConfigChange::Report => {
                        tracing::warn!(
                            %file, fields, "the configuration has changed; a restart takes it in"
                        );
                        self.events.config_pending(&file.to_string(), &fields);
                    }
                    ConfigChange::Restart | ConfigChange::Exit => {
                        tracing::info!(%file, fields, "the configuration has changed");
                        change = Some(wanted);
                    }
                }
            }
        }
        self.said = Some(finding);
        change
    }

    fn find(&self) -> Finding {
        let loaded = match config::load(&self.flags, &|path| std::fs::read_to_string(path)) {
            Ok(loaded) => loaded,
            Err(error) => return Finding::Unusable(error.to_string()),
        };
        if loaded.config == self.in_force {
            return Finding::Same;
        }
        if let Err(error) = tables::check(&loaded.config, &tables::families()) {
            return Finding::Unusable(format!("{error:#}"));
        }
        let mut fields = Vec::new();
        let (old, new) = (&self.in_force, &loaded.config);
        differences("", &config::config_json(old), &config::config_json(new), &mut fields);
        differences("", &old.settings.to_json(), &new.settings.to_json(), &mut fields);
        Finding::Other { config: Box::new(loaded.config), fields }
    }
}

/// Hands on that something happened, unless that is known already or it was only looked at.
fn tell(event: &notify::Result<Event>, signal: &mpsc::Sender<()>) {
    let closed_after_writing = EventKind::Access(AccessKind::Close(AccessMode::Write));
    let is_reading = |kind: EventKind| kind.is_access() && kind != closed_after_writing;
    if event.as_ref().is_ok_and(|event| is_reading(event.kind)) {
        return;
    }
    // Full: it will be looked at anyway. Closed: nobody looks any more.
    let _known = signal.try_send(());
}

/// The paths of fields in which two documents differ.
fn differences(path: &str, old: &Value, new: &Value, out: &mut Vec<String>) {
    match (old, new) {
        _ if old == new => {}
        (Value::Object(old), Value::Object(new)) => {
            let names: BTreeSet<&String> = old.keys().chain(new.keys()).collect();
            for name in names {
                let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                let at = |fields: &serde_json::Map<String, Value>| {
                    fields.get(name).cloned().unwrap_or(Value::Null)
                };
                differences(&path, &at(old), &at(new), out);
            }
        }
        _ => out.push(path.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn differences_are_named_by_their_paths() {
        let old = json!({"mode": "ipvs", "ipvs": {"a": 1, "b": [1]}, "gone": 1, "same": {"x": 1}});
        let new = json!({"mode": "nftables", "ipvs": {"a": 1, "b": [2]}, "same": {"x": 1}});
        let mut found = Vec::new();
        differences("", &old, &new, &mut found);
        assert_eq!(found, ["gone", "ipvs.b", "mode"]);
    }
}
