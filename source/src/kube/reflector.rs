//! What to ask the API server for, and what its answers mean: one kind of object, no I/O, no clock.
//!
//! The first request is for a *streaming list*: a watch that begins with everything that exists
//! and says when that is complete. A server that has no such thing is asked for pages, then for a
//! watch. From then on it is one watch after the other, each where the last one ended, until the
//! server has forgotten that far back. Then everything is listed again: what the list lacks is gone.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use proxy_core::diagnostic::Diagnostic;
use proxy_core::event::{Kind, SourceEvent};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;

use super::fault::{Fault, Status};
use super::object;

/// Objects in a page, as kube-proxy asks for (S2.3).
const PAGE: u32 = 500;
/// So many failures in a row, while the server is there, mean that watching on is hopeless.
const HOPELESS: u32 = 5;
/// A watch that told something is not punished for all failures before it.
const PROGRESS: u32 = 2;
/// Watches that end early are told of when so many in a row told nothing.
const FUTILE: u32 = 4;
/// Findings about single objects that are kept by name, for each kind.
const NAMED: usize = 50;

/// What is being asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    /// A page of a list.
    Page,
    /// A streaming list.
    Stream,
    /// A watch.
    Watch,
}

/// When to ask again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pause {
    /// At once.
    None,
    /// After the pause for this many failures in a row, and not before this much time.
    Backoff(u32, Duration),
    /// After a long time: there is nothing to be had.
    Long,
}

/// What follows from a fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Verdict {
    pub(super) pause: Pause,
    /// What to tell the operator, unless this is part of ordinary life.
    pub(super) trouble: Option<String>,
    /// Events that follow.
    pub(super) events: Vec<SourceEvent>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Stage {
    /// Nothing of the list has been told.
    List,
    /// The list goes on behind this mark.
    Pages(String),
    /// Everything is known up to the version.
    Watch,
}

/// How far everything is known, and so how old a list may be.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Since {
    /// Nothing is known: any list will do, even one from the server's cache.
    Nothing,
    /// Everything up to this version.
    Version(String),
    /// The server does not go by what is known: its latest will do, older or not.
    Latest,
}

/// The state of one kind of object.
#[derive(Debug)]
pub(super) struct Reflector {
    kind: Kind,
    /// The parts of the URL that never change.
    path: String,
    stage: Stage,
    /// Whether the server is thought to have streaming lists.
    streaming: bool,
    since: Since,
    /// Failures in a row, which say how long to wait.
    failures: u32,
    /// Failures since something was learnt.
    futile: u32,
    /// Whether a list was told to its end.
    listed: bool,
    /// Whether the present watch sends bookmarks.
    bookmarks: bool,
    undecodable: Undecodable,
}

impl Reflector {
    /// For objects of this kind; of Nodes only the one of this name.
    pub(super) fn new(kind: Kind, node: &str) -> Self {
        Self {
            kind,
            path: path(kind, node),
            stage: Stage::List,
            streaming: true,
            since: Since::Nothing,
            failures: 0,
            futile: 0,
            listed: false,
            bookmarks: false,
            undecodable: Undecodable::default(),
        }
    }

    pub(super) fn kind(&self) -> Kind {
        self.kind
    }

    /// What to ask for next.
    pub(super) fn mode(&self) -> Mode {
        match self.stage {
            Stage::List if self.streaming => Mode::Stream,
            Stage::List | Stage::Pages(_) => Mode::Page,
            Stage::Watch => Mode::Watch,
        }
    }

    /// Path and query of the next request. A watch is to end after this time.
    pub(super) fn url(&self, lifetime: Duration) -> String {
        let mut url = self.path.clone();
        let seconds = lifetime.as_secs();
        let watch = format!("watch=true&allowWatchBookmarks=true&timeoutSeconds={seconds}");
        let version = match &self.since {
            Since::Version(version) => version,
            Since::Nothing | Since::Latest => "",
        };
        // Writing to a string cannot fail.
        let _ = match (&self.stage, &self.since) {
            (Stage::List, _) if self.streaming => write!(
                url,
                "{watch}&sendInitialEvents=true&resourceVersionMatch=NotOlderThan\
                 &resourceVersion={version}"
            ),
            (Stage::List, Since::Nothing) => write!(url, "limit={PAGE}&resourceVersion=0"),
            (Stage::List, Since::Latest) => write!(url, "limit={PAGE}"),
            // With a limit it would mean: exactly this version.
            (Stage::List, Since::Version(_)) => {
                write!(url, "resourceVersionMatch=NotOlderThan&resourceVersion={version}")
            }
            (Stage::Pages(next), _) => write!(url, "limit={PAGE}&continue={}", encode(next)),
            (Stage::Watch, _) => write!(url, "{watch}&resourceVersion={version}"),
        };
        url
    }

    /// Whether the present watch can be expected to say something every minute.
    pub(super) fn hears_bookmarks(&self) -> bool {
        self.bookmarks
    }

