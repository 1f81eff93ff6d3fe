//! A pixel backend for `plotters`: antialiased lines of any width, and text in a built-in font.

use std::convert::Infallible;

use noto_sans_mono_bitmap::{FontWeight, RasterHeight, get_raster, get_raster_width};
use plotters_backend::text_anchor::{HPos, VPos};
use plotters_backend::{BackendColor, BackendCoord, BackendStyle, BackendTextStyle, DrawingBackend, DrawingErrorKind};

/// A picture being drawn, white at first.
pub(super) struct Bitmap {
    width: usize,
    height: usize,
    /// Red, green and blue, row by row.
    pixels: Vec<u8>,
}

/// The bitmap, borrowed by a drawing area, which insists on owning its backend.
pub(super) struct Lent<'a>(&'a mut Bitmap);

type Drawn = Result<(), DrawingErrorKind<Infallible>>;

impl Bitmap {
    pub(super) fn new((width, height): (u32, u32)) -> Self {
        let (width, height) = (width as usize, height as usize);
        Self { width, height, pixels: vec![255; 3 * width * height] }
    }

    pub(super) fn by_ref(&mut self) -> Lent<'_> {
        Lent(self)
    }

    /// Encodes the picture as a PNG file.
    pub(super) fn encode(&self) -> Result<Vec<u8>, png::EncodingError> {
        let mut bytes = Vec::new();
        let mut encoder = png::Encoder::new(&mut bytes, self.width as u32, self.height as u32);
        encoder.set_color(png::ColorType::Rgb);
        encoder.set_depth(png::BitDepth::Eight);
        let mut writer = encoder.write_header()?;
        writer.write_image_data(&self.pixels)?;
        writer.finish()?;
        Ok(bytes)
    }

    fn blend(&mut self, (x, y): (i32, i32), colour: (u8, u8, u8), alpha: f64) {
        let (Ok(x), Ok(y)) = (usize::try_from(x), usize::try_from(y)) else { return };
        if x >= self.width || y >= self.height || alpha <= 0.0 {
            return;
        }
        let at = 3 * (y * self.width + x);
        for (pixel, ink) in self.pixels[at..at + 3].iter_mut().zip([colour.0, colour.1, colour.2]) {
            *pixel = (f64::from(*pixel) * (1.0 - alpha) + f64::from(ink) * alpha).round() as u8;
        }
    }

    /// Draws a path. Each pixel gets as much ink as the path covers of it, once for the whole path.
    fn stroke(&mut self, path: &[BackendCoord], style: &impl BackendStyle) {
        let radius = f64::from(style.stroke_width().max(1)) / 2.0;
        let colour = style.color();
        let bounds = |pick: fn(&BackendCoord) -> i32, end: usize| {
            let reach = radius.ceil() as i32 + 1;
            let from = path.iter().map(pick).min().unwrap_or(0).saturating_sub(reach).clamp(0, end as i32);
            let to = path.iter().map(pick).max().unwrap_or(0).saturating_add(reach + 1).clamp(0, end as i32);
            (from, to)
        };
        let ((left, right), (top, bottom)) = (bounds(|at| at.0, self.width), bounds(|at| at.1, self.height));
        let width = (right - left) as usize;
        let mut covered = vec![0.0_f32; width * (bottom - top) as usize];
        for pair in path.windows(2) {
            let (from, to) = (pair[0], pair[1]);
            let reach = radius.ceil() as i32 + 1;
            for y in (from.1.min(to.1) - reach).max(top)..(from.1.max(to.1) + reach + 1).min(bottom) {
                for x in (from.0.min(to.0) - reach).max(left)..(from.0.max(to.0) + reach + 1).min(right) {
                    let coverage = (radius + 0.5 - distance((x, y), from, to)).clamp(0.0, 1.0) as f32;
                    let cell = &mut covered[(y - top) as usize * width + (x - left) as usize];
                    *cell = cell.max(coverage);
                }
            }
        }
        for y in top..bottom {
            for x in left..right {
                let coverage = covered[(y - top) as usize * width + (x - left) as usize];
                self.blend((x, y), colour.rgb, f64::from(coverage) * colour.alpha);
            }
        }
    }
}

