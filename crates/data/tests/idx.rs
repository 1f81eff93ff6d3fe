//! What the idx reader accepts, and how it rejects everything else.

#[path = "support/files.rs"]
mod files;
#[path = "support/idx_file.rs"]
mod idx_file;

use files::{gzip, put};
use idx_file::idx_bytes;
use proptest::prelude::*;
use tempfile::TempDir;
use windlass_data::idx::{self, Array, IdxError};

/// Reads `bytes` as a file called `name`; in messages its directory is `DIR`.
fn read(name: &str, bytes: &[u8], rank: usize) -> Result<Array, (IdxError, String)> {
    let directory = TempDir::new().unwrap();
    let path = put(directory.path(), name, bytes);
    idx::read(&path, rank).map_err(|error| {
        let message = error.to_string().replace(directory.path().to_str().unwrap(), "DIR");
        (error, message)
    })
}

fn message(bytes: &[u8], rank: usize) -> String {
    read("file", bytes, rank).unwrap_err().1
}

fn two_images() -> Vec<u8> {
    idx_bytes(&[2, 1, 3], &[1, 2, 3, 4, 5, 6])
}

#[test]
fn a_plain_file_is_read() {
    let array = read("images", &two_images(), 3).unwrap();
    assert_eq!(array, Array { dimensions: vec![2, 1, 3], bytes: vec![1, 2, 3, 4, 5, 6] });
}

#[test]
fn gzip_is_told_by_its_first_bytes_whatever_the_name() {
    let plain = read("images.gz", &two_images(), 3).unwrap();
    assert_eq!(read("images", &gzip(&two_images()), 3).unwrap(), plain);
}

#[test]
fn a_gzip_file_of_several_members_is_one_array() {
    let bytes = two_images();
    let members = [gzip(&bytes[..7]), gzip(&bytes[7..])].concat();
    assert_eq!(read("images", &members, 3).unwrap().bytes, [1, 2, 3, 4, 5, 6]);
}

#[test]
fn an_array_without_elements_is_read() {
    assert_eq!(read("labels", &idx_bytes(&[0], &[]), 1).unwrap().bytes, [0u8; 0]);
}

#[test]
fn a_missing_file_is_named() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("absent");
    let error = idx::read(&path, 1).unwrap_err();
    assert!(matches!(error, IdxError::Read { path: named, .. } if named == path));
}

#[test]
fn a_web_page_is_not_an_idx_file() {
    assert_eq!(
        message(b"<html>", 3),
        "DIR/file is not an idx file: it begins with 3c 68 74 6d, expected 00 00 08 03, or 1f 8b for gzip\n\
         hint: was a web page saved in its place? download it again"
    );
}

#[test]
fn an_empty_file_is_not_an_idx_file() {
    assert!(message(b"", 1).contains("it begins with nothing (the file is empty), expected 00 00 08 01"));
}

#[test]
fn another_element_type_is_refused() {
    let mut bytes = two_images();
    bytes[2] = 0x0d;
    assert_eq!(message(&bytes, 3), "DIR/file holds elements of type 0x0d, expected 0x08 (unsigned bytes)");
}

#[test]
fn labels_in_place_of_images_are_refused() {
    assert_eq!(
        message(&idx_bytes(&[2], &[1, 2]), 3),
        "DIR/file has rank 1, expected 3\n\
         hint: images have rank 3 and labels rank 1; are the two files swapped?"
    );
}

#[test]
fn a_file_cut_short_says_how_much_is_missing() {
    let bytes = two_images();
    assert_eq!(
        message(&bytes[..bytes.len() - 2], 3),
        "DIR/file is cut short: expected 22 bytes, got 20\n\
         hint: remove the file and download it again"
    );
}

#[test]
fn a_file_cut_short_in_its_header_says_so() {
    assert!(message(&two_images()[..9], 3).contains("is cut short: expected 16 bytes, got 9"));
}

#[test]
fn compressed_data_that_is_too_short_is_counted_decompressed() {
    let bytes = two_images();
    let text = message(&gzip(&bytes[..20]), 3);
    assert!(text.contains("is cut short: expected 22 bytes, got 20 once decompressed"), "{text}");
}

#[test]
fn bytes_after_the_end_are_refused() {
    let bytes = [two_images(), vec![0]].concat();
    assert!(message(&bytes, 3).contains("has trailing bytes: expected 22 bytes"));
    assert!(message(&gzip(&bytes), 3).contains("has trailing bytes: expected 22 bytes once decompressed"));
}

#[test]
fn a_gzip_file_cut_short_is_damaged() {
    let bytes = gzip(&two_images());
    let error = read("file", &bytes[..bytes.len() - 5], 3).unwrap_err().0;
    assert!(matches!(error, IdxError::Gzip { .. }), "{error}");
}

#[test]
fn a_gzip_file_with_a_wrong_checksum_is_damaged() {
    let mut bytes = gzip(&two_images());
    let checksum = bytes.len() - 6;
    bytes[checksum] ^= 1;
    let (error, text) = read("file", &bytes, 3).unwrap_err();
    assert!(matches!(error, IdxError::Gzip { .. }), "{error}");
    assert!(text.starts_with("the gzip data in DIR/file is damaged: "), "{text}");
}

#[test]
fn dimensions_whose_product_overflows_are_refused() {
    let error = read("file", &idx_bytes(&[u32::MAX, u32::MAX, u32::MAX], &[]), 3).unwrap_err().0;
    assert!(matches!(error, IdxError::TooLarge { .. }), "{error}");
}

#[test]
fn a_small_file_that_announces_a_large_array_is_cut_short() {
    let text = message(&idx_bytes(&[1000, 1000, 1000], &[0; 5]), 3);
    assert!(text.contains("expected 1000000016 bytes, got 21"), "{text}");
}

proptest! {
    #[test]
    fn no_bytes_make_the_reader_panic(bytes in prop::collection::vec(any::<u8>(), 0..200), rank in 0usize..5) {
        let _ = read("file", &bytes, rank);
    }

    #[test]
    fn no_header_makes_the_reader_panic(dimensions in prop::collection::vec(any::<u32>(), 3), compressed: bool) {
        let bytes = idx_bytes(&dimensions, &[0; 40]);
        let bytes = if compressed { gzip(&bytes) } else { bytes };
        let _ = read("file", &bytes, 3);
    }

    #[test]
    fn a_file_with_its_end_missing_is_never_accepted(cut in 1usize..22, compressed: bool) {
        let bytes = two_images();
        let bytes = if compressed { gzip(&bytes) } else { bytes };
        prop_assert!(read("file", &bytes[..bytes.len() - cut], 3).is_err());
    }

    #[test]
    fn a_damaged_gzip_file_never_panics(at in 0usize..30, flip in 1u8..) {
        let mut bytes = gzip(&two_images());
        let at = at % bytes.len();
        bytes[at] ^= flip;
        let _ = read("file", &bytes, 3);
    }
}
