//! Objects from a folder of manifests.
//!
//! The manifests are the files `*.yaml`, `*.yml` and `*.json` directly in the folder. Names that
//! begin with a dot are skipped, and so are subfolders; symbolic links are followed, so that a
//! mounted ConfigMap works as it is (its files are links through `..data`, which is swapped).
//!
//! - A file counts as a whole. One that cannot be read leaves its last good content in force, and
//!   is reported until it can be read again. The same goes for the folder: should it vanish, what
//!   it held stays in force until it is back. Before it first exists there is no first list.
//! - An object in two files is taken from the one whose name comes first in byte order. The other
//!   takes over when that one no longer has it.
//! - Changes are noticed by inotify and take effect once the files have been quiet for 20 ms, and
//!   100 ms after the first change at the latest. When nothing happens, nothing runs. A folder that
//!   inotify cannot watch is looked through every second. For file systems that change without
//!   telling (those of other machines), [`FileSource::rescan_every`] adds a look now and then.
//! - Nothing is kept of the objects but their names and fingerprints.

mod folder;
mod ledger;
mod watch;

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use proxy_core::diagnostic::Diagnostic;
use proxy_core::event::{Kind, Object, SourceEvent};
use tokio::sync::{mpsc, oneshot};

use self::folder::{Stamp, Text};
use self::ledger::{Batch, Content, Fingerprints, KINDS, Ledger, Name, Plan};
use self::watch::{Effect, Signal, Watch};
use crate::decode;

/// Files are read when nothing has happened to them for this long.
const QUIET: Duration = Duration::from_millis(20);
/// Files are read this long after something happened to them, whatever happens since.
const PATIENCE: Duration = Duration::from_millis(100);
/// How often to look at a folder that cannot be watched.
const UNWATCHED: Duration = Duration::from_secs(1);
/// Up to so many objects are kept from finding out what differs to telling it. More are read again
/// when it is their turn, so that memory is needed for one at a time.
const AT_HAND: usize = 256;

/// What can go wrong with the source as a whole.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SourceError {
    /// The folder cannot be listed.
    #[error("list the manifests in {}", dir.display())]
    Folder {
        /// The folder.
        dir: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The thread that reads the manifests ended by itself.
    #[error("the thread that reads the manifests has ended")]
    Ended,
    /// The thread that reads the manifests cannot be started.
    #[error("start the thread that reads the manifests")]
    Start(#[source] io::Error),
}

/// A folder of manifests.
#[derive(Clone, Debug)]
pub struct FileSource {
    dir: PathBuf,
    rescan: Option<Duration>,
}

impl FileSource {
    /// The manifests in `dir`, which need not exist yet.
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        let dir = dir.into();
        Self { dir: std::path::absolute(&dir).unwrap_or(dir), rescan: None }
    }

    /// Looks through the folder this often as well, whether or not a change was noticed.
    pub fn rescan_every(mut self, period: Duration) -> Self {
        self.rescan = Some(period);
        self
    }

    /// Reads the manifests once: the events that [`FileSource::run`] would begin with.
    pub fn load(&self) -> Result<Vec<SourceEvent>, SourceError> {
        let mut reader = Reader::new(&self.dir);
        let listing = folder::list(&self.dir)
            .map_err(|source| SourceError::Folder { dir: self.dir.clone(), source })?;
        let names = listing.files.into_keys().collect();
        let mut events = Vec::new();
        let collected: Result<(), Closed> = reader.read(names, &mut |event| {
            events.push(event);
            Ok(())
        });
        // Pushing to a vector is never refused.
        debug_assert!(collected.is_ok());
        Ok(events)
    }

    /// Sends what is in the folder, then what changes, until the receiver of `events` is dropped.
    ///
    /// The stream begins with a complete list of each kind: Nodes, ServiceCIDRs, Services,
    /// EndpointSlices. It may be preceded by findings, if the folder does not exist yet.
    ///
    /// The work is done by a thread of its own, which also ends when the future is dropped.
    pub async fn run(self, events: mpsc::Sender<SourceEvent>) -> Result<(), SourceError> {
        let (signals, inbox) = std::sync::mpsc::channel();
        let _stop = StopOnDrop(signals.clone());
        let (done, mut finished) = oneshot::channel();
        let receiver = events.clone();
        thread::Builder::new()
            .name("manifests".to_owned())
            .spawn(move || {
                let mut worker = Worker::new(&self, events, signals);
                worker.run(&inbox);
                // The other side may have been dropped.
                let _ = done.send(());
            })
            .map_err(SourceError::Start)?;
        tokio::select! {
            result = &mut finished => result.map_err(|_| SourceError::Ended),
            () = receiver.closed() => Ok(()),
        }
    }
}

