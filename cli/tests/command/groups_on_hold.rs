//! Groups on hold, and users who may not see that.

use retryrmq_harness::{Permissions, QueueType, on_brokers};

use crate::{
    fixture::{Fixture, PARKED, QUEUE, finish},
    interrupted_walks::parked,
};

#[tokio::test]
async fn what_is_on_hold_is_safe_from_who_may_not_see_that() {
    on_brokers(|broker| async move {
        let fixture = Fixture::with_queue(&broker).await;
        fixture.amqp.declare(PARKED, QueueType::Quorum).await;
        for id in ["1", "2"] {
            let record = parked(id, 1_700_000_000, "vendor down");
            fixture.amqp.publish_with(PARKED, id, record).await;
        }
        fixture.holds(PARKED, 2).await;
        let list = ["--json", "parked", "ls", QUEUE];
        let group = fixture.run(&list).await.exits(0).lines()[0]["fingerprint"].clone();
        let group = group.as_str().unwrap();
        let hold = ["parked", "hold", QUEUE, "--group", group];
        fixture.run(&hold).await.exits(0);
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name).display().to_string();
        let (file, copies) = (path("setup.toml"), path("copies"));
        let user = format!("{}-operator", fixture.vhost.name());
        let setup = format!(
            "[[queues]]\nname = \"{QUEUE}\"\n[[permissions]]\nuser = \"{user}\"\noperates = [\"{QUEUE}\"]\n"
        );
        std::fs::write(&file, setup).unwrap();
        let check = ["--json", "setup", &file, "--check"];
        let grant = fixture.run(&check).await.exits(0).json()["permissions"][0].clone();
        let management = broker.management();
        management.create_user(&user, "pw", "").await.unwrap();
        let may = async |read: &str| {
            let may = Permissions {
                configure: grant["configure"].as_str().unwrap(),
                write: grant["write"].as_str().unwrap(),
                read,
            };
            let name = fixture.vhost.name();
            management.set_permissions(name, &user, may).await.unwrap();
        };
        let run = async |arguments: &[&str]| {
            let mut command = fixture.command(arguments);
            command.env("RETRYRMQ_URL", fixture.vhost.url_as(&user, "pw"));
            finish(command, None).await
        };
        may(r"^orders(\.retry\.[0-9]+|\.parked(\.dropped)?|\.unreadable)?$").await;
        let destroyers: [&[&str]; 3] = [
            &["parked", "drop", QUEUE, "--all", "--yes"],
            &["parked", "export", QUEUE, &copies, "--remove"],
            &["parked", "forget", QUEUE, "--error=vendor", "--yes"],
        ];
        for arguments in destroyers {
            let done = run(arguments).await.exits(5);
            assert!(
                done.err.contains("not known what is on hold")
                    && done.err.contains("nothing was done"),
                "{done:#?}"
            );
            fixture.holds(PARKED, 2).await;
        }
        // Nor does who may not read a note write over it.
        run(&["parked", "tag", QUEUE, "--group", group, "--owner=ana"])
            .await
            .exits(5);
        // Whoever names messages means them, and a replay can be undone.
        run(&["parked", "drop", QUEUE, "1", "--yes"]).await.exits(0);
        run(&["parked", "restore", QUEUE, "1"]).await.exits(0);
        run(&["parked", "drop", QUEUE, "1", "--yes"]).await.exits(0);
        run(&["parked", "replay", QUEUE, "--all", "--dry-run"])
            .await
            .exits(0);
        // With what `setup` gives to an operator the hold is known.
        may(grant["read"].as_str().unwrap()).await;
        let done = run(&["parked", "drop", QUEUE, "--all", "--yes"]).await;
        let done = done.exits(0);
        assert!(done.err.contains("1 on hold were left alone"), "{done:#?}");
        fixture.holds(PARKED, 1).await;
        // This user may not see the service's queues: a canary goes on without them.
        let canary = ["--canary=1", "--canary-wait=1s"];
        let replay = [&["parked", "replay", QUEUE, "2"][..], &canary].concat();
        let done = run(&replay).await.exits(1);
        assert!(done.err.contains("nobody consumes orders"), "{done:#?}");
        management.delete_user(&user).await.unwrap();
    })
    .await;
}

/// Two operators at once: what a command says it has done is so at the end.
#[tokio::test]
async fn who_writes_at_the_same_time_undoes_nothing_in_silence() {
    on_brokers(|broker| async move {
        let fixture = Fixture::with_queue(&broker).await;
        fixture.amqp.declare(PARKED, QueueType::Quorum).await;
        let record = parked("1", 1_700_000_000, "vendor down");
        fixture.amqp.publish_with(PARKED, "1", record).await;
        fixture.holds(PARKED, 1).await;
        let list = ["--json", "parked", "ls", QUEUE, "--group"];
        let group = fixture.run(&list).await.exits(0).lines()[0]["fingerprint"].clone();
        let group = group.as_str().unwrap();
        // So that there is a queue to look at from the beginning.
        let note = ["parked", "tag", QUEUE, "--group", group, "--note=seen"];
        fixture.run(&note).await.exits(0);
        let hold = ["parked", "hold", QUEUE, "--group", group];
        let tag = ["parked", "tag", QUEUE, "--group", group, "--owner=ana"];
        let (held, tagged) = tokio::join!(fixture.run(&hold), fixture.run(&tag));
        let about = fixture.run(&list).await.exits(0).lines()[0]["about"].clone();
        assert_eq!(about["note"], "seen", "{about}");
        for (done, is_so) in [
            (&held, about["hold"] == true),
            (&tagged, about["owner"] == "ana"),
        ] {
            match done.status.code() {
                Some(0) => assert!(is_so, "{about}: {done:#?}"),
                _ => assert!(
                    done.err.contains("somebody else has written") && !is_so,
                    "{about}: {done:#?}"
                ),
            }
        }
        // As the table shows it.
        let start = ["parked", "hold", QUEUE, "--group", &group[..8]];
        fixture.run(&start).await.exits(0);
        let other = ["parked", "hold", QUEUE, "--group", "00000000"];
        fixture.run(&other).await.exits(3);
        fixture.run(&tag).await.exits(0);
        let about = fixture.run(&list).await.exits(0).lines()[0]["about"].clone();
        assert!(about["hold"] == true && about["owner"] == "ana", "{about}");
    })
    .await;
}
