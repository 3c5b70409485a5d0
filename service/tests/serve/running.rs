//! Running it: what systemd is told, what the examples of its setup say, and a fleet of a known rate.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use retryrmq_harness::{QueueType, Vhost, on_brokers};
use retryrmq_serve::ServiceConfig;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tokio::{net::UnixDatagram, time::timeout};

use crate::fixture::{
    DEADLINE, INTAKE_PARKED, NativeConsumer, Replica, declare, id, policy, program,
};

fn example(name: &str) -> PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/serve")).join(name)
}

fn read(name: &str) -> String {
    std::fs::read_to_string(example(name)).unwrap()
}

/// By Prometheus itself, where it is.
#[test]
fn the_rules_for_prometheus_fire_when_they_should() {
    let promtool = std::process::Command::new("promtool")
        .args(["test", "rules"])
        .arg(example("alert-rules.test.yml"))
        .output();
    match promtool {
        Ok(tested) => assert!(tested.status.success(), "{tested:?}"),
        Err(why) => {
            eprintln!("skipped: there is no promtool here ({why}; apt-get install prometheus)")
        }
    }
}

#[tokio::test]
async fn systemd_is_told_that_it_is_ready_lives_and_ends() {
    on_brokers(|broker| async move {
        let vhost = broker.vhost().await;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notify");
        let socket = UnixDatagram::bind(&path).unwrap();
        let mut child = program()
            .env("RETRYRMQ_URL", vhost.url())
            .env("RETRYRMQ_SERVE_LISTEN", "127.0.0.1:0")
            .env("NOTIFY_SOCKET", &path)
            .env("WATCHDOG_USEC", "2000000")
            .spawn()
            .unwrap();
        let hear = async |word: &str| {
            let mut heard = Vec::new();
            let heard_it = timeout(DEADLINE, async {
                loop {
                    let mut bytes = [0; 4096];
                    let length = socket.recv(&mut bytes).await.unwrap();
                    heard.push(String::from_utf8_lossy(&bytes[..length]).into_owned());
                    if heard.last().is_some_and(|last| last.contains(word)) {
                        return;
                    }
                }
            });
            assert!(heard_it.await.is_ok(), "{word}");
            heard
        };
        let before = hear("READY=1").await;
        assert!(
            before
                .iter()
                .any(|said| said.starts_with("STATUS=the broker has not been reached yet"))
                || before.len() == 1,
            "{before:?}"
        );
        for _ in 0..3 {
            hear("WATCHDOG=1").await;
        }
        let pid = Pid::from_raw(i32::try_from(child.id().unwrap()).unwrap()).unwrap();
        kill_process(pid, Signal::TERM).unwrap();
        hear("STOPPING=1").await;
        assert!(child.wait().await.unwrap().success());
    })
    .await;
}

