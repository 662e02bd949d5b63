//! Tables in Markdown.

use std::fmt;

#[derive(Debug)]
pub(crate) struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(crate) fn new(columns: &[&str]) -> Self {
        let head = columns.iter().map(|&it| it.to_owned()).collect();
        Self { rows: vec![head] }
    }

    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }
}

/// The columns are aligned, so that it reads well in a terminal, too.
impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let columns = self.rows[0].len();
        let width = |column: usize| {
            self.rows
                .iter()
                .map(|row| row[column].chars().count())
                .max()
        };
        let widths: Vec<_> = (0..columns)
            .map(|it| width(it).unwrap_or_default())
            .collect();
        for (index, row) in self.rows.iter().enumerate() {
            for (cell, width) in row.iter().zip(&widths) {
                write!(f, "| {cell:width$} ")?;
            }
            writeln!(f, "|")?;
            if index == 0 {
                for &width in &widths {
                    write!(f, "|{:-<1$}", "", width + 2)?;
                }
                writeln!(f, "|")?;
            }
        }
        Ok(())
    }
}

pub(crate) fn ratio(ratio: f64) -> String {
    format!("{ratio:.2}")
}

/// Requests a second.
pub(crate) fn rate(rate: f64) -> String {
    if rate < 1e3 {
        format!("{rate:.0}")
    } else {
        format!("{:.1} k", rate / 1e3)
    }
}
