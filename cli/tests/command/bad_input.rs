//! Bad input: one sentence that names what to change, the right exit code, and never a password.

use retryrmq_harness::on_brokers;
use serde_json::Value;

use crate::fixture::{CommandOutput, Fixture, QUEUE, finish, retryrmq};

async fn run(arguments: &[&str]) -> CommandOutput {
    let mut command = retryrmq();
    // Nothing answers there: whatever is refused is refused before connecting.
    command
        .env("RETRYRMQ_URL", "amqp://localhost:1")
        .args(arguments);
    finish(command, None).await
}

#[tokio::test]
async fn options_that_make_no_sense_are_refused_before_connecting() {
    let consume = ["consume", QUEUE, "--dlx"];
    for (option, words) in [
        ("--retry=sometimes", "sometimes"),
        ("--retry=fixed(-1s)", "negative"),
        ("--retry=fixed(0s)", "0"),
        ("--retry=fixed(400d)", "365"),
        ("--retry=fixed(1s, colour=red)", "colour"),
        ("--rule=colour=red => fixed(1s)", "colour"),
        ("--rule=fixed(1s)", "=>"),
        ("--strategy=luck", "luck"),
        ("--queue-type=stream", "stream"),
        ("--concurrency=0", "--concurrency"),
        ("--concurrency=many", "--concurrency"),
        ("--prefetch=0", "--prefetch"),
        ("--prefetch=70000", "--prefetch"),
        ("--prefetch-bytes=0", "at least 1B"),
        ("--prefetch-bytes=large", "--prefetch-bytes"),
        ("--timeout=5", "unit"),
        ("--timeout=0s", "longer than 0"),
        ("--grace=-1s", "negative"),
        ("--count=0", "--count"),
        ("--idle=soon", "--idle"),
        ("--idle=0s", "longer than 0"),
        ("--drain=1 fortnight", "--drain"),
        ("--max-deferrals=-1", "--max-deferrals"),
        ("--max-crashes=0", "--max-crashes"),
        ("--pause=share=2", "share"),
        ("--pause=window=x", "window"),
        ("--pause=mood=bad", "mood"),
        ("--color=mauve", "--color"),
        ("--nonsense", "--nonsense"),
    ] {
        let arguments: Vec<&str> = consume.into_iter().chain([option, "--", "true"]).collect();
        let done = run(&arguments).await.exits(2);
        assert!(
            done.err.starts_with("error: ") && done.err.contains(words),
            "{option}: {done:#?}"
        );
        assert_eq!(done.out, "", "{option}");
    }
    for option in [
        "--retry=fixed(1s)",
        "--rule=error=x => fixed(1s)",
        "--strategy=retry-queues",
        "--queue-type=quorum",
        "--no-park",
        "--max-crashes=10",
        "--max-deferrals=10",
    ] {
        let done = run(&["consume", QUEUE, option, "--", "true"])
            .await
            .exits(2);
        let (name, _) = option.split_once('=').unwrap_or((option, ""));
        let words = format!("{name} needs --dlx; without it a failure is rejected");
        assert!(done.err.contains(&words), "{done:#?}");
    }
    for (arguments, words) in [
        (&["consume", QUEUE][..], "COMMAND"),
        (&["consume"], "QUEUE"),
        (&["consume", QUEUE, "--"], "COMMAND"),
        (&["publish", "x"], "--queue"),
        (&["publish", "--queue=", "x"], "--queue"),
        (&["publish", "--queue=a", "--exchange=b", "x"], "--exchange"),
        (
            &["publish", "--queue=a", "--routing-key=b", "x"],
            "--routing-key",
        ),
        (&["publish", "--queue=a", "--header=x", "x"], "--header"),
        (&["publish", "--queue=a", "--header=x:=y", "x"], "JSON"),
        (&["publish", "--queue=a", "--delay=-1s", "x"], "--delay"),
        (&["publish", "--queue=a", "--count=0", "x"], "--count"),
        (&["publish", "--queue=a", "--lines", "x"], "--lines"),
        (&["parked", "ls", QUEUE, "--limit=few"], "--limit"),
        (&["parked", "ls", QUEUE, "--all-queues"], "--all-queues"),
        (&["parked", "show", QUEUE], "ID"),
        (&["parked", "show", QUEUE, "#0"], "#0"),
        (&["parked", "show", QUEUE, "#x"], "#x"),
        (&["parked", "replay", QUEUE, "--reason=bored"], "bored"),
        (
            &["parked", "replay", QUEUE, "--fingerprint=xyz"],
            "--fingerprint",
        ),
        (&["parked", "replay", QUEUE, "--all", "a"], "--all"),
        (&["topology", ""], "empty"),
        (&["topology", QUEUE, "--apply", "--offline"], "--offline"),
        (&["topology", QUEUE, "--retry=never", "--offline"], "never"),
        (&["dance"], "dance"),
    ] {
        let done = run(arguments).await.exits(2);
        assert!(done.err.contains(words), "{arguments:?}: {done:#?}");
    }
    for url in ["", "  "] {
        let mut command = retryrmq();
        command.env("RETRYRMQ_URL", url).args(["-h"]);
        finish(command, None).await.exits(0);
    }
    for (arguments, words, not) in [
        // A program without its `--`.
        (
            &["consume", QUEUE, "--dlx", "./handle-order"][..],
            "put `--` before the command",
            "tip:",
        ),
        (
            &["--url=nonsense", "parked", "ls", QUEUE],
            "it has no scheme",
            "base",
        ),
        (
            &["parked", "replay", QUEUE, "--reason=bored"],
            "delivery-limit",
            "column",
        ),
        (
            &["publish"],
            "Usage: retryrmq publish [OPTIONS]",
            "--url <URL>",
        ),
        (
            &["parked", "ls"],
            "Usage: retryrmq parked ls [OPTIONS] <QUEUE|--all-queues>",
            "--url <URL>",
        ),
        (&["parked"], "Look at parked messages", "__"),
        (
            &[],
            "retryrmq consume orders --dlx -- ./handle-order",
            "***",
        ),
    ] {
        let done = run(arguments).await.exits(2);
        assert!(
            done.err.contains(words) && !done.err.contains(not),
            "{arguments:?}: {done:#?}"
        );
    }
    let long = "q".repeat(250);
    run(&["topology", &long, "--offline"]).await.exits(2);
}

