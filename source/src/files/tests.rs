//! Tests against real folders.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use proxy_core::event::{Kind, Object, ObjectRef, SourceEvent};
use tempfile::TempDir;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::{FileSource, Reader, SourceError};

/// How long a test waits for what must come.
const DEADLINE: Duration = Duration::from_secs(10);

fn service(name: &str, ip: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Service\nmetadata:\n  name: {name}\nspec:\n  clusterIP: {ip}\n---\n"
    )
}

/// What a consumer knows.
#[derive(Default)]
struct Known {
    objects: BTreeMap<ObjectRef, Object>,
    findings: Vec<String>,
    /// Every event, in short.
    log: Vec<String>,
}

impl Known {
    fn take(&mut self, event: SourceEvent) {
        self.log.push(match &event {
            SourceEvent::ListStarted(kind) => format!("list {kind}"),
            SourceEvent::Applied(object) => format!("+ {}", object.reference()),
            SourceEvent::Deleted(reference) => format!("- {reference}"),
            SourceEvent::ListDone(kind) => format!("done {kind}"),
            SourceEvent::Findings(findings) => format!("{} findings", findings.len()),
            SourceEvent::Unreadable(reference) => format!("? {reference}"),
        });
        match event {
            SourceEvent::Applied(object) => {
                self.objects.insert(object.reference(), object);
            }
            SourceEvent::Deleted(reference) => {
                self.objects.remove(&reference);
            }
            SourceEvent::Findings(findings) => {
                self.findings = findings.iter().map(ToString::to_string).collect();
            }
            SourceEvent::ListStarted(_) | SourceEvent::ListDone(_) | SourceEvent::Unreadable(_) => {
            }
        }
    }

    fn is_listed(&self) -> bool {
        self.log.contains(&format!("done {}", Kind::EndpointSlice))
    }

    /// The cluster IP of a Service in the namespace `default`; empty if there is no such Service.
    fn ip(&self, name: &str) -> &str {
        let namespace = "default".to_owned();
        let reference = ObjectRef { kind: Kind::Service, namespace, name: name.to_owned() };
        match self.objects.get(&reference) {
            Some(Object::Service(service)) => &service.spec.cluster_ip,
            _ => "",
        }
    }
}

/// A folder and a source that reads it.
struct World {
    root: TempDir,
    dir: PathBuf,
    known: Known,
    events: mpsc::Receiver<SourceEvent>,
    task: JoinHandle<Result<(), SourceError>>,
}

impl World {
    /// A source that has told its first list of these files.
    async fn with(files: &[(&str, &str)]) -> Self {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("manifests");
        fs::create_dir(&dir).unwrap();
        for (name, text) in files {
            fs::write(dir.join(name), text).unwrap();
        }
        let mut world = Self::start(root, dir);
        world.until("the first list", Known::is_listed).await;
        world
    }

    fn start(root: TempDir, dir: PathBuf) -> Self {
        let (sender, events) = mpsc::channel(16);
        let task = tokio::spawn(FileSource::new(&dir).run(sender));
        Self { root, dir, known: Known::default(), events, task }
    }

    /// Takes events until something is known.
    async fn until(&mut self, what: &str, condition: impl Fn(&Known) -> bool) {
        let deadline = tokio::time::Instant::now() + DEADLINE;
        while !condition(&self.known) {
            let event = tokio::time::timeout_at(deadline, self.events.recv()).await;
            let Ok(Some(event)) = event else {
                panic!("no {what}: {:?} {:?}", self.known.log, self.known.findings)
            };
            self.known.take(event);
        }
    }

    /// Replaces a file at once.
    fn put(&self, name: &str, text: &str) {
        let temporary = self.dir.join(".temporary");
        fs::write(&temporary, text).unwrap();
        fs::rename(temporary, self.dir.join(name)).unwrap();
    }

    fn remove(&self, name: &str) {
        fs::remove_file(self.dir.join(name)).unwrap();
    }

    /// What was told since the log was last cleared, once everything before this has been told.
    async fn settled(&mut self) -> Vec<String> {
        // The first marker may come in the middle of what was read together with it.
        for round in ["1", "2"] {
            let name = format!("marker-{}-{round}", self.known.objects.len());
            self.put("~marker.yaml", &service(&name, "192.0.2.1"));
            self.until("marker", |known| !known.ip(&name).is_empty()).await;
        }
        self.put("~marker.yaml", "");
        self.until("no marker", |known| {
            !known.objects.keys().any(|reference| reference.name.starts_with("marker"))
        })
        .await;
        let mut log = std::mem::take(&mut self.known.log);
        log.retain(|line| !line.contains("marker"));
        log
    }
}

