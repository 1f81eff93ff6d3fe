//! Walks through a Burn module: which tensors it has, how training treats them, and their values in and out.
//!
//! Every walk visits the same tensors in the same order, which is that of the parameter table. Burn's view of a tensor
//! decides its [`ParameterKind`]:
//! - a `Param` that requires gradients is trained;
//! - a `Param` that does not (`no_grad`, `freeze`) is constant, and so are tensors of integers and of booleans;
//! - a `RunningState` is state.

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::tensor::{Bool, Device, Gradients, Int, Shape, Tensor, TensorData};
use windlass_core::parameter::{Access, ParameterKind, ParameterSpec, ParameterTable};

use super::transfer::{Download, Uploaded};
use crate::buffer::TensorBuffer;

/// Integers up to this magnitude are exact as floats, which is how servers store them.
const EXACT_INTEGERS: i64 = 1 << 24;

/// A network has an integer that servers cannot store.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{path}` of the network holds {value}, but {EXACT_INTEGERS} is the largest integer stored exactly")]
pub struct LargeInteger {
    /// The path of the tensor.
    pub path: String,
    /// The integer.
    pub value: i64,
}

/// Lists the tensors of a module. Tensors that Burn creates lazily are created by this.
pub(crate) fn list(module: &impl Module) -> Result<Vec<ParameterSpec>, LargeInteger> {
    let mut list = List::default();
    module.visit(&mut list);
    // Burn shows running state as a parameter that does not require gradients, just like a frozen one. But a mapper can
    // make only the frozen one require them.
    let mut demands = Demands::default();
    module.clone().map(&mut Demand).visit(&mut demands);
    for (spec, can_require) in list.specs.iter_mut().zip(demands.0) {
        if !can_require {
            (spec.kind, spec.access) = (ParameterKind::State, Access::Dense);
        }
    }
    list.refused.map_or(Ok(list.specs), Err)
}

/// Copies all values of a module.
pub(crate) fn values(module: &impl Module, device: &Device) -> Vec<Vec<f32>> {
    some_values(module, &|_| true, device).into_iter().map(|values| values.to_vec()).collect()
}

/// Copies the values of some parameters, by their number; the other buffers are empty.
pub(crate) fn some_values(module: &impl Module, wanted: &dyn Fn(usize) -> bool, device: &Device) -> Vec<TensorBuffer> {
    let mut reader = Reader { wanted, index: 0, values: Download::from(device) };
    module.visit(&mut reader);
    reader.values.finish()
}

/// Like [`some_values`], for running state only.
pub(crate) fn state(module: &impl Module, table: &ParameterTable, device: &Device) -> Vec<TensorBuffer> {
    let kinds: Vec<ParameterKind> = table.iter().map(|(_, spec)| spec.kind).collect();
    some_values(module, &|index| kinds[index] == ParameterKind::State, device)
}

/// Returns the module with these values. An empty buffer keeps the current values; a parameter accessed by row may have
/// any number of rows.
pub(crate) fn load<M: Module>(module: M, values: Vec<TensorBuffer>, device: &Device) -> M {
    let is_sent = *device != Device::flex() && values.iter().any(|values| !values.is_empty());
    let uploaded = is_sent.then(|| Uploaded::new(&values, device));
    module.map(&mut Loader { values: values.into_iter(), uploaded, device })
}

/// The values of a parameter are missing, or their number is wrong.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("parameter `{name}` of shape {shape:?} has {} values", got.map_or("no".to_owned(), |got| got.to_string()))]
pub struct MissingValues {
    /// The parameter.
    pub name: String,
    /// Its shape.
    pub shape: Vec<usize>,
    /// The number of values, if there are any.
    pub got: Option<usize>,
}

/// Returns the module with values that are looked up by the paths of its parameters, as in a checkpoint.
pub fn load_by_name<M: Module>(
    module: M,
    mut values: impl FnMut(&str) -> Option<Vec<f32>>,
    device: &Device,
) -> Result<M, MissingValues> {
    let mut shapes = List::default();
    module.visit(&mut shapes);
    let found = shapes.specs.into_iter().map(|ParameterSpec { name, shape, .. }| {
        let found = values(&name);
        let got = found.as_ref().map(Vec::len);
        let whole = found.filter(|values| values.len() == shape.iter().product::<usize>());
        whole.map(TensorBuffer::from).ok_or(MissingValues { name, shape, got })
    });
    Ok(load(module, found.collect::<Result<_, _>>()?, device))
}

