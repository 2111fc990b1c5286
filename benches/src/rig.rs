//! Objects in, kernel rules out: the library's path without the driver around it.

use backend_nftables::{NftablesTable, TableConfig};
use node_sys::namespace;
use proxy_core::address::IpFamily;
use proxy_core::event::SourceEvent;
use proxy_core::options::Options;
use proxy_core::store::Store;
use proxy_core::sync::{SyncReport, Synchronizer, TableSync as _};
use tokio::runtime::Runtime;

/// The mark bit of masquerading; kube-proxy's default.
const MASQUERADE_BIT: u8 = 14;

/// A table of the namespace that the calling thread is in.
pub fn table(store: &Store, family: IpFamily) -> Synchronizer<NftablesTable> {
    let config =
        TableConfig { family, detector: store.detector(family), masquerade_bit: MASQUERADE_BIT };
    Synchronizer::new(NftablesTable::open(&config).expect("netlink sockets can be opened"))
}

/// Moves the calling thread into a new, empty network namespace. The former one vanishes when the
/// last rig in it is dropped.
pub fn new_namespace() {
    namespace::enter_new_network_namespace()
        .expect("root, or `unshare --user --map-root-user --net`, to make network namespaces");
}

/// A runtime for the calling thread.
pub fn runtime() -> Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime starts")
}

/// A store and the tables it feeds.
#[derive(Debug)]
pub struct Rig {
    store: Store,
    tables: Vec<Synchronizer<NftablesTable>>,
    runtime: Runtime,
}

impl Rig {
    /// A rig that knows no objects and has looked at no table yet.
    pub fn new(options: Options, families: &[IpFamily]) -> Self {
        let store = Store::new(options);
        let tables = families.iter().map(|family| table(&store, *family)).collect();
        Self { store, tables, runtime: runtime() }
    }

    /// The objects and what they mean.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Takes in events.
    pub fn apply(&mut self, events: impl IntoIterator<Item = SourceEvent>) {
        events.into_iter().for_each(|event| self.store.apply(event));
    }

    /// Hands the tables what has changed, without a write.
    pub fn stage(&mut self) {
        for table in &mut self.tables {
            let changes = self.store.take_changes(table.family());
            table.stage(changes.services, changes.node);
        }
    }

    /// Commits what is staged. Returns the sum of what the tables report.
    pub fn sync(&mut self) -> SyncReport {
        let mut sum = SyncReport::default();
        for table in &mut self.tables {
            let report = self.runtime.block_on(table.sync()).expect("the kernel takes the rules");
            sum.full |= report.full;
            sum.changed_objects += report.changed_objects;
            sum.left_out.extend(report.left_out);
        }
        sum
    }

    /// From events to committed.
    pub fn step(&mut self, events: impl IntoIterator<Item = SourceEvent>) -> SyncReport {
        self.apply(events);
        self.stage();
        self.sync()
    }

    /// Reads back and compares everything.
    pub fn compare(&mut self) -> SyncReport {
        self.tables.iter_mut().for_each(proxy_core::sync::TableSync::distrust);
        self.sync()
    }
}
