//! A plot in a terminal: a filled curve of braille dots, two in a column and four in a row.

use std::time::Duration;

use super::format::{short, time};

/// Columns on the left for numbers.
const MARGIN: usize = 7;
/// Rows of a curve.
const ROWS: usize = 6;

/// One curve and its frame.
pub(super) struct Panel<'a> {
    pub(super) title: &'a str,
    /// From left to right; each is a part of the time.
    pub(super) values: &'a [f64],
    /// The highest number that the plot has room for.
    pub(super) top: f64,
    /// A level to mark on the left.
    pub(super) mark: Option<f64>,
    pub(super) lasts: Duration,
    /// When it begins and ends.
    pub(super) outage: Option<(Duration, Duration)>,
}

/// A line of a panel: what stands left, the curve, and whether the rest of it is the axis.
pub(super) struct PanelLine {
    pub(super) left: String,
    pub(super) parts: Vec<(InkStyle, String)>,
}

/// What is drawn, for whoever has colours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum InkStyle {
    Title,
    Curve,
    Axis,
    Outage,
}

impl Panel<'_> {
    /// The lines of the panel, each of them `width` columns wide.
    pub(super) fn lines(&self, width: usize) -> Vec<PanelLine> {
        let columns = width.saturating_sub(MARGIN + 1).max(8);
        let mut lines = vec![PanelLine {
            left: String::new(),
            parts: vec![(InkStyle::Title, fitted(self.title, width))],
        }];
        let heights = self.heights(columns * 2);
        let marked = self
            .mark
            .filter(|mark| *mark > 0.0)
            .map(|mark| self.row_of(mark));
        for row in (0..ROWS).rev() {
            let label = match (row, marked) {
                (row, _) if row == ROWS - 1 => short(self.top),
                (row, Some(marked)) if row == marked => short(self.mark.unwrap_or_default()),
                _ => String::new(),
            };
            let axis = if label.is_empty() { "│" } else { "┤" };
            let curve: String = (0..columns)
                .map(|column| cell(heights[column * 2], heights[column * 2 + 1], row))
                .collect();
            lines.push(PanelLine {
                left: format!("{label:>MARGIN$}"),
                parts: vec![(InkStyle::Axis, axis.to_owned()), (InkStyle::Curve, curve)],
            });
        }
        lines.push(self.axis(columns));
        lines.push(self.times(columns));
        lines
    }

    /// How high the curve stands in dots. Of several values the highest counts: a peak must not hide between two columns.
    fn heights(&self, dots: usize) -> Vec<usize> {
        let most = (ROWS * 4) as f64;
        (0..dots)
            .map(|dot| {
                let from = dot * self.values.len() / dots;
                let to = ((dot + 1) * self.values.len()).div_ceil(dots);
                let part = self.values.get(from..to.max(from + 1)).unwrap_or_default();
                let value = part.iter().copied().fold(0.0, f64::max);
                let height = (value / self.top.max(f64::MIN_POSITIVE) * most).round() as usize;
                // What is there is seen.
                height.max(usize::from(value > 0.0))
            })
            .collect()
    }

    fn row_of(&self, value: f64) -> usize {
        let row = value / self.top.max(f64::MIN_POSITIVE) * ROWS as f64;
        (row as usize).min(ROWS - 1)
    }

    fn column_of(&self, at: Duration, columns: usize) -> usize {
        let share = at.as_secs_f64() / self.lasts.as_secs_f64().max(f64::MIN_POSITIVE);
        ((share * columns as f64).round() as usize).min(columns)
    }

    /// The axis of time, thick where the outage is.
    fn axis(&self, columns: usize) -> PanelLine {
        let mut parts = vec![(InkStyle::Axis, "└".to_owned())];
        let (from, to) = self.outage_columns(columns);
        parts.push((InkStyle::Axis, "─".repeat(from)));
        parts.push((InkStyle::Outage, "━".repeat(to - from)));
        parts.push((InkStyle::Axis, "─".repeat(columns - to)));
        PanelLine {
            left: format!("{:>MARGIN$}", "0"),
            parts,
        }
    }

    fn outage_columns(&self, columns: usize) -> (usize, usize) {
        let Some((from, to)) = self.outage else {
            return (0, 0);
        };
        let (from, to) = (self.column_of(from, columns), self.column_of(to, columns));
        (from, to.max(from + 1).min(columns).max(from))
    }

    fn times(&self, columns: usize) -> PanelLine {
        let end = time(self.lasts);
        let mut text: Vec<char> = " ".repeat(columns).chars().collect();
        let mut write = |at: usize, word: &str| {
            let end = at + word.chars().count();
            if end <= text.len() && text[at..end].iter().all(|sign| *sign == ' ') {
                text[at..end]
                    .iter_mut()
                    .zip(word.chars())
                    .for_each(|(sign, new)| *sign = new);
            }
        };
        write(columns.saturating_sub(end.chars().count()), &end);
        let (from, to) = self.outage_columns(columns);
        let word = "outage";
        if to > from {
            let middle = (from + to) / 2;
            let at = middle.saturating_sub(word.len() / 2);
            write(at, word);
        }
        PanelLine {
            left: " ".repeat(MARGIN + 1),
            parts: vec![(InkStyle::Axis, text.into_iter().collect())],
        }
    }
}