    /// Whether a list is under way.
    pub(super) fn is_listing(&self) -> bool {
        self.stage != Stage::Watch
    }

    /// Whether a list was told to its end.
    pub(super) fn is_listed(&self) -> bool {
        self.listed
    }

    /// The server has answered that it will do as asked.
    pub(super) fn answered(&mut self) -> Option<SourceEvent> {
        self.bookmarks = false;
        (self.stage == Stage::List).then(|| {
            self.undecodable.list_started();
            SourceEvent::ListStarted(self.kind)
        })
    }

    /// An item of a list has arrived.
    pub(super) fn item(&mut self, text: &[u8]) -> Option<SourceEvent> {
        match object::decode(self.kind, text) {
            Ok(object) => {
                self.undecodable.forget(&object.reference().to_string());
                Some(SourceEvent::Applied(object))
            }
            Err(bad) => {
                self.undecodable.add(bad.finding);
                // Of what a list lacks nothing stays. Otherwise there is nothing to say.
                let is_relist = self.listed && self.is_listing();
                bad.reference.filter(|_| is_relist).map(SourceEvent::Unreadable)
            }
        }
    }

    /// A page has come to its end; this is what was around its items.
    pub(super) fn page_done(&mut self, envelope: &[u8]) -> Result<Option<SourceEvent>, Fault> {
        let Envelope { kind, metadata, .. } =
            serde_json::from_slice(envelope).map_err(|error| Fault::Garbage(error.to_string()))?;
        if kind.as_ref().is_some_and(|kind| kind.strip_suffix("List") != Some(self.kind.as_str())) {
            return Err(Fault::Garbage(format!("a {} in answer", kind.unwrap_or_default())));
        }
        if let Some(next) = metadata.next.filter(|next| !next.is_empty()) {
            self.stage = Stage::Pages(next);
            return Ok(None);
        }
        let version = metadata.resource_version.filter(|version| !version.is_empty());
        let version = version
            .ok_or_else(|| Fault::Garbage("a list without metadata.resourceVersion".to_owned()))?;
        Ok(Some(self.list_done(version)))
    }

    fn list_done(&mut self, version: String) -> SourceEvent {
        self.since = Since::Version(version);
        self.futile = 0;
        self.listed = true;
        self.stage = Stage::Watch;
        self.undecodable.list_done();
        SourceEvent::ListDone(self.kind)
    }

    /// A line of a watch has arrived.
    pub(super) fn line(&mut self, text: &[u8]) -> Result<Option<SourceEvent>, Fault> {
        let Line { change, object } =
            serde_json::from_slice(text).map_err(|error| Fault::Garbage(error.to_string()))?;
        let object = object.get().as_bytes();
        let event = match &*change {
            "ADDED" | "MODIFIED" => self.item(object),
            "BOOKMARK" => return Ok(self.bookmark(object)),
            "DELETED" => object::reference(self.kind, object).map(|reference| {
                self.undecodable.forget(&reference.to_string());
                SourceEvent::Deleted(reference)
            }),
            "ERROR" => return Err(Fault::Refused(Status::read(object))),
            other => return Err(Fault::Garbage(format!("a change of type {other:?}"))),
        };
        if self.stage == Stage::Watch {
            self.progress();
            if let Some(version) = object::version(object) {
                self.since = Since::Version(version);
            }
        }
        Ok(event)
    }

    fn progress(&mut self) {
        self.failures = self.failures.min(PROGRESS);
        self.futile = 0;
    }

    fn bookmark(&mut self, text: &[u8]) -> Option<SourceEvent> {
        let version = object::version(text)?;
        if self.stage == Stage::Watch {
            self.bookmarks = true;
            self.progress();
            self.since = Since::Version(version);
            return None;
        }
        object::ends_initial_events(text).then(|| self.list_done(version))
    }

    /// A request has come to its end, this long after it was answered.
    pub(super) fn failed(&mut self, fault: &Fault, lived: Duration, steady: Duration) -> Verdict {
        if self.is_absent(fault) {
            return self.absent();
        }
        let streamed = self.mode() == Mode::Stream;
        if streamed && fault.means_no_streaming() {
            self.streaming = false;
            return Verdict { pause: Pause::None, trouble: None, events: Vec::new() };
        }
        let was_watching = self.stage == Stage::Watch;
        if was_watching && lived >= steady {
            (self.failures, self.futile) = (0, 0);
            if *fault == Fault::Ended {
                // The time that was asked for is over.
                return Verdict { pause: Pause::None, trouble: None, events: Vec::new() };
            }
        }
        self.failures = self.failures.saturating_add(1);
        self.futile = self.futile.saturating_add(1);
        self.relist_after(fault);
        let is_ordinary =
            was_watching && (fault.is_expiry() || (!fault.is_refusal() && self.futile < FUTILE));
        let trouble = (!is_ordinary).then(|| fault.to_string());
        let least = fault.retry_after().unwrap_or_default();
        Verdict { pause: Pause::Backoff(self.failures - 1, least), trouble, events: Vec::new() }
    }