/// Returns a loss and the gradients of trained parameters; the other buffers are empty.
pub(crate) fn take_gradients(
    module: &impl Module,
    loss: Tensor<1>,
    gradients: &mut Gradients,
) -> (f32, Vec<TensorBuffer>) {
    let device = loss.device();
    let (mut loss, taken) = take_gradients_beside(module, vec![loss], gradients, &device);
    (loss.remove(0).first().copied().unwrap_or(f32::NAN), taken)
}

/// Like [`take_gradients`], with any number of tensors whose values come in the same transfer.
pub(crate) fn take_gradients_beside(
    module: &impl Module,
    tensors: Vec<Tensor<1>>,
    gradients: &mut Gradients,
    device: &Device,
) -> (Vec<TensorBuffer>, Vec<TensorBuffer>) {
    let (count, mut taken) = (tensors.len(), Download::from(device));
    tensors.into_iter().for_each(|tensor| taken.add(tensor));
    let mut taker = Taker { gradients, taken };
    module.visit(&mut taker);
    let mut tensors = taker.taken.finish();
    let taken = tensors.split_off(count);
    (tensors, taken)
}

/// Moves only some tensors of a host module, by their number, to this device. The others are replaced by a single NaN:
/// they take no memory, and any use of one is noticed. All integers and booleans are kept.
pub(crate) fn keep<M: Module>(module: M, wanted: &dyn Fn(usize) -> bool, device: &Device) -> M {
    let is_moved = *device != Device::flex();
    let kept = module.map(&mut Keeper { wanted, index: 0, device, is_moved });
    // Tensors that are not parameters, such as a positional encoding, are not visited.
    if is_moved { kept.to_device(device) } else { kept }
}

#[derive(Default)]
struct List {
    path: Vec<String>,
    specs: Vec<ParameterSpec>,
    refused: Option<LargeInteger>,
}

impl List {
    fn add(&mut self, shape: Shape, kind: ParameterKind) {
        let access = if kind == ParameterKind::Constant { Access::Rows } else { Access::Dense };
        self.specs.push(ParameterSpec { name: self.path.join("."), shape: shape.to_vec(), access, kind });
    }
}

impl ModuleVisitor for List {
    fn enter_module(&mut self, name: &str, _container: &str) {
        self.path.push(name.to_owned());
    }

    fn exit_module(&mut self, _name: &str, _container: &str) {
        self.path.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let value = param.val();
        self.add(value.shape(), if value.is_require_grad() { ParameterKind::Trained } else { ParameterKind::Constant });
    }

    fn visit_int<const D: usize>(&mut self, param: &Param<Tensor<D, Int>>) {
        let large = integers(param).into_iter().find(|value| value.abs() > EXACT_INTEGERS);
        let refuse = |value| LargeInteger { path: self.path.join("."), value };
        self.refused = self.refused.take().or(large.map(refuse));
        self.add(param.val().shape(), ParameterKind::Constant);
    }

    fn visit_bool<const D: usize>(&mut self, param: &Param<Tensor<D, Bool>>) {
        self.add(param.val().shape(), ParameterKind::Constant);
    }
}

/// Makes every tensor require gradients that can.
struct Demand;

impl ModuleMapper for Demand {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        param.set_require_grad(true)
    }
}

/// Which tensors require gradients now. Integers and booleans count as if they did: they are never running state.
#[derive(Default)]
struct Demands(Vec<bool>);

impl ModuleVisitor for Demands {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        self.0.push(param.val().is_require_grad());
    }

    fn visit_int<const D: usize>(&mut self, _param: &Param<Tensor<D, Int>>) {
        self.0.push(true);
    }

    fn visit_bool<const D: usize>(&mut self, _param: &Param<Tensor<D, Bool>>) {
        self.0.push(true);
    }
}

struct Reader<'a> {
    wanted: &'a dyn Fn(usize) -> bool,
    index: usize,
    values: Download,
}

impl Reader<'_> {
    /// Whether the next tensor is wanted. If not, its buffer stays empty.
    fn wants(&mut self) -> bool {
        let wanted = (self.wanted)(self.index);
        if !wanted {
            self.values.put(TensorBuffer::default());
        }
        self.index += 1;
        wanted
    }
}

impl ModuleVisitor for Reader<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if self.wants() {
            self.values.add(param.val().inner());
        }
    }

    fn visit_int<const D: usize>(&mut self, param: &Param<Tensor<D, Int>>) {
        if self.wants() {
            self.values.put(integers(param).into_iter().map(|value| value as f32).collect::<Vec<f32>>().into());
        }
    }

    fn visit_bool<const D: usize>(&mut self, param: &Param<Tensor<D, Bool>>) {
        if self.wants() {
            let values: Vec<f32> =
                param.val().into_data().iter::<bool>().map(|value| f32::from(u8::from(value))).collect();
            self.values.put(values.into());
        }
    }
}

