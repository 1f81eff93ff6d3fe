//! The messages of an event file, as far as they are written here.
//!
//! Field numbers are those of TensorFlow's `event.proto`, `summary.proto`, `tensor.proto` and `histogram.proto`.

use prost::{Message, Oneof};

/// `SessionLog.SessionStatus.START`.
pub(crate) const SESSION_START: i32 = 1;
/// `DataType.DT_STRING`.
pub(crate) const STRING_TYPE: i32 = 7;
/// `DataClass.DATA_CLASS_TENSOR`.
pub(crate) const TENSOR_CLASS: i32 = 2;

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

/// What an event tells.
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

/// Values of one step.
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
    #[prost(oneof = "Value", tags = "2, 5, 8")]
    pub value: Option<Value>,
}

/// The kinds of value.
#[derive(Clone, PartialEq, Oneof)]
pub(crate) enum Value {
    #[prost(float, tag = "2")]
    Simple(f32),
    #[prost(message, tag = "5")]
    Histogram(HistogramProto),
    #[prost(message, tag = "8")]
    Tensor(TensorProto),
}

/// Which of TensorBoard's tabs shows a tensor.
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
}

/// A scalar tensor of strings; an absent shape would mean the same, but not every reader knows.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct TensorProto {
    #[prost(int32, tag = "1")]
    pub data_type: i32,
    #[prost(message, optional, tag = "2")]
    pub shape: Option<TensorShape>,
    #[prost(bytes = "vec", repeated, tag = "8")]
    pub strings: Vec<Vec<u8>>,
}

/// The shape of a scalar: no dimensions.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct TensorShape {}

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

/// A mark in the life of the program that writes.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct SessionLog {
    #[prost(int32, tag = "1")]
    pub status: i32,
}
