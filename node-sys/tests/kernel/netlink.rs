//! Requests, dumps, batches and notifications against the running kernel.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use crate::common::{in_namespace, wait_readable};
use node_sys::netlink::{
    Batch, BatchError, Event, KernelError, Listener, MessageBuffer, NetlinkError, Protocol, Socket,
    Subsystem, flags, retry_interrupted,
};
use rustix::thread::{CapabilitySet, CapabilitySets};

/// `NFPROTO_IPV4` (`linux/netfilter.h`).
const IPV4: u8 = 2;
// Message and attribute numbers of linux/netfilter/nf_tables.h.
const NEW_TABLE: u8 = 0;
const GET_TABLE: u8 = 1;
const DELETE_TABLE: u8 = 2;
const NEW_CHAIN: u8 = 3;
const GET_GENERATION: u8 = 16;
const TABLE_NAME: u16 = 1;
const CHAIN_TABLE: u16 = 1;
const CHAIN_NAME: u16 = 3;
const GENERATION_ID: u16 = 1;
/// `NFNLGRP_NFTABLES` (`linux/netfilter/nfnetlink.h`).
const GROUP_NFTABLES: u32 = 7;

fn socket() -> Socket {
    Socket::open(Protocol::NETFILTER).expect("netfilter socket")
}

fn batch() -> Batch {
    Batch::new(Subsystem::NFTABLES, None)
}

fn add_table(batch: &mut Batch, name: &str) -> u32 {
    batch.message(NEW_TABLE, flags::CREATE, IPV4, |m| m.attr_str(TABLE_NAME, name))
}

fn delete_table(batch: &mut Batch, name: &str) -> u32 {
    batch.message(DELETE_TABLE, 0, IPV4, |m| m.attr_str(TABLE_NAME, name))
}

/// A chain in a table that does not exist.
fn bad_chain(batch: &mut Batch) -> u32 {
    batch.message(NEW_CHAIN, flags::CREATE, IPV4, |m| {
        m.attr_str(CHAIN_TABLE, "missing");
        m.attr_str(CHAIN_NAME, "chain");
    })
}

fn request(command: u8, flags: u16, sequence: u32, table: Option<&str>) -> MessageBuffer {
    let mut buffer = MessageBuffer::new();
    let kind = Subsystem::NFTABLES.message_type(command);
    buffer.begin_netfilter(kind, flags | flags::REQUEST, sequence, IPV4);
    if let Some(table) = table {
        buffer.attr_str(TABLE_NAME, table);
    }
    buffer.end();
    buffer
}

fn has_table(socket: &mut Socket, name: &str) -> bool {
    let request = request(GET_TABLE, flags::ACK, socket.next_sequence(), Some(name));
    let mut seen = 0;
    match socket.query(&request, |_| seen += 1) {
        Ok(()) => seen == 1,
        Err(NetlinkError::Kernel(error)) if error.is_not_found() => false,
        Err(error) => panic!("{error}"),
    }
}

fn generation(socket: &mut Socket) -> u32 {
    let request = request(GET_GENERATION, flags::ACK, socket.next_sequence(), None);
    let mut id = None;
    socket
        .query(&request, |m| {
            id = m.netfilter_attributes().get(GENERATION_ID).and_then(|a| a.u32_be());
        })
        .expect("generation");
    id.expect("generation id")
}

fn table_names(socket: &mut Socket) -> Result<Vec<String>, NetlinkError> {
    let request = request(GET_TABLE, flags::DUMP, socket.next_sequence(), None);
    let mut names = Vec::new();
    socket.dump(&request, |message| {
        let name = message.netfilter_attributes().get(TABLE_NAME).expect("name");
        names.push(name.str().expect("text").to_owned());
    })?;
    Ok(names)
}

fn sequences(errors: &[KernelError]) -> Vec<u32> {
    errors.iter().map(|error| error.sequence).collect()
}

