//! How a batch travels to another process that computes on it: as a list of tensors, which is all that a connection
//! needs to know.
//!
//! Numbers, strings, tensors, and tuples, options and lists of them travel as they are. A struct of them is declared in
//! one line with [`travels!`](crate::travels). Nothing here connects or computes.

use std::any::type_name;
use std::collections::VecDeque;

pub use burn::tensor::Device;
use burn::tensor::{Bool, DType, Int, Tensor, TensorData};

/// A type that can be a model's batch. A type that does not travel has an empty implementation, `impl Travel for
/// MyBatch {}`, and can be trained wherever its batches stay in one process.
pub trait Travel: Sized + Send + 'static {
    /// Adds the value to a parcel.
    fn pack(self, _parcel: &mut Parcel) -> Result<(), TravelError> {
        Err(TravelError::Unable(type_name::<Self>()))
    }

    /// Takes the value from the front of a parcel.
    fn unpack(_parcel: &mut Parcel, _device: &Device) -> Result<Self, TravelError> {
        Err(TravelError::Unable(type_name::<Self>()))
    }

    /// Adds several values in a row.
    fn pack_all(all: Vec<Self>, parcel: &mut Parcel) -> Result<(), TravelError> {
        parcel.put_length(all.len());
        all.into_iter().try_for_each(|one| one.pack(parcel))
    }

    /// Takes several values in a row.
    fn unpack_all(parcel: &mut Parcel, device: &Device) -> Result<Vec<Self>, TravelError> {
        let count = parcel.take_length()?;
        // Each value has at least one item. Checking first avoids allocating for values that are not there.
        if count > parcel.len() {
            return Err(TravelError::Malformed(format!("a list of {count} in {} items", parcel.len())));
        }
        (0..count).map(|_| Self::unpack(parcel, device)).collect()
    }
}

/// Why a value does not travel.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TravelError {
    /// Its type does not implement it.
    #[error("{0} cannot be sent to another process: describe it with `windlass::travels!`")]
    Unable(&'static str),
    /// The received data do not match the type.
    #[error("received data of the wrong form: {0}")]
    Malformed(String),
}

/// Tensors on their way to another process. Floats have 32 bits, integers 64, and booleans are bytes.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Parcel(VecDeque<TensorData>);

impl Parcel {
    /// Whether the parcel is empty.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The number of tensors left.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// The tensors that are left, in order.
    pub fn items(&self) -> impl Iterator<Item = &TensorData> {
        self.0.iter()
    }

    /// Returns the tensors that are left.
    pub fn into_items(self) -> impl Iterator<Item = TensorData> {
        self.0.into_iter()
    }

    /// Adds a tensor, converted to one of the types that travel.
    pub fn put(&mut self, data: TensorData) {
        let data = match data.dtype() {
            DType::F32 | DType::I64 | DType::U8 => data,
            DType::Bool(_) => {
                let bytes: Vec<u8> = data.iter::<bool>().map(u8::from).collect();
                TensorData::new(bytes, data.shape().clone())
            }
            dtype if dtype.is_float() => data.convert::<f32>(),
            _ => data.convert::<i64>(),
        };
        self.0.push_back(data);
    }

    /// Takes the next tensor, which must have this type.
    pub fn take(&mut self, dtype: DType) -> Result<TensorData, TravelError> {
        let next = self.0.pop_front().ok_or_else(|| TravelError::Malformed("too few tensors".to_owned()))?;
        if next.dtype() != dtype {
            return Err(TravelError::Malformed(format!("{:?} instead of {dtype:?}", next.dtype())));
        }
        Ok(next)
    }

    /// Like [`Parcel::take`], for a tensor that must have this many dimensions.
    fn take_ranked(&mut self, dtype: DType, rank: usize) -> Result<TensorData, TravelError> {
        let next = self.take(dtype)?;
        match next.shape().num_dims() {
            dimensions if dimensions == rank => Ok(next),
            dimensions => Err(TravelError::Malformed(format!("{dimensions} dimensions instead of {rank}"))),
        }
    }

    fn put_length(&mut self, length: usize) {
        self.put(TensorData::new(vec![length as i64], [1]));
    }

