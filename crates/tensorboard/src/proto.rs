//! The messages of an event file, limited to the fields that are written here.
//!
//! Field numbers are those of TensorFlow's `event.proto`, `summary.proto`, `tensor.proto` and `histogram.proto`, and of
//! the HParams plugin's `plugin_data.proto` and Protobuf's `struct.proto`.

use std::collections::BTreeMap;

use prost::{Message, Oneof};

/// `SessionLog.SessionStatus.START`.
pub(crate) const SESSION_START: i32 = 1;
/// `DataType.DT_FLOAT`.
pub(crate) const FLOAT_TYPE: i32 = 1;
/// `DataType.DT_STRING`.
pub(crate) const STRING_TYPE: i32 = 7;
/// `DataClass.DATA_CLASS_TENSOR`.
pub(crate) const TENSOR_CLASS: i32 = 2;
/// `Status.STATUS_SUCCESS` of the HParams plugin.
pub(crate) const STATUS_SUCCESS: i32 = 1;

/// One record of the file.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Event {
    /// Seconds since 1970.
    #[prost(double, tag = "1")]
    pub wall_time: f64,
    #[prost(int64, tag = "2")]
    pub step: i64,
    #[prost(oneof = "What", tags = "3, 5, 7")]
    pub what: Option<What>,
}

/// The contents of an event.
#[derive(Clone, PartialEq, Oneof)]
pub(crate) enum What {
    /// The first event of every file.
    #[prost(string, tag = "3")]
    FileVersion(String),
    #[prost(message, tag = "5")]
    Summary(Summary),
    #[prost(message, tag = "7")]
    SessionLog(SessionLog),
}

/// Values of one step. `Summary` is TensorBoard's own name for it.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Summary {
    #[prost(message, repeated, tag = "1")]
    pub values: Vec<TaggedValue>,
}

/// `Summary.Value`: a value and the curve it belongs to.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct TaggedValue {
    #[prost(string, tag = "1")]
    pub tag: String,
    #[prost(message, optional, tag = "9")]
    pub metadata: Option<SummaryMetadata>,
    #[prost(oneof = "Value", tags = "2, 4, 5, 8")]
    pub value: Option<Value>,
}

/// The kind of value.
#[derive(Clone, PartialEq, Oneof)]
pub(crate) enum Value {
    #[prost(float, tag = "2")]
    Simple(f32),
    #[prost(message, tag = "4")]
    Image(Image),
    #[prost(message, tag = "5")]
    Histogram(HistogramProto),
    #[prost(message, tag = "8")]
    Tensor(TensorProto),
}

/// `Summary.Image`: an encoded picture.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Image {
    #[prost(int32, tag = "1")]
    pub height: i32,
    #[prost(int32, tag = "2")]
    pub width: i32,
    /// The number of channels.
    #[prost(int32, tag = "3")]
    pub colorspace: i32,
    #[prost(bytes = "vec", tag = "4")]
    pub encoded: Vec<u8>,
}

/// Selects the TensorBoard tab that shows a tensor.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct SummaryMetadata {
    #[prost(message, optional, tag = "1")]
    pub plugin: Option<PluginData>,
    #[prost(int32, tag = "4")]
    pub data_class: i32,
}

/// `SummaryMetadata.PluginData`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct PluginData {
    #[prost(string, tag = "1")]
    pub name: String,
    /// The plugin's own data about the series, in its own encoding.
    #[prost(bytes = "vec", tag = "2")]
    pub content: Vec<u8>,
}

/// A tensor of strings, or one without values. The shape is always written: without one, a tensor is a scalar, too, but
/// not every reader knows that.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct TensorProto {
    #[prost(int32, tag = "1")]
    pub data_type: i32,
    #[prost(message, optional, tag = "2")]
    pub shape: Option<TensorShape>,
    #[prost(bytes = "vec", repeated, tag = "8")]
    pub strings: Vec<Vec<u8>>,
}

/// The shape of a tensor; a scalar has no dimensions.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct TensorShape {
    #[prost(message, repeated, tag = "2")]
    pub dimensions: Vec<Dimension>,
}

/// `TensorShapeProto.Dim`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Dimension {
    #[prost(int64, tag = "1")]
    pub size: i64,
}

/// A histogram: bucket `i` counts the values from `bucket_limit[i - 1]` up to, not including, `bucket_limit[i]`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct HistogramProto {
    #[prost(double, tag = "1")]
    pub min: f64,
    #[prost(double, tag = "2")]
    pub max: f64,
    #[prost(double, tag = "3")]
    pub num: f64,
    #[prost(double, tag = "4")]
    pub sum: f64,
    #[prost(double, tag = "5")]
    pub sum_squares: f64,
    #[prost(double, repeated, tag = "6")]
    pub bucket_limit: Vec<f64>,
    #[prost(double, repeated, tag = "7")]
    pub bucket: Vec<f64>,
}

/// A mark in the life of the writing program.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct SessionLog {
    #[prost(int32, tag = "1")]
    pub status: i32,
}

/// `HParamsPluginData`: everything that the HParams plugin reads. There is only version 0.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct HParamsData {
    #[prost(oneof = "HParamsInfo", tags = "3, 4")]
    pub info: Option<HParamsInfo>,
}

/// Its information about a session.
#[derive(Clone, PartialEq, Oneof)]
pub(crate) enum HParamsInfo {
    #[prost(message, tag = "3")]
    Start(SessionStart),
    #[prost(message, tag = "4")]
    End(SessionEnd),
}

/// `SessionStartInfo`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct SessionStart {
    #[prost(btree_map = "string, message", tag = "1")]
    pub hparams: BTreeMap<String, StructValue>,
    #[prost(double, tag = "5")]
    pub start_time: f64,
}

/// `SessionEndInfo`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct SessionEnd {
    #[prost(int32, tag = "1")]
    pub status: i32,
    #[prost(double, tag = "2")]
    pub end_time: f64,
}

/// `google.protobuf.Value`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct StructValue {
    #[prost(oneof = "StructKind", tags = "2, 3, 4")]
    pub kind: Option<StructKind>,
}

/// The kinds that the plugin supports.
#[derive(Clone, PartialEq, Oneof)]
pub(crate) enum StructKind {
    #[prost(double, tag = "2")]
    Number(f64),
    #[prost(string, tag = "3")]
    Text(String),
    #[prost(bool, tag = "4")]
    Switch(bool),
}
