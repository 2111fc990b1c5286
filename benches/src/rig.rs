//! Objects in, kernel rules out: the library's path without the driver around it.

use std::fmt;

use backend_iptables::{IptablesTable, Tool, Variant};
use backend_nftables::{NftablesTable, TableConfig};
use node_sys::namespace;
use proxy_core::address::IpFamily;
use proxy_core::event::SourceEvent;
use proxy_core::options::Options;
use proxy_core::store::Store;
use proxy_core::sync::{SyncReport, Synchronizer, TableSync};
use tokio::runtime::Runtime;

/// The mark bit of masquerading; kube-proxy's default.
const MASQUERADE_BIT: u8 = 14;

/// A backend, on the kernel facility that is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backend {
    /// nftables, by netlink.
    Nftables,
    /// iptables, in one of its variants.
    Iptables(Variant),
}

impl Backend {
    /// All that there are.
    pub const ALL: [Self; 3] =
        [Self::Nftables, Self::Iptables(Variant::Nft), Self::Iptables(Variant::Legacy)];

    /// A table of the namespace that the calling thread is in.
    pub fn table(self, store: &Store, family: IpFamily) -> Box<dyn TableSync> {
        match self {
            Self::Nftables => Box::new(table(store, family)),
            Self::Iptables(variant) => {
                let config = backend_iptables::TableConfig {
                    family,
                    detector: store.detector(family),
                    masquerade_bit: MASQUERADE_BIT,
                    localhost_node_ports: false,
                    routes_localnet: false,
                    drops_invalid: true,
                };
                let tool = Tool::find(family, variant).expect("iptables is installed");
                let table = IptablesTable::new(&config, tool).expect("no interface is named");
                Box::new(Synchronizer::new(table))
            }
        }
    }
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nftables => f.write_str("nftables"),
            Self::Iptables(variant) => write!(f, "iptables-{variant}"),
        }
    }
}

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
pub struct Rig {
    store: Store,
    tables: Vec<Box<dyn TableSync>>,
    runtime: Runtime,
}

impl fmt::Debug for Rig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rig").field("store", &self.store).finish_non_exhaustive()
    }
}

impl Rig {
    /// A rig that knows no objects and has looked at no table yet.
    pub fn new(options: Options, families: &[IpFamily]) -> Self {
        Self::of(Backend::Nftables, options, families)
    }

    /// The same with another backend.
    pub fn of(backend: Backend, options: Options, families: &[IpFamily]) -> Self {
        let store = Store::new(options);
        let tables = families.iter().map(|family| backend.table(&store, *family)).collect();
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
        self.tables.iter_mut().for_each(|table| table.distrust());
        self.sync()
    }
}
