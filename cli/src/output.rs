//! Standard output and standard error: plain, coloured or JSON, and quiet when nobody listens any more.

use std::io::{self, IsTerminal, Write};

pub(crate) use comfy_table::Color;
use comfy_table::{Attribute, Cell, CellAlignment, ContentArrangement, Table, TableStyle};
use console::{Alignment, Style};
use indicatif::{ProgressBar, ProgressStyle};
use retryrmq::terminal_escape;
use serde::Serialize;

use crate::{
    error::CliError,
    exit::Exit,
    global::{ColorMode, Global},
    json, nonblocking_output, time_format,
};

/// Columns of the word that a line on standard error begins with. The longest is `replayed`.
pub(crate) const WORD: usize = 8;

/// How to print.
#[derive(Clone, Debug)]
pub(crate) struct Output {
    json: bool,
    quiet: bool,
    verbose: bool,
    color_out: bool,
    color_err: bool,
    /// Columns of the terminal; `None` when standard output is none.
    width: Option<u16>,
}

impl Output {
    pub(crate) fn new(global: &Global) -> Self {
        let no_color = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty())
            || std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        let color = |terminal: bool| match global.color {
            ColorMode::Always => true,
            ColorMode::Never => false,
            ColorMode::Auto => terminal && !no_color,
        };
        let (out, err) = (io::stdout().is_terminal(), io::stderr().is_terminal());
        let width = out.then(|| {
            console::Term::stdout()
                .size_checked()
                .map_or(80, |(_, columns)| columns.max(40))
        });
        Self {
            json: global.json,
            quiet: global.quiet,
            verbose: global.verbose > 0,
            color_out: color(out),
            color_err: color(err),
            width,
        }
    }

    pub(crate) fn is_json(&self) -> bool {
        self.json
    }

    pub(crate) fn is_verbose(&self) -> bool {
        self.verbose
    }

    pub(crate) fn colors_stderr(&self) -> bool {
        self.color_err
    }

    /// Columns of the terminal; `None` when the output goes to a file or a program.
    pub(crate) fn width(&self) -> Option<u16> {
        self.width
    }

    /// A line for people on standard output.
    pub(crate) fn line(&self, text: &str) -> Result<(), CliError> {
        if let Some(nonblocking) = nonblocking_output::out() {
            return Ok(nonblocking.say(format!("{text}\n").into_bytes())?);
        }
        let mut out = io::stdout().lock();
        out.write_all(text.as_bytes())?;
        out.write_all(b"\n")?;
        Ok(out.flush()?)
    }

    /// Bytes as they are.
    pub(crate) fn raw(&self, bytes: &[u8]) -> Result<(), CliError> {
        let mut out = io::stdout().lock();
        out.write_all(bytes)?;
        Ok(out.flush()?)
    }

    /// One JSON object on a line of its own.
    pub(crate) fn json_line(&self, value: &impl Serialize) -> Result<(), CliError> {
        self.line(&text_of(value, false)?)
    }

    /// The one JSON document of this command.
    pub(crate) fn json_document(&self, value: &impl Serialize) -> Result<(), CliError> {
        self.line(&text_of(value, self.width.is_some())?)
    }

    /// Text for standard output in a style, where there are colours.
    pub(crate) fn paint(&self, text: impl AsRef<str>, style: Style) -> String {
        style
            .force_styling(self.color_out)
            .apply_to(text.as_ref())
            .to_string()
    }

    /// A heading or label on standard output.
    pub(crate) fn bold(&self, text: impl AsRef<str>) -> String {
        self.paint(text, Style::new().bold())
    }

    /// What is less important.
    pub(crate) fn dim(&self, text: impl AsRef<str>) -> String {
        self.paint(text, Style::new().dim())
    }

    /// A remark for people on standard error: what is not asked for with `--quiet` or `--json`.
    pub(crate) fn note(&self, text: &str) {
        if !self.quiet && !self.json {
            err_line(&terminal_escape::line(text));
        }
    }

    /// Something that happened, for people, on standard error: time, a coloured word, the rest.
    pub(crate) fn happened(&self, word: &str, style: Style, rest: &str) {
        if !self.quiet && !self.json {
            let style = style.force_styling(self.color_err);
            let dim = Style::new().dim().force_styling(self.color_err);
            err_line(&format!(
                "{}  {}  {rest}",
                dim.apply_to(time_format::clock()),
                style.apply_to(format!("{word:<WORD$}"))
            ));
        }
    }

    /// The error that ends the command.
    pub(crate) fn cli_error(&self, cli_error: &CliError) {
        if self.json {
            cli_error_as_json(cli_error.sentence(), cli_error.code(), cli_error.exit());
        } else {
            let word = Style::new()
                .red()
                .bold()
                .force_styling(self.color_err)
                .apply_to("error:");
            err_line(&format!(
                "{word} {}",
                terminal_escape::line(cli_error.sentence())
            ));
        }
    }

    /// A progress bar on a terminal, nothing elsewhere.
    pub(crate) fn progress(&self, total: Option<u64>, what: &'static str) -> ProgressBar {
        if self.quiet || self.json || total == Some(1) {
            return ProgressBar::hidden();
        }
        let template = if total.is_some() {
            "{bar:30} {pos} of {len} {msg}, {eta} left"
        } else {
            "{spinner} {pos} {msg}, {per_sec}"
        };
        let style =
            ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
        // Draws on standard error, and only where that is a terminal.
        let bar = total.map_or_else(ProgressBar::new_spinner, ProgressBar::new);
        bar.with_style(style).with_message(what)
    }

    /// Prints a table without lines, columns two spaces apart. On a terminal each column is cut to what it may take, and the
    /// last one gets the rest of the line; where that is too little, the widest give way. A row is a line, and one more for a last column
    /// that stands [below](Column::below).
    pub(crate) fn table(
        &self,
        columns: &[Column],
        rows: Vec<Vec<TableCell>>,
    ) -> Result<(), CliError> {
        self.page(&mut PagedTable::new(columns), rows)
    }

    /// Prints the next rows of a table that is too long to be held: the first ones with the header, and no column narrower than
    /// in the pages before.
    pub(crate) fn page(
        &self,
        paged_table: &mut PagedTable,
        mut rows: Vec<Vec<TableCell>>,
    ) -> Result<(), CliError> {
        let (columns, tails) = match paged_table.columns.split_last() {
            Some((last, front)) if last.is_below => {
                let tails: Vec<_> = rows.iter_mut().filter_map(Vec::pop).collect();
                (front, tails)
            }
            _ => (&paged_table.columns[..], Vec::new()),
        };
        let mut widths = taken(columns, &rows, &paged_table.widths);
        if let Some(width) = self.width {
            widths = fitted(columns, widths, usize::from(width));
            for row in &mut rows {
                for (text, width) in row.iter_mut().zip(&widths) {
                    text.text = console::truncate_str(&text.text, *width, "…").into_owned();
                }
            }
        }
        let mut table = Table::new();
        table.load_style(TableStyle::new());
        table.set_content_arrangement(ContentArrangement::Disabled);
        table.force_no_tty();
        if self.color_out {
            table.enforce_styling();
        }
        let dim = |text: &str| Cell::new(text).add_attribute(Attribute::Dim);
        // What the columns took before, they take again.
        table.set_header(columns.iter().enumerate().map(|(index, column)| {
            let width = paged_table
                .widths
                .get(index)
                .filter(|_| index + 1 < columns.len());
            let align = if column.right {
                Alignment::Right
            } else {
                Alignment::Left
            };
            match width {
                Some(width) => dim(&console::pad_str(column.name, *width, align, None)),
                None => dim(column.name),
            }
        }));
        for row in rows {
            table.add_row(row.into_iter().map(|text| {
                let cell = Cell::new(text.text);
                match text.look {
                    TextStyle::Plain => cell,
                    TextStyle::Bold => cell.add_attribute(Attribute::Bold),
                    TextStyle::Dim => cell.add_attribute(Attribute::Dim),
                    TextStyle::In(color) => cell.fg(color),
                }
            }));
        }
        for (index, (column, wanted)) in table.column_iter_mut().zip(columns).enumerate() {
            // None behind the last: styled, it would be no end of the line that can be trimmed.
            column.set_padding((0, if index + 1 == columns.len() { 0 } else { GAP }));
            if wanted.right {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        let is_continued = !paged_table.widths.is_empty();
        paged_table.widths = widths;
        let mut tails = tails.into_iter();
        for (number, line) in table.lines().enumerate().skip(usize::from(is_continued)) {
            self.line(line.trim_end())?;
            let tail = if number > 0 { tails.next() } else { None };
            if let Some(tail) = tail.filter(|tail| !tail.is_empty()) {
                self.line(&below(&tail.text, self.width))?;
            }
        }
        Ok(())
    }
}

/// A table that is printed page by page.
pub(crate) struct PagedTable {
    columns: Vec<Column>,
    /// Of the pages so far.
    widths: Vec<usize>,
}

impl PagedTable {
    pub(crate) fn new(columns: &[Column]) -> Self {
        Self {
            columns: columns.to_vec(),
            widths: Vec::new(),
        }
    }
}

/// What stands below a row, with the whole width of the terminal.
fn below(text: &str, width: Option<u16>) -> String {
    const INDENT: usize = 2;
    let room = width.map_or(usize::MAX, |width| {
        usize::from(width).saturating_sub(INDENT)
    });
    let text = console::truncate_str(text, room, "…");
    format!("{:INDENT$}{text}", "")
}

/// Columns between two columns.
const GAP: u16 = 2;
/// What the last column is left at least, where others can give way.
const LAST: usize = 16;

/// How wide each column would like to be: as what stands in it, and `before`.
fn taken(columns: &[Column], rows: &[Vec<TableCell>], before: &[usize]) -> Vec<usize> {
    columns
        .iter()
        .enumerate()
        .map(|(index, column)| {
            let texts = rows.iter().filter_map(|row| row.get(index));
            let taken = texts
                .map(|text| console::measure_text_width(&text.text))
                .max()
                .unwrap_or(0);
            let is_last = index + 1 == columns.len();
            let most = if is_last { usize::MAX } else { column.most };
            taken
                .min(most)
                .max(console::measure_text_width(column.name))
                .max(before.get(index).copied().unwrap_or(0))
        })
        .collect()
}

/// How wide each column is, so that all fit into `width`. No column gets narrower than its name.
fn fitted(columns: &[Column], mut widths: Vec<usize>, width: usize) -> Vec<usize> {
    let Some((last, front)) = widths.split_last_mut() else {
        return widths;
    };
    let gaps = usize::from(GAP) * front.len();
    let room = |front: &[usize]| width.saturating_sub(gaps + front.iter().sum::<usize>());
    while room(front) < (*last).min(LAST) {
        let widest = front
            .iter_mut()
            .zip(columns)
            .filter(|(taken, column)| **taken > console::measure_text_width(column.name))
            .max_by_key(|(taken, _)| **taken);
        let Some((taken, _)) = widest else { break };
        *taken -= 1;
    }
    let least = columns
        .last()
        .map_or(0, |column| console::measure_text_width(column.name));
    *last = (*last).min(room(front).max(least));
    widths
}

/// A column of a table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Column {
    name: &'static str,
    /// Its width on a terminal at most.
    most: usize,
    right: bool,
    /// What stands in it gets a line of its own below the row. Only the last column may.
    is_below: bool,
}

