//! What the demo prints.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::io::{IsTerminal, Stdout, Write, stdout};
use std::time::Instant;

use anyhow::Result;

/// Cells of the longest bar.
const BAR: usize = 30;

const BOLD: &str = "1";
const DIM: &str = "2";
const GREEN: &str = "32";
const RED: &str = "31";
const BLUE: &str = "34";

/// Standard output, in colours if it is a terminal.
#[derive(Debug)]
pub(crate) struct Screen {
    out: Stdout,
    colours: bool,
    start: Instant,
    steps: usize,
}

impl Screen {
    pub(crate) fn new() -> Self {
        let out = stdout();
        let colours = out.is_terminal() && std::env::var_os("NO_COLOR").is_none();
        Self { out, colours, start: Instant::now(), steps: 0 }
    }

    pub(crate) fn title(&mut self, text: &str) {
        // Without a reader there is nobody to miss it; the steps notice.
        let _ = writeln!(self.out, "\n{}\n", self.paint(BOLD, text));
    }

    /// Something came out as promised: a numbered line with the time since the start.
    pub(crate) fn step(&mut self, text: &str) -> Result<()> {
        self.steps += 1;
        let time = format!("{:>6} ms", self.start.elapsed().as_millis());
        let (time, number) = (self.paint(DIM, &time), self.paint(GREEN, &self.steps.to_string()));
        Ok(writeln!(self.out, "{time}  {number}  {text}")?)
    }

    /// A line that belongs to the step before.
    pub(crate) fn detail(&mut self, text: impl Display) -> Result<()> {
        Ok(writeln!(self.out, "              {text}")?)
    }

    /// How many times each of several things was seen.
    pub(crate) fn bars<K: Display>(&mut self, counts: &BTreeMap<K, usize>) -> Result<()> {
        let most = counts.values().copied().max().unwrap_or(1).max(1);
        for (key, count) in counts {
            let bar = "█".repeat((count * BAR).div_ceil(most));
            let bar = self.paint(BLUE, &format!("{bar:<BAR$}"));
            self.detail(format!("{key:<24} {bar} {count:>4}"))?;
        }
        Ok(())
    }

    /// Output of a tool, set apart.
    pub(crate) fn excerpt(&mut self, lines: &[String]) -> Result<()> {
        for line in lines {
            let line = self.paint(DIM, line);
            self.detail(line)?;
        }
        Ok(())
    }

    pub(crate) fn end(&mut self) -> Result<()> {
        let text = format!("all {} steps as promised", self.steps);
        let seconds = self.start.elapsed().as_secs_f64();
        let text = self.paint(GREEN, &text);
        Ok(writeln!(self.out, "\n{text}, in {seconds:.1} s")?)
    }

    pub(crate) fn failure(&mut self, text: &str) {
        let number = self.steps + 1;
        let text = self.paint(RED, &format!("step {number} failed: {text}"));
        let _ = writeln!(self.out, "\n{text}");
    }

    fn paint(&self, code: &str, text: &str) -> String {
        if self.colours { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }
}
