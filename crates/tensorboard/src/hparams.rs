//! Hyperparameters, for TensorBoard's HParams tab: the values that a session starts with, and its end.
//!
//! No `Experiment` message is written. It would list hyperparameters, their domains and metrics for all sessions that
//! TensorBoard shows together, and TensorBoard uses the first one it finds. Since runs do not know each other, one
//! run's list would hide what the others have. Without one, TensorBoard collects the list from all sessions.

use crate::proto::{HParamsData, HParamsInfo, STATUS_SUCCESS, SessionEnd, SessionStart, StructKind, StructValue};

/// The value of a hyperparameter.
#[derive(Debug, Clone, PartialEq)]
pub enum HParam {
    /// A number. One that is not finite is left out, because TensorBoard cannot show it.
    Number(f64),
    /// A text.
    Text(String),
    /// A flag.
    Switch(bool),
}

impl HParam {
    /// Parses a value as written on a command line.
    pub fn parse(text: &str) -> Self {
        match (text.parse(), text.parse()) {
            (Ok(switch), _) => Self::Switch(switch),
            (_, Ok(number)) => Self::Number(number),
            _ => Self::Text(text.to_owned()),
        }
    }
}

/// The start of a session with these values, at a time in seconds since 1970.
pub(crate) fn start(hparams: &[(String, HParam)], seconds: f64) -> HParamsData {
    let value = |value: &HParam| match value {
        HParam::Number(number) if number.is_finite() => Some(StructKind::Number(*number)),
        HParam::Number(_) => None,
        HParam::Text(text) => Some(StructKind::Text(text.clone())),
        HParam::Switch(switch) => Some(StructKind::Switch(*switch)),
    };
    let known = hparams.iter().filter_map(|(name, it)| Some((name.clone(), StructValue { kind: Some(value(it)?) })));
    let start = SessionStart { hparams: known.collect(), start_time: seconds };
    HParamsData { info: Some(HParamsInfo::Start(start)) }
}

/// The successful end of a session.
pub(crate) fn end(seconds: f64) -> HParamsData {
    HParamsData { info: Some(HParamsInfo::End(SessionEnd { status: STATUS_SUCCESS, end_time: seconds })) }
}

#[cfg(test)]
mod tests {
    use prost::Message;

    use super::*;

    #[test]
    fn values_are_numbers_switches_or_words_as_they_are_written() {
        assert_eq!(HParam::parse("0.01"), HParam::Number(0.01));
        assert_eq!(HParam::parse("-3"), HParam::Number(-3.0));
        assert_eq!(HParam::parse("true"), HParam::Switch(true));
        assert_eq!(HParam::parse("adam"), HParam::Text("adam".into()));
        assert_eq!(HParam::parse("200 50"), HParam::Text("200 50".into()));
        assert_eq!(HParam::parse(""), HParam::Text(String::new()));
    }

    #[test]
    fn a_start_has_the_bytes_that_the_plugin_writes() {
        let hparams = [("a".to_owned(), HParam::Number(0.5)), ("b".to_owned(), HParam::Switch(true))];
        let number = b"\x0a\x0e\x0a\x01a\x12\x09\x11\0\0\0\0\0\0\xe0\x3f";
        let switch = b"\x0a\x07\x0a\x01b\x12\x02\x20\x01";
        let time = b"\x29\0\0\0\0\0\0\xf8\x3f";
        let start_info = [&number[..], switch, time].concat();
        let expected = [&[0x1a, start_info.len() as u8][..], &start_info].concat();
        assert_eq!(start(&hparams, 1.5).encode_to_vec(), expected);
    }

    #[test]
    fn a_number_that_is_not_finite_is_left_out() {
        let hparams = [("a".to_owned(), HParam::Number(f64::NAN)), ("b".to_owned(), HParam::Text("x".into()))];
        assert_eq!(start(&hparams, 1.0), start(&hparams[1..], 1.0));
    }
}