#[test]
fn batch_is_applied_as_a_whole() {
    in_namespace(|| {
        let mut socket = socket();
        let mut batch = batch();
        add_table(&mut batch, "one");
        add_table(&mut batch, "two");
        socket.commit(&mut batch).unwrap();
        assert!(has_table(&mut socket, "one") && has_table(&mut socket, "two"));
        // The memory is used again.
        batch.clear(None);
        delete_table(&mut batch, "one");
        socket.commit(&mut batch).unwrap();
        assert!(!has_table(&mut socket, "one") && has_table(&mut socket, "two"));
        // Nothing to do is no error.
        socket.commit(&mut Batch::new(Subsystem::NFTABLES, None)).unwrap();
    });
}

#[test]
fn bad_messages_are_named_and_nothing_is_applied() {
    in_namespace(|| {
        let mut socket = socket();
        let mut batch = batch();
        add_table(&mut batch, "one");
        let bad = [bad_chain(&mut batch), bad_chain(&mut batch)];
        add_table(&mut batch, "two");
        let worse = delete_table(&mut batch, "missing");
        let error = socket.commit(&mut batch).unwrap_err();
        assert!(error.is_nothing_applied());
        let BatchError::Rejected { errors, messages: 5, complete: true } = &error else {
            unreachable!("{error:?}");
        };
        assert_eq!(sequences(errors), [bad[0], bad[1], worse]);
        assert!(errors.iter().all(KernelError::is_not_found));
        assert!(!has_table(&mut socket, "one") && !has_table(&mut socket, "two"));
        // The first message is told apart from the whole.
        let mut batch = self::batch();
        bad_chain(&mut batch);
        add_table(&mut batch, "one");
        let error = socket.commit(&mut batch).unwrap_err();
        assert_eq!(sequences(error.kernel_errors()), [1]);
        assert!(matches!(error, BatchError::Rejected { .. }));
        // The socket goes on working.
        let mut batch = self::batch();
        add_table(&mut batch, "three");
        socket.commit(&mut batch).unwrap();
    });
}

#[test]
fn batch_for_an_older_generation_is_refused() {
    in_namespace(|| {
        let mut socket = socket();
        let before = generation(&mut socket);
        let mut first = Batch::new(Subsystem::NFTABLES, Some(before));
        add_table(&mut first, "first");
        socket.commit(&mut first).unwrap();
        assert_ne!(generation(&mut socket), before);
        let mut stale = Batch::new(Subsystem::NFTABLES, Some(before));
        add_table(&mut stale, "stale");
        let error = socket.commit(&mut stale).unwrap_err();
        assert!(error.is_stale() && error.is_nothing_applied(), "{error:?}");
        assert!(!has_table(&mut socket, "stale"));
    });
}

#[test]
fn subsystem_without_batches_is_unsupported() {
    in_namespace(|| {
        let mut batch = Batch::new(Subsystem::CONNTRACK, None);
        batch.message(0, 0, IPV4, |_| {});
        let error = socket().commit(&mut batch).unwrap_err();
        assert!(error.is_unsupported(), "{error:?}");
    });
}

#[test]
fn missing_privilege_is_reported_at_once() {
    in_namespace(|| {
        let none = CapabilitySets {
            effective: CapabilitySet::empty(),
            permitted: CapabilitySet::empty(),
            inheritable: CapabilitySet::empty(),
        };
        rustix::thread::set_capabilities(None, none).unwrap();
        let mut socket = socket();
        let mut batch = batch();
        add_table(&mut batch, "one");
        add_table(&mut batch, "two");
        let error = socket.commit(&mut batch).unwrap_err();
        assert!(error.is_permission() && error.is_nothing_applied(), "{error:?}");
        let mut requests = MessageBuffer::new();
        for _ in 0..3 {
            let kind = Subsystem::NFTABLES.message_type(GET_TABLE);
            let sequence = socket.next_sequence();
            requests.begin_netfilter(kind, flags::REQUEST | flags::ACK, sequence, IPV4);
            requests.end();
        }
        let mut results = Vec::new();
        socket.request_each(&requests, |_, result| results.push(result)).unwrap();
        assert!(!results.is_empty() && results.len() <= 3);
        assert!(results.iter().all(|r| r.as_ref().is_err_and(KernelError::is_permission)));
    });
}