/// Ends the worker.
struct StopOnDrop(Sender<Signal>);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.send(Signal::Stop);
    }
}

/// Nobody receives the events any more.
#[derive(Debug)]
struct Closed;

type Sink<'a> = &'a mut dyn FnMut(SourceEvent) -> Result<(), Closed>;

/// Reads files and tells what differs.
struct Reader {
    dir: PathBuf,
    ledger: Ledger,
    /// See [`AT_HAND`].
    at_hand: usize,
    /// Whether the first lists were told.
    listed: bool,
    /// What is wrong with the folder itself.
    trouble: Vec<Diagnostic>,
    /// Findings that were told.
    findings: Vec<Diagnostic>,
    /// Files that changed while they were read.
    again: BTreeSet<OsString>,
}

/// What became of reading a file.
enum Outcome {
    Gone,
    Good(Option<Stamp>, Content),
    Bad(Option<Stamp>, Diagnostic),
}

impl Reader {
    fn new(dir: &Path) -> Self {
        Self {
            dir: dir.to_owned(),
            ledger: Ledger::default(),
            at_hand: AT_HAND,
            listed: false,
            trouble: Vec::new(),
            findings: Vec::new(),
            again: BTreeSet::new(),
        }
    }

    /// Reads these files, whether or not they exist, and tells what differs.
    fn read(&mut self, names: BTreeSet<OsString>, sink: Sink<'_>) -> Result<(), Closed> {
        let mut batch = Batch::default();
        let mut room = self.at_hand;
        for name in names.into_iter().map(Name::from) {
            match self.read_file(&name, &mut room) {
                Outcome::Gone => self.ledger.remove(&name, &mut batch),
                Outcome::Bad(stamp, finding) => self.ledger.reject(&name, stamp, finding),
                Outcome::Good(stamp, content) => {
                    for kind in self.ledger.put(&name, stamp, content, &mut batch) {
                        tracing::info!(file = %name.to_string_lossy(), kind, "kind skipped");
                    }
                }
            }
        }
        let mut plan = self.ledger.plan(batch);
        for kind in KINDS {
            if !self.listed {
                sink(SourceEvent::ListStarted(kind))?;
            }
            self.tell_kind(kind, &mut plan, &mut *sink)?;
            if !self.listed {
                sink(SourceEvent::ListDone(kind))?;
            }
        }
        self.listed = true;
        plan.deleted.into_iter().map(SourceEvent::Deleted).try_for_each(&mut *sink)?;
        self.tell_findings(sink)
    }

    /// Tells of the objects of one kind.
    fn tell_kind(&mut self, kind: Kind, plan: &mut Plan, sink: Sink<'_>) -> Result<(), Closed> {
        for (name, mut objects) in plan.applied.remove(&kind).unwrap_or_default() {
            let at_hand: Vec<_> = objects
                .keys()
                .filter_map(|reference| plan.news.remove(&(name.clone(), reference.clone())))
                .collect();
            for object in at_hand {
                tell(object, &mut self.ledger, &mut objects, &mut *sink)?;
            }
            if !objects.is_empty() {
                self.read_again(&name, kind, &mut objects, &mut *sink)?;
            }
            // The file has changed meanwhile. If it is bad, it will change by itself.
            if !objects.is_empty() && self.ledger.is_good(&name) {
                self.again.insert(name.as_ref().to_owned());
            }
        }
        Ok(())
    }