/// The distance of a pixel from a line segment.
fn distance(at: BackendCoord, from: BackendCoord, to: BackendCoord) -> f64 {
    let float = |at: BackendCoord| (f64::from(at.0), f64::from(at.1));
    let ((x, y), (from_x, from_y), (to_x, to_y)) = (float(at), float(from), float(to));
    let (across, down) = (to_x - from_x, to_y - from_y);
    let squared = across * across + down * down;
    let along = if squared > 0.0 { ((x - from_x) * across + (y - from_y) * down) / squared } else { 0.0 };
    let along = along.clamp(0.0, 1.0);
    (x - from_x - along * across).hypot(y - from_y - along * down)
}

/// The letter size closest to a font size.
fn letters(size: f64) -> RasterHeight {
    // `plotters` takes the em size to be the height of a whole line.
    if size / 1.24 < 28.0 { RasterHeight::Size24 } else { RasterHeight::Size32 }
}

fn text_size(text: &str, size: f64) -> (i32, i32) {
    let letters = letters(size);
    ((text.chars().count() * get_raster_width(FontWeight::Regular, letters)) as i32, letters.val() as i32)
}

impl DrawingBackend for Lent<'_> {
    type ErrorType = Infallible;

    fn get_size(&self) -> (u32, u32) {
        (self.0.width as u32, self.0.height as u32)
    }

    fn ensure_prepared(&mut self) -> Drawn {
        Ok(())
    }

    fn present(&mut self) -> Drawn {
        Ok(())
    }

    fn draw_pixel(&mut self, point: BackendCoord, colour: BackendColor) -> Drawn {
        self.0.blend(point, colour.rgb, colour.alpha);
        Ok(())
    }

    fn draw_line<S: BackendStyle>(&mut self, from: BackendCoord, to: BackendCoord, style: &S) -> Drawn {
        self.0.stroke(&[from, to], style);
        Ok(())
    }

    fn draw_path<S: BackendStyle, I: IntoIterator<Item = BackendCoord>>(&mut self, path: I, style: &S) -> Drawn {
        self.0.stroke(&path.into_iter().collect::<Vec<_>>(), style);
        Ok(())
    }

    fn draw_text<S: BackendTextStyle>(&mut self, text: &str, style: &S, at: BackendCoord) -> Drawn {
        let (letters, colour, transform) = (letters(style.size()), style.color(), style.transform());
        let (width, height) = text_size(text, style.size());
        let left = match style.anchor().h_pos {
            HPos::Left => 0,
            HPos::Center => -width / 2,
            HPos::Right => -width,
        };
        let top = match style.anchor().v_pos {
            VPos::Top => 0,
            VPos::Center => -height / 2,
            VPos::Bottom => -height,
        };
        let advance = get_raster_width(FontWeight::Regular, letters) as i32;
        for (index, letter) in (0..).zip(text.chars()) {
            let known = |letter| get_raster(letter, FontWeight::Regular, letters);
            let Some(raster) = known(letter).or_else(|| known('?')) else { continue };
            for (y, row) in (0..).zip(raster.rows()) {
                for (x, ink) in (0..).zip(row) {
                    let (x, y) = transform.transform(left + index * advance + x, top + y);
                    self.0.blend((at.0 + x, at.1 + y), colour.rgb, colour.alpha * f64::from(*ink) / 255.0);
                }
            }
        }
        Ok(())
    }

    fn estimate_text_size<S: BackendTextStyle>(
        &self,
        text: &str,
        style: &S,
    ) -> Result<(u32, u32), DrawingErrorKind<Infallible>> {
        let (width, height) = text_size(text, style.size());
        Ok((width as u32, height as u32))
    }
}