#[tokio::test]
async fn the_unit_is_one_that_systemd_takes() {
    let unit = read("retryrmq-serve.service");
    let exec = unit
        .lines()
        .find_map(|line| line.strip_prefix("ExecStart="))
        .unwrap();
    let (program, arguments) = exec.split_once(' ').unwrap();
    assert!(program.ends_with("/retryrmq-serve"), "{program}");
    assert_eq!(arguments, "--config /etc/retryrmq/policy.toml");
    if which("systemd-analyze").is_none() {
        eprintln!("not verified: there is no systemd-analyze");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("retryrmq-serve.service");
    std::fs::write(
        &file,
        unit.replace(program, env!("CARGO_BIN_EXE_retryrmq-serve")),
    )
    .unwrap();
    let verified = tokio::process::Command::new("systemd-analyze")
        .args(["verify", "--man=no", "--recursive-errors=no"])
        .arg(&file)
        .output()
        .await
        .unwrap();
    let said = String::from_utf8_lossy(&verified.stderr);
    assert!(verified.status.success(), "{said}");
    assert!(!said.contains("retryrmq-serve.service"), "{said}");
}

fn which(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .map(|folder| folder.join(program))
        .find(|file| file.is_file())
}

#[tokio::test]
async fn the_examples_of_kubernetes_and_the_image_hold_together() {
    let documents: Vec<Value> = read("kubernetes.yaml")
        .split("\n---\n")
        .map(|text| serde_saphyr::from_str(text).expect("YAML"))
        .collect();
    let of = |kind: &str| {
        documents
            .iter()
            .find(|one| one["kind"] == kind)
            .expect(kind)
    };
    let deployment = &of("Deployment")["spec"];
    assert_eq!(deployment["replicas"], 2);
    let labels = &deployment["template"]["metadata"]["labels"];
    assert_eq!(&deployment["selector"]["matchLabels"], labels);
    let budget = &of("PodDisruptionBudget")["spec"];
    assert_eq!(&budget["selector"]["matchLabels"], labels);
    assert_eq!(budget["minAvailable"], 1);
    let pod = &deployment["template"]["spec"];
    let container = &pod["containers"][0];
    assert_eq!(container["readinessProbe"]["httpGet"]["path"], "/readyz");
    assert_eq!(container["livenessProbe"]["httpGet"]["path"], "/healthz");
    let port = &container["ports"][0]["containerPort"];
    let mounts: BTreeMap<_, _> = container["volumeMounts"]
        .as_array()
        .unwrap()
        .iter()
        .map(|mount| {
            (
                mount["name"].as_str().unwrap(),
                mount["mountPath"].as_str().unwrap(),
            )
        })
        .collect();
    let secret = &of("Secret")["stringData"];
    let file = format!("{}/rabbitmq-password", mounts["secrets"]);
    assert!(secret["rabbitmq-password"].is_string());
    let help = program().arg("--help").output().await.unwrap();
    let help = String::from_utf8(help.stdout).unwrap();
    let mut said = BTreeMap::new();
    for variable in container["env"].as_array().unwrap() {
        let name = variable["name"].as_str().unwrap();
        assert!(help.contains(&format!("[env: {name}")), "{name}: {help}");
        said.insert(name, variable["value"].as_str().unwrap());
    }
    assert!(said["RETRYRMQ_URL"].ends_with(&format!("passwordfile={file}")));
    assert_eq!(
        said["RETRYRMQ_SERVE_CONFIG"],
        format!("{}/policy.toml", mounts["policy"])
    );
    assert_eq!(said["RETRYRMQ_SERVE_LISTEN"], format!("0.0.0.0:{port}"));
    let policy = of("ConfigMap")["data"]["policy.toml"].as_str().unwrap();
    ServiceConfig::read(policy).unwrap();
    let image = read("Containerfile");
    assert!(image.contains(&format!("EXPOSE {port}\n")), "{image}");
    assert!(
        image.contains("RETRYRMQ_SERVE_LISTEN=0.0.0.0:9419"),
        "{image}"
    );
    let user = &container["securityContext"]["runAsUser"];
    assert!(image.contains(&format!("USER {user}:")), "{image}");
}

#[tokio::test]
async fn a_flag_comes_before_the_environment_and_that_before_the_file() {
    // None of these can be had: somebody listens there.
    let taken: Vec<_> = (0..3)
        .map(|_| std::net::TcpListener::bind("127.0.0.1:0").unwrap())
        .collect();
    let [flag, variable, said] = [0, 1, 2].map(|at: usize| {
        let address = taken[at].local_addr().unwrap();
        address.to_string()
    });
    let file = policy(&format!(
        "[service]\nlisten = \"{said}\"\nlog = \"json\"\nprefetch = 7\n"
    ));
    let refused = async |with_flag: bool, with_variable: bool| {
        let mut command = program();
        command.arg("--config").arg(file.path());
        if with_flag {
            command.args(["--listen", &flag]);
        }
        if with_variable {
            command.env("RETRYRMQ_SERVE_LISTEN", &variable);
        }
        let done = command.output().await.unwrap();
        assert_eq!(done.status.code(), Some(2));
        String::from_utf8(done.stderr).unwrap()
    };
    for (with_flag, with_variable, address) in [
        (true, true, &flag),
        (false, true, &variable),
        (false, false, &said),
    ] {
        let why = refused(with_flag, with_variable).await;
        assert!(why.contains(address.as_str()), "{address}: {why}");
    }
}

/// Failures a second, and delays in milliseconds by routing key.
const RATE: u32 = 40;
const DELAYS: [u64; 5] = [200, 500, 1_000, 1_500, 2_500];

/// Every message fails once: no one is lost, none comes early, none is parked.
async fn fails_at_a_rate(vhost: &Vhost, time: Duration) {
    let amqp = vhost.connect().await;
    let rules: String = DELAYS
        .iter()
        .map(|ms| {
            format!(
                "[[rules]]\nrouting_key = \"wait.{ms}\"\nretry = \"fixed({ms}ms, retries=2)\"\n"
            )
        })
        .collect();
    let file = policy(&rules);
    let replica = Replica::start(vhost, Some(file.path())).await;
    declare(&amqp, "orders", QueueType::Quorum, true).await;
    let bound = amqp.channel().queue_bind(
        "orders".into(),
        "amq.topic".into(),
        "wait.*".into(),
        Default::default(),
        Default::default(),
    );
    bound.await.unwrap();
    let failed = Arc::<Mutex<BTreeMap<String, Instant>>>::default();
    let back = Arc::<Mutex<BTreeMap<String, Duration>>>::default();
    let (rejected, returned) = (Arc::clone(&failed), Arc::clone(&back));
    let _native = NativeConsumer::start(vhost, "orders", move |seen| {
        let mut rejected = rejected.lock().unwrap();
        match seen.attempt() {
            1 => {
                rejected.insert(seen.id.clone(), Instant::now());
                false
            }
            _ => {
                let waited = rejected[&seen.id].elapsed();
                returned
                    .lock()
                    .unwrap()
                    .entry(seen.id.clone())
                    .or_insert(waited);
                true
            }
        }
    })
    .await;
    let count = u32::try_from(time.as_secs()).unwrap() * RATE;
    let mut ticks = tokio::time::interval(Duration::from_secs(1) / RATE);
    for number in 0..count {
        ticks.tick().await;
        let ms = DELAYS[number as usize % DELAYS.len()];
        let name = format!("{ms}-{number}");
        amqp.publish_to("amq.topic", &format!("wait.{ms}"), "x", id(&name))
            .await;
    }
    retryrmq_harness::eventually(DEADLINE, "all came back", || async {
        let came = back.lock().unwrap().len();
        if came == count as usize {
            Ok(())
        } else {
            Err(format!("{came} of {count}"))
        }
    })
    .await;
    for (name, waited) in &*back.lock().unwrap() {
        let ms = name.split('-').next().unwrap().parse().unwrap();
        assert!(
            *waited >= Duration::from_millis(ms),
            "{name} came after {waited:?}"
        );
    }
    let mut late: Vec<_> = back
        .lock()
        .unwrap()
        .iter()
        .map(|(name, waited)| {
            let ms = name.split('-').next().unwrap().parse().unwrap();
            waited.saturating_sub(Duration::from_millis(ms))
        })
        .collect();
    late.sort_unstable();
    eprintln!(
        "{count} retries, late by {:?} in the middle and {:?} at most",
        late[late.len() / 2],
        late[late.len() - 1]
    );
    assert_eq!(amqp.depth(INTAKE_PARKED).await, Some(0));
    assert!(replica.end().await.success());
}

#[tokio::test]
async fn forty_failures_a_second_with_five_delays_all_come_back_and_none_early() {
    on_brokers(|broker| async move {
        let vhost = broker.vhost().await;
        fails_at_a_rate(&vhost, Duration::from_secs(5)).await;
    })
    .await;
}

/// `make serve-rate`
#[tokio::test]
#[ignore = "takes ten minutes"]
async fn forty_failures_a_second_for_ten_minutes() {
    on_brokers(|broker| async move {
        let vhost = broker.vhost().await;
        fails_at_a_rate(&vhost, Duration::from_secs(600)).await;
    })
    .await;
}