    /// Takes objects of one kind from a file that was read before, and tells of them.
    fn read_again(
        &mut self,
        name: &Name,
        kind: Kind,
        objects: &mut Fingerprints,
        sink: Sink<'_>,
    ) -> Result<(), Closed> {
        let Ok(Some(text)) = folder::read(&self.dir.join(&**name)) else { return Ok(()) };
        let mut result = Ok(());
        let decoded =
            decode::decode_kind(&name.to_string_lossy(), &text.bytes, Some(kind), &mut |object| {
                if result.is_ok() {
                    result = tell(object, &mut self.ledger, objects, &mut *sink);
                }
            });
        if let Err(error) = decoded {
            tracing::debug!(%error, "changed between two readings");
        }
        result
    }

    /// Reads a file. Keeps at most `room` objects, and counts it down.
    fn read_file(&self, name: &Name, room: &mut usize) -> Outcome {
        let file = name.to_string_lossy();
        let Text { bytes, stamp } = match folder::read(&self.dir.join(&**name)) {
            Ok(None) => return Outcome::Gone,
            Ok(Some(text)) => text,
            Err(error) => {
                return Outcome::Bad(None, Diagnostic::new(file, "", error.to_string()));
            }
        };
        let mut content = Content::default();
        let result = decode::decode(&file, &bytes, &mut |object| {
            let reference = object.reference();
            let hash = ledger::fingerprint(&object);
            if *room > 0 && self.ledger.is_news(name, &reference, hash) {
                *room -= 1;
                content.news.push(object);
            }
            content.objects.push((reference, hash));
        });
        match result {
            Ok(skipped) => Outcome::Good(stamp, Content { skipped, ..content }),
            Err(error) => {
                Outcome::Bad(stamp, Diagnostic::new(error.place(), error.field, error.message))
            }
        }
    }

    fn tell_findings(&mut self, sink: Sink<'_>) -> Result<(), Closed> {
        let findings: Vec<_> = self.trouble.iter().cloned().chain(self.ledger.findings()).collect();
        if findings == self.findings {
            return Ok(());
        }
        for finding in findings.iter().filter(|finding| !self.findings.contains(finding)) {
            tracing::warn!(%finding, "manifests");
        }
        self.findings.clone_from(&findings);
        sink(SourceEvent::Findings(findings))
    }

    /// Files that are not as they were when they were read.
    fn changed(&self, listing: &folder::Listing) -> BTreeSet<OsString> {
        let changed = listing
            .files
            .iter()
            .filter(|(name, stamp)| !self.ledger.is_current(name, stamp))
            .map(|(name, _)| name.clone());
        let gone = self
            .ledger
            .names()
            .filter(|name| !listing.files.contains_key(&***name))
            .map(|name| name.as_ref().to_owned());
        changed.chain(gone).collect()
    }
}

/// Tells of an object, if it is one of these.
fn tell(
    object: Object,
    ledger: &mut Ledger,
    objects: &mut Fingerprints,
    sink: Sink<'_>,
) -> Result<(), Closed> {
    let reference = object.reference();
    if objects.get(&reference) != Some(&ledger::fingerprint(&object)) {
        return Ok(());
    }
    if let Some(hash) = objects.remove(&reference) {
        ledger.told(&reference, hash);
    }
    sink(SourceEvent::Applied(object))
}

/// What is to be read.
#[derive(Debug, Default)]
struct Pending {
    everything: bool,
    names: BTreeSet<OsString>,
    /// Files that somebody has written to and not closed.
    open: BTreeSet<OsString>,
}

impl Pending {
    fn is_empty(&self) -> bool {
        !self.everything && self.names.is_empty()
    }

    fn add(&mut self, effect: Effect) {
        match effect {
            Effect::Everything => self.everything = true,
            Effect::File(name) => {
                self.open.remove(&name);
                self.names.insert(name);
            }
            Effect::Nothing => {}
            Effect::Writing(name) => {
                self.open.insert(name.clone());
                self.names.insert(name);
            }
        }
    }
}

/// The thread's state.
struct Worker {
    reader: Reader,
    watch: Watch,
    rescan: Option<Duration>,
    events: mpsc::Sender<SourceEvent>,
}