#[test]
fn more_errors_than_the_buffer_holds_are_counted_as_incomplete() {
    in_namespace(|| {
        let mut socket = socket();
        rustix::net::sockopt::set_socket_recv_buffer_size(&socket, 16 << 10).unwrap();
        let mut batch = batch();
        for _ in 0..2000 {
            bad_chain(&mut batch);
        }
        let error = socket.commit(&mut batch).unwrap_err();
        let BatchError::Rejected { errors, complete: false, .. } = &error else {
            unreachable!("{error:?}");
        };
        assert!(!errors.is_empty() && errors.len() < 2000);
        assert_eq!(errors[0].sequence, 1);
        // Nothing is left over that could be taken for an answer to the next batch.
        let mut batch = self::batch();
        add_table(&mut batch, "one");
        socket.commit(&mut batch).unwrap();
    });
}

#[test]
fn batch_larger_than_one_send_is_not_sent() {
    in_namespace(|| {
        let mut socket = socket();
        let mut batch = batch();
        let message = vec![0; 60_000];
        while batch.len() <= socket.max_send() {
            batch.message(NEW_TABLE, 0, IPV4, |m| m.attr_bytes(TABLE_NAME, &message));
        }
        let error = socket.commit(&mut batch).unwrap_err();
        assert!(matches!(error, BatchError::Netlink(NetlinkError::TooBig { .. })), "{error:?}");
        assert!(error.is_nothing_applied());
    });
}

#[test]
fn echo_returns_what_was_created() {
    in_namespace(|| {
        let mut batch = batch();
        batch.message(NEW_TABLE, flags::CREATE | flags::ECHO, IPV4, |m| {
            m.attr_str(TABLE_NAME, "one");
        });
        let mut names = Vec::new();
        let echo = |message: &node_sys::netlink::Message<'_>| {
            if message.command() == NEW_TABLE {
                names.extend(
                    message.netfilter_attributes().get(TABLE_NAME).map(|a| a.payload.to_vec()),
                );
            }
        };
        socket().commit_with(&mut batch, echo).unwrap();
        assert_eq!(names, [b"one\0"]);
    });
}

#[test]
fn requests_must_ask_for_their_answer() {
    in_namespace(|| {
        let mut socket = socket();
        let silent = request(GET_TABLE, 0, 1, None);
        assert!(matches!(socket.request(&silent), Err(NetlinkError::Encode(_))));
        assert!(matches!(socket.dump(&silent, |_| {}), Err(NetlinkError::Encode(_))));
        assert!(matches!(socket.request(&MessageBuffer::new()), Err(NetlinkError::Encode(_))));
    });
}

#[test]
fn refused_requests_carry_the_offset_of_the_culprit() {
    in_namespace(|| {
        let mut socket = socket();
        let sequence = socket.next_sequence();
        let request = request(GET_TABLE, flags::ACK, sequence, Some("missing"));
        let Err(NetlinkError::Kernel(error)) = socket.request(&request) else {
            unreachable!("a missing table was found")
        };
        assert_eq!((error.sequence, error.offset), (sequence, Some(20)));
    });
}

fn many_tables(socket: &mut Socket, count: usize) {
    let mut batch = batch();
    for number in 0..count {
        add_table(&mut batch, &format!("table-{number:05}"));
    }
    socket.commit(&mut batch).unwrap();
}

#[test]
fn dump_of_many_parts_is_complete() {
    in_namespace(|| {
        let mut socket = socket();
        many_tables(&mut socket, 2000);
        let mut names = table_names(&mut socket).unwrap();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), 2000);
    });
}

