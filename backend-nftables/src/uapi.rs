//! Numbers of the nf_tables netlink interface (`linux/netfilter/nf_tables.h`).

/// Message commands (`enum nf_tables_msg_types`).
pub(crate) mod msg {
    pub(crate) const NEWTABLE: u8 = 0;
    pub(crate) const GETTABLE: u8 = 1;
    pub(crate) const DELTABLE: u8 = 2;
    pub(crate) const NEWCHAIN: u8 = 3;
    pub(crate) const GETCHAIN: u8 = 4;
    pub(crate) const DELCHAIN: u8 = 5;
    pub(crate) const NEWRULE: u8 = 6;
    pub(crate) const GETRULE: u8 = 7;
    pub(crate) const DELRULE: u8 = 8;
    pub(crate) const NEWSET: u8 = 9;
    pub(crate) const GETSET: u8 = 10;
    pub(crate) const DELSET: u8 = 11;
    pub(crate) const NEWSETELEM: u8 = 12;
    pub(crate) const GETSETELEM: u8 = 13;
    pub(crate) const DELSETELEM: u8 = 14;
    pub(crate) const NEWGEN: u8 = 15;
}

/// `NFNLGRP_NFTABLES` (`linux/netfilter/nfnetlink.h`).
pub(crate) const GROUP_NFTABLES: u32 = 7;

/// `NFPROTO_*` (`linux/netfilter.h`).
pub(crate) mod nfproto {
    pub(crate) const IPV4: u8 = 2;
    pub(crate) const IPV6: u8 = 10;
}

/// `NFTA_TABLE_*`.
pub(crate) mod table {
    pub(crate) const NAME: u16 = 1;
    pub(crate) const FLAGS: u16 = 2;
}

/// `NFTA_CHAIN_*` and `NFTA_HOOK_*`.
pub(crate) mod chain {
    pub(crate) const TABLE: u16 = 1;
    pub(crate) const NAME: u16 = 3;
    pub(crate) const HOOK: u16 = 4;
    pub(crate) const POLICY: u16 = 5;
    pub(crate) const TYPE: u16 = 7;
    pub(crate) const HOOK_NUMBER: u16 = 1;
    pub(crate) const HOOK_PRIORITY: u16 = 2;
}

/// `NFTA_RULE_*`.
pub(crate) mod rule {
    pub(crate) const TABLE: u16 = 1;
    pub(crate) const CHAIN: u16 = 2;
    pub(crate) const EXPRESSIONS: u16 = 4;
    pub(crate) const USERDATA: u16 = 7;
}

/// `NFTA_LIST_ELEM`.
pub(crate) const LIST_ELEMENT: u16 = 1;

/// `NFTA_SET_*`.
pub(crate) mod set {
    pub(crate) const TABLE: u16 = 1;
    pub(crate) const NAME: u16 = 2;
    pub(crate) const FLAGS: u16 = 3;
    pub(crate) const KEY_TYPE: u16 = 4;
    pub(crate) const KEY_LEN: u16 = 5;
    pub(crate) const DATA_TYPE: u16 = 6;
    pub(crate) const DATA_LEN: u16 = 7;
    pub(crate) const DESC: u16 = 9;
    pub(crate) const ID: u16 = 10;

    /// `NFTA_SET_DESC_SIZE`, `NFTA_SET_DESC_CONCAT`, `NFTA_SET_FIELD_LEN`.
    pub(crate) const DESC_SIZE: u16 = 1;
    pub(crate) const DESC_CONCAT: u16 = 2;
    pub(crate) const FIELD_LEN: u16 = 1;

    /// `enum nft_set_flags`.
    pub(crate) const FLAG_ANONYMOUS: u32 = 0x1;
    pub(crate) const FLAG_INTERVAL: u32 = 0x4;
    pub(crate) const FLAG_MAP: u32 = 0x8;
    pub(crate) const FLAG_TIMEOUT: u32 = 0x10;
    pub(crate) const FLAG_EVAL: u32 = 0x20;
    pub(crate) const FLAG_CONCAT: u32 = 0x80;

    /// `NFT_DATA_VERDICT`.
    pub(crate) const VERDICT_DATA: u32 = 0xffff_ff00;
}

/// `NFTA_SET_ELEM_LIST_*` and `NFTA_SET_ELEM_*`.
pub(crate) mod element {
    pub(crate) const LIST_TABLE: u16 = 1;
    pub(crate) const LIST_SET: u16 = 2;
    pub(crate) const LIST_ELEMENTS: u16 = 3;
    pub(crate) const KEY: u16 = 1;
    pub(crate) const DATA: u16 = 2;
    pub(crate) const USERDATA: u16 = 6;
    pub(crate) const KEY_END: u16 = 10;
}

