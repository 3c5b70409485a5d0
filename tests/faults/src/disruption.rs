//! Trouble at random moments, repeatable by its seed.

use fastrand::Rng;
use std::time::Duration;
use tokio::time::Instant;

/// How long and how often trouble is made.
#[derive(Debug)]
pub struct Disruption {
    rng: Rng,
    least: usize,
    made: usize,
    until: Instant,
}

impl Disruption {
    /// Trouble at least `least` times, and until `RETRYRMQ_FAULT_SECONDS` are over. Prints its seed.
    ///
    /// # Panics
    /// When an environment variable is not a number.
    pub fn new(what: &str, least: usize) -> Self {
        let seconds = number("RETRYRMQ_FAULT_SECONDS").unwrap_or(0);
        let seed = number("RETRYRMQ_FAULT_SEED").unwrap_or_else(|| fastrand::u64(..1_000_000));
        println!("{what}: RETRYRMQ_FAULT_SEED={seed}");
        Disruption {
            rng: Rng::with_seed(seed),
            least,
            made: 0,
            until: Instant::now() + Duration::from_secs(seconds),
        }
    }

    /// Whether to make trouble once more; counts it.
    pub fn goes_on(&mut self) -> bool {
        let more = self.made < self.least || Instant::now() < self.until;
        self.made += usize::from(more);
        more
    }

    /// How often it was made.
    pub fn made(&self) -> usize {
        self.made
    }

    /// Waits for a random time. The moment is the point, not what may have happened by then.
    pub async fn pause(&mut self, milliseconds: std::ops::Range<u64>) {
        tokio::time::sleep(Duration::from_millis(self.rng.u64(milliseconds))).await;
    }

    /// The random choices.
    pub fn rng(&mut self) -> &mut Rng {
        &mut self.rng
    }
}

fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(
        text.parse()
            .unwrap_or_else(|_| panic!("{variable} is not a number: {text}")),
    )
}
