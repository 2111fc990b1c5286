//! Which objects each file holds, and what has been told of them.
//!
//! Objects themselves are not kept, only their fingerprints: enough to see what differs. An object
//! that two files hold is taken from the one whose name comes first in byte order.

use std::collections::BTreeSet;
use std::collections::btree_map::{BTreeMap, Entry};
use std::ffi::OsStr;
use std::fmt::{self, Write as _};
use std::hash::{DefaultHasher, Hasher};
use std::sync::Arc;

use proxy_core::diagnostic::Diagnostic;
use proxy_core::event::{Kind, Object, ObjectRef};

use super::folder::Stamp;

/// The order in which kinds are handed over: what others refer to comes first.
pub(super) const KINDS: [Kind; 4] =
    [Kind::Node, Kind::ServiceCidr, Kind::Service, Kind::EndpointSlice];

/// Name of a file in the folder.
pub(super) type Name = Arc<OsStr>;

/// Objects and what they look like.
pub(super) type Fingerprints = BTreeMap<Arc<ObjectRef>, u64>;

/// Differs whenever objects do.
pub(super) fn fingerprint(object: &Object) -> u64 {
    struct Text(DefaultHasher);
    impl fmt::Write for Text {
        fn write_str(&mut self, text: &str) -> fmt::Result {
            self.0.write(text.as_bytes());
            Ok(())
        }
    }
    let mut text = Text(DefaultHasher::new());
    // Writing to a hasher cannot fail.
    let _ = write!(text, "{object:?}");
    text.0.finish()
}

/// What is in a file that could be read.
#[derive(Debug, Default)]
pub(super) struct Content {
    /// Every object, in the order of the file.
    pub(super) objects: Vec<(ObjectRef, u64)>,
    /// Those of them that may have to be told of, unless they are many.
    pub(super) news: Vec<Object>,
    /// Kinds that were skipped.
    pub(super) skipped: BTreeSet<String>,
}

/// What is known of a file.
#[derive(Debug, Default)]
struct Record {
    stamp: Option<Stamp>,
    /// Its objects when it could last be read, sorted.
    objects: Vec<(Arc<ObjectRef>, u64)>,
    skipped: BTreeSet<String>,
    /// Whether it could ever be read.
    good: bool,
    /// Whether it could not be read when it was last tried.
    bad: bool,
    findings: Vec<Diagnostic>,
}

impl Record {
    fn hash(&self, reference: &ObjectRef) -> Option<u64> {
        let at = self.objects.binary_search_by(|(other, _)| (**other).cmp(reference)).ok()?;
        self.objects.get(at).map(|(_, hash)| *hash)
    }
}

/// What is known of an object.
#[derive(Debug, Default)]
struct Claim {
    /// Fingerprint of what was last told.
    told: Option<u64>,
    /// The files that hold it, in byte order.
    files: Vec<Name>,
}

/// Files that are looked at together.
#[derive(Debug, Default)]
pub(super) struct Batch {
    /// Objects that may have changed.
    touched: BTreeSet<Arc<ObjectRef>>,
    /// Objects that are at hand.
    news: BTreeMap<(Name, Arc<ObjectRef>), Object>,
}

/// What is to be told.
#[derive(Debug, Default)]
pub(super) struct Plan {
    /// By kind and file: objects that are to be taken from there they are to be taken from.
    pub(super) applied: BTreeMap<Kind, BTreeMap<Name, Fingerprints>>,
    pub(super) deleted: Vec<ObjectRef>,
    /// Objects that are at hand.
    pub(super) news: BTreeMap<(Name, Arc<ObjectRef>), Object>,
}

/// What is known of all files.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    files: BTreeMap<Name, Record>,
    claims: BTreeMap<Arc<ObjectRef>, Claim>,
    /// Objects that several files hold.
    shared: BTreeSet<Arc<ObjectRef>>,
    /// Files that something is to be said about.
    troubled: BTreeSet<Name>,
}

impl Ledger {
    /// Names of all known files.
    pub(super) fn names(&self) -> impl Iterator<Item = &Name> {
        self.files.keys()
    }

    /// Whether the file was last read in this state.
    pub(super) fn is_current(&self, name: &OsStr, stamp: &Stamp) -> bool {
        self.files.get(name).is_some_and(|record| record.stamp.as_ref() == Some(stamp))
    }

    /// Whether an object found in a file may have to be told of.
    pub(super) fn is_news(&self, name: &OsStr, reference: &ObjectRef, hash: u64) -> bool {
        self.files.get(name).and_then(|record| record.hash(reference)) != Some(hash)
            || self.claims.get(reference).and_then(|claim| claim.told) != Some(hash)
    }