#[tokio::test]
async fn the_first_list_holds_everything_in_order() {
    let slice = "kind: EndpointSlice\napiVersion: discovery.k8s.io/v1\nmetadata: {name: web-1}\n";
    let node = r#"{"kind": "Node", "apiVersion": "v1", "metadata": {"name": "n1"}}"#;
    let world = World::with(&[
        ("a.yaml", &format!("{slice}---\n{}", service("web", "10.0.0.1"))),
        ("b.yml", &service("db", "10.0.0.2")),
        ("c.json", node),
        ("d.txt", "not a manifest"),
        (".hidden.yaml", "not: [a, manifest"),
    ])
    .await;
    assert_eq!(
        world.known.log,
        [
            "list Node",
            "+ Node/n1",
            "done Node",
            "list ServiceCIDR",
            "done ServiceCIDR",
            "list Service",
            "+ Service/default/web",
            "+ Service/default/db",
            "done Service",
            "list EndpointSlice",
            "+ EndpointSlice/default/web-1",
            "done EndpointSlice",
        ]
    );
}

#[tokio::test]
async fn only_what_differs_is_told() {
    let web = service("web", "10.0.0.1");
    let mut world =
        World::with(&[("a.yaml", &format!("{web}{}", service("db", "10.0.0.2")))]).await;
    world.known.log.clear();
    world.put("a.yaml", &format!("{web}# a comment\n{}", service("db", "10.0.0.3")));
    assert_eq!(world.settled().await, ["+ Service/default/db"]);
    assert_eq!(world.known.ip("db"), "10.0.0.3");
    world.put("a.yaml", &web);
    assert_eq!(world.settled().await, ["- Service/default/db"]);
    world.remove("a.yaml");
    assert_eq!(world.settled().await, ["- Service/default/web"]);
    world.put("other.json", "{\"kind\": \"Pod\", \"apiVersion\": \"v1\"}");
    assert_eq!(world.settled().await, [""; 0]);
}

#[tokio::test]
async fn files_may_be_written_in_place() {
    let mut world = World::with(&[("a.yaml", &service("web", "10.0.0.1"))]).await;
    for round in 2..20 {
        let ip = format!("10.0.0.{round}");
        fs::write(world.dir.join("a.yaml"), service("web", &ip)).unwrap();
        world.until("the new address", |known| known.ip("web") == ip).await;
    }
    assert!(!world.known.log.iter().any(|line| line.starts_with('-')), "{:?}", world.known.log);
}

#[tokio::test]
async fn a_bad_file_leaves_its_last_good_content_in_force() {
    let good = service("web", "10.0.0.1");
    let bad = format!("{good}{}", good.replace("10.0.0.1", "[10.0.0.2]").replace("web", "db"));
    let mut world = World::with(&[("a.yaml", &good), ("b.yaml", "kind: [")]).await;
    world.until("finding", |known| known.findings.len() == 1).await;
    assert_eq!(
        world.known.findings,
        ["b.yaml:1: kind: expected string scalar; the file is left out"]
    );
    world.known.log.clear();
    world.put("a.yaml", &bad);
    world.until("finding", |known| known.findings.len() == 2).await;
    assert_eq!(
        world.known.findings[0],
        "a.yaml:13: Service/default/db: spec.clusterIP: expected string scalar; \
         the last good content of the file stays in force"
    );
    assert_eq!(world.settled().await, ["2 findings"]);
    assert_eq!(world.known.ip("web"), "10.0.0.1");
    world.put("b.yaml", "");
    world.put("a.yaml", &service("web", "10.0.0.9"));
    world.until("no finding", |known| known.findings.is_empty()).await;
    assert_eq!(world.known.ip("web"), "10.0.0.9");
    world.put("a.yaml", "kind: [");
    world.until("finding", |known| known.findings.len() == 1).await;
    world.remove("a.yaml");
    world.until("no service", |known| known.ip("web").is_empty()).await;
    world.until("no finding", |known| known.findings.is_empty()).await;
}

#[tokio::test]
async fn an_object_may_move_between_files() {
    let mut world = World::with(&[("a.yaml", &service("web", "10.0.0.1"))]).await;
    world.known.log.clear();
    fs::rename(world.dir.join("a.yaml"), world.dir.join("b.yaml")).unwrap();
    assert_eq!(world.settled().await, [""; 0]);
    world.put("a.yaml", &service("web", "10.0.0.1"));
    world.until("finding", |known| known.findings.len() == 1).await;
    world.remove("b.yaml");
    world.until("no finding", |known| known.findings.is_empty()).await;
    assert_eq!(world.settled().await, ["1 findings", "0 findings"]);
}

