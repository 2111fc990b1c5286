//! Work of a table that waits for time to pass, such as removing what has drained.

use proxy_core::table::{TableError, TableErrorKind};

use crate::cluster::{Cluster, Spec, cluster, list};
use crate::fake::CHORE_PAUSE;
use crate::rig::{Rig, wait};

fn state() -> Cluster {
    cluster([("a", Spec::new(1, [1, 2]))])
}

#[test]
fn it_is_done_when_it_is_due_and_writes_nothing_else() {
    let rig = Rig::new();
    rig.run(async |link| {
        let left = || rig.v4().chores.len();
        let accesses = || {
            let kernel = rig.v4();
            (kernel.commits, kernel.observations)
        };
        let failed = TableError::new(TableErrorKind::Transient, "remove what has drained");
        // A failure is no reason to give up.
        rig.v4().chores = vec![Ok(()), Err(failed), Ok(())];
        link.send(list(&state())).await;
        link.settle().await;
        let before = accesses();
        assert_eq!(left(), 3);
        for remaining in [2, 1, 0, 0] {
            wait(CHORE_PAUSE).await;
            assert_eq!(left(), remaining);
        }
        assert_eq!(accesses(), before);
    });
    rig.check(&state());
}