    /// Takes down what a file holds. Returns the kinds that it did not hold before and no proxy
    /// uses.
    pub(super) fn put(
        &mut self,
        name: &Name,
        stamp: Option<Stamp>,
        content: Content,
        batch: &mut Batch,
    ) -> Vec<String> {
        let mut record = self.files.remove(name).unwrap_or_default();
        let mut findings = Vec::new();
        let mut objects = BTreeMap::new();
        for (reference, hash) in content.objects {
            let reference = self.share(reference);
            match objects.entry(reference) {
                Entry::Vacant(entry) => {
                    entry.insert(hash);
                }
                Entry::Occupied(entry) => {
                    let file = name.to_string_lossy();
                    let message = format!("several times in {file}; the first one is in force");
                    findings.push(Diagnostic::new(entry.key().to_string(), "", message));
                }
            }
        }
        for object in content.news {
            let reference = self.share(object.reference());
            batch.news.entry((name.clone(), reference)).or_insert(object);
        }
        let objects: Vec<_> = objects.into_iter().collect();
        for (reference, hash) in &objects {
            let claim = self.claims.entry(reference.clone()).or_default();
            if let Err(at) = claim.files.binary_search(name) {
                claim.files.insert(at, name.clone());
                batch.touched.insert(reference.clone());
            } else if claim.told != Some(*hash) || record.hash(reference) != Some(*hash) {
                batch.touched.insert(reference.clone());
            }
        }
        for (reference, _) in &record.objects {
            if objects.binary_search_by(|(other, _)| other.cmp(reference)).is_err() {
                self.disclaim(name, reference);
                batch.touched.insert(reference.clone());
            }
        }
        let unknown = content.skipped.difference(&record.skipped).cloned().collect();
        record =
            Record { stamp, objects, skipped: content.skipped, good: true, bad: false, findings };
        self.keep(name, record);
        unknown
    }

    /// Takes down that a file is gone.
    pub(super) fn remove(&mut self, name: &Name, batch: &mut Batch) {
        self.troubled.remove(name);
        for (reference, _) in self.files.remove(name).unwrap_or_default().objects {
            self.disclaim(name, &reference);
            batch.touched.insert(reference);
        }
    }

    /// Takes down that a file cannot be read. Its last good content stays in force.
    pub(super) fn reject(&mut self, name: &Name, stamp: Option<Stamp>, mut finding: Diagnostic) {
        let mut record = self.files.remove(name).unwrap_or_default();
        finding.message.push_str(if record.good {
            "; the last good content of the file stays in force"
        } else {
            "; the file is left out"
        });
        record.stamp = stamp;
        record.bad = true;
        record.findings = vec![finding];
        self.keep(name, record);
    }

    fn keep(&mut self, name: &Name, record: Record) {
        if record.findings.is_empty() {
            self.troubled.remove(name);
        } else {
            self.troubled.insert(name.clone());
        }
        self.files.insert(name.clone(), record);
    }

    /// The reference as it is already in memory, if it is.
    fn share(&self, reference: ObjectRef) -> Arc<ObjectRef> {
        match self.claims.get_key_value(&reference) {
            Some((shared, _)) => shared.clone(),
            None => Arc::new(reference),
        }
    }

    fn disclaim(&mut self, name: &Name, reference: &Arc<ObjectRef>) {
        if let Some(claim) = self.claims.get_mut(reference) {
            claim.files.retain(|file| file != name);
        }
    }

    /// The file an object is taken from, and its fingerprint there, if that is not what was told.
    fn untold(&self, reference: &ObjectRef) -> Option<(&Name, u64)> {
        let claim = self.claims.get(reference)?;
        let name = claim.files.first()?;
        let hash = self.files.get(name)?.hash(reference)?;
        (claim.told != Some(hash)).then_some((name, hash))
    }

    /// Whether the file could be read when it was last tried.
    pub(super) fn is_good(&self, name: &OsStr) -> bool {
        self.files.get(name).is_some_and(|record| record.good && !record.bad)
    }

    /// Takes down that an object was told of.
    pub(super) fn told(&mut self, reference: &ObjectRef, hash: u64) {
        if let Some(claim) = self.claims.get_mut(reference) {
            claim.told = Some(hash);
        }
    }

    /// What is to be told after a batch. Deletions count as told from now on.
    pub(super) fn plan(&mut self, batch: Batch) -> Plan {
        let mut plan = Plan { news: batch.news, ..Plan::default() };
        for reference in batch.touched {
            if let Some((name, hash)) = self.untold(&reference) {
                let files = plan.applied.entry(reference.kind).or_default();
                files.entry(name.clone()).or_default().insert(reference.clone(), hash);
            }
            let Some(claim) = self.claims.get(&reference) else { continue };
            if claim.files.len() > 1 {
                self.shared.insert(reference);
                continue;
            }
            self.shared.remove(&reference);
            if claim.files.is_empty() {
                plan.deleted.extend(claim.told.map(|_| (*reference).clone()));
                self.claims.remove(&reference);
            }
        }
        plan
    }

    /// Everything there is to say about the files.
    pub(super) fn findings(&self) -> Vec<Diagnostic> {
        let files = self
            .troubled
            .iter()
            .filter_map(|name| self.files.get(name))
            .flat_map(|record| record.findings.iter().cloned());
        let shared = self.shared.iter().filter_map(|reference| {
            let files = &self.claims.get(reference)?.files;
            let (first, others) = files.split_first()?;
            let others: Vec<_> = others.iter().map(|name| name.to_string_lossy()).collect();
            let message = format!(
                "in {} and also in {}; the first one is in force",
                first.to_string_lossy(),
                others.join(", ")
            );
            Some(Diagnostic::new(reference.to_string(), "", message))
        });
        files.chain(shared).collect()
    }
}
