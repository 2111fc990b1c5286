//! Waiting for changes of the folder.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::mpsc::Sender;

use notify::event::{AccessKind, AccessMode, ModifyKind};
use notify::{Event, EventKind, RecommendedWatcher, RecursiveMode, Watcher as _};

use super::folder;

/// Something that the reader waits for.
#[derive(Debug)]
pub(super) enum Signal {
    /// Something happened in a folder that is watched.
    Happened(Event),
    /// Something happened, and it is not known what.
    Lost,
    /// Nobody wants to know any more.
    Stop,
}

/// What an event means for what is to be read.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Effect {
    Everything,
    /// A manifest changed.
    File(OsString),
    Nothing,
    /// Somebody is writing to a manifest.
    Writing(OsString),
}

/// The folders that are watched.
#[derive(Debug)]
pub(super) struct Watch {
    /// The folder as it was asked for.
    path: PathBuf,
    watcher: Option<RecommendedWatcher>,
    /// All folders that are watched, without symbolic links in their paths.
    watched: BTreeSet<PathBuf>,
    /// The folder, if it exists.
    dir: Option<PathBuf>,
    /// Where the folder appears and vanishes.
    entry: Option<PathBuf>,
    /// Folders outside it that its symbolic links lead to.
    targets: BTreeSet<PathBuf>,
    /// Why the folder cannot be watched.
    failure: Option<String>,
}

impl Watch {
    pub(super) fn new(path: &Path, signals: Sender<Signal>) -> Self {
        let on_event = move |event: notify::Result<Event>| {
            let signal = match event {
                // Reading is not a change, least of all our own.
                Ok(event) if is_reading(event.kind) => return,
                Ok(event) if !event.need_rescan() => Signal::Happened(event),
                _ => Signal::Lost,
            };
            // Without a reader there is nobody to tell.
            let _ = signals.send(signal);
        };
        let (watcher, failure) = match notify::recommended_watcher(on_event) {
            Ok(watcher) => (Some(watcher), None),
            Err(error) => (None, Some(error.to_string())),
        };
        Self {
            path: path.to_owned(),
            watcher,
            watched: BTreeSet::new(),
            dir: None,
            entry: None,
            targets: BTreeSet::new(),
            failure,
        }
    }

    /// Why changes go unnoticed, if they do.
    pub(super) fn failure(&self) -> Option<&str> {
        self.failure.as_deref()
    }

    /// Watches the folder, or whatever exists on the way to it. Returns whether it exists.
    pub(super) fn arm(&mut self) -> bool {
        // What appears between the look and the watch would go unnoticed: look again.
        for _ in 0..64 {
            self.dir = fs::canonicalize(&self.path).ok().filter(|dir| dir.is_dir());
            let parent = self.path.parent().and_then(|parent| fs::canonicalize(parent).ok());
            self.entry = parent.as_ref().zip(self.path.file_name()).map(|(p, name)| p.join(name));
            let mut wanted = BTreeSet::new();
            if let Some(dir) = &self.dir {
                wanted.insert(dir.clone());
                wanted.extend(parent);
                wanted.extend(self.targets.iter().cloned());
            } else {
                let mut ancestors = self.path.ancestors().skip(1);
                wanted.extend(ancestors.find_map(|path| fs::canonicalize(path).ok()));
            }
            if !self.watch_only(wanted) {
                break;
            }
        }
        self.dir.is_some()
    }

    /// Watches these folders as well, as the symbolic links lead there. Returns whether any of
    /// them was not watched before.
    pub(super) fn set_targets(&mut self, targets: BTreeSet<PathBuf>) -> bool {
        if self.targets == targets {
            return false;
        }
        let new = !targets.is_subset(&self.watched);
        self.targets = targets;
        self.arm();
        new
    }

    /// Returns whether anything is watched now that was not before.
    fn watch_only(&mut self, wanted: BTreeSet<PathBuf>) -> bool {
        let Some(watcher) = &mut self.watcher else { return false };
        for path in self.watched.difference(&wanted) {
            // It may have gone with its folder.
            let _ = watcher.unwatch(path);
        }
        self.watched.retain(|path| wanted.contains(path));
        let mut more = false;
        self.failure = None;
        for path in wanted {
            if self.watched.contains(&path) {
                continue;
            }
            match watcher.watch(&path, RecursiveMode::NonRecursive) {
                Ok(()) => {
                    self.watched.insert(path);
                    more = true;
                }
                Err(error) if self.dir.is_none() || self.dir.as_ref() == Some(&path) => {
                    self.failure = Some(error.to_string());
                }
                Err(error) => tracing::debug!(path = %path.display(), %error, "not watched"),
            }
        }
        more
    }

    /// What an event means. A folder that was replaced is no longer watched afterwards.
    pub(super) fn effect(&mut self, event: &Event) -> Vec<Effect> {
        event.paths.iter().map(|path| self.effect_at(path, event.kind)).collect()
    }

    fn effect_at(&mut self, path: &Path, kind: EventKind) -> Effect {
        let Some(dir) = &self.dir else { return Effect::Everything };
        if path == dir || Some(path) == self.entry.as_deref() {
            if !matches!(kind, EventKind::Modify(ModifyKind::Metadata(_))) {
                let dir = dir.clone();
                self.forget(&dir);
            }
            return Effect::Everything;
        }
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return Effect::Everything;
        };
        if parent == dir && folder::is_manifest(name) {
            return match kind {
                EventKind::Modify(ModifyKind::Data(_)) => Effect::Writing(name.to_owned()),
                _ => Effect::File(name.to_owned()),
            };
        }
        if self.targets.contains(path) {
            let path = path.to_owned();
            self.forget(&path);
            return Effect::Everything;
        }
        // With symbolic links, anything may be on the way to a manifest.
        if self.targets.contains(parent) || (parent == dir && !self.targets.is_empty()) {
            return Effect::Everything;
        }
        Effect::Nothing
    }

    fn forget(&mut self, path: &Path) {
        if self.watched.remove(path)
            && let Some(watcher) = &mut self.watcher
        {
            // It may have gone with the folder.
            let _ = watcher.unwatch(path);
        }
    }
}

fn is_reading(kind: EventKind) -> bool {
    match kind {
        EventKind::Access(AccessKind::Close(AccessMode::Write)) => false,
        EventKind::Access(_) => true,
        _ => false,
    }
}