    /// Goes back to listing, if the fault says so.
    fn relist_after(&mut self, fault: &Fault) {
        let hopeless = self.failures >= HOPELESS && fault.may_be_about_the_version();
        match self.stage {
            Stage::List if fault.is_expiry() || fault.is_too_new() => self.since = Since::Latest,
            Stage::Pages(_) if fault.is_expiry() => {
                self.stage = Stage::List;
                self.since = Since::Latest;
            }
            Stage::Watch if fault.is_expiry() => self.stage = Stage::List,
            Stage::Watch if fault.is_too_new() || hopeless => {
                self.stage = Stage::List;
                self.since = Since::Latest;
            }
            Stage::List | Stage::Pages(_) | Stage::Watch => {}
        }
    }

    /// Whether the server has no such kind, and need not have it.
    fn is_absent(&self, fault: &Fault) -> bool {
        self.kind == Kind::ServiceCidr && matches!(fault, Fault::Refused(Status { code: 404, .. }))
    }

    fn absent(&mut self) -> Verdict {
        self.stage = Stage::List;
        self.since = Since::Nothing;
        (self.failures, self.futile) = (0, 0);
        self.listed = true;
        self.undecodable = Undecodable::default();
        let events = vec![SourceEvent::ListStarted(self.kind), SourceEvent::ListDone(self.kind)];
        Verdict { pause: Pause::Long, trouble: None, events }
    }

    /// Objects that could not be read, so far.
    pub(super) fn undecodable(&self) -> u64 {
        self.undecodable.count
    }

    /// What is wrong with single objects now.
    pub(super) fn findings(&self) -> Vec<Diagnostic> {
        self.undecodable.findings(self.kind)
    }
}

/// Objects that cannot be read.
#[derive(Debug, Default)]
struct Undecodable {
    count: u64,
    named: BTreeMap<String, Diagnostic>,
    /// Those of the list under way; the others are from before it.
    listing: Option<BTreeMap<String, Diagnostic>>,
    /// How many more the list under way had, and the last complete one.
    more: [usize; 2],
}

impl Undecodable {
    fn list_started(&mut self) {
        self.listing = Some(BTreeMap::new());
        self.more[0] = 0;
    }

    fn list_done(&mut self) {
        self.named = self.listing.take().unwrap_or_default();
        self.more[1] = std::mem::take(&mut self.more[0]);
    }

    fn add(&mut self, finding: Diagnostic) {
        self.count += 1;
        let more = &mut self.more[usize::from(self.listing.is_none())];
        let named = self.listing.as_mut().unwrap_or(&mut self.named);
        if named.len() < NAMED || named.contains_key(&finding.object) {
            named.insert(finding.object.clone(), finding);
        } else {
            *more += 1;
        }
    }

    fn forget(&mut self, object: &str) {
        let named = self.listing.as_mut().unwrap_or(&mut self.named);
        named.remove(object);
    }

    fn findings(&self, kind: Kind) -> Vec<Diagnostic> {
        let mut findings: Vec<_> = self.named.values().cloned().collect();
        if self.more[1] > 0 {
            let message = format!("{} or more others cannot be read, skipped", self.more[1]);
            findings.push(Diagnostic::new(kind.as_str(), "", message));
        }
        findings
    }
}

/// A list without its items.
#[derive(Deserialize)]
struct Envelope<'a> {
    #[serde(borrow)]
    kind: Option<Cow<'a, str>>,
    metadata: ListMeta,
    #[serde(rename = "items")]
    _items: Option<Vec<IgnoredAny>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ListMeta {
    resource_version: Option<String>,
    #[serde(rename = "continue")]
    next: Option<String>,
}

/// A line of a watch.
#[derive(Deserialize)]
struct Line<'a> {
    #[serde(rename = "type", borrow)]
    change: Cow<'a, str>,
    #[serde(borrow)]
    object: &'a RawValue,
}

/// Path and selectors (S2).
fn path(kind: Kind, node: &str) -> String {
    match kind {
        Kind::Service => format!(
            "/api/v1/services?labelSelector={}&fieldSelector={}&",
            encode("!service.kubernetes.io/service-proxy-name"),
            encode("spec.clusterIP!=None")
        ),
        Kind::EndpointSlice => format!(
            "/apis/discovery.k8s.io/v1/endpointslices?labelSelector={}&",
            encode("!service.kubernetes.io/headless")
        ),
        Kind::Node => {
            format!("/api/v1/nodes?fieldSelector={}&", encode(&format!("metadata.name={node}")))
        }
        Kind::ServiceCidr => "/apis/networking.k8s.io/v1/servicecidrs?".to_owned(),
    }
}

/// Text as a value in a URL.
fn encode(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            // Writing to a string cannot fail.
            let _ = write!(encoded, "%{byte:02X}");
        }
    }
    encoded
}

#[cfg(test)]
#[path = "reflector_tests.rs"]
mod tests;
