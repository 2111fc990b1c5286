//! What holds for every input.

use proptest::prelude::*;
use proxyd::config::{Flags, Loaded, load, write_config};

use crate::flags::FLAGS;
use crate::table::table;
use crate::{KUBEADM, file, flags, load_with, nested};

fn assert_round_trip(loaded: &Loaded) {
    let text = write_config(&loaded.config);
    let again = load_with(&text, &[]).unwrap_or_else(|error| panic!("{error}\n{text}"));
    assert_eq!(again.config, loaded.config, "{text}");
}

#[test]
fn c2_2_written_files_load_to_the_same() {
    for (flag, _, _) in FLAGS {
        // Zero by flag cannot be told from unset in a file (C2.4).
        if *flag != "--iptables-min-sync-period=0" {
            assert_round_trip(&flags(&[flag]).unwrap());
        }
    }
    let written = write_config(&load_with(KUBEADM, &[]).unwrap().config);
    assert!(written.contains("apiVersion: kubeproxy.config.k8s.io/v1alpha1\n"), "{written}");
    assert!(written.contains("  qps: 5\n") && written.contains("nodePortAddresses: null\n"));
}

/// One line of a file: a field of the table with a plausible or absurd value.
fn line() -> impl Strategy<Value = String> {
    let fields: Vec<&str> = table().into_iter().map(|row| row.0).collect();
    let values = prop_oneof![
        prop::sample::select(vec![
            "null",
            "0",
            "0s",
            "''",
            "5",
            "-5s",
            "2m",
            "true",
            "false",
            "[primary]",
            "[10.0.0.0/8]",
            "ipvs",
            "nftables",
            "NodeCIDR",
            "'::'",
            "10.0.0.1",
            "10.0.0.0/8",
            "{}",
            "[]",
            "none",
            "1e3",
            "-0.0",
            "1.5h",
            ".inf",
            "'[::]:80'",
            "2Ki",
            "*a",
            "&a x",
            "!!int x",
            "{a: true}",
        ])
        .prop_map(str::to_owned),
        "[ -~]{0,12}",
    ];
    (prop::sample::select(fields), values).prop_map(|(field, value)| nested(field, &value))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn any_text_is_survived(text in "\\PC{0,200}", tail in "[-\\[\\]{}:,&*!|>'\"#%@ \n\ta-z0-9]{0,200}") {
        let _ = load_with(&text, &[]);
        let _ = load_with(&tail, &[]);
        let _ = file(&tail);
    }

    #[test]
    fn any_fields_are_survived_and_kept(lines in prop::collection::vec(line(), 0..6)) {
        if let Ok(loaded) = file(&lines.join("\n")) {
            assert_round_trip(&loaded);
        }
    }

    #[test]
    fn any_arguments_are_survived(arguments in prop::collection::vec("-{0,2}[a-z=-]{0,12}", 0..4)) {
        if let Ok(flags) = Flags::parse(arguments) {
            let _ = load(&flags, &|_| Ok(String::new()));
        }
    }
}
