//! Failures of the last day, an hour a bar, as numbers for an SVG.

use jiff::{Timestamp, ToSpan, tz::TimeZone};
use retryrmq_operator::plural;

use crate::history::IntervalCounts;

const HEIGHT: u64 = 100;
/// From bar to bar.
pub(super) const STEP: u64 = 20;

/// The plot.
#[derive(Debug)]
pub(super) struct Chart {
    pub(super) bars: Vec<Bar>,
    /// Failures of the highest bar.
    pub(super) top: u64,
    /// All of it in a sentence, for those who do not see it.
    pub(super) sentence: String,
}

/// One hour.
#[derive(Debug)]
pub(super) struct Bar {
    pub(super) x: u64,
    /// Where the parts begin and how high they are, from the bottom: retried, parked, dropped.
    pub(super) parts: Vec<BarSegment>,
    pub(super) title: String,
    /// Every sixth hour has its name.
    pub(super) label: Option<String>,
}

/// One colour of a bar.
#[derive(Debug)]
pub(super) struct BarSegment {
    pub(super) class: &'static str,
    pub(super) y: u64,
    pub(super) height: u64,
}

impl Chart {
    /// Of the 24 hours until now, oldest first.
    pub(super) fn of(hours: &[IntervalCounts; 24], now: Timestamp) -> Self {
        let top = hours.iter().map(IntervalCounts::failed).max().unwrap_or(0);
        let bars = (0u64..).zip(hours).map(|(place, hour)| {
            let ago = i64::try_from(24 - place).unwrap_or(24);
            let time = |hours: i64| {
                let at = now.checked_sub(hours.hours()).unwrap_or(now);
                at.to_zoned(TimeZone::UTC).strftime("%H:%M").to_string()
            };
            let (from, to) = (time(ago), time(ago - 1));
            let mut y = HEIGHT;
            let parts = [
                ("retried", hour.retried),
                ("parked", hour.parked),
                ("dropped", hour.dropped),
            ];
            let part = |(class, count): (&'static str, u64)| {
                // What happened at all is seen.
                let height = match count {
                    0 => return None,
                    count => (count * HEIGHT / top.max(1)).max(2),
                };
                y = y.saturating_sub(height);
                Some(BarSegment { class, y, height })
            };
            Bar {
                x: place * STEP,
                parts: parts.into_iter().filter_map(part).collect(),
                title: format!(
                    "{from} to {to} UTC: {} failed, of which {} retried, {} parked, {} dropped",
                    hour.failed(),
                    hour.retried,
                    hour.parked,
                    hour.dropped
                ),
                label: (place % 6 == 0).then_some(from),
            }
        });
        let bars: Vec<_> = bars.collect();
        let mut all = IntervalCounts::default();
        for hour in hours {
            all.retried += hour.retried;
            all.parked += hour.parked;
            all.dropped += hour.dropped;
        }
        Self {
            bars,
            top,
            sentence: format!(
                "In the last 24 hours {} failed: {} retried, {} parked, {} dropped.",
                plural::counted(all.failed(), "attempt"),
                all.retried,
                all.parked,
                all.dropped
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_highest_bar_fills_the_plot_and_the_smallest_is_seen() {
        let mut hours = [IntervalCounts::default(); 24];
        hours[23].retried = 300;
        hours[23].parked = 100;
        hours[0].parked = 1;
        let chart = Chart::of(&hours, Timestamp::from_second(1_800_000_000).unwrap());
        assert_eq!(chart.top, 400);
        let last: u64 = chart.bars[23].parts.iter().map(|part| part.height).sum();
        assert_eq!(last, HEIGHT);
        assert_eq!(chart.bars[0].parts[0].height, 2);
        assert!(
            chart.bars[0]
                .title
                .starts_with("08:00 to 09:00 UTC: 1 failed"),
            "{}",
            chart.bars[0].title
        );
        assert!(
            chart.sentence.contains("401 attempts"),
            "{}",
            chart.sentence
        );
    }
}