/// `NFTA_DATA_*`, `NFTA_VERDICT_*` and verdict codes.
pub(crate) mod data {
    pub(crate) const VALUE: u16 = 1;
    pub(crate) const VERDICT: u16 = 2;
    pub(crate) const VERDICT_CODE: u16 = 1;
    pub(crate) const VERDICT_CHAIN: u16 = 2;
    /// `NF_DROP`, `NF_ACCEPT`, `NFT_JUMP`, `NFT_GOTO`, `NFT_RETURN`.
    pub(crate) const DROP: i32 = 0;
    pub(crate) const ACCEPT: i32 = 1;
    pub(crate) const JUMP: i32 = -3;
    pub(crate) const GOTO: i32 = -4;
    pub(crate) const RETURN: i32 = -5;
}

/// `NFTA_EXPR_*` and the attributes of the expressions in use.
pub(crate) mod expr {
    pub(crate) const NAME: u16 = 1;
    pub(crate) const DATA: u16 = 2;

    pub(crate) const IMMEDIATE_DREG: u16 = 1;
    pub(crate) const IMMEDIATE_DATA: u16 = 2;

    pub(crate) const CMP_SREG: u16 = 1;
    pub(crate) const CMP_OP: u16 = 2;
    pub(crate) const CMP_DATA: u16 = 3;

    pub(crate) const BITWISE_SREG: u16 = 1;
    pub(crate) const BITWISE_DREG: u16 = 2;
    pub(crate) const BITWISE_LEN: u16 = 3;
    pub(crate) const BITWISE_MASK: u16 = 4;
    pub(crate) const BITWISE_XOR: u16 = 5;

    pub(crate) const PAYLOAD_DREG: u16 = 1;
    pub(crate) const PAYLOAD_BASE: u16 = 2;
    pub(crate) const PAYLOAD_OFFSET: u16 = 3;
    pub(crate) const PAYLOAD_LEN: u16 = 4;

    pub(crate) const META_DREG: u16 = 1;
    pub(crate) const META_KEY: u16 = 2;
    pub(crate) const META_SREG: u16 = 3;

    pub(crate) const CT_DREG: u16 = 1;
    pub(crate) const CT_KEY: u16 = 2;
    pub(crate) const CT_DIRECTION: u16 = 3;

    pub(crate) const LOOKUP_SET: u16 = 1;
    pub(crate) const LOOKUP_SREG: u16 = 2;
    pub(crate) const LOOKUP_DREG: u16 = 3;

    pub(crate) const DYNSET_SET: u16 = 1;
    pub(crate) const DYNSET_OP: u16 = 3;
    pub(crate) const DYNSET_SREG_KEY: u16 = 4;
    pub(crate) const DYNSET_SREG_DATA: u16 = 5;
    pub(crate) const DYNSET_TIMEOUT: u16 = 6;
    /// `NFT_DYNSET_OP_UPDATE`.
    pub(crate) const DYNSET_UPDATE: u32 = 1;

    pub(crate) const NUMGEN_DREG: u16 = 1;
    pub(crate) const NUMGEN_MODULUS: u16 = 2;
    pub(crate) const NUMGEN_TYPE: u16 = 3;
    pub(crate) const NUMGEN_OFFSET: u16 = 4;
    /// `NFT_NG_RANDOM`.
    pub(crate) const NUMGEN_RANDOM: u32 = 1;

    pub(crate) const NAT_TYPE: u16 = 1;
    pub(crate) const NAT_FAMILY: u16 = 2;
    pub(crate) const NAT_ADDRESS_MIN: u16 = 3;
    pub(crate) const NAT_ADDRESS_MAX: u16 = 4;
    pub(crate) const NAT_PORT_MIN: u16 = 5;
    pub(crate) const NAT_PORT_MAX: u16 = 6;
    /// `NFT_NAT_DNAT`.
    pub(crate) const NAT_DNAT: u32 = 1;

    pub(crate) const MASQ_FLAGS: u16 = 1;
    /// `NF_NAT_RANGE_PROTO_RANDOM_FULLY` (`linux/netfilter/nf_nat.h`).
    pub(crate) const MASQ_RANDOM_FULLY: u32 = 0x10;

    pub(crate) const FIB_DREG: u16 = 1;
    pub(crate) const FIB_RESULT: u16 = 2;
    pub(crate) const FIB_FLAGS: u16 = 3;
    /// `NFT_FIB_RESULT_ADDRTYPE`.
    pub(crate) const FIB_ADDRESS_TYPE: u32 = 3;

    pub(crate) const REJECT_TYPE: u16 = 1;
    pub(crate) const REJECT_CODE: u16 = 2;
}

/// `NFTA_GEN_*`.
pub(crate) mod generation {
    pub(crate) const PROCESS_ID: u16 = 2;
    pub(crate) const PROCESS_NAME: u16 = 3;
}
