//! What TensorBoard would show for a directory: a reader of event files that shares no code with the writer.

use std::fs;
use std::path::Path;

/// A displayed value.
#[derive(Debug, Clone, PartialEq)]
pub struct Shown {
    pub step: u64,
    pub tag: String,
    pub value: Value,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    Scalar(f32),
    /// A PNG file.
    Image(Vec<u8>),
    Text(String),
    /// The metadata of the HParams plugin, encoded.
    HParams(Vec<u8>),
    Other,
}

/// Everything that TensorBoard shows for a directory, in order. A session start drops the values that earlier files
/// have for its step and later ones, except for the first session.
pub fn shown(directory: &Path) -> Vec<Shown> {
    let mut shown: Vec<Shown> = Vec::new();
    let mut seen_start = false;
    for path in event_files(directory) {
        for record in records(&fs::read(&path).unwrap()) {
            let event = Message(record);
            let step = event.number(2).unwrap_or(0);
            if event.message(7).is_some_and(|log| log.number(1) == Some(1)) && std::mem::replace(&mut seen_start, true)
            {
                shown.retain(|shown| shown.step < step);
            }
            let values = event.message(5).map(|summary| summary.messages(1)).unwrap_or_default();
            shown.extend(values.into_iter().map(|value| Shown { step, tag: value.text(1), value: read(&value) }));
        }
    }
    shown
}

/// The steps and values of a curve.
pub fn curve(directory: &Path, tag: &str) -> Vec<(u64, f32)> {
    let points = shown(directory).into_iter().filter(|shown| shown.tag == tag);
    points
        .map(|shown| if let Value::Scalar(value) = shown.value { (shown.step, value) } else { panic!("{shown:?}") })
        .collect()
}

/// The event files of a directory, in the order in which TensorBoard reads them.
pub fn event_files(directory: &Path) -> Vec<std::path::PathBuf> {
    let entries = fs::read_dir(directory).unwrap_or_else(|error| panic!("{}: {error}", directory.display()));
    let mut paths: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.file_name().unwrap().to_str().unwrap().contains("tfevents"));
    paths.sort();
    paths
}

fn read(value: &Message<'_>) -> Value {
    let plugin = value.message(9).and_then(|metadata| metadata.message(1));
    let name = plugin.as_ref().map(|plugin| plugin.text(1)).unwrap_or_default();
    if let Some(Field::Fixed32(bits)) = value.field(2) {
        Value::Scalar(f32::from_bits(bits))
    } else if let Some(image) = value.message(4) {
        Value::Image(image.bytes(4).to_vec())
    } else if name == "text" {
        Value::Text(value.message(8).unwrap().text(8))
    } else if name == "hparams" {
        Value::HParams(plugin.unwrap().bytes(2).to_vec())
    } else {
        Value::Other
    }
}

/// The records of a file, except a truncated last one. Checksums are not verified.
fn records(mut bytes: &[u8]) -> Vec<&[u8]> {
    let mut records = Vec::new();
    while let Some((length, rest)) = bytes.split_first_chunk::<8>() {
        let length = u64::from_le_bytes(*length) as usize;
        let Some(record) = rest.get(4..4 + length) else { break };
        records.push(record);
        bytes = rest.get(8 + length..).unwrap_or_default();
    }
    records
}

/// A Protobuf message.
pub struct Message<'a>(pub &'a [u8]);

#[derive(Clone, Copy)]
enum Field<'a> {
    Number(u64),
    Fixed64,
    Fixed32(u32),
    Bytes(&'a [u8]),
}

impl<'a> Message<'a> {
    fn fields(&self) -> Vec<(u64, Field<'a>)> {
        let (mut rest, mut fields) = (self.0, Vec::new());
        while !rest.is_empty() {
            let key = varint(&mut rest);
            let field = match key & 7 {
                0 => Field::Number(varint(&mut rest)),
                1 => {
                    take(&mut rest, 8);
                    Field::Fixed64
                }
                2 => {
                    let length = varint(&mut rest) as usize;
                    Field::Bytes(take(&mut rest, length))
                }
                5 => Field::Fixed32(u32::from_le_bytes(take(&mut rest, 4).try_into().unwrap())),
                kind => panic!("a field of kind {kind}"),
            };
            fields.push((key >> 3, field));
        }
        fields
    }

    fn field(&self, number: u64) -> Option<Field<'a>> {
        self.fields().into_iter().find(|(other, _)| *other == number).map(|(_, field)| field)
    }

    fn number(&self, number: u64) -> Option<u64> {
        if let Some(Field::Number(value)) = self.field(number) { Some(value) } else { None }
    }

    fn messages(&self, number: u64) -> Vec<Message<'a>> {
        let fields = self.fields().into_iter().filter(|(other, _)| *other == number);
        fields
            .filter_map(|(_, field)| if let Field::Bytes(bytes) = field { Some(Message(bytes)) } else { None })
            .collect()
    }

    fn message(&self, number: u64) -> Option<Message<'a>> {
        self.messages(number).pop()
    }

    fn bytes(&self, number: u64) -> &'a [u8] {
        self.message(number).map(|message| message.0).unwrap_or_default()
    }

    fn text(&self, number: u64) -> String {
        String::from_utf8(self.bytes(number).to_vec()).unwrap()
    }

    /// The text hyperparameters with which a session starts, by name.
    pub fn hparams(&self) -> Vec<(String, String)> {
        let start = self.message(3).expect("a session start");
        let entries = start.messages(1);
        entries
            .iter()
            .map(|entry| (entry.text(1), entry.message(2).map(|value| value.text(3)).unwrap_or_default()))
            .collect()
    }

    /// The status with which a session ends.
    pub fn status(&self) -> Option<u64> {
        self.message(4)?.number(1)
    }
}

fn take<'a>(bytes: &mut &'a [u8], count: usize) -> &'a [u8] {
    let (head, tail) = bytes.split_at(count);
    *bytes = tail;
    head
}

fn varint(bytes: &mut &[u8]) -> u64 {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let byte = take(bytes, 1)[0];
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            break;
        }
    }
    value
}
