//! Bars: the CPU time of the server for a first delivery and for a duplicate.

use std::path::Path;

use plotters::{
    coord::Shift,
    prelude::{DrawingArea, IntoDrawingArea, Rectangle, SVGBackend, Text},
    style::{
        Color, IntoFont, RGBColor, TextStyle,
        text_anchor::{HPos, Pos, VPos},
    },
};

use crate::{Result, compare::Comparison};

// They are readable on white and on black.
const FIRST: RGBColor = RGBColor(217, 119, 6);
const DUPLICATE: RGBColor = RGBColor(59, 130, 246);
const TEXT: RGBColor = RGBColor(128, 128, 128);

const WIDTH: i32 = 780;
const LABELS: i32 = 220;
/// Room for the figure beside the longest bar.
const FIGURE: i32 = 60;
const HEAD: i32 = 64;
const BAR: i32 = 14;
const ROW: i32 = 2 * BAR + 14;

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

pub(crate) fn write(comparison: &Comparison, file: &Path) -> Result<()> {
    let rows = &comparison.small.0;
    let height = HEAD + ROW * i32::try_from(rows.len())?;
    let size = (WIDTH.try_into()?, height.try_into()?);
    let area = SVGBackend::new(file, size).into_drawing_area();

    text(
        &area,
        "CPU time of the server for each delivery, in µs (1 KiB, 64 connections)",
        (8, 16),
        HPos::Left,
        15,
    )?;
    for (name, colour, x) in [("first delivery", FIRST, 8), ("duplicate", DUPLICATE, 128)] {
        bar(&area, (x, 34), BAR, colour)?;
        text(&area, name, (x + BAR + 6, 34 + BAR / 2), HPos::Left, 13)?;
    }

    let figures = rows
        .iter()
        .flat_map(|row| [row.first.cpu, row.duplicate.cpu]);
    let scale = f64::from(WIDTH - LABELS - FIGURE) / figures.fold(1.0, f64::max);
    let mut y = HEAD;
    for row in rows {
        text(
            &area,
            row.server.name(),
            (LABELS - 8, y + BAR),
            HPos::Right,
            13,
        )?;
        for (cpu, colour) in [(row.first.cpu, FIRST), (row.duplicate.cpu, DUPLICATE)] {
            let width = (cpu * scale).round() as i32;
            bar(&area, (LABELS, y), width, colour)?;
            text(
                &area,
                &format!("{cpu:.1}"),
                (LABELS + width + 5, y + BAR / 2),
                HPos::Left,
                12,
            )?;
            y += BAR;
        }
        y += ROW - 2 * BAR;
    }
    Ok(area.present()?)
}

fn bar(area: &Area<'_>, (x, y): (i32, i32), width: i32, colour: RGBColor) -> Result<()> {
    let corners = [(x, y), (x + width, y + BAR - 1)];
    Ok(area.draw(&Rectangle::new(corners, colour.filled()))?)
}

/// Centred on the line. plotters divides sizes by 1.24 on their way into SVG.
fn text(area: &Area<'_>, text: &str, at: (i32, i32), side: HPos, size: i32) -> Result<()> {
    let style = TextStyle::from(("sans-serif", f64::from(size) * 1.24).into_font()).color(&TEXT);
    let style = style.pos(Pos::new(side, VPos::Center));
    Ok(area.draw(&Text::new(text.to_owned(), at, style))?)
}