    fn take_length(&mut self) -> Result<usize, TravelError> {
        let length = one(&self.take_ranked(DType::I64, 1)?)?;
        usize::try_from(length).map_err(|_| TravelError::Malformed(format!("a length of {length}")))
    }
}

fn one(data: &TensorData) -> Result<i64, TravelError> {
    let mut values = data.iter::<i64>();
    match (values.next(), values.next()) {
        (Some(value), None) => Ok(value),
        _ => Err(TravelError::Malformed("not a single number".to_owned())),
    }
}

impl<const D: usize> Travel for Tensor<D> {
    fn pack(self, parcel: &mut Parcel) -> Result<(), TravelError> {
        parcel.put(self.into_data());
        Ok(())
    }

    fn unpack(parcel: &mut Parcel, device: &Device) -> Result<Self, TravelError> {
        Ok(Self::from_data(parcel.take_ranked(DType::F32, D)?, device))
    }
}

impl<const D: usize> Travel for Tensor<D, Int> {
    fn pack(self, parcel: &mut Parcel) -> Result<(), TravelError> {
        // Bytes are converted too: only booleans travel as bytes.
        parcel.put(self.into_data().convert::<i64>());
        Ok(())
    }

    fn unpack(parcel: &mut Parcel, device: &Device) -> Result<Self, TravelError> {
        Ok(Self::from_data(parcel.take_ranked(DType::I64, D)?, device))
    }
}

impl<const D: usize> Travel for Tensor<D, Bool> {
    fn pack(self, parcel: &mut Parcel) -> Result<(), TravelError> {
        parcel.put(self.into_data());
        Ok(())
    }

    fn unpack(parcel: &mut Parcel, device: &Device) -> Result<Self, TravelError> {
        let data = parcel.take_ranked(DType::U8, D)?;
        let shape = data.shape().clone();
        let values: Vec<bool> = data.iter::<u8>().map(|byte| byte != 0).collect();
        Ok(Self::from_data(TensorData::new(values, shape), device))
    }
}

/// Numbers travel as 64-bit integers, as bytes or as floats; several numbers travel as one tensor.
macro_rules! numbers_travel {
    ($($number:ty: $carried:ty as $dtype:expr),* $(,)?) => {$(
        impl Travel for $number {
            fn pack(self, parcel: &mut Parcel) -> Result<(), TravelError> {
                Self::pack_all(vec![self], parcel)
            }

            fn unpack(parcel: &mut Parcel, device: &Device) -> Result<Self, TravelError> {
                match Self::unpack_all(parcel, device)?[..] {
                    [number] => Ok(number),
                    ref numbers => Err(TravelError::Malformed(format!("{} numbers instead of one", numbers.len()))),
                }
            }

            fn pack_all(all: Vec<Self>, parcel: &mut Parcel) -> Result<(), TravelError> {
                let carried: Vec<$carried> = all.into_iter().map(carry).collect();
                let count = carried.len();
                parcel.put(TensorData::new(carried, [count]));
                Ok(())
            }

            fn unpack_all(parcel: &mut Parcel, _device: &Device) -> Result<Vec<Self>, TravelError> {
                let data = parcel.take_ranked($dtype, 1)?;
                data.iter::<$carried>().map(deliver).collect()
            }
        }

        impl Carried<$carried> for $number {
            fn carry(self) -> $carried {
                self as $carried
            }

            fn deliver(carried: $carried) -> Option<Self> {
                let delivered = carried as $number;
                (delivered as $carried == carried || carried != carried).then_some(delivered)
            }
        }
    )*};
}

/// A number that travels as another type.
trait Carried<C>: Sized {
    fn carry(self) -> C;
    fn deliver(carried: C) -> Option<Self>;
}

fn carry<C, N: Carried<C>>(number: N) -> C {
    number.carry()
}

fn deliver<C: Copy + std::fmt::Display, N: Carried<C>>(carried: C) -> Result<N, TravelError> {
    N::deliver(carried).ok_or_else(|| TravelError::Malformed(format!("{carried} is not a {}", type_name::<N>())))
}