impl Column {
    pub(crate) const fn left(name: &'static str, most: usize) -> Self {
        Self {
            name,
            most,
            right: false,
            is_below: false,
        }
    }

    pub(crate) const fn right(name: &'static str, most: usize) -> Self {
        Self {
            name,
            most,
            right: true,
            is_below: false,
        }
    }

    /// The last column, whose texts need more room than a narrow terminal leaves beside the others.
    pub(crate) const fn below(name: &'static str) -> Self {
        Self {
            name,
            most: 0,
            right: false,
            is_below: true,
        }
    }
}

/// What stands in a table.
#[derive(Clone, Debug)]
pub(crate) struct TableCell {
    text: String,
    look: TextStyle,
}

/// How it looks, where there are colours.
#[derive(Clone, Copy, Debug)]
pub(crate) enum TextStyle {
    Plain,
    Bold,
    Dim,
    In(Color),
}

impl TableCell {
    pub(crate) fn is_empty(&self) -> bool {
        self.text.is_empty()
    }
}

impl TextStyle {
    pub(crate) fn of(self, text: impl ToString) -> TableCell {
        TableCell {
            text: text.to_string(),
            look: self,
        }
    }
}

/// An error as a JSON object on standard error.
pub(crate) fn cli_error_as_json(sentence: &str, code: &str, exit: Exit) {
    let cli_error = serde_json::json!({ "error": sentence, "code": code, "exit": exit as u8 });
    err_line(&json::harmless(cli_error.to_string()));
}

