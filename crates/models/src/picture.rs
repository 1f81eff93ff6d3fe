//! Pictures of what a network has learned: labelled rows of small grey images, as a PNG file.
//!
//! Draws in memory and writes one file. It must not know any model or tensor.

mod canvas;

use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;
use windlass_files::AtomicFile;

use self::canvas::{Canvas, Colour, RIGHT, SCALE, TEXT, TEXT_HEIGHT, WRONG, text_width};

/// Between two images, and around everything.
const GAP: usize = 4;
const MARGIN: usize = 16;
/// The space before a row that begins a new group.
const GROUP_GAP: usize = 16;

/// Rows of images, one below another, under a title.
#[derive(Debug, Clone, Default)]
pub struct Picture {
    title: String,
    rows: Vec<Row>,
}

#[derive(Debug, Clone)]
struct Row {
    label: String,
    tiles: Vec<Tile>,
    begins_group: bool,
}

/// A square grey image in a picture.
#[derive(Debug, Clone, Default)]
pub struct Tile {
    side: usize,
    pixels: Vec<u8>,
    outline: Option<[(f32, f32); 4]>,
    caption: Option<Caption>,
}

#[derive(Debug, Clone)]
struct Caption {
    text: String,
    colour: Colour,
}

/// Why a picture cannot be written.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum PictureError {
    /// The file name has the extension of another format.
    #[error("cannot write a picture to {}: expected a name that ends in .png", path.display())]
    NotPng {
        /// The file.
        path: PathBuf,
    },
    /// The file cannot be written.
    #[error("cannot write a picture to {}: {cause}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The cause.
        cause: io::Error,
    },
}

impl Tile {
    /// An image of `side` × `side` values, 0 for background and 1 for full ink; values outside that range are clamped.
    ///
    /// # Panics
    /// Panics if there are not `side` × `side` values.
    pub fn new(side: usize, values: &[f32]) -> Self {
        assert_eq!(values.len(), side * side, "values of an image of {side}×{side}");
        // NaN becomes 0.
        let pixels = values.iter().map(|value| (value * 255.0).round() as u8).collect();
        Self { side, pixels, ..Self::default() }
    }

    /// Draws a line around four corners, (x, y) in pixels of the image. Parts outside the image are not visible.
    #[must_use]
    pub fn with_outline(self, corners: [(f32, f32); 4]) -> Self {
        Self { outline: Some(corners), ..self }
    }

    /// Writes a word below the image, in another colour if it is wrong.
    #[must_use]
    pub fn with_caption(self, text: &str, right: bool) -> Self {
        let caption = Caption { text: text.to_owned(), colour: if right { RIGHT } else { WRONG } };
        Self { caption: Some(caption), ..self }
    }
}

impl Picture {
    /// A picture without rows.
    pub fn new(title: &str) -> Self {
        Self { title: title.to_owned(), rows: Vec::new() }
    }

    /// Adds a row that begins a new group of rows.
    #[must_use]
    pub fn with_group(self, label: &str, tiles: Vec<Tile>) -> Self {
        self.with(Row { label: label.to_owned(), tiles, begins_group: true })
    }

    /// Adds a row to the current group.
    #[must_use]
    pub fn with_row(self, label: &str, tiles: Vec<Tile>) -> Self {
        self.with(Row { label: label.to_owned(), tiles, begins_group: false })
    }

    fn with(mut self, row: Row) -> Self {
        self.rows.push(row);
        self
    }

    /// Writes the picture as PNG. It appears as a whole or not at all.
    ///
    /// # Errors
    /// If the file system refuses.
    pub fn write(&self, path: &Path) -> Result<(), PictureError> {
        let canvas = self.draw();
        let written = AtomicFile::create(path).and_then(|mut file| {
            canvas.encode(&mut file)?;
            file.finish()
        });
        written.map_err(|cause| PictureError::Write { path: path.into(), cause })
    }

    /// Encodes the picture as a PNG file.
    ///
    /// # Errors
    /// Fails if the picture is too large for one.
    pub fn encode(&self) -> io::Result<Vec<u8>> {
        let mut file = Vec::new();
        self.draw().encode(&mut file)?;
        Ok(file)
    }