#[test]
fn dump_disturbed_by_a_change_is_reported_and_retried() {
    in_namespace(|| {
        let (mut reader, mut writer) = (socket(), socket());
        many_tables(&mut writer, 2000);
        let mut disturbances = 2;
        let mut attempts = 0;
        let mut read = || {
            attempts += 1;
            let request = request(GET_TABLE, flags::DUMP, reader.next_sequence(), None);
            let mut seen = 0;
            reader.dump(&request, |_| {
                seen += 1;
                if seen == 1 && disturbances > 0 {
                    disturbances -= 1;
                    let mut batch = batch();
                    add_table(&mut batch, &format!("new-{disturbances}"));
                    writer.commit(&mut batch).unwrap();
                }
            })?;
            Ok(seen)
        };
        assert!(matches!(read(), Err(NetlinkError::Interrupted)));
        assert_eq!(retry_interrupted(5, read).unwrap(), 2002);
        assert_eq!(attempts, 3);
    });
}

#[test]
fn abandoned_dump_does_not_spoil_the_next_request() {
    in_namespace(|| {
        let mut socket = socket();
        many_tables(&mut socket, 2000);
        let request = request(GET_TABLE, flags::DUMP, socket.next_sequence(), None);
        let abandoned = catch_unwind(AssertUnwindSafe(|| {
            socket.dump(&request, |_| std::panic::resume_unwind(Box::new("enough")))
        }));
        assert!(abandoned.is_err());
        assert_eq!(table_names(&mut socket).unwrap().len(), 2000);
    });
}

fn heard(listener: &mut Listener) -> Vec<u32> {
    let mut ports = Vec::new();
    while let Some(event) = listener.next_event().unwrap() {
        match event {
            Event::Messages(messages) => ports.extend(messages.map(|message| message.port)),
            Event::Overrun => unreachable!("a few messages do not overrun"),
        }
    }
    ports.dedup();
    ports
}

#[test]
fn listener_ignores_own_changes_only() {
    in_namespace(|| {
        let mut listener = Listener::open(Protocol::NETFILTER, &[GROUP_NFTABLES]).unwrap();
        let mut ours = [socket(), socket()];
        let mut other = socket();
        let change = |socket: &mut Socket, name: &str| {
            let mut batch = batch();
            add_table(&mut batch, name);
            socket.commit(&mut batch).unwrap();
        };
        change(&mut ours[0], "a");
        assert_eq!(heard(&mut listener), [ours[0].port()]);
        listener.ignore_ports(&[ours[0].port(), ours[1].port()]).unwrap();
        change(&mut ours[0], "b");
        change(&mut ours[1], "c");
        assert_eq!(heard(&mut listener), []);
        change(&mut other, "d");
        assert!(wait_readable(&listener, Duration::from_secs(5)));
        assert_eq!(heard(&mut listener), [other.port()]);
        listener.leave(GROUP_NFTABLES).unwrap();
        change(&mut other, "e");
        assert_eq!(heard(&mut listener), []);
    });
}

#[test]
fn listener_reports_lost_notifications() {
    in_namespace(|| {
        let mut listener = Listener::open(Protocol::NETFILTER, &[GROUP_NFTABLES]).unwrap();
        rustix::net::sockopt::set_socket_recv_buffer_size(&listener, 4096).unwrap();
        many_tables(&mut socket(), 2000);
        assert!(wait_readable(&listener, Duration::from_secs(5)));
        let mut overruns = 0;
        while let Some(event) = listener.next_event().unwrap() {
            overruns += usize::from(matches!(event, Event::Overrun));
        }
        assert!(overruns > 0);
        assert!(!listener.drain().unwrap());
    });
}

#[cfg(feature = "tokio")]
#[test]
fn async_listener_waits_for_a_change() {
    use node_sys::netlink::AsyncListener;

    in_namespace(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let listener = Listener::open(Protocol::NETFILTER, &[GROUP_NFTABLES]).unwrap();
            let mut listener = AsyncListener::new(listener).unwrap();
            let limit = Duration::from_millis(50);
            assert!(tokio::time::timeout(limit, listener.next_event()).await.is_err());
            many_tables(&mut socket(), 3);
            let limit = Duration::from_secs(5);
            let event = tokio::time::timeout(limit, listener.next_event()).await.unwrap().unwrap();
            assert!(matches!(event, Event::Messages(_)));
        });
    });
}
