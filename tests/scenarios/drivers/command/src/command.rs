//! The command line of `retryrmq`.

use std::path::PathBuf;

use retryrmq_scenarios::script::Options;
use tokio::process::Command;

/// `retryrmq` with its address in the environment, where other users of the machine do not see it.
pub(crate) fn retryrmq(url: &str) -> Command {
    let mut command = Command::new(program());
    command.env("RETRYRMQ_URL", url).arg("--json");
    command
}

fn program() -> PathBuf {
    let beside = || {
        std::env::current_exe()
            .ok()
            .map(|own| own.with_file_name("retryrmq"))
            .filter(|path| path.exists())
    };
    std::env::var_os("RETRYRMQ")
        .map(PathBuf::from)
        .or_else(beside)
        .unwrap_or_else(|| "retryrmq".into())
}

/// The options of `retryrmq consume` that stand for those of the scenario.
pub(crate) fn arguments(options: &Options) -> Vec<String> {
    let mut all = Vec::new();
    let mut set = |name: &str, value: Option<String>| {
        if let Some(value) = value {
            all.push(format!("--{name}={value}"));
        }
    };
    set("retry", options.retry.clone());
    set("strategy", options.strategy.clone());
    for rule in &options.rules {
        set("rule", Some(rule.clone()));
    }
    set(
        "prefetch",
        options.prefetch.map(|number| number.to_string()),
    );
    set(
        "prefetch-bytes",
        options.prefetch_bytes.map(|bytes| bytes.to_string()),
    );
    set(
        "concurrency",
        options.concurrency.map(|number| number.to_string()),
    );
    set("timeout", options.handler_timeout_ms.map(ms));
    set("queue-type", options.queue_type.clone());
    set(
        "max-crashes",
        options.crash_limit.map(|number| number.to_string()),
    );
    set(
        "max-deferrals",
        options.defer_limit.map(|number| number.to_string()),
    );
    let pause = options.pause.map(|pause| {
        format!(
            "share={}, window={}, for={}",
            pause.share,
            pause.window,
            ms(pause.for_ms)
        )
    });
    set("pause", pause);
    if options.dlx {
        all.push("--dlx".into());
    }
    if options.park == Some(false) {
        all.push("--no-park".into());
    }
    if options.declare == Some(false) {
        all.push("--no-declare".into());
    }
    all
}

pub(crate) fn ms(ms: u64) -> String {
    format!("{ms}ms")
}
