//! Lines of at most so many columns, in which nothing is a command to a terminal.

use super::super::safe;

/// At most so many columns.
pub const MAX_COLUMNS: usize = 80;

#[derive(Default)]
pub(super) struct Page {
    pub(super) lines: Vec<String>,
}

impl Page {
    pub(super) fn line(&mut self, indent: usize, text: &str) {
        let text = safe::cut(&safe::one_line(text), MAX_COLUMNS - indent);
        self.lines.push(format!("{}{text}", " ".repeat(indent)));
    }

    pub(super) fn blank(&mut self) {
        self.lines.push(String::new());
    }

    /// One text over a few lines, broken at spaces where there are any; further ones are indented.
    pub(super) fn paragraph(&mut self, indent: usize, text: &str, most: usize) {
        let text = safe::one_line(text);
        let columns = MAX_COLUMNS - indent;
        let lines = safe::wrapped(&text, columns, columns - 2, most);
        for (number, line) in lines.into_iter().enumerate() {
            self.line(indent + if number == 0 { 0 } else { 2 }, line);
        }
    }

    pub(super) fn fact(&mut self, name: &str, text: &str) {
        if !text.is_empty() {
            self.paragraph(2, &format!("{name:<5} {text}"), 3);
        }
    }
}
