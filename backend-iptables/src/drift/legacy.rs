//! Noticing that somebody else changed the tables of the legacy variant.
//!
//! The kernel tells nobody. So it is asked, twice a second, for the outline of each table: a system
//! call of a microsecond, whose answer differs whenever the number of rules or chains does. A rule
//! that was exchanged for one of the same size changes only the contents. To read these costs as
//! much as copying the table, so that is done ever more seldom, the larger the table is: it takes
//! no more than a thousandth of the time. (The lock file tells of most writers, but not of those
//! that have another, and also of those that only read; audit records are there only where auditing
//! is on.)

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use node_sys::xtables::{Outline, Reader};
use proxy_core::address::IpFamily;
use proxy_core::rules::{Change, RuleDelta};
use proxy_core::table::{DriftSignal, TableError, TableErrorKind, error_chain};

use crate::model::{Key, Rule, Table};

/// Pause between two looks at the outlines: half of what a repair may take.
const PAUSE: Duration = Duration::from_millis(500);
/// Contents are left alone for so many times as long as it took to read them.
const CONTENTS_SHARE: u32 = 1000;

/// How a table stands.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Standing {
    outline: Outline,
    contents: u64,
}

/// How the tables of a family stood after the last known change, shared by who writes them and who
/// looks for changes of others.
#[derive(Debug)]
struct Known {
    reader: Reader,
    tables: [Standing; 2],
    /// What was noticed when writing.
    noticed: Option<String>,
    contents_due: Instant,
}

impl Known {
    fn open(family: IpFamily) -> io::Result<Self> {
        let reader = Reader::open(family == IpFamily::V6)?;
        let tables = stand(&reader)?;
        Ok(Self { reader, tables, noticed: None, contents_due: Instant::now() })
    }

    /// What has changed since the last time; nothing is told twice.
    fn look(&mut self, with_contents: bool) -> io::Result<Option<String>> {
        let mut changed = false;
        for (table, known) in Table::ALL.into_iter().zip(&self.tables) {
            changed |= self.reader.outline(table.as_str())? != known.outline;
        }
        if !changed && !with_contents {
            return Ok(None);
        }
        let started = Instant::now();
        let now = stand(&self.reader)?;
        let took = started.elapsed();
        self.contents_due = started + took + took * CONTENTS_SHARE;
        let before = std::mem::replace(&mut self.tables, now);
        let texts = Table::ALL.into_iter().zip(before.iter().zip(&self.tables));
        let texts: Vec<_> =
            texts.filter_map(|(table, (old, new))| difference(table, old, new)).collect();
        Ok((!texts.is_empty()).then(|| texts.join(", ")))
    }

    fn notice(&mut self, text: String) {
        self.noticed = Some(match self.noticed.take() {
            Some(before) => format!("{before}, {text}"),
            None => text,
        });
    }
}

fn stand(reader: &Reader) -> io::Result<[Standing; 2]> {
    let [first, second] = Table::ALL.map(|table| table_stands(reader, table));
    Ok([first?, second?])
}

fn table_stands(reader: &Reader, table: Table) -> io::Result<Standing> {
    /// How often a table may be replaced just while it is read.
    const TRIES: usize = 10;
    for _ in 0..TRIES {
        let outline = reader.outline(table.as_str())?;
        if let Some(contents) = reader.digest(table.as_str(), &outline)? {
            return Ok(Standing { outline, contents });
        }
    }
    Err(io::ErrorKind::ResourceBusy.into())
}

fn difference(table: Table, old: &Standing, new: &Standing) -> Option<String> {
    let (table, was, is) = (table.as_str(), old.outline.entries(), new.outline.entries());
    if was == is {
        (old != new).then(|| format!("rules of table {table} replaced"))
    } else {
        Some(format!("table {table} has {is} entries instead of {was}"))
    }
}

/// Looks for changes now and then.
#[derive(Debug)]
pub(crate) struct Poll(Arc<Mutex<Known>>);

/// Tells a [`Poll`] what we do ourselves.
#[derive(Debug)]
pub(crate) struct Writer(Arc<Mutex<Known>>);

/// Begins to look for changes of the tables as they stand.
pub(crate) fn open(family: IpFamily) -> Result<(Poll, Writer), TableError> {
    let known = Known::open(family).map_err(look_error)?;
    let known = Arc::new(Mutex::new(known));
    Ok((Poll(Arc::clone(&known)), Writer(known)))
}

fn look_error(error: io::Error) -> TableError {
    let kind = match error.kind() {
        io::ErrorKind::PermissionDenied => TableErrorKind::Permission,
        _ => TableErrorKind::Transient,
    };
    TableError::new(kind, "look for changes").with_source(error)
}

fn lock(known: &Mutex<Known>) -> MutexGuard<'_, Known> {
    known.lock().unwrap_or_else(PoisonError::into_inner)
}

#[async_trait]
impl DriftSignal for Poll {
    async fn changed(&mut self) -> Result<String, TableError> {
        loop {
            tokio::time::sleep(PAUSE).await;
            let mut known = lock(&self.0);
            let with_contents = known.contents_due <= Instant::now();
            let news = known.look(with_contents).map_err(look_error)?;
            if let Some(news) = news {
                known.notice(news);
            }
            if let Some(text) = known.noticed.take() {
                return Ok(text);
            }
        }
    }
}

impl Writer {
    /// Takes the steps of a delta by `write`.
    ///
    /// What others did before is found by a look at how the tables stand; what they do meanwhile by
    /// the number of entries, which follows from the delta.
    pub(crate) fn write<E>(
        &self,
        delta: &RuleDelta<Key, Rule>,
        write: impl FnOnce() -> Result<(), E>,
    ) -> Result<(), E> {
        let mut known = lock(&self.0);
        look_and_notice(&mut known);
        let before = known.tables.clone();
        let result = write();
        match stand(&known.reader) {
            Ok(now) => known.tables = now,
            // The next look finds a difference, or fails as well; both lead to a comparison.
            Err(error) => log(&error),
        }
        if result.is_ok() {
            for ((table, old), new) in Table::ALL.into_iter().zip(&before).zip(known.tables.clone())
            {
                let expected = i64::from(old.outline.entries()) + growth(delta, table);
                let is = i64::from(new.outline.entries());
                if is != expected {
                    let table = table.as_str();
                    known.notice(format!("table {table} has {is} entries instead of {expected}"));
                }
            }
        }
        // After an error everything is compared anyway.
        result
    }
}

fn look_and_notice(known: &mut Known) {
    match known.look(true) {
        Ok(Some(news)) => known.notice(news),
        Ok(None) => {}
        Err(error) => log(&error),
    }
}

fn log(error: &io::Error) {
    tracing::debug!(error = error_chain(error), "failed to look for changes");
}

/// By how many entries a delta makes a table larger.
fn growth(delta: &RuleDelta<Key, Rule>, table: Table) -> i64 {
    let changes = delta.changes.iter().filter(|change| change.key().table() == table);
    let growth = changes.map(|change| match change {
        Change::Add { rule, .. } => entries(rule),
        Change::Replace { old, new, .. } => entries(new) - entries(old),
        Change::Remove { rule, .. } => -entries(rule),
    });
    growth.sum()
}

fn entries(rule: &Rule) -> i64 {
    // A chain's name and its end are entries, too.
    const CHAIN: usize = 2;
    let entries = match rule {
        Rule::Chain(rules) => CHAIN + rules.len(),
        Rule::Shared => CHAIN,
        Rule::Entry => 1,
        Rule::Jumps(rules) => rules.len(),
    };
    i64::try_from(entries).unwrap_or(i64::MAX)
}