/// A line on standard error. When that is closed there is nobody left to tell.
pub(crate) fn err_line(text: &str) {
    let line = format!("{text}\n").into_bytes();
    let _ = match nonblocking_output::err() {
        Some(nonblocking) => nonblocking.say(line),
        None => io::stderr().lock().write_all(&line),
    };
}

fn text_of(value: &impl Serialize, pretty: bool) -> Result<String, CliError> {
    let text = if pretty {
        serde_json::to_string_pretty(value)
    } else {
        serde_json::to_string(value)
    };
    text.map(json::harmless)
        .map_err(|why| CliError::failed(format!("cannot write JSON: {why}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stands_below_a_row_has_the_width_of_the_terminal() {
        let long = "x".repeat(200);
        let shown = below(&long, Some(80));
        assert_eq!(console::measure_text_width(&shown), 80);
        assert!(shown.starts_with("  x") && shown.ends_with('…'), "{shown}");
        assert_eq!(below("no answer", Some(80)), "  no answer");
        assert_eq!(below(&long, None).len(), 202);
    }

    #[test]
    fn a_table_fits_whatever_is_in_it() {
        let columns = [
            Column::left("#", 18),
            Column::left("id", 32),
            Column::left("parked", 42),
            Column::right("tries", 7),
            Column::left("error", 0),
        ];
        let row = |texts: [&str; 5]| texts.map(|text| TextStyle::Plain.of(text)).to_vec();
        let long = "x".repeat(200);
        for rows in [
            vec![row(["#1=06ecd05e", "a", "2 min ago", "5", "no"])],
            vec![row(["#1000000=06ecd05e", &long, &long, "5", &long])],
            vec![row([&long, &long, &long, &long, "no"])],
        ] {
            for width in [40, 80, 100] {
                let widths = fitted(&columns, taken(&columns, &rows, &[]), width);
                let all = widths.iter().sum::<usize>() + 8;
                assert!(all <= width, "{widths:?} in {width}");
            }
        }
        let short = vec![row(["#1=06ecd05e", "a", "2 min ago", "5", "no"])];
        assert_eq!(
            fitted(&columns, taken(&columns, &short, &[]), 80),
            [11, 2, 9, 5, 5],
            "nothing is cut without need"
        );
        assert_eq!(
            taken(&columns, &short, &[14, 1, 0, 0, 0]),
            [14, 2, 9, 5, 5],
            "no page is narrower than the one before"
        );
    }
}