#[tokio::test]
async fn of_two_files_the_first_name_wins() {
    let both = format!("{}{}", service("web", "10.0.0.3"), service("web", "10.0.0.4"));
    let mut world =
        World::with(&[("b.yaml", &service("web", "10.0.0.2")), ("c.yaml", &both)]).await;
    assert_eq!(world.known.ip("web"), "10.0.0.2");
    world.until("findings", |known| known.findings.len() == 2).await;
    assert_eq!(
        world.known.findings,
        [
            "Service/default/web: several times in c.yaml; the first one is in force",
            "Service/default/web: in b.yaml and also in c.yaml; the first one is in force",
        ]
    );
    world.put("a.yaml", &service("web", "10.0.0.1"));
    world.until("a.yaml", |known| known.ip("web") == "10.0.0.1").await;
    world.remove("a.yaml");
    world.until("b.yaml", |known| known.ip("web") == "10.0.0.2").await;
    world.remove("b.yaml");
    world.until("c.yaml", |known| known.ip("web") == "10.0.0.3").await;
    world.until("finding", |known| known.findings.len() == 1).await;
    assert!(!world.known.log.iter().any(|line| line.starts_with('-')), "{:?}", world.known.log);
}

#[tokio::test]
async fn a_mounted_config_map_is_swapped() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("manifests");
    let version = |name: &str, files: &[(&str, String)]| {
        fs::create_dir_all(dir.join(name)).unwrap();
        for (file, text) in files {
            fs::write(dir.join(name).join(file), text).unwrap();
        }
        symlink(name, dir.join("..data_tmp")).unwrap();
        fs::rename(dir.join("..data_tmp"), dir.join("..data")).unwrap();
    };
    let (web, db) = ("web.yaml", "db.yaml");
    version("..1", &[(web, service("web", "10.0.0.1")), (db, service("db", "10.0.0.2"))]);
    for file in [web, db] {
        symlink(format!("..data/{file}"), dir.join(file)).unwrap();
    }
    let mut world = World::start(root, dir.clone());
    world.until("the first list", Known::is_listed).await;
    assert_eq!((world.known.ip("web"), world.known.ip("db")), ("10.0.0.1", "10.0.0.2"));
    world.known.log.clear();

    for round in 2..5 {
        let ip = format!("10.0.1.{round}");
        version(
            &format!("..{round}"),
            &[(web, service("web", &ip)), (db, service("db", "10.0.0.2"))],
        );
        fs::remove_dir_all(dir.join(format!("..{}", round - 1))).unwrap();
        world.until("the new address", |known| known.ip("web") == ip).await;
        assert_eq!(world.settled().await, ["+ Service/default/web"]);
    }
    // The target of a link may also change by itself.
    fs::write(dir.join("..data").join(db), service("db", "10.0.0.3")).unwrap();
    world.until("the new address", |known| known.ip("db") == "10.0.0.3").await;
    // A key that is gone leaves a link that leads nowhere.
    version("..9", &[(web, service("web", "10.0.1.4"))]);
    world.until("no db", |known| known.ip("db").is_empty()).await;
}

