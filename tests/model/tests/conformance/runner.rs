//! Programs on both, many at once; a difference is looked at again with more patience, and then made short.

use crate::modelled::Modelled;
use crate::observation::{Observation, differences};
use crate::program::{Program, Step, Subject};
use crate::real::{Clients, Real};
use futures_util::StreamExt;
use futures_util::stream;
use retryrmq_harness::{Broker, Vhost};
use retryrmq_model::{Profile, QueueType, Version};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// How long a broker may take to show what the model has shown.
const DEADLINE: Duration = Duration::from_secs(10);
/// What is left out of patience when it is known that there is a difference.
const IMPATIENCE: Duration = Duration::from_millis(1500);
/// How many programs run at once on one broker and type.
const AT_ONCE: usize = 4;

/// Where programs run.
#[derive(Clone)]
pub(crate) struct Runner {
    vhost: Arc<Vhost>,
    profile: Profile,
    version: Version,
    kind: QueueType,
    count: Arc<AtomicU64>,
    repeated: Arc<AtomicU64>,
    /// Clients that have nothing to do.
    idle: Arc<Mutex<Vec<Clients>>>,
}

/// How a program is run.
#[derive(Clone, Copy)]
struct Pace {
    /// What a settlement gets to arrive, since nothing tells that it has.
    pause: Duration,
    patience: Duration,
}

const QUICK: Pace = Pace {
    pause: Duration::ZERO,
    patience: IMPATIENCE,
};
const PATIENT: Pace = Pace {
    pause: Duration::from_millis(100),
    patience: DEADLINE,
};
/// For a machine so busy that this was not enough.
const LAST: Pace = Pace {
    pause: Duration::from_millis(500),
    patience: Duration::from_secs(30),
};
const SHORTENING: Pace = Pace {
    pause: Duration::from_millis(100),
    patience: IMPATIENCE,
};

impl Runner {
    pub(crate) async fn new(broker: Broker, version: Version, kind: QueueType) -> Self {
        Runner::on(broker.vhost().await, Profile::new(version), kind)
    }

    /// With a broker whose settings are these.
    pub(crate) fn on(vhost: Vhost, profile: Profile, kind: QueueType) -> Self {
        Runner {
            vhost: Arc::new(vhost),
            version: profile.version,
            profile,
            kind,
            count: Arc::default(),
            repeated: Arc::default(),
            idle: Arc::default(),
        }
    }

