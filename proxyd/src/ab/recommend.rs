//! Which mode to take, and why.

use serde::Serialize;

use super::figures::{Metric, ModeResult};
use super::text::short;

/// Connections may take this much longer than with the best mode: less is hard to tell from
/// chance.
const MARGIN: f64 = 1.15;

/// The mode to take.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Recommendation {
    /// Its name.
    pub mode: String,
    /// Why, in a sentence or two.
    pub reason: String,
}

/// Of the modes whose connections are as quick as the best (within 15 % of its median), the one
/// whose changes cost the least CPU. Traffic comes first because it is there all the time; among
/// equals a node should not be busy with its rules.
pub fn recommend(modes: &[ModeResult]) -> Option<Recommendation> {
    let connect = |mode: &ModeResult| mode.figure(Metric::ConnectP50Us).value;
    let cost = |mode: &ModeResult| mode.figure(Metric::ChangeCpuMs).value;
    let quickest = modes.iter().min_by(|a, b| connect(a).total_cmp(&connect(b)))?;
    let limit = connect(quickest) * MARGIN;
    let (quick, slow): (Vec<_>, Vec<_>) = modes.iter().partition(|mode| connect(mode) <= limit);
    let chosen = quick.iter().copied().min_by(|a, b| cost(a).total_cmp(&cost(b)))?;
    let of = |mode: &ModeResult, value: f64, unit: &str| {
        format!("{} {} {unit}", mode.mode, short(value))
    };
    let mut reason = if modes.len() == 1 {
        format!(
            "it is the only one that could be measured: {}",
            of(chosen, connect(chosen), "µs per connection")
        )
    } else if quick.len() == 1 {
        format!(
            "its connections are quicker than all others by more than 15 %: {}",
            of(chosen, connect(chosen), "µs")
        )
    } else {
        let mut costs: Vec<_> = quick.clone();
        costs.sort_by(|a, b| cost(a).total_cmp(&cost(b)));
        let costs: Vec<_> = costs.iter().map(|mode| of(mode, cost(mode), "ms")).collect();
        format!(
            "of the modes with the quickest connections (medians within 15 %) its changes take the \
             least CPU: {}",
            costs.join(", ")
        )
    };
    if !slow.is_empty() {
        let slow: Vec<_> = slow.iter().map(|mode| of(mode, connect(mode), "µs")).collect();
        reason = format!("{reason}; slower to connect: {}", slow.join(", "));
    }
    Some(Recommendation { mode: chosen.mode.clone(), reason })
}

#[cfg(test)]
mod tests {
    use super::super::figures::Figure;
    use super::*;

    fn mode(name: &str, connect: f64, cost: f64) -> ModeResult {
        let figures = [(Metric::ConnectP50Us, connect), (Metric::ChangeCpuMs, cost)];
        ModeResult {
            mode: name.to_owned(),
            changes: 1,
            connections: 1,
            figures: figures.into_iter().map(|(it, value)| (it, Figure::once(value))).collect(),
        }
    }

    fn check(modes: &[ModeResult], expected: &str, words: &[&str]) {
        let recommendation = recommend(modes).unwrap();
        assert_eq!(recommendation.mode, expected);
        for word in words {
            assert!(recommendation.reason.contains(word), "{}", recommendation.reason);
        }
    }

    #[test]
    fn among_equally_quick_modes_the_cheapest_is_recommended() {
        let modes = [mode("a", 30.0, 9.0), mode("b", 33.0, 0.1), mode("c", 60.0, 0.01)];
        check(&modes, "b", &["b 0.1 ms, a 9 ms", "slower to connect: c 60 µs"]);
    }

    #[test]
    fn much_quicker_connections_decide() {
        check(
            &[mode("a", 30.0, 9.0), mode("b", 40.0, 0.1)],
            "a",
            &["by more than 15 %: a 30 µs", "b 40 µs"],
        );
    }

    #[test]
    fn one_mode_is_recommended_for_want_of_others() {
        check(&[mode("a", 30.0, 9.0)], "a", &["only one"]);
        assert_eq!(recommend(&[]), None);
    }
}