#[tokio::test]
async fn links_to_other_places_are_followed() {
    let mut world = World::with(&[]).await;
    let elsewhere = world.root.path().join("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    fs::write(elsewhere.join("x"), service("web", "10.0.0.1")).unwrap();
    symlink(elsewhere.join("x"), world.dir.join("web.yaml")).unwrap();
    world.until("web", |known| known.ip("web") == "10.0.0.1").await;
    fs::write(elsewhere.join("x"), service("web", "10.0.0.2")).unwrap();
    world.until("the new address", |known| known.ip("web") == "10.0.0.2").await;
}

#[tokio::test]
async fn the_folder_may_come_and_go() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("deep").join("manifests");
    let mut world = World::start(root, dir.clone());
    world.until("finding", |known| known.findings.len() == 1).await;
    let finding = world.known.findings[0].clone();
    assert!(finding.ends_with("manifests: there is no such folder; waiting"), "{finding}");
    assert_eq!(world.known.log, ["1 findings"]);

    fs::create_dir_all(&dir).unwrap();
    world.until("the first list", Known::is_listed).await;
    world.until("no finding", |known| known.findings.is_empty()).await;
    world.put("a.yaml", &service("web", "10.0.0.1"));
    world.put("b.yaml", &service("db", "10.0.0.2"));
    world.until("db", |known| known.ip("db") == "10.0.0.2").await;

    for round in 3..8 {
        fs::rename(&dir, dir.with_file_name(format!("old-{round}"))).unwrap();
        if round % 2 == 0 {
            world.until("finding", |known| known.findings.len() == 1).await;
            let finding = world.known.findings[0].clone();
            assert!(finding.ends_with("what it held stays in force"), "{finding}");
            assert_eq!(world.known.ip("db"), "10.0.0.2");
        }
        let ip = format!("10.0.0.{round}");
        fs::create_dir(&dir).unwrap();
        world.put("b.yaml", &service("db", "10.0.0.2"));
        world.put("a.yaml", &service("web", &ip));
        world.until("the new address", |known| known.ip("web") == ip).await;
        world.until("no finding", |known| known.findings.is_empty()).await;
    }
    fs::remove_dir_all(dir.parent().unwrap()).unwrap();
    world.until("finding", |known| known.findings.len() == 1).await;
    fs::create_dir_all(&dir).unwrap();
    world.put("b.yaml", &service("db", "10.0.0.9"));
    world.until("the new address", |known| known.ip("db") == "10.0.0.9").await;
    world.until("no web", |known| known.ip("web").is_empty()).await;
}

#[tokio::test]
async fn the_folder_may_be_a_link() {
    let mut world = World::with(&[]).await;
    let (one, two) = (world.root.path().join("one"), world.root.path().join("two"));
    for (dir, ip) in [(&one, "10.0.0.1"), (&two, "10.0.0.2")] {
        fs::create_dir(dir).unwrap();
        fs::write(dir.join("a.yaml"), service("web", ip)).unwrap();
    }
    fs::remove_dir(&world.dir).unwrap();
    for (target, ip) in [(&one, "10.0.0.1"), (&two, "10.0.0.2"), (&one, "10.0.0.1")] {
        let link = world.root.path().join("link");
        symlink(target, &link).unwrap();
        fs::rename(link, &world.dir).unwrap();
        world.until("the other folder", |known| known.ip("web") == ip).await;
    }
    fs::write(one.join("b.yaml"), service("db", "10.0.0.3")).unwrap();
    world.until("db", |known| known.ip("db") == "10.0.0.3").await;
}

#[tokio::test]
async fn what_is_no_file_is_not_read() {
    let mut world = World::with(&[]).await;
    fs::create_dir(world.dir.join("dir.yaml")).unwrap();
    make_pipe(&world.dir.join("pipe.yaml"));
    symlink("nowhere", world.dir.join("dangling.yaml")).unwrap();
    world.known.log.clear();
    assert_eq!(world.settled().await, [""; 0]);
}

/// A pipe nobody writes to: opening it would wait for ever.
fn make_pipe(path: &std::path::Path) {
    use rustix::fs::{CWD, FileType, Mode, mknodat};
    mknodat(CWD, path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
}

#[tokio::test]
async fn a_rescan_finds_what_went_unnoticed_and_repeats_nothing() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().to_owned();
    fs::write(dir.join("a.yaml"), service("web", "10.0.0.1")).unwrap();
    let (sender, mut events) = mpsc::channel(16);
    let source = FileSource::new(&dir).rescan_every(Duration::from_millis(1));
    tokio::spawn(source.run(sender));
    let mut known = Known::default();
    while !known.is_listed() {
        known.take(timeout(DEADLINE, events.recv()).await.unwrap().unwrap());
    }
    known.log.clear();
    // Nothing comes by itself: what comes next is what was asked for.
    assert!(timeout(Duration::from_millis(200), events.recv()).await.is_err());
    fs::write(dir.join("a.yaml"), service("web", "10.0.0.2")).unwrap();
    let event = timeout(DEADLINE, events.recv()).await.unwrap().unwrap();
    known.take(event);
    assert_eq!(known.ip("web"), "10.0.0.2");
}

#[tokio::test]
async fn ends_when_nobody_receives() {
    let world = World::with(&[("a.yaml", &service("web", "10.0.0.1"))]).await;
    drop(world.events);
    timeout(DEADLINE, world.task).await.unwrap().unwrap().unwrap();
    // Also while it has something to say.
    let many: String = (0..100).map(|n| service(&format!("s{n}"), "10.0.0.1")).collect();
    let root = tempfile::tempdir().unwrap();
    fs::write(root.path().join("a.yaml"), many).unwrap();
    let dir = root.path().to_owned();
    let mut world = World::start(root, dir);
    world.until("a service", |known| !known.objects.is_empty()).await;
    drop(world.events);
    timeout(DEADLINE, world.task).await.unwrap().unwrap().unwrap();
}