#[tokio::test]
async fn an_error_in_json_has_a_code() {
    for (arguments, code, exit) in [
        (&["--json", "parked", "ls", QUEUE][..], "unreachable", 4),
        (
            &["--json", "--url=http://h", "parked", "ls", QUEUE],
            "invalid_url",
            2,
        ),
        (
            &["--json", "topology", QUEUE, "--retry=never"],
            "invalid_policy",
            2,
        ),
        (
            &["--json", "publish", "--queue=a", "--count=0", "x"],
            "invalid_option",
            2,
        ),
    ] {
        let done = run(arguments).await.exits(exit);
        let error: Value =
            serde_json::from_str(&done.err).unwrap_or_else(|why| panic!("{why}: {done:#?}"));
        assert_eq!(
            (&error["code"], &error["exit"]),
            (&Value::from(code), &Value::from(exit))
        );
        assert!(
            !error["error"].as_str().unwrap().starts_with("error"),
            "{error}"
        );
    }
    let done = run(&["--json", "publish", "x"]).await.exits(2);
    let error: Value = serde_json::from_str(&done.err).unwrap();
    let sentence = error["error"].as_str().unwrap();
    assert!(
        sentence.ends_with("<--queue <QUEUE>|--exchange <EXCHANGE>>"),
        "what is missing is named, and no more: {sentence}"
    );
    let codes = run(&["--json", "exit-codes"]).await.exits(0).json();
    assert_eq!(codes.as_object().unwrap().len(), 9);
    assert!(codes["4"].as_str().unwrap().contains("cannot connect"));
}

#[tokio::test]
async fn help_has_examples_and_shows_no_address() {
    for arguments in [
        &["--help"][..],
        &["help", "consume"],
        &["publish", "--help"],
        &["parked", "ls", "--help"],
        &["parked", "show", "--help"],
        &["parked", "replay", "--help"],
        &["parked", "drop", "--help"],
        &["topology", "--help"],
    ] {
        let mut command = retryrmq();
        command
            .env("RETRYRMQ_URL", "amqp://user:s3cr3t@localhost")
            .args(arguments);
        let done = finish(command, None).await.exits(0);
        assert!(
            done.out.contains("Examples:") && done.out.contains("retryrmq "),
            "{arguments:?}"
        );
        assert!(
            !done.out.contains("s3cr3t") && !done.out.contains(" __"),
            "{}",
            done.out
        );
    }
    let codes = run(&["exit-codes"]).await.exits(0);
    assert!(
        run(&["help", "exit-codes"])
            .await
            .exits(0)
            .out
            .contains("cannot connect")
            && codes.out.contains("130")
    );
}

#[tokio::test]
async fn no_password_is_ever_shown() {
    const PASSWORD: &str = "s3cr3t-horse";
    on_brokers(|broker| async move {
        let fixture = Fixture::with_queue(&broker).await;
        let user = fixture.vhost.name().to_owned();
        let management = broker.management();
        management.create_user(&user, PASSWORD, "").await.unwrap();
        let all = retryrmq_harness::Permissions::ALL;
        management
            .set_permissions(fixture.vhost.name(), &user, all)
            .await
            .unwrap();
        let good = fixture.vhost.url_as(&user, PASSWORD);
        let wrong = fixture.vhost.url_as("nobody", PASSWORD);
        let elsewhere = format!("amqp://u:{PASSWORD}@localhost:1/");
        let tls = good.replace("amqp://", "amqps://");
        let no_vhost = format!("{good}-nope");
        for (url, exit) in [
            (&good, 0),
            (&wrong, 4),
            (&elsewhere, 4),
            (&tls, 4),
            (&no_vhost, 4),
            (&format!("amqp://u:{PASSWORD}@h:99999"), 2),
            (&format!("amqp://u:{PASSWORD}@[::x/"), 2),
        ] {
            for verbose in ["-vv", "--json"] {
                let mut command = retryrmq();
                command.args([verbose, "--url", url, "publish", "--queue", QUEUE, "x"]);
                let done = finish(command, None).await.exits(exit);
                assert!(
                    !done.out.contains(PASSWORD) && !done.err.contains(PASSWORD),
                    "{done:#?}"
                );
            }
        }
        let mut command = retryrmq();
        command.args([
            "-vv",
            "--url",
            &good,
            "consume",
            QUEUE,
            "--dlx",
            "--count=2",
            "--",
            "true",
        ]);
        let done = finish(command, None).await.exits(0);
        assert!(
            !done.out.contains(PASSWORD) && !done.err.contains(PASSWORD),
            "{done:#?}"
        );
        // An address in the place of something else is quoted by the complaint.
        for arguments in [
            &["parked", "ls", &good, "--limit=x"][..],
            &["publish", "--queue=a", "b", &good],
            &["consume", QUEUE, "--count", &good, "--", "true"],
        ] {
            let done = run(arguments).await.exits(2);
            assert!(!done.err.contains(PASSWORD), "{done:#?}");
        }
        management.delete_user(&user).await.unwrap();
    })
    .await;
}
