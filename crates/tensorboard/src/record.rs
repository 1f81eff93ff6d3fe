//! The framing of an event file (TFRecord): length, its checksum, the message, its checksum; all little-endian.

use prost::Message;

/// Appends `message` to `buffer` as one record.
pub(crate) fn append(buffer: &mut Vec<u8>, message: &impl Message) {
    let length = (message.encoded_len() as u64).to_le_bytes();
    buffer.extend(length);
    buffer.extend(masked_checksum(&length).to_le_bytes());
    let start = buffer.len();
    message.encode_raw(buffer);
    let checksum = masked_checksum(&buffer[start..]);
    buffer.extend(checksum.to_le_bytes());
}

/// CRC-32C, rotated and offset so that checksums stay strong for records that contain checksums.
fn masked_checksum(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes).rotate_right(15).wrapping_add(0xa282_ead8)
}

/// Parses a file, and panics if it is not complete. Used by tests.
#[cfg(test)]
pub(crate) fn parse(mut bytes: &[u8]) -> Vec<crate::proto::Event> {
    fn take<'a>(bytes: &mut &'a [u8], count: usize) -> &'a [u8] {
        let (head, tail) = bytes.split_at_checked(count).expect("the file ends inside a record");
        *bytes = tail;
        head
    }
    fn take_checksum(bytes: &mut &[u8]) -> u32 {
        u32::from_le_bytes(take(bytes, 4).try_into().unwrap())
    }
    let mut events = Vec::new();
    while !bytes.is_empty() {
        let length = take(&mut bytes, 8);
        assert_eq!(take_checksum(&mut bytes), masked_checksum(length), "the length's checksum");
        let length = u64::from_le_bytes(length.try_into().unwrap());
        let message = take(&mut bytes, length as usize);
        assert_eq!(take_checksum(&mut bytes), masked_checksum(message), "the message's checksum");
        events.push(crate::proto::Event::decode(message).expect("the message is an event"));
    }
    events
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::{Event, What};

    #[test]
    fn the_first_record_has_the_bytes_that_tensorflow_writes() {
        let version = What::FileVersion("brain.Event:2".into());
        let event = Event { wall_time: 1.5, step: 0, what: Some(version) };
        let mut buffer = Vec::new();
        append(&mut buffer, &event);
        assert_eq!(buffer[..12], [24, 0, 0, 0, 0, 0, 0, 0, 0xa3, 0x7f, 0x4b, 0x22]);
        assert_eq!(buffer[12..21], [0x09, 0, 0, 0, 0, 0, 0, 0xf8, 0x3f]);
        assert_eq!(&buffer[21..36], b"\x1a\x0dbrain.Event:2");
        assert_eq!(buffer.len(), 40);
        assert_eq!(parse(&buffer), [event]);
    }

    #[test]
    #[should_panic(expected = "the message's checksum")]
    fn a_changed_byte_shows_in_the_checksum() {
        let mut buffer = Vec::new();
        append(&mut buffer, &Event { wall_time: 1.5, step: 7, what: None });
        buffer[14] ^= 1;
        parse(&buffer);
    }
}
