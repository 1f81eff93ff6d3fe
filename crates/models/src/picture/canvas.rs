//! The pixels of a picture while it is drawn: images, lines and text on paper.

use std::io::{self, Write};

use noto_sans_mono_bitmap::{FontWeight, RasterHeight, get_raster, get_raster_width};

use super::Tile;

/// How many pixels of the picture show one pixel of an image, in each dimension.
pub(super) const SCALE: usize = 2;
pub(super) const TEXT_HEIGHT: usize = RasterHeight::Size16.val();

pub(super) type Colour = [u8; 3];
pub(super) const PAPER: Colour = [250, 250, 248];
pub(super) const TEXT: Colour = [60, 60, 68];
pub(super) const RIGHT: Colour = [40, 130, 70];
pub(super) const WRONG: Colour = [200, 50, 40];
pub(super) const OUTLINE: Colour = [255, 140, 0];

/// The picture while it is drawn.
pub(super) struct Canvas {
    width: usize,
    height: usize,
    pub(super) pixels: Vec<u8>,
}

impl Canvas {
    pub(super) fn new(width: usize, height: usize) -> Self {
        Self { width, height, pixels: PAPER.repeat(width * height) }
    }

    pub(super) fn place(&mut self, tile: &Tile, (left, top): (usize, usize)) {
        let side = tile.side * SCALE;
        for y in 0..side {
            for x in 0..side {
                let ink = tile.pixels[y / SCALE * tile.side + x / SCALE];
                self.set((left + x, top + y), [ink; 3]);
            }
        }
        if let Some(corners) = tile.outline {
            for index in 0..corners.len() {
                self.line((left, top), side, corners[index], corners[(index + 1) % corners.len()]);
            }
        }
        if let Some(caption) = &tile.caption {
            let indent = side.saturating_sub(text_width(&caption.text)) / 2;
            self.write((left + indent, top + side), &caption.text, caption.colour);
        }
    }

    /// Draws a line on a tile of `side` pixels of the picture, between the centres of two pixels of its image.
    fn line(&mut self, (left, top): (usize, usize), side: usize, from: (f32, f32), to: (f32, f32)) {
        let scaled = |at: (f32, f32)| ((at.0 + 0.5) * SCALE as f32, (at.1 + 0.5) * SCALE as f32);
        let (from, to) = (scaled(from), scaled(to));
        let (across, down) = (to.0 - from.0, to.1 - from.1);
        // Corners far outside would make an extremely long line without showing more of it.
        let steps = (across.abs().max(down.abs()).ceil() as usize).clamp(1, 16 * side.max(1));
        for step in 0..=steps {
            let along = step as f32 / steps as f32;
            let (x, y) = ((from.0 + along * across).floor(), (from.1 + along * down).floor());
            let inside = 0.0..side as f32;
            if inside.contains(&x) && inside.contains(&y) {
                self.set((left + x as usize, top + y as usize), OUTLINE);
            }
        }
    }

    pub(super) fn write(&mut self, (left, top): (usize, usize), text: &str, colour: Colour) {
        let mut x = left;
        for character in text.chars() {
            let raster = |character| get_raster(character, FontWeight::Regular, RasterHeight::Size16);
            let Some(raster) = raster(character).or_else(|| raster('?')) else { continue };
            for (row, line) in raster.rows().enumerate() {
                for (column, &strength) in line.iter().enumerate() {
                    self.blend((x + column, top + row), colour, strength);
                }
            }
            x += raster.width();
        }
    }

    fn blend(&mut self, at: (usize, usize), colour: Colour, strength: u8) {
        let under = self.at(at);
        let mixed = |channel: usize| {
            let (over, under) = (u32::from(colour[channel]), u32::from(self.pixels[under + channel]));
            ((over * u32::from(strength) + under * u32::from(255 - strength)) / 255) as u8
        };
        self.set(at, [mixed(0), mixed(1), mixed(2)]);
    }

    fn set(&mut self, at: (usize, usize), colour: Colour) {
        let start = self.at(at);
        self.pixels[start..start + 3].copy_from_slice(&colour);
    }

    fn at(&self, (x, y): (usize, usize)) -> usize {
        3 * (y * self.width + x)
    }

    pub(super) fn encode(&self, file: &mut dyn Write) -> io::Result<()> {
        let too_large = |_| io::Error::other("too large for PNG");
        let (width, height) =
            (u32::try_from(self.width).map_err(too_large)?, u32::try_from(self.height).map_err(too_large)?);
        let mut encoder = png::Encoder::new(file, width, height);
        encoder.set_color(png::ColorType::Rgb);
        encoder.set_depth(png::BitDepth::Eight);
        let mut writer = encoder.write_header()?;
        writer.write_image_data(&self.pixels)?;
        Ok(writer.finish()?)
    }
}

/// The width of one line of text.
pub(super) fn text_width(text: &str) -> usize {
    text.chars().count() * get_raster_width(FontWeight::Regular, RasterHeight::Size16)
}