impl PanelLine {
    /// How many columns it takes.
    pub(super) fn width(&self) -> usize {
        let parts = self.parts.iter().map(|(_, text)| text.chars().count());
        self.left.chars().count() + parts.sum::<usize>()
    }
}

fn fitted(text: &str, width: usize) -> String {
    console::truncate_str(text, width, "…").into_owned()
}

/// Two columns of dots, filled up to these heights, as far as they are in this row.
fn cell(left: usize, right: usize, row: usize) -> char {
    const LEFT: [u32; 4] = [0x40, 0x04, 0x02, 0x01];
    const RIGHT: [u32; 4] = [0x80, 0x20, 0x10, 0x08];
    let mut dots = 0;
    for (height, bits) in [(left, LEFT), (right, RIGHT)] {
        let here = height.saturating_sub(row * 4).min(4);
        dots |= bits[..here].iter().sum::<u32>();
    }
    match dots {
        0 => ' ',
        dots => char::from_u32(0x2800 + dots).unwrap_or(' '),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn panel(values: &[f64]) -> Panel<'_> {
        Panel {
            title: "attempts",
            values,
            top: 4.0,
            mark: Some(1.0),
            lasts: Duration::from_secs(60),
            outage: Some((Duration::from_secs(15), Duration::from_secs(30))),
        }
    }

    #[test]
    fn a_curve_fills_what_is_under_it() {
        assert_eq!(
            [cell(0, 0, 0), cell(4, 4, 0), cell(1, 0, 0), cell(5, 8, 1)],
            [' ', '⣿', '⡀', '⣸']
        );
        let values = [1.0, 2.0, 4.0, 0.0];
        let lines = panel(&values).lines(MARGIN + 1 + 8);
        let curve = |line: &PanelLine| line.parts[1].1.clone();
        assert_eq!(curve(&lines[1]), "    ⣿⣿  ");
        assert_eq!(curve(&lines[ROWS]), "⣿⣿⣿⣿⣿⣿  ");
        assert_eq!(lines[1].left.trim(), "4");
        assert!(
            lines[ROWS - 1].left.ends_with('1'),
            "the mark stands where its level is"
        );
    }

    #[test]
    fn every_line_is_as_wide_and_the_outage_is_marked() {
        let values: Vec<f64> = (0..240).map(|number| f64::from(number % 5)).collect();
        for width in [20, 39, 80, 200] {
            let lines = panel(&values).lines(width);
            assert!(
                lines[1..].iter().all(|line| line.width() == width),
                "{width}"
            );
            let thick = &lines[ROWS + 1].parts[2];
            let quarter = (width - MARGIN - 1) as f64 / 4.0;
            assert!(
                (thick.1.chars().count() as f64 - quarter).abs() <= 1.0
                    && thick.0 == InkStyle::Outage
            );
        }
    }

    #[test]
    fn a_single_value_among_many_is_seen() {
        let mut values = vec![0.0; 1_000];
        values[501] = 0.001;
        let lines = panel(&values).lines(30);
        assert!(lines[ROWS].parts[1].1.contains(['⡀', '⢀', '⣀']));
    }
}