numbers_travel!(
    f32: f32 as DType::F32,
    u8: u8 as DType::U8,
    u16: i64 as DType::I64,
    u32: i64 as DType::I64,
    u64: i64 as DType::I64,
    usize: i64 as DType::I64,
    i8: i64 as DType::I64,
    i16: i64 as DType::I64,
    i32: i64 as DType::I64,
    i64: i64 as DType::I64,
);

/// Travels as its bits.
impl Travel for f64 {
    fn pack(self, parcel: &mut Parcel) -> Result<(), TravelError> {
        (self.to_bits() as i64).pack(parcel)
    }

    fn unpack(parcel: &mut Parcel, device: &Device) -> Result<Self, TravelError> {
        Ok(Self::from_bits(i64::unpack(parcel, device)? as u64))
    }

    fn pack_all(all: Vec<Self>, parcel: &mut Parcel) -> Result<(), TravelError> {
        i64::pack_all(all.into_iter().map(|number| number.to_bits() as i64).collect(), parcel)
    }

    fn unpack_all(parcel: &mut Parcel, device: &Device) -> Result<Vec<Self>, TravelError> {
        Ok(i64::unpack_all(parcel, device)?.into_iter().map(|bits| Self::from_bits(bits as u64)).collect())
    }
}

impl Travel for bool {
    fn pack(self, parcel: &mut Parcel) -> Result<(), TravelError> {
        u8::from(self).pack(parcel)
    }

    fn unpack(parcel: &mut Parcel, device: &Device) -> Result<Self, TravelError> {
        Ok(u8::unpack(parcel, device)? != 0)
    }

    fn pack_all(all: Vec<Self>, parcel: &mut Parcel) -> Result<(), TravelError> {
        u8::pack_all(all.into_iter().map(u8::from).collect(), parcel)
    }

    fn unpack_all(parcel: &mut Parcel, device: &Device) -> Result<Vec<Self>, TravelError> {
        Ok(u8::unpack_all(parcel, device)?.into_iter().map(|byte| byte != 0).collect())
    }
}

impl Travel for String {
    fn pack(self, parcel: &mut Parcel) -> Result<(), TravelError> {
        let bytes = self.into_bytes();
        let count = bytes.len();
        parcel.put(TensorData::new(bytes, [count]));
        Ok(())
    }

    fn unpack(parcel: &mut Parcel, _device: &Device) -> Result<Self, TravelError> {
        let bytes: Vec<u8> = parcel.take_ranked(DType::U8, 1)?.iter::<u8>().collect();
        text(bytes)
    }

    /// Packs the lengths, then all bytes.
    fn pack_all(all: Vec<Self>, parcel: &mut Parcel) -> Result<(), TravelError> {
        usize::pack_all(all.iter().map(Self::len).collect(), parcel)?;
        u8::pack_all(all.concat().into_bytes(), parcel)
    }

    fn unpack_all(parcel: &mut Parcel, device: &Device) -> Result<Vec<Self>, TravelError> {
        let (lengths, bytes) = (usize::unpack_all(parcel, device)?, u8::unpack_all(parcel, device)?);
        let mut rest = &bytes[..];
        let mut texts = Vec::with_capacity(lengths.len());
        for length in lengths {
            let too_long =
                || TravelError::Malformed(format!("a text of {length} bytes, of which {} are there", rest.len()));
            let (own, others) = rest.split_at_checked(length).ok_or_else(too_long)?;
            rest = others;
            texts.push(text(own.to_vec())?);
        }
        match rest {
            [] => Ok(texts),
            rest => Err(TravelError::Malformed(format!("{} bytes of no text", rest.len()))),
        }
    }
}

fn text(bytes: Vec<u8>) -> Result<String, TravelError> {
    String::from_utf8(bytes).map_err(|error| TravelError::Malformed(error.to_string()))
}

impl<T: Travel> Travel for Option<T> {
    fn pack(self, parcel: &mut Parcel) -> Result<(), TravelError> {
        self.is_some().pack(parcel)?;
        self.map_or(Ok(()), |some| some.pack(parcel))
    }

    fn unpack(parcel: &mut Parcel, device: &Device) -> Result<Self, TravelError> {
        bool::unpack(parcel, device)?.then(|| T::unpack(parcel, device)).transpose()
    }
}