#[tokio::test]
async fn changes_take_effect_soon() {
    let mut world = World::with(&[("a.yaml", &service("web", "10.0.0.1"))]).await;
    let mut times = Vec::new();
    for round in 2..23 {
        let ip = format!("10.0.0.{round}");
        let start = Instant::now();
        world.put("a.yaml", &service("web", &ip));
        world.until("the new address", |known| known.ip("web") == ip).await;
        times.push(start.elapsed());
    }
    times.sort();
    println!("median {:?}, longest {:?}", times[times.len() / 2], times[times.len() - 1]);
    assert!(times[times.len() / 2] < Duration::from_secs(2));
}

#[test]
fn a_folder_can_be_read_once() {
    let root = tempfile::tempdir().unwrap();
    fs::write(root.path().join("a.yaml"), service("web", "10.0.0.1")).unwrap();
    fs::write(root.path().join("b.yaml"), "hello").unwrap();
    let mut known = Known::default();
    FileSource::new(root.path()).load().unwrap().into_iter().for_each(|event| known.take(event));
    assert_eq!((known.ip("web"), known.findings.len()), ("10.0.0.1", 1));
    let error = FileSource::new(root.path().join("none")).load().unwrap_err();
    assert!(error.to_string().starts_with("list the manifests in "), "{error}");
}

#[test]
fn of_two_files_a_bad_one_that_takes_over_changes_nothing_until_it_is_good() {
    let root = tempfile::tempdir().unwrap();
    let mut reader = Reader::new(root.path());
    let mut known = Known::default();
    let mut step = |a: Option<&str>, b: &str| {
        let path = root.path().join("a.yaml");
        match a {
            Some(ip) => fs::write(path, service("web", ip)).unwrap(),
            None => drop(fs::remove_file(path)),
        }
        fs::write(root.path().join("b.yaml"), b).unwrap();
        let names = ["a.yaml", "b.yaml"].into_iter().map(Into::into).collect();
        reader
            .read(names, &mut |event| {
                known.take(event);
                Ok(())
            })
            .unwrap();
        known.ip("web").to_owned()
    };
    let good = service("web", "10.0.0.2");
    assert_eq!(step(Some("10.0.0.1"), &good), "10.0.0.1");
    assert_eq!(step(Some("10.0.0.1"), "kind: ["), "10.0.0.1");
    assert_eq!(step(None, "kind: ["), "10.0.0.1");
    assert_eq!(step(None, &good), "10.0.0.2");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever was there before, in the end the files say what is known.
    #[test]
    fn history_does_not_matter(
        steps in prop::collection::vec(
            (0..3usize, prop::option::of(prop::collection::vec((0..4u8, 0..3u8), 0..5))), 1..20),
        at_hand in prop_oneof![Just(0), Just(2), Just(256)],
    ) {
        let root = tempfile::tempdir().unwrap();
        let names = ["a.yaml", "b.yaml", "c.yaml"];
        let mut files: [Vec<(u8, u8)>; 3] = Default::default();
        let mut reader = Reader::new(root.path());
        reader.at_hand = at_hand;
        let mut known = Known::default();
        for (file, content) in steps {
            let path = root.path().join(names[file]);
            match &content {
                Some(objects) => {
                    let text: String = objects
                        .iter()
                        .map(|(name, ip)| service(&format!("s{name}"), &format!("10.0.0.{ip}")))
                        .collect();
                    fs::write(path, text).unwrap();
                }
                None => drop(fs::remove_file(path)),
            }
            files[file] = content.unwrap_or_default();
            reader.read([names[file].into()].into(), &mut |event| {
                known.take(event);
                Ok(())
            }).unwrap();
            let mut expected = BTreeMap::new();
            for (name, ip) in files.iter().flatten() {
                expected.entry(format!("s{name}")).or_insert_with(|| format!("10.0.0.{ip}"));
            }
            let told: BTreeMap<_, _> = (0..4)
                .map(|name| format!("s{name}"))
                .filter(|name| !known.ip(name).is_empty())
                .map(|name| (name.clone(), known.ip(&name).to_owned()))
                .collect();
            prop_assert_eq!(told, expected);
        }
    }
}