    fn draw(&self) -> Canvas {
        let labels = self.rows.iter().map(|row| text_width(&row.label)).max().unwrap_or(0);
        let left = MARGIN + labels + 3 * GAP;
        let widest = self.rows.iter().map(Row::width).max().unwrap_or(0);
        let width = (left + widest).max(MARGIN + text_width(&self.title)) + MARGIN;
        let top = MARGIN + TEXT_HEIGHT;
        let height = top + self.rows.iter().map(|row| row.space_above() + row.height()).sum::<usize>() + MARGIN;
        let mut canvas = Canvas::new(width, height);
        canvas.write((MARGIN, MARGIN), &self.title, TEXT);
        let mut y = top;
        for row in &self.rows {
            y += row.space_above();
            let middle = y + row.side().saturating_sub(TEXT_HEIGHT) / 2;
            canvas.write((MARGIN, middle), &row.label, TEXT);
            let mut x = left;
            for tile in &row.tiles {
                canvas.place(tile, (x, y));
                x += tile.side * SCALE + GAP;
            }
            y += row.height();
        }
        canvas
    }
}

impl Row {
    fn width(&self) -> usize {
        self.tiles.iter().map(|tile| tile.side * SCALE + GAP).sum::<usize>().saturating_sub(GAP)
    }

    /// The height of the images alone.
    fn side(&self) -> usize {
        self.tiles.iter().map(|tile| tile.side * SCALE).max().unwrap_or(0)
    }

    fn height(&self) -> usize {
        let captions = self.tiles.iter().any(|tile| tile.caption.is_some());
        self.side() + if captions { TEXT_HEIGHT } else { 0 }
    }

    fn space_above(&self) -> usize {
        if self.begins_group { GROUP_GAP } else { GAP }
    }
}

/// Checks in advance that a picture can be written there, so that no training is wasted.
///
/// # Errors
/// Fails if it cannot.
pub fn check(path: &Path) -> Result<(), PictureError> {
    if path.extension().is_none_or(|extension| !extension.eq_ignore_ascii_case("png")) {
        return Err(PictureError::NotPng { path: path.into() });
    }
    let tried =
        if path.is_dir() { Err(io::ErrorKind::IsADirectory.into()) } else { AtomicFile::create(path).map(drop) };
    tried.map_err(|cause| PictureError::Write { path: path.into(), cause })
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};

    use super::canvas::{OUTLINE, PAPER};
    use super::*;

    fn read(path: &Path) -> (u32, u32, Vec<u8>) {
        let mut reader = png::Decoder::new(io::BufReader::new(File::open(path).unwrap())).read_info().unwrap();
        let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
        let info = reader.next_frame(&mut pixels).unwrap();
        (info.width, info.height, pixels)
    }

    fn tile(value: f32) -> Tile {
        Tile::new(4, &[value; 16])
    }

    #[test]
    fn a_picture_has_room_for_all_rows_and_shows_every_image_twice_its_size() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("out.png");
        let picture = Picture::new("").with_group("ab", vec![tile(0.0), tile(1.0), tile(0.2)]);
        picture.with_row("a", vec![tile(9.0), tile(-9.0), tile(f32::NAN)]).write(&path).unwrap();
        let (width, height, pixels) = read(&path);
        let left = 16 + text_width("ab") as u32 + 12;
        assert_eq!((width, height), (left + 3 * 8 + 2 * 4 + 16, 16 + 16 + 16 + 8 + 4 + 8 + 16));
        let at = |x: u32, y: u32| pixels[3 * (y * width + x) as usize];
        let first = |column: u32, row: u32| at(left + column * 12, 48 + row * 12);
        assert_eq!([first(0, 0), first(1, 0), first(2, 0)], [0, 255, 51]);
        assert_eq!([first(0, 1), first(1, 1), first(2, 1)], [255, 0, 0]);
        assert_eq!(at(0, 0), PAPER[0]);
        assert!((0..width * 40).any(|index| pixels[3 * index as usize] == PAPER[0]));
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1, "nothing else is left behind");
    }

    #[test]
    fn outlines_and_captions_are_drawn_and_what_is_outside_is_not() {
        let corners = [(-50.0, 1.0), (3.0, 1.0), (3.0, f32::INFINITY), (f32::NAN, 0.0)];
        let picture = Picture::new("t").with_group("x", vec![tile(0.0).with_outline(corners).with_caption("7", false)]);
        let canvas = picture.draw();
        let has = |colour: Colour| canvas.pixels.chunks(3).any(|pixel| pixel == colour);
        assert!(has(OUTLINE) && has(WRONG) && !has(RIGHT));
    }

    #[test]
    fn a_place_that_cannot_be_written_to_is_refused_beforehand() {
        let directory = tempfile::tempdir().unwrap();
        let refused = |name: &str| check(&directory.path().join(name)).unwrap_err().to_string();
        assert!(refused("out.jpg").ends_with("out.jpg: expected a name that ends in .png"));
        assert!(refused("none/out.png").contains("No such file or directory"));
        fs::create_dir(directory.path().join("taken.png")).unwrap();
        assert!(refused("taken.png").contains("is a directory"));
        check(&directory.path().join("fine.png")).unwrap();
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
    }
}