struct Loader<'a> {
    values: std::vec::IntoIter<TensorBuffer>,
    /// The same values on the device, if it is not the host.
    uploaded: Option<Uploaded>,
    device: &'a Device,
}

impl Loader<'_> {
    /// Returns the next values, or `None` to keep the current ones; also those on the device, if they have been sent
    /// there.
    fn next(&mut self) -> Option<(TensorBuffer, Option<Tensor<1>>)> {
        let values = Some(self.values.next().expect("one buffer a parameter")).filter(|values| !values.is_empty())?;
        let uploaded = self.uploaded.as_mut().map(|uploaded| uploaded.next(values.len()));
        Some((values, uploaded))
    }
}

impl ModuleMapper for Loader<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let Some((values, uploaded)) = self.next() else { return param };
        param.map(|old| {
            let (mut shape, require_grad) = (old.shape(), old.is_require_grad());
            drop(old);
            // A parameter accessed by row has as many rows as were requested.
            shape[0] = values.len() / shape.iter().skip(1).product::<usize>();
            let new = match uploaded {
                Some(uploaded) => Tensor::from_inner(uploaded.reshape(shape)),
                None => values.into_tensor(shape, self.device),
            };
            if require_grad { new.require_grad() } else { new }
        })
    }

    fn map_int<const D: usize>(&mut self, param: Param<Tensor<D, Int>>) -> Param<Tensor<D, Int>> {
        let Some((values, _)) = self.next() else { return param };
        let values: Vec<i64> = values.iter().map(|value| *value as i64).collect();
        param.map(|old| Tensor::from_data(TensorData::new(values, old.shape()), (self.device, old.dtype())))
    }

    fn map_bool<const D: usize>(&mut self, param: Param<Tensor<D, Bool>>) -> Param<Tensor<D, Bool>> {
        let Some((values, _)) = self.next() else { return param };
        let values: Vec<bool> = values.iter().map(|value| *value != 0.0).collect();
        param.map(|old| Tensor::from_data(TensorData::new(values, old.shape()), (self.device, old.dtype())))
    }
}

struct Keeper<'a> {
    wanted: &'a dyn Fn(usize) -> bool,
    index: usize,
    device: &'a Device,
    /// Whether the device is not the host.
    is_moved: bool,
}

impl ModuleMapper for Keeper<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        self.index += 1;
        let is_wanted = (self.wanted)(self.index - 1);
        if is_wanted && !self.is_moved {
            return param;
        }
        param.map(|old| {
            let require_grad = old.is_require_grad();
            let new = match is_wanted {
                true => Tensor::from_data(old.into_data(), self.device),
                false => Tensor::full([1; D], f32::NAN, self.device),
            };
            if require_grad { new.require_grad() } else { new }
        })
    }

    fn map_int<const D: usize>(&mut self, param: Param<Tensor<D, Int>>) -> Param<Tensor<D, Int>> {
        self.index += 1;
        if !self.is_moved {
            return param;
        }
        param.map(|old| Tensor::from_data(old.to_data(), (self.device, old.dtype())))
    }

    fn map_bool<const D: usize>(&mut self, param: Param<Tensor<D, Bool>>) -> Param<Tensor<D, Bool>> {
        self.index += 1;
        if !self.is_moved {
            return param;
        }
        param.map(|old| Tensor::from_data(old.to_data(), (self.device, old.dtype())))
    }
}

struct Taker<'a> {
    gradients: &'a mut Gradients,
    taken: Download,
}

impl ModuleVisitor for Taker<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let value = param.val();
        match value.grad_remove(self.gradients) {
            None if !value.is_require_grad() => self.taken.put(TensorBuffer::default()),
            Some(gradient) => self.taken.add(gradient),
            // The loss does not depend on this parameter.
            None => self.taken.put(vec![0.0; value.shape().num_elements()].into()),
        }
    }

    fn visit_int<const D: usize>(&mut self, _param: &Param<Tensor<D, Int>>) {
        self.taken.put(TensorBuffer::default());
    }

    fn visit_bool<const D: usize>(&mut self, _param: &Param<Tensor<D, Bool>>) {
        self.taken.put(TensorBuffer::default());
    }
}

fn integers<const D: usize>(param: &Param<Tensor<D, Int>>) -> Vec<i64> {
    param.val().into_data().iter::<i64>().collect()
}

#[cfg(test)]
#[path = "tensors_tests.rs"]
mod tests;
