//! Rules as text, in the words in which `iptables-save` prints them.
//!
//! What we write is what we later read, so that rules can be compared without a parser that
//! knows all matches. Text from objects only ever gets into comments, without the characters
//! that mean something to the tools.

use std::net::IpAddr;

use proxy_core::names::Protocol;

/// The longest comment in bytes; the kernel takes 255.
const MAX_COMMENT: usize = 200;

/// A comment's match.
pub(crate) fn comment(text: &str) -> String {
    let legible = |c: char| if matches!(c, ' '..='~') && !"\"'\\".contains(c) { c } else { '_' };
    let text: String = text.chars().take(MAX_COMMENT).map(legible).collect();
    let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    if !text.is_empty() && text.chars().all(is_plain) {
        format!("-m comment --comment {text}")
    } else {
        format!("-m comment --comment \"{text}\"")
    }
}

/// A single address.
pub(crate) fn host(address: IpAddr) -> String {
    let bits = if address.is_ipv4() { 32 } else { 128 };
    format!("{address}/{bits}")
}

/// `-p`, with what is tested between it and the port.
pub(crate) fn port(protocol: Protocol, between: &str, port: u16) -> String {
    let name = protocol.as_str();
    format!("-p {name} {between} -m {name} --dport {port}")
}

/// The match of one in `n` packets, as the kernel keeps its probability.
pub(crate) fn one_in(n: usize) -> String {
    // The kernel's unit is 2^-31; kube-proxy gives ten digits.
    const UNIT: f64 = 2_147_483_648.0;
    let n = u32::try_from(n).unwrap_or(u32::MAX);
    let ten_digits = (1e10 / f64::from(n)).round() / 1e10;
    let probability = (ten_digits * UNIT).round() / UNIT;
    format!("-m statistic --mode random --probability {probability:.11}")
}

/// Where a rule jumps to; empty if nowhere.
pub(crate) fn target(rule: &str) -> &str {
    // The last quoted text could contain anything; none follows the target.
    let after_comment = rule.rfind('"').and_then(|at| rule.get(at + 1..));
    let mut words = after_comment.unwrap_or(rule).split(' ');
    words.find(|word| matches!(*word, "-j" | "-g")).and_then(|_| words.next()).unwrap_or("")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_are_quoted_as_the_tools_do() {
        assert_eq!(comment("a_b-1"), "-m comment --comment a_b-1");
        assert_eq!(comment("ns/a:b"), "-m comment --comment \"ns/a:b\"");
        assert_eq!(comment(""), "-m comment --comment \"\"");
        let hostile = comment("x\" -j ACCEPT\n-A INPUT -j ACCEPT #\\'é");
        assert_eq!(hostile, "-m comment --comment \"x_ -j ACCEPT_-A INPUT -j ACCEPT #___\"");
        assert!(comment(&"x".repeat(10_000)).len() < 256);
    }

    #[test]
    fn probabilities_are_printed_as_the_kernel_keeps_them() {
        assert_eq!(one_in(2), "-m statistic --mode random --probability 0.50000000000");
        assert_eq!(one_in(3), "-m statistic --mode random --probability 0.33333333349");
        assert_eq!(one_in(7), "-m statistic --mode random --probability 0.14285714272");
    }

    #[test]
    fn targets_are_found_outside_of_comments() {
        assert_eq!(target("-d 10.0.0.1/32 -j KUBE-A"), "KUBE-A");
        assert_eq!(target("-m comment --comment \"a -j B\" -j DNAT --to-destination x"), "DNAT");
        assert_eq!(target("-m comment --comment \"x -j B\""), "");
        assert_eq!(target("-p tcp -g C"), "C");
        assert_eq!(target(""), "");
    }
}