impl<T: Travel> Travel for Vec<T> {
    fn pack(self, parcel: &mut Parcel) -> Result<(), TravelError> {
        T::pack_all(self, parcel)
    }

    fn unpack(parcel: &mut Parcel, device: &Device) -> Result<Self, TravelError> {
        T::unpack_all(parcel, device)
    }
}

impl<T: Travel, const N: usize> Travel for [T; N] {
    fn pack(self, parcel: &mut Parcel) -> Result<(), TravelError> {
        T::pack_all(self.into(), parcel)
    }

    fn unpack(parcel: &mut Parcel, device: &Device) -> Result<Self, TravelError> {
        let all = T::unpack_all(parcel, device)?;
        let wrong = |all: Vec<T>| TravelError::Malformed(format!("{} instead of {N}", all.len()));
        all.try_into().map_err(wrong)
    }
}

impl Travel for () {
    fn pack(self, _parcel: &mut Parcel) -> Result<(), TravelError> {
        Ok(())
    }

    fn unpack(_parcel: &mut Parcel, _device: &Device) -> Result<Self, TravelError> {
        Ok(())
    }
}

macro_rules! tuples_travel {
    ($($($name:ident)+;)*) => {$(
        impl<$($name: Travel),+> Travel for ($($name,)+) {
            #[allow(non_snake_case, reason = "each value is named like its type")]
            fn pack(self, parcel: &mut Parcel) -> Result<(), TravelError> {
                let ($($name,)+) = self;
                $($name.pack(parcel)?;)+
                Ok(())
            }

            fn unpack(parcel: &mut Parcel, device: &Device) -> Result<Self, TravelError> {
                Ok(($($name::unpack(parcel, device)?,)+))
            }
        }
    )*};
}

tuples_travel! {
    A;
    A B;
    A B C;
    A B C D;
    A B C D E;
    A B C D E F;
}

