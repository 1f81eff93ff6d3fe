//! The header of a PNG file, from which TensorBoard needs the size of a picture.

use crate::proto::Image;

/// The first bytes of every PNG file, before the size: the signature, and the length and name of the first chunk.
const START: &[u8; 16] = b"\x89PNG\r\n\x1a\n\0\0\0\x0dIHDR";

/// A PNG file as stored in a summary; `None` if it is not a PNG file.
pub(crate) fn image(png: &[u8]) -> Option<Image> {
    let header = png.strip_prefix(START)?;
    let number = |at: usize| Some(i32::from_be_bytes(header.get(at..at + 4)?.try_into().ok()?));
    let (width, height) = (number(0)?, number(4)?);
    // The colour types: grey, RGB, palette, grey with alpha, RGB with alpha.
    let colorspace = match header.get(9)? {
        0 => 1,
        2 | 3 => 3,
        4 => 2,
        6 => 4,
        _ => return None,
    };
    (width > 0 && height > 0).then(|| Image { height, width, colorspace, encoded: png.to_vec() })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The header of a grey picture, 300 wide and 2 high.
    const GREY: &[u8] = b"\x89PNG\r\n\x1a\n\0\0\0\x0dIHDR\0\0\x01\x2c\0\0\0\x02\x08\0\0\0\0";

    #[test]
    fn the_size_and_the_channels_are_those_of_the_header() {
        let expected = Image { height: 2, width: 300, colorspace: 1, encoded: GREY.to_vec() };
        assert_eq!(image(GREY), Some(expected));
        let with_colour = |kind: u8| image(&[&GREY[..25], &[kind], &GREY[26..]].concat()).map(|image| image.colorspace);
        assert_eq!([2, 3, 4, 6, 5].map(with_colour), [Some(3), Some(3), Some(2), Some(4), None]);
    }

    #[test]
    fn what_is_cut_short_empty_or_another_format_is_no_picture() {
        (0..26).for_each(|length| assert_eq!(image(&GREY[..length]), None, "{length} bytes"));
        assert_eq!(image(b"GIF89a and so on, for as long as a header is"), None);
        let without_width = [&GREY[..16], &[0; 4], &GREY[20..]].concat();
        assert_eq!(image(&without_width), None);
        let negative = [&GREY[..16], &[0xff; 4], &GREY[20..]].concat();
        assert_eq!(image(&negative), None);
    }
}
