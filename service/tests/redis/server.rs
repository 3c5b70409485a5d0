//! Real servers, a set of its own for each test.

use std::{
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use retryrmq_harness::{Matrix, test_name};
use retryrmq_serve::store::redis::{Configuration, RedisStore};
use tokio::time::{Instant, sleep};

pub(crate) const KINDS: [&str; 2] = ["valkey", "redis"];

const DEADLINE: Duration = Duration::from_secs(120);

fn script() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/redis/redis")
}

/// Servers of one kind that share an instance. They go with it.
pub(crate) struct Servers {
    instance: String,
    kind: &'static str,
}

/// Whether servers can be had here; otherwise it says why the test is skipped.
pub(crate) fn available() -> bool {
    let asked = Command::new(script())
        .arg("available")
        .output()
        .expect("the script runs");
    if !asked.status.success() {
        eprintln!("skipped: {}", String::from_utf8_lossy(&asked.stderr).trim());
    }
    asked.status.success()
}

/// Runs a test on a server of each kind in this run's matrix, which has these lines in its configuration.
pub(crate) async fn on_kinds<T: Fn(Servers) -> F, F: Future<Output = ()>>(lines: &[&str], test: T) {
    if !available() {
        return;
    }
    for kind in kinds(&test_name::<T>()) {
        eprintln!("on {kind}");
        let servers = Servers::new(kind);
        servers.start(0, lines);
        test(servers).await;
    }
}

/// The kinds of this run's matrix for the test of that name.
pub(crate) fn kinds(test: &str) -> Vec<&'static str> {
    Matrix::of_this_run().choose(test, KINDS.to_vec())
}

impl Servers {
    pub(crate) fn new(kind: &'static str) -> Self {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        Self {
            instance: format!("serve-{}-{number}", std::process::id()),
            kind,
        }
    }

    pub(crate) fn kind(&self) -> &'static str {
        self.kind
    }

    fn run(&self, arguments: &[&str]) -> Output {
        Command::new(script())
            .args(["--instance", &self.instance])
            .args(arguments)
            .env("RETRYRMQ_REDIS_OWNER", std::process::id().to_string())
            .stdin(Stdio::null())
            .output()
            .expect("the script runs")
    }

    /// Runs a command of the script on server `n`, and returns what it printed.
    #[track_caller]
    pub(crate) fn tell(&self, verb: &str, n: usize, more: &[&str]) -> String {
        let number = n.to_string();
        let mut arguments = vec![verb, self.kind];
        if verb != "cluster" {
            arguments.push(&number);
        }
        arguments.extend(more);
        let done = self.run(&arguments);
        assert!(
            done.status.success(),
            "{arguments:?}: {}",
            String::from_utf8_lossy(&done.stderr)
        );
        String::from_utf8_lossy(&done.stdout).trim().to_owned()
    }

    #[track_caller]
    pub(crate) fn start(&self, n: usize, lines: &[&str]) {
        self.tell("start", n, lines);
    }

    #[track_caller]
    pub(crate) fn cli(&self, n: usize, words: &[&str]) -> String {
        self.tell("cli", n, &[&["--"], words].concat())
    }

    pub(crate) fn address(&self, n: usize) -> String {
        let urls = self.tell("url", n, &[]);
        urls.lines().next().expect("an address").to_owned()
    }

    pub(crate) fn tls_address(&self, n: usize) -> String {
        let urls = self.tell("url", n, &[]);
        urls.lines().nth(1).expect("an address for TLS").to_owned()
    }

    pub(crate) fn data(&self, n: usize) -> PathBuf {
        self.tell("data", n, &[]).into()
    }

    /// Makes the instance's certificates, and returns their folder.
    pub(crate) fn tls(&self) -> PathBuf {
        let made = self.run(&["tls"]);
        String::from_utf8_lossy(&made.stdout).trim().into()
    }

    pub(crate) fn configuration(&self) -> Configuration {
        Configuration {
            addresses: vec![self.address(0)],
            timeout: Duration::from_secs(60),
            ..Configuration::default()
        }
    }

    pub(crate) fn store(&self) -> RedisStore {
        RedisStore::new(&self.configuration(), "/").expect("a good configuration")
    }

    /// A store whose leases last so long, if nobody extends them.
    pub(crate) fn store_of_leases(&self, lease: Duration) -> RedisStore {
        let configuration = Configuration {
            lease,
            ..self.configuration()
        };
        RedisStore::new(&configuration, "/").expect("a good configuration")
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        self.run(&["purge"]);
    }
}

/// Asks again and again until there is an answer.
#[track_caller]
pub(crate) fn eventually<T, F: Future<Output = Option<T>>>(
    what: &str,
    mut ask: impl FnMut() -> F,
) -> impl Future<Output = T> {
    let at = std::panic::Location::caller();
    async move {
        let deadline = Instant::now() + DEADLINE;
        loop {
            if let Some(answer) = ask().await {
                return answer;
            }
            assert!(Instant::now() < deadline, "{at}: never {what}");
            sleep(Duration::from_millis(20)).await;
        }
    }
}
