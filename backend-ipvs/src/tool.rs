//! The programs of iptables, for the fixed rules.

use backend_iptables::{Tool, ToolError, Variant};
use node_sys::namespace::in_new_network_namespace;
use proxy_core::address::IpFamily;
use proxy_core::table::TableError;

use crate::detect::namespace_kind;
use crate::rules::{self, TABLES};

/// A chain in a table that every kernel with iptables has.
const TRIAL: &str = "*mangle\n:PROXYD-IPVS-TRIAL - [0:0]\nCOMMIT\n";

/// The programs of the variant that the rest of the node uses, or of the other one where the
/// kernel refuses that.
pub fn find_tool(family: IpFamily) -> Result<Tool, TableError> {
    let failed = |error: ToolError| error.into_table_error("find the programs of iptables");
    let tool = Tool::detect(family).map_err(failed)?;
    let Err(error) = try_out(&tool)? else { return Ok(tool) };
    let variant = match tool.variant() {
        Variant::Nft => Variant::Legacy,
        Variant::Legacy => Variant::Nft,
    };
    let Ok(other) = Tool::find(family, variant) else { return Err(failed(error)) };
    try_out(&other)?.map_err(failed)?;
    Ok(other)
}

/// Whether the kernel takes rules from these programs; tried where nobody is.
fn try_out(tool: &Tool) -> Result<Result<(), ToolError>, TableError> {
    in_new_network_namespace(|| tool.restore(TRIAL)).map_err(|error| {
        TableError::new(namespace_kind(&error), "try iptables in a network namespace")
            .with_source(error)
    })
}

/// The fixed rules, as they are.
pub(crate) fn read(tool: &Tool) -> Result<Vec<String>, TableError> {
    let failed = |error: ToolError| error.into_table_error("read the iptables rules");
    let saved: Result<Vec<_>, _> = TABLES.into_iter().map(|it| tool.save_named(it)).collect();
    Ok(rules::read(&saved.map_err(failed)?.concat()))
}

/// Takes the rules from what they are to what they shall be.
pub(crate) fn write(tool: &Tool, old: &[String], new: &[String]) -> Result<(), TableError> {
    let failed = |error: ToolError| error.into_table_error("write the iptables rules");
    tool.restore(&rules::restore(old, new)).map_err(failed)
}
