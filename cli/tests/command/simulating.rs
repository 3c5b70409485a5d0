//! `retryrmq simulate`: what a policy does, without a broker.

use serde_json::Value;

use crate::fixture::{CommandOutput, finish, retryrmq};

const TWO: [&str; 5] = [
    "simulate",
    "--rate=20/s",
    "--outage=2m",
    "--retry=fixed(5s, retries=10)",
    "--retry=exponential(1s, factor=4, max=5m, jitter=0.2)",
];

async fn run(arguments: &[&str]) -> CommandOutput {
    let mut command = retryrmq();
    // Nothing answers there.
    command
        .env("RETRYRMQ_URL", "amqp://localhost:1")
        .args(arguments);
    finish(command, None).await
}

fn number(value: &Value) -> u64 {
    value
        .as_u64()
        .unwrap_or_else(|| panic!("{value} is a number"))
}

#[tokio::test]
async fn two_policies_have_the_same_luck_every_time_and_every_message_an_end() {
    let asked = [&TWO[..], &["--json", "--seed=7"]].concat();
    let done = run(&asked).await.exits(0);
    assert_eq!(
        run(&asked).await.exits(0).out,
        done.out,
        "the same every time"
    );
    let json = done.json();
    let policies = json["policies"].as_array().unwrap();
    assert_eq!(policies.len(), 2);
    for policy in policies {
        let parked: u64 = policy["parked"]
            .as_object()
            .unwrap()
            .values()
            .map(number)
            .sum();
        assert_eq!(number(&policy["handled"]) + parked, 12_000);
        let rounds = policy["rounds"].as_array().unwrap();
        let attempts: u64 = rounds.iter().map(|round| number(&round["attempts"])).sum();
        assert_eq!(attempts, number(&policy["attempts"]));
        assert!(attempts > 12_000);
    }
    // The policies' own delays, before any of them is tried out.
    assert_eq!(policies[0]["queues"].as_array().unwrap().len(), 1);
    assert_eq!(policies[1]["queues"][0]["delay_ms"], 800);
    let other = run(&[&TWO[..], &["--json", "--seed=8"]].concat())
        .await
        .exits(0);
    assert_ne!(other.out, done.out, "another seed is another run");
}

#[tokio::test]
async fn what_people_read_fits_eighty_columns_and_the_plot_is_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("retries.svg");
    let svg = format!("--svg={}", file.display());
    let done = run(&[&TWO[..], &[&svg]].concat()).await.exits(0);
    for line in done.out.lines() {
        assert!(line.chars().count() <= 80, "{line}");
    }
    assert!(!done.out.contains('\x1b'), "no colours in a pipe");
    for words in [
        "A  fixed(5s, retries=10)",
        "attempts a second",
        "outage",
        "12 000",
    ] {
        assert!(done.out.contains(words), "{words}: {}", done.out);
    }
    let drawn = std::fs::read_to_string(&file).unwrap();
    assert!(drawn.starts_with("<svg") && drawn.contains("fixed(5s, retries=10)"));
    let single = run(&["simulate", "--rate=1/s", "--fail-rate=0"])
        .await
        .exits(0);
    assert!(single.out.contains("600") && !single.out.contains("messages that wait"));
}

#[tokio::test]
async fn what_makes_no_sense_is_refused_with_what_to_change() {
    for (option, words) in [
        ("--retry=sometimes", "sometimes"),
        ("--rate=fast", "100/s"),
        ("--rate=1000000/s", "lower the rate"),
        ("--rate=1/h", "raise the rate"),
        ("--fail-rate=1.5", "between 0 and 1"),
        ("--poison=-1", "between 0 and 1"),
        ("--handlers=0", "one handler"),
        ("--for=soon", "soon"),
        ("--svg=/nowhere/at/all.svg", "/nowhere/at/all.svg"),
    ] {
        let done =
            run(&["simulate", option, "--for=1m"]
                [..if option.starts_with("--for") { 2 } else { 3 }])
            .await;
        assert!(
            matches!(done.status.code(), Some(1 | 2)),
            "{option}: {done:#?}"
        );
        assert!(done.err.contains(words), "{option}: {done:#?}");
    }
    let short = run(&["simulate", "--outage=10m", "--for=5m"])
        .await
        .exits(2);
    assert!(short.err.contains("--for"), "{short:#?}");
    let three = [
        "simulate",
        "--retry=fixed(1s)",
        "--retry=fixed(2s)",
        "--retry=fixed(3s)",
    ];
    assert!(run(&three).await.exits(2).err.contains("two policies"));
}
