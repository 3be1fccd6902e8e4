//! What can be seen in a picture of one shape.

use std::ops::Range;

use tintype_engine::Picture;

/// The colours of `drawings.py`.
const COLOURS: [(&str, [u8; 3]); 10] = [
    ("red", [225, 30, 35]),
    ("green", [30, 160, 60]),
    ("blue", [35, 75, 220]),
    ("yellow", [250, 220, 40]),
    ("orange", [250, 135, 25]),
    ("purple", [130, 45, 165]),
    ("pink", [250, 150, 195]),
    ("cyan", [60, 210, 225]),
    ("black", [20, 20, 25]),
    ("white", [250, 250, 250]),
];

/// How far a pixel of the shape is at least from the background.
const APART: f64 = 80.0;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    Circle,
    Square,
    Triangle,
}

/// The only shape in a picture, on a background of one colour.
#[derive(Debug)]
pub struct Sight {
    pub colour: &'static str,
    pub ground: &'static str,
    /// The colour in the middle of its box.
    pub middle: &'static str,
    /// How much of its box the shape fills.
    pub fill: f64,
    /// How much of the box lies between the outermost pixels of its rows.
    pub span: f64,
    /// The first and the last column, and the first and the last row.
    columns: [usize; 2],
    rows: [usize; 2],
}

fn distance(a: [f64; 3], b: [f64; 3]) -> f64 {
    a.iter().zip(b).map(|(a, b)| (a - b).powi(2)).sum::<f64>().sqrt()
}

fn nearest(pixel: [f64; 3]) -> &'static str {
    let apart = |colour: [u8; 3]| distance(pixel, colour.map(f64::from));
    let found = COLOURS.iter().min_by(|(_, a), (_, b)| apart(*a).total_cmp(&apart(*b)));
    found.expect("a colour").0
}

/// The mean of some pixels.
fn mean(pixels: &[[f64; 3]]) -> [f64; 3] {
    let sum = |channel: usize| pixels.iter().map(|pixel| pixel[channel]).sum::<f64>();
    [0, 1, 2].map(|channel| sum(channel) / pixels.len() as f64)
}

fn pixel(picture: &Picture, x: usize, y: usize) -> [f64; 3] {
    let at = (y * picture.width() as usize + x) * 3;
    let bytes = &picture.as_rgb()[at..at + 3];
    [bytes[0], bytes[1], bytes[2]].map(f64::from)
}

/// The colour around a position, given as column and row.
pub fn colour_at(picture: &Picture, [x, y]: [usize; 2]) -> &'static str {
    let around: Vec<_> = (0..9).map(|at| pixel(picture, x + at % 3 - 1, y + at / 3 - 1)).collect();
    nearest(mean(&around))
}

/// The mean difference of two pictures in some columns.
pub fn difference(a: &Picture, b: &Picture, columns: Range<usize>) -> f64 {
    let rows = 0..a.height() as usize;
    let positions = rows.flat_map(|y| columns.clone().map(move |x| (x, y)));
    let apart: Vec<_> = positions
        .map(|(x, y)| {
            let (a, b) = (pixel(a, x, y), pixel(b, x, y));
            a.iter().zip(b).map(|(a, b)| (a - b).abs()).sum::<f64>() / 3.0
        })
        .collect();
    apart.iter().sum::<f64>() / apart.len() as f64
}

/// A drawing on white paper.
pub fn paint(colour: &str, shape: Shape, [x, y]: [f64; 2], half: f64) -> Picture {
    let (_, colour) = COLOURS.iter().find(|(name, _)| *name == colour).expect("a colour");
    let holds = |column: usize, row: usize| {
        let (across, down) = (column as f64 + 0.5 - x, row as f64 + 0.5 - y);
        match shape {
            Shape::Circle => across.hypot(down) < half,
            Shape::Square => across.abs().max(down.abs()) < half,
            Shape::Triangle => down.abs() < half && across.abs() < (down + half) / 2.0,
        }
    };
    let bytes = (0..64).flat_map(|row| (0..64).map(move |column| (column, row)));
    let bytes = bytes.flat_map(|(column, row)| if holds(column, row) { *colour } else { [250; 3] });
    Picture::from_rgb(64, 64, bytes.collect()).expect("a picture")
}

impl Sight {
    pub fn of(picture: &Picture) -> Self {
        let (width, height) = (picture.width() as usize, picture.height() as usize);
        let corners = [(1, 1), (width - 2, 1), (1, height - 2), (width - 2, height - 2)];
        let ground = mean(&corners.map(|(x, y)| pixel(picture, x, y)));
        let is_shape = |x: usize, y: usize| distance(pixel(picture, x, y), ground) > APART;
        // Next to the edges the autoencoder is less exact.
        let found: Vec<_> = (2..height - 2)
            .flat_map(|y| (2..width - 2).map(move |x| [x, y]))
            .filter(|[x, y]| is_shape(*x, *y))
            .collect();
        assert!(!found.is_empty(), "a picture of one colour, {}", nearest(ground));
        let ends = |axis: usize| {
            let places = found.iter().map(|place| place[axis]);
            [places.clone().min().expect("a pixel"), places.max().expect("a pixel")]
        };
        let (columns, rows) = (ends(0), ends(1));
        let length = |[first, last]: [usize; 2]| (last - first + 1) as f64;
        let between = |row: usize| {
            let places = found.iter().filter(|place| place[1] == row).map(|place| place[0]);
            places.clone().min().zip(places.max()).map_or(0.0, |(first, last)| length([first, last]))
        };
        let area = length(columns) * length(rows);
        let all: Vec<_> = found.iter().map(|[x, y]| pixel(picture, *x, *y)).collect();
        Self {
            colour: nearest(mean(&all)),
            ground: nearest(ground),
            middle: colour_at(picture, [columns, rows].map(|[first, last]| first.midpoint(last))),
            fill: found.len() as f64 / area,
            span: (rows[0]..=rows[1]).map(between).sum::<f64>() / area,
            columns,
            rows,
        }
    }

    pub fn width(&self) -> f64 {
        (self.columns[1] - self.columns[0] + 1) as f64
    }

    pub fn centre(&self) -> [f64; 2] {
        [self.columns, self.rows].map(|[first, last]| (first + last + 1) as f64 / 2.0)
    }

    /// A filled shape, by how much of its box it fills: a circle 0.785, a square 1, a triangle 0.5.
    pub fn shape(&self) -> Option<Shape> {
        Self::by(self.fill)
    }

    /// The shape of an outline.
    pub fn shape_of_outline(&self) -> Option<Shape> {
        if self.fill < self.span * 0.85 { Self::by(self.span) } else { None }
    }

    fn by(part: f64) -> Option<Shape> {
        match part {
            0.40..0.65 => Some(Shape::Triangle),
            0.67..0.83 => Some(Shape::Circle),
            0.85..=1.0 => Some(Shape::Square),
            _ => None,
        }
    }
}
