//! The picture of a spatial transformer: canvases, the regions that it looks at, what it sees there and what it reads.

use burn::tensor::{Device, Tensor};

use super::{Dropout, PIXELS, Reader, SIDE, SpatialTransformer, Variant, gather};
use crate::digits;
use crate::picture::{Picture, Tile};

/// The number of images per row.
const COLUMNS: usize = 10;
const GROUPS: usize = 3;

impl SpatialTransformer {
    pub(super) fn draw(&self, network: &Reader, device: &Device) -> Picture {
        let test = self.images.test();
        let size = match self.flags.variant {
            Variant::Small => "small",
            Variant::Large => "large",
        };
        let mut picture = Picture::new(&format!("spatial transformer, {size}: test images, and what is read in them"));
        for samples in digits::one_of_each(&test.labels, GROUPS * COLUMNS).chunks(COLUMNS) {
            let (images, _labels) = gather(test, samples, device);
            let reading = network.forward(images.clone(), &Dropout::default());
            let read = reading.scores.argmax(1).into_data().iter::<i64>().collect::<Vec<_>>();
            let captioned = |tiles: Vec<Tile>| -> Vec<Tile> {
                let captions = samples.iter().zip(&read);
                let caption = |(tile, (sample, read)): (Tile, (&usize, &i64))| {
                    tile.with_caption(&read.to_string(), *read == i64::from(test.labels[*sample]))
                };
                tiles.into_iter().zip(captions).map(caption).collect()
            };
            picture = match reading.look {
                None => picture.with_group("canvas", captioned(tiles(images))),
                Some((transforms, seen)) => {
                    let transforms: Vec<f32> = transforms.into_data().iter::<f32>().collect();
                    let outlines = transforms.chunks_exact(6).map(corners);
                    let outlined = tiles(images).into_iter().zip(outlines);
                    let outlined = outlined.map(|(tile, corners)| tile.with_outline(corners)).collect();
                    picture.with_group("canvas", outlined).with_row("what it sees", captioned(tiles(seen)))
                }
            };
        }
        picture
    }
}

fn tiles(images: Tensor<4>) -> Vec<Tile> {
    let values: Vec<f32> = images.into_data().iter::<f32>().collect();
    values.chunks_exact(PIXELS).map(|image| Tile::new(SIDE, image)).collect()
}

/// The corners of the visible region on the canvas, in its pixels.
fn corners(transform: &[f32]) -> [(f32, f32); 4] {
    let pixel = |coordinate: f32| (coordinate + 1.0) * (SIDE - 1) as f32 / 2.0;
    [(-1.0, -1.0), (1.0, -1.0), (1.0, 1.0), (-1.0, 1.0)].map(|(x, y)| {
        let at = |row: &[f32]| pixel(row[0] * x + row[1] * y + row[2]);
        (at(&transform[..3]), at(&transform[3..]))
    })
}