    /// The first difference between the model and the broker.
    async fn difference(&self, program: &Program, pace: Pace) -> Option<String> {
        let number = self.count.fetch_add(1, Ordering::Relaxed);
        let names = [format!("work{number}"), format!("next{number}")];
        let mut model = Modelled::new(self.profile.clone(), &program.layout, names.clone());
        let idle = self.idle().pop();
        let clients = match idle {
            Some(clients) => clients,
            None => Clients::new(self.vhost.clone()).await,
        };
        let mut real = Real::new(clients, names).await;
        real.prepare(model.declarations(), &program.layout.policies)
            .await;
        let mut difference = None;
        for (place, step) in program.steps.iter().enumerate() {
            if let Some(text) = do_step(&mut model, &mut real, *step, pace).await {
                difference = Some(format!("after step {place}, {step:?}:\n{text}"));
                break;
            }
        }
        if difference.is_none() {
            // What came too much in the last step would have come by now.
            sleep(Duration::from_millis(20)).await;
            let text = differences(&model.observation(), &real.observation().await);
            difference = (!text.is_empty()).then(|| format!("at the end:\n{text}"));
        }
        let clients = real.clean_up().await;
        self.idle().push(clients);
        difference
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Clients>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The difference that is still there with patience.
    async fn true_difference(&self, program: &Program) -> Option<String> {
        self.difference(program, QUICK).await?;
        self.repeated.fetch_add(1, Ordering::Relaxed);
        self.difference(program, PATIENT).await?;
        self.difference(program, LAST).await
    }

    /// Leaves out steps for as long as there is a difference.
    async fn shorten(&self, program: Program) -> (Program, String) {
        let mut shortest = program;
        let mut text = String::new();
        let mut place = shortest.steps.len();
        while place > 0 {
            place -= 1;
            let mut shorter = shortest.clone();
            shorter.steps.remove(place);
            if let Some(difference) = self.difference(&shorter, SHORTENING).await {
                (shortest, text) = (shorter, difference);
            }
        }
        (shortest, text)
    }
}

/// Runs a program per seed.
///
/// # Panics
/// When a broker shows something else than the model.
pub(crate) async fn run_programs(runner: Runner, subject: Subject, seeds: Range<u64>) {
    let start = Instant::now();
    let programs = seeds.end - seeds.start;
    let failed = stream::iter(seeds)
        .map(|seed| {
            let runner = runner.clone();
            async move {
                let program = Program::about(subject, seed, runner.kind, runner.version);
                let difference = runner.true_difference(&program).await?;
                Some((program, difference))
            }
        })
        .buffer_unordered(AT_ONCE)
        .filter_map(std::future::ready)
        .collect::<Vec<_>>()
        .await;
    let repeated = runner.repeated.load(Ordering::Relaxed);
    println!(
        "{:?} {}, {subject:?}: {programs} programs in {:?}, {repeated} looked at twice, {} differ",
        runner.version,
        runner.kind.as_str(),
        start.elapsed(),
        failed.len()
    );
    let Some((program, difference)) = failed.into_iter().next() else {
        return;
    };
    let seed = program.seed;
    let (shortest, shorter) = runner.shorten(program).await;
    let difference = if shorter.is_empty() {
        difference
    } else {
        shorter
    };
    panic!(
        "{:?} {}, RETRYRMQ_MODEL_SEED={seed}: {difference}\n{:?}\n{}",
        runner.version,
        runner.kind.as_str(),
        shortest.layout,
        listed(&shortest.steps)
    );
}

/// Runs programs that have names.
///
/// # Panics
/// When one shows a difference.
pub(crate) async fn run_named(runner: Runner, programs: Vec<(&'static str, Program)>) {
    for (name, program) in programs {
        let difference = runner.true_difference(&program).await;
        let (version, kind) = (runner.version, runner.kind.as_str());
        let text = difference.unwrap_or_default();
        assert!(text.is_empty(), "{version:?} {kind}, {name}: {text}");
    }
}

/// Whether a difference is found within these seeds.
pub(crate) async fn differs_within(runner: Runner, subject: Subject, seeds: Range<u64>) -> bool {
    for seed in seeds {
        let program = Program::about(subject, seed, runner.kind, runner.version);
        if runner.true_difference(&program).await.is_some() {
            return true;
        }
    }
    false
}

async fn do_step(model: &mut Modelled, real: &mut Real, step: Step, pace: Pace) -> Option<String> {
    for (action, expected) in model.step(step) {
        let answer = real.act(&action).await;
        if answer != expected {
            return Some(format!(
                "  the model says {expected:?}, the broker {answer:?}\n"
            ));
        }
        sleep(pace.pause).await;
    }
    let expected = model.observation();
    real.believe(&expected);
    let end = Instant::now() + pace.patience;
    let mut pause = Duration::from_millis(1);
    loop {
        let seen: Observation = real.observation().await;
        if seen == expected {
            return None;
        }
        if Instant::now() > end {
            return Some(differences(&expected, &seen));
        }
        sleep(pause).await;
        pause = (pause * 2).min(Duration::from_millis(50));
    }
}

fn listed(steps: &[Step]) -> String {
    let lines = steps.iter().enumerate();
    let lines: Vec<String> = lines
        .map(|(place, step)| format!("{place:3} {step:?}"))
        .collect();
    lines.join("\n")
}