impl Worker {
    fn new(
        source: &FileSource,
        events: mpsc::Sender<SourceEvent>,
        signals: Sender<Signal>,
    ) -> Self {
        let watch = Watch::new(&source.dir, signals);
        Self { reader: Reader::new(&source.dir), watch, rescan: source.rescan, events }
    }

    fn run(&mut self, inbox: &Receiver<Signal>) {
        let mut pending = Pending { everything: true, ..Pending::default() };
        while self.read(pending).is_ok() {
            match self.wait(inbox) {
                Ok(next) => pending = next,
                Err(Closed) => return,
            }
        }
    }

    /// Waits until there is something to read.
    fn wait(&mut self, inbox: &Receiver<Signal>) -> Result<Pending, Closed> {
        let names = std::mem::take(&mut self.reader.again);
        let mut pending = Pending { names, ..Pending::default() };
        let unwatched = self.watch.failure().map(|_| UNWATCHED);
        let idle = self.rescan.into_iter().chain(unwatched).min();
        while pending.is_empty() {
            let signal = match idle {
                None => inbox.recv().map_err(|_| Closed)?,
                Some(idle) => match inbox.recv_timeout(idle) {
                    Err(RecvTimeoutError::Timeout) => Signal::Lost,
                    other => other.map_err(|_| Closed)?,
                },
            };
            self.gather(&signal, &mut pending)?;
        }
        let deadline = Instant::now() + PATIENCE;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let quiet = if pending.open.is_empty() { QUIET.min(left) } else { left };
            match inbox.recv_timeout(quiet) {
                Ok(signal) => self.gather(&signal, &mut pending)?,
                Err(RecvTimeoutError::Timeout) => return Ok(pending),
                Err(RecvTimeoutError::Disconnected) => return Err(Closed),
            }
            if left.is_zero() {
                return Ok(pending);
            }
        }
    }

    fn gather(&mut self, signal: &Signal, pending: &mut Pending) -> Result<(), Closed> {
        match signal {
            Signal::Stop => return Err(Closed),
            Signal::Lost => pending.everything = true,
            Signal::Happened(event) => {
                self.watch.effect(event).into_iter().for_each(|effect| pending.add(effect));
            }
        }
        Ok(())
    }

    fn read(&mut self, pending: Pending) -> Result<(), Closed> {
        let events = &self.events;
        let mut send = |event| events.blocking_send(event).map_err(|_| Closed);
        let mut names = pending.names;
        // Where a link leads to has to be watched as well.
        let linked = names.iter().any(|name| folder::is_link(&self.reader.dir.join(name)));
        if pending.everything || linked || !self.reader.listed {
            match look(&mut self.watch, &self.reader) {
                Ok(changed) => {
                    names.extend(changed);
                    self.reader.trouble = unwatched(&self.watch, &self.reader.dir);
                }
                Err(trouble) => {
                    self.reader.trouble = vec![trouble];
                    return self.reader.tell_findings(&mut send);
                }
            }
        }
        self.reader.read(names, &mut send)
    }
}

/// Looks through the folder, and watches it from then on. Returns the files that changed.
fn look(watch: &mut Watch, reader: &Reader) -> Result<BTreeSet<OsString>, Diagnostic> {
    loop {
        let consequence = if reader.listed { "what it held stays in force" } else { "waiting" };
        let finding = |message: String| {
            Diagnostic::new(
                reader.dir.display().to_string(),
                "",
                format!("{message}; {consequence}"),
            )
        };
        if !watch.arm() {
            return Err(finding("there is no such folder".to_owned()));
        }
        let listing = folder::list(&reader.dir).map_err(|error| finding(error.to_string()))?;
        let changed = reader.changed(&listing);
        // What changed where nobody was watching yet would go unnoticed.
        if !watch.set_targets(listing.targets) {
            return Ok(changed);
        }
    }
}

fn unwatched(watch: &Watch, dir: &Path) -> Vec<Diagnostic> {
    let finding = |failure: &str| {
        let message = format!("cannot be watched: {failure}; it is looked through every second");
        Diagnostic::new(dir.display().to_string(), "", message)
    };
    watch.failure().map(finding).into_iter().collect()
}

#[cfg(test)]
mod tests;