/// Declares that a struct travels by these fields, which are all of its fields: `travels!(MyBatch { images, labels });`
#[macro_export]
macro_rules! travels {
    ($name:ty { $($field:ident),+ $(,)? }) => {
        impl $crate::travel::Travel for $name {
            fn pack(self, parcel: &mut $crate::travel::Parcel) -> Result<(), $crate::travel::TravelError> {
                let Self { $($field),+ } = self;
                $($crate::travel::Travel::pack($field, parcel)?;)+
                Ok(())
            }

            fn unpack(
                parcel: &mut $crate::travel::Parcel,
                device: &$crate::travel::Device,
            ) -> Result<Self, $crate::travel::TravelError> {
                Ok(Self { $($field: $crate::travel::Travel::unpack(parcel, device)?),+ })
            }
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Mixed {
        pixels: Tensor<3>,
        labels: Option<Tensor<1, Int>>,
        mask: Tensor<2, Bool>,
        words: Vec<u32>,
        rows: [Vec<usize>; 2],
        name: String,
        rates: (f32, f64),
        is_last: bool,
    }

    travels!(Mixed { pixels, labels, mask, words, rows, name, rates, is_last });

    fn arrived<T: Travel>(sent: T) -> Result<T, TravelError> {
        let mut parcel = Parcel::default();
        sent.pack(&mut parcel)?;
        let arrived = T::unpack(&mut parcel, &Device::flex())?;
        assert!(parcel.is_empty());
        Ok(arrived)
    }

    #[test]
    fn a_struct_arrives_as_it_was() {
        let device = Device::flex();
        let sent = Mixed {
            pixels: Tensor::from_data(TensorData::new((0..12).map(|at| at as f32).collect(), [2, 3, 2]), &device),
            labels: Some(Tensor::from_data([3, -1], &device)),
            mask: Tensor::from_data([[true, false], [false, true]], &device),
            words: vec![1, u32::MAX],
            rows: [vec![5], Vec::new()],
            name: "ünïcode".to_owned(),
            rates: (0.1, 0.2),
            is_last: true,
        };
        let (pixels, labels, mask) =
            (sent.pixels.to_data(), sent.labels.clone().unwrap().to_data(), sent.mask.to_data());
        let got = arrived(sent).unwrap();
        assert_eq!(got.pixels.to_data(), pixels);
        assert_eq!(got.labels.unwrap().to_data(), labels);
        assert_eq!(got.mask.to_data(), mask);
        assert_eq!((got.words, got.rows), (vec![1, u32::MAX], [vec![5], Vec::new()]));
        assert_eq!((got.name.as_str(), got.rates, got.is_last), ("ünïcode", (0.1, 0.2), true));
        assert_eq!(arrived(None::<Tensor<1>>).unwrap().map(|tensor| tensor.to_data()), None);
        assert_eq!(arrived(u64::MAX).unwrap(), u64::MAX);
        assert!(arrived(f32::NAN).unwrap().is_nan());
    }

    #[test]
    fn a_list_is_as_many_tensors_however_long_it_is() {
        fn tensors<T: Travel + Clone + PartialEq + std::fmt::Debug>(list: Vec<T>) -> usize {
            let mut parcel = Parcel::default();
            list.clone().pack(&mut parcel).unwrap();
            let count = parcel.len();
            assert_eq!(Vec::<T>::unpack(&mut parcel, &Device::flex()).unwrap(), list);
            assert!(parcel.is_empty());
            count
        }
        let texts = |count| ["", "ünïcode", "two words"].map(str::to_owned).into_iter().cycle().take(count).collect();
        for count in [0, 1, 100_000] {
            assert_eq!(tensors((0..count).map(|at| at as f64 / 3.0).collect()), 1);
            assert_eq!(tensors((0..count).map(|at| at % 3 == 0).collect()), 1);
            assert_eq!(tensors((0..count).map(|at| at as u8).collect()), 1);
            assert_eq!(tensors::<String>(texts(count)), 2);
        }
        assert!(arrived(vec![f64::NAN]).unwrap()[0].is_nan());
    }

    #[test]
    fn integers_arrive_whatever_their_width() {
        let device = Device::flex();
        for dtype in [DType::U8, DType::I32, DType::I64] {
            let sent =
                Tensor::<1, Int>::from_data(TensorData::from([3_i64, 200]).convert_dtype(dtype), (&device, dtype));
            assert_eq!(sent.dtype(), dtype);
            assert_eq!(arrived(sent).unwrap().to_data().convert::<i64>(), TensorData::from([3_i64, 200]));
        }
    }

    #[test]
    fn a_type_that_does_not_say_how_it_travels_is_named() {
        #[derive(Debug)]
        struct Homebody;
        impl Travel for Homebody {}
        let refused = arrived((1_u32, Homebody)).unwrap_err().to_string();
        assert!(refused.contains("Homebody cannot be sent to another process"), "{refused}");
    }

    #[test]
    fn what_is_something_else_is_refused() {
        let device = Device::flex();
        let parcel = |pack: fn(&mut Parcel)| {
            let mut parcel = Parcel::default();
            pack(&mut parcel);
            parcel
        };
        let float = |parcel: &mut Parcel| parcel.put(TensorData::new(vec![1.0_f32], [1]));
        let negative = |parcel: &mut Parcel| parcel.put(TensorData::new(vec![-1_i64], [1]));
        let many = |parcel: &mut Parcel| parcel.put(TensorData::new(vec![i64::MAX], [1]));
        assert!(Tensor::<2>::unpack(&mut parcel(float), &device).is_err());
        assert!(Tensor::<1, Int>::unpack(&mut parcel(float), &device).is_err());
        assert!(Tensor::<1>::unpack(&mut Parcel::default(), &device).is_err());
        assert!(u32::unpack(&mut parcel(negative), &device).is_err());
        assert!(Vec::<Tensor<1>>::unpack(&mut parcel(negative), &device).is_err());
        assert!(Vec::<Tensor<1>>::unpack(&mut parcel(many), &device).is_err());
        let texts = |lengths: Vec<i64>| {
            let mut parcel = Parcel::default();
            parcel.put(TensorData::new(lengths.clone(), [lengths.len()]));
            parcel.put(TensorData::new(vec![b'a', 0xff, b'b'], [3]));
            Vec::<String>::unpack(&mut parcel, &device)
        };
        for lengths in [vec![4], vec![1], vec![2, 1], vec![i64::MAX, 1]] {
            assert!(texts(lengths.clone()).is_err(), "{lengths:?}");
        }
    }
}
