//! What is wrong with objects is told once when it appears, and once when it is gone.

use std::time::Duration;

use proxy_core::diagnostic::Diagnostic;
use proxy_core::driver::DriverEvent;
use proxy_core::event::{Object, SourceEvent};

use crate::cluster::{Spec, cluster, list, objects};
use crate::rig::{Rig, wait};

/// Longer than findings are gathered.
const GATHERED: Duration = Duration::from_millis(1500);

/// The objects with findings that appeared and of those that were resolved.
fn findings(rig: &Rig) -> [Vec<String>; 2] {
    let mut found = [Vec::new(), Vec::new()];
    for event in rig.told() {
        if let DriverEvent::Findings { appeared, resolved } = event {
            found[0].extend(appeared.into_iter().map(|finding| finding.object));
            found[1].extend(resolved.into_iter().map(|finding| finding.object));
        }
    }
    found
}

fn none() -> [Vec<String>; 2] {
    [Vec::new(), Vec::new()]
}

#[test]
fn an_object_that_makes_no_sense_is_told_until_it_does() {
    let rig = Rig::new();
    let state = cluster([("a", Spec::new(1, [1])), ("b", Spec::new(2, [2]))]);
    let wrong = objects(&state).into_iter().find_map(|object| match object {
        Object::EndpointSlice(mut slice) if slice.metadata.name == "a-v4-b" => {
            slice.endpoints[0].addresses = vec!["rubbish".to_owned()];
            Some(SourceEvent::Applied(Object::EndpointSlice(slice)))
        }
        _ => None,
    });
    let wrong = wrong.unwrap();
    rig.run(async |link| {
        link.send(list(&state)).await;
        wait(GATHERED).await;
        assert_eq!(findings(&rig), none());
        link.send([wrong.clone()]).await;
        wait(GATHERED).await;
        let name = || vec!["EndpointSlice/default/a-v4-b".to_owned()];
        assert_eq!(findings(&rig), [name(), Vec::new()]);
        // Again, and with other news: nothing new about this.
        link.send([wrong]).await;
        link.send([SourceEvent::Findings(Vec::new())]).await;
        wait(GATHERED).await;
        assert_eq!(findings(&rig), none());
        link.send(list(&state)).await;
        wait(GATHERED).await;
        assert_eq!(findings(&rig), [Vec::new(), name()]);
        wait(Duration::from_secs(600)).await;
        assert_eq!(findings(&rig), none());
    });
}

#[test]
fn what_the_source_finds_is_told_even_before_the_lists_are_complete() {
    let rig = Rig::new();
    let finding = |file: &str| Diagnostic::new(file, "", "is no manifest");
    rig.run(async |link| {
        link.send([SourceEvent::Findings(vec![finding("a.yaml"), finding("b.yaml")])]).await;
        wait(GATHERED).await;
        assert_eq!(findings(&rig), [vec!["a.yaml".to_owned(), "b.yaml".to_owned()], Vec::new()]);
        link.send([SourceEvent::Findings(vec![finding("b.yaml")])]).await;
        wait(GATHERED).await;
        assert_eq!(findings(&rig), [Vec::new(), vec!["a.yaml".to_owned()]]);
    });
}
