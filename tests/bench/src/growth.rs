//! Whether memory grows: the last quarter of a run beside its second, after everything has been warmed up.

use std::fmt;

/// Fewer samples say nothing.
const ENOUGH: usize = 16;
/// Allocators and garbage collectors breathe: so much more, in percent and in MiB, is no growth.
const BREATH: (f64, f64) = (15.0, 4.0);

/// Samples of one process's memory, taken at equal distances.
#[derive(Debug, Default)]
pub(crate) struct Growth {
    mebibytes: Vec<f64>,
}

/// What the samples say.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Verdict {
    /// The run was too short.
    Unknown,
    /// The medians, in MiB.
    Flat(f64, f64),
    /// The medians, in MiB.
    Grows(f64, f64),
}

impl Growth {
    pub(crate) fn sample(&mut self, mebibytes: f64) {
        self.mebibytes.push(mebibytes);
    }

    pub(crate) fn verdict(&self) -> Verdict {
        let quarter = self.mebibytes.len() / 4;
        if self.mebibytes.len() < ENOUGH {
            return Verdict::Unknown;
        }
        let early = median(&self.mebibytes[quarter..2 * quarter]);
        let late = median(&self.mebibytes[3 * quarter..]);
        if late > early * (1.0 + BREATH.0 / 100.0) + BREATH.1 {
            Verdict::Grows(early, late)
        } else {
            Verdict::Flat(early, late)
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Verdict::Unknown => write!(f, "too short a run to say whether memory is flat"),
            Verdict::Flat(early, late) => write!(f, "memory is flat: {early:.1} → {late:.1} MiB"),
            Verdict::Grows(early, late) => write!(f, "MEMORY GROWS: {early:.1} → {late:.1} MiB"),
        }
    }
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(samples: impl IntoIterator<Item = f64>) -> Verdict {
        let mut growth = Growth::default();
        samples.into_iter().for_each(|sample| growth.sample(sample));
        growth.verdict()
    }

    #[test]
    fn a_warm_up_and_some_noise_are_no_growth() {
        let warm = (0..10).map(f64::from);
        let noisy = (0..30).map(|sample| 50.0 + f64::from(sample % 5));
        assert_eq!(verdict(warm.chain(noisy)), Verdict::Flat(52.0, 52.0));
    }

    #[test]
    fn a_leak_is_growth_however_slow() {
        let leak = (0..40).map(|sample| 50.0 + f64::from(sample));
        assert_eq!(verdict(leak), Verdict::Grows(65.0, 85.0));
    }

    #[test]
    fn a_few_samples_say_nothing() {
        assert_eq!(verdict([1.0, 100.0]), Verdict::Unknown);
    }
}
