//! The reports of `proxyd ab`, against files that were read by a person.
#![expect(clippy::panic, reason = "helpers of tests fail by panicking")]

use std::path::Path;

use proxyd::ab::{
    Figure, LIMITS, Metric, ModeResult, NotMeasured, Report, Setup, recommend, render_html,
    render_text,
};

/// A mode whose figures are `scale` times those of the first.
fn mode(name: &str, scale: f64, slices: bool) -> ModeResult {
    let figures = Metric::ALL.into_iter().zip(1_u8..).map(|(metric, place)| {
        let value = f64::from(place) * scale;
        let figure = Figure { value, low: value * 0.5, high: value * 1.25 };
        (metric, if slices { figure } else { Figure::once(value) })
    });
    ModeResult {
        mode: name.to_owned(),
        changes: 2_000,
        connections: 30_000,
        figures: figures.collect(),
    }
}

fn report() -> Report {
    let modes = vec![mode("nftables", 0.123_45, false), mode("iptables-nft", 987.6, true)];
    Report {
        setup: Setup {
            kernel: "6.18.0".to_owned(),
            cpus: 2,
            services: 1_000,
            endpoints: 10,
            rounds: 10,
            slice_ms: 250,
        },
        recommendation: recommend(&modes),
        modes,
        not_measured: vec![NotMeasured {
            mode: "ipvs".to_owned(),
            reason: "the kernel says <no> & \"why\"".to_owned(),
        }],
        limits: LIMITS.to_vec(),
    }
}

/// Compares with a file of `tests/data/ab`; what differs is left where it can be looked at.
fn check(name: &str, expected: &str, actual: &str) {
    if actual != expected {
        let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        let written = std::fs::write(&file, actual);
        panic!("tests/data/ab/{name} differs from {} ({written:?}):\n{actual}", file.display());
    }
}

#[test]
fn the_table_is_as_expected() {
    check("report.txt", include_str!("../data/ab/report.txt"), &render_text(&report()));
}

#[test]
fn the_page_is_as_expected() {
    check("report.html", include_str!("../data/ab/report.html"), &render_html(&report()));
}

#[test]
fn the_json_is_as_expected() {
    // As values: the order of fields depends on the features of what else is built. Both are read
    // from text, since reading rounds.
    let read = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap();
    let actual = serde_json::to_string(&report()).unwrap();
    assert_eq!(read(&actual), read(include_str!("../data/ab/report.json")));
}

#[test]
fn the_page_needs_nothing_else() {
    let page = render_html(&report());
    for foreign in ["http", "<script", "src=", "href=", "url(", "@import"] {
        assert!(!page.contains(foreign), "{foreign}");
    }
    assert!(page.contains("prefers-color-scheme: dark"));
}

#[test]
fn without_a_result_the_reasons_remain() {
    let report = Report { modes: Vec::new(), recommendation: None, ..report() };
    let (text, page) = (render_text(&report), render_html(&report));
    assert!(text.contains("- mode ipvs: the kernel says <no>") && !text.contains("Recommended"));
    assert!(page.contains("mode ipvs: the kernel says &lt;no&gt;") && !page.contains("<svg"));
}
