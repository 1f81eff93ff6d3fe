//! The parameters of a model: their names, shapes and how they are accessed. Every task builds the same table and
//! proves it by fingerprint. The table holds no values and does not decide where they live; [`crate::plan`] does.

use std::collections::HashMap;
use std::ops::Index;

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// The largest number of elements in a table: what memory can address, so that no size computed from a table later can
/// overflow.
const MAX_ELEMENTS: usize = isize::MAX as usize / size_of::<f32>();

/// A parameter's position in its [`ParameterTable`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ParameterId(pub u32);

/// How a parameter is pulled and pushed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Access {
    /// As a whole, in every step.
    Dense,
    /// By row number, only the rows that a batch touches, as for an embedding. The first dimension is the row.
    Rows,
}

/// How training changes a parameter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ParameterKind {
    /// The optimizer updates it by its gradient.
    #[default]
    Trained,
    /// It follows training without a gradient, like the running statistics of a normalisation. Workers push its new
    /// value in place of a gradient; the servers adopt that value, or the mean of a round, without the optimizer.
    State,
    /// It never changes. No step asks for it: it is accessed by row, and pulled whole where it is needed.
    Constant,
}

impl ParameterKind {
    /// True if the optimizer updates the parameter.
    pub fn is_trained(&self) -> bool {
        *self == ParameterKind::Trained
    }
}

/// One parameter. A [`ParameterTable`] checks that its sizes are valid.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ParameterSpec {
    /// The module path, such as `hidden.weight`; unique within a table.
    pub name: String,
    /// Dimensions, outermost first; empty for a scalar.
    pub shape: Vec<usize>,
    /// How it is pulled and pushed.
    pub access: Access,
    /// How training changes it. When this was not recorded yet, all parameters were trained.
    #[serde(default, skip_serializing_if = "ParameterKind::is_trained")]
    pub kind: ParameterKind,
}

impl ParameterSpec {
    /// Whether the parameter can take the values of a checkpoint's parameter. It may be frozen or trained from there
    /// on, but neither can become a running statistic.
    pub fn takes_values_of(&self, saved: &Self) -> bool {
        let is_state = |spec: &Self| spec.kind == ParameterKind::State;
        let is_frozen = |spec: &Self| spec.kind == ParameterKind::Constant;
        self.name == saved.name
            && self.shape == saved.shape
            && is_state(self) == is_state(saved)
            && (self.access == saved.access || is_frozen(self) || is_frozen(saved))
    }

    /// Describes the shape and special properties for users.
    pub fn describe(&self) -> String {
        let special = match (self.kind, self.access) {
            (ParameterKind::Trained, Access::Dense) => "",
            (ParameterKind::Trained, Access::Rows) => " by rows",
            (ParameterKind::State, _) => " (running statistics)",
            (ParameterKind::Constant, _) => " (frozen)",
        };
        format!("{:?}{special}", self.shape)
    }

    /// How many numbers it holds.
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// The first dimension; 1 for a scalar.
    pub fn rows(&self) -> usize {
        self.shape.first().copied().unwrap_or(1)
    }

    /// How many numbers one row holds.
    pub fn width(&self) -> usize {
        self.shape.iter().skip(1).product()
    }
}

/// Every parameter of a model, in the order all tasks agree on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Vec<ParameterSpec>")]
pub struct ParameterTable(Vec<ParameterSpec>);

impl ParameterTable {
    /// Checks the parameters and fixes their order.
    pub fn new(specs: Vec<ParameterSpec>) -> Result<Self, ParameterError> {
        if u32::try_from(specs.len()).is_err() {
            return Err(ParameterError::TooMany { count: specs.len() });
        }
        let mut positions = HashMap::with_capacity(specs.len());
        let mut total = 0;
        for (index, spec) in specs.iter().enumerate() {
            if spec.name.is_empty() {
                return Err(ParameterError::Unnamed { index });
            }
            if let Some(first) = positions.insert(spec.name.as_str(), index) {
                let name = spec.name.clone();
                return Err(ParameterError::DuplicateName { name, first, second: index });
            }
            total += checked_elements(spec)?;
            if total > MAX_ELEMENTS {
                return Err(too_large(spec));
            }
        }
        Ok(Self(specs))
    }

    /// The parameters in order, each with its id.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (ParameterId, &ParameterSpec)> {
        self.0.iter().enumerate().map(|(index, spec)| (ParameterId(index as u32), spec))
    }

    /// The parameter of that id, if there is one.
    pub fn get(&self, id: ParameterId) -> Option<&ParameterSpec> {
        self.0.get(id.0 as usize)
    }

    /// How many parameters there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How many numbers all parameters hold together.
    pub fn elements(&self) -> usize {
        self.0.iter().map(ParameterSpec::elements).sum()
    }

    /// A fingerprint that equal tables share, whichever process or platform computes it.
    pub fn fingerprint(&self) -> u64 {
        let mut hash = Fnv1a::new();
        for spec in &self.0 {
            // Lengths go first, so that no two tables produce the same bytes.
            hash.number(spec.name.len());
            hash.bytes(spec.name.as_bytes());
            hash.number(spec.access as usize + 2 * spec.kind as usize);
            hash.number(spec.shape.len());
            spec.shape.iter().for_each(|&dimension| hash.number(dimension));
        }
        hash.0
    }

    /// Describes the first parameter that differs between this table ("here") and the other ("there"), for a user whose
    /// tasks disagree. `None` if the tables are equal.
    pub fn first_difference(&self, other: &Self) -> Option<String> {
        self.first_where(other, |here, there| here != there)
    }

    /// Describes the first parameter whose saved values this table cannot take.
    pub fn difference_from_checkpoint(&self, saved: &Self) -> Option<String> {
        self.first_where(saved, |here, there| !here.zip(there).is_some_and(|(here, there)| here.takes_values_of(there)))
    }

    fn first_where(
        &self,
        other: &Self,
        differ: impl Fn(Option<&ParameterSpec>, Option<&ParameterSpec>) -> bool,
    ) -> Option<String> {
        let longest = self.len().max(other.len());
        let index = (0..longest).find(|&index| differ(self.0.get(index), other.0.get(index)))?;
        let describe = |table: &Self| match table.0.get(index) {
            Some(spec) => format!("`{}` of shape {}", spec.name, spec.describe()),
            None => "missing".to_owned(),
        };
        Some(format!("parameter {index} is {} here but {} there", describe(self), describe(other)))
    }
}

impl TryFrom<Vec<ParameterSpec>> for ParameterTable {
    type Error = ParameterError;

    fn try_from(specs: Vec<ParameterSpec>) -> Result<Self, ParameterError> {
        Self::new(specs)
    }
}

/// For ids known to be in this table; use [`ParameterTable::get`] for ids from the network.
impl Index<ParameterId> for ParameterTable {
    type Output = ParameterSpec;

    fn index(&self, id: ParameterId) -> &ParameterSpec {
        &self.0[id.0 as usize]
    }
}

/// Why a list of parameters is not a table.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ParameterError {
    /// There are more parameters than a [`ParameterId`] can number.
    #[error("{count} parameters are more than the {} that can be numbered", u32::MAX)]
    TooMany {
        /// How many there are.
        count: usize,
    },
    /// A parameter's name is empty.
    #[error("parameter {index} has no name")]
    Unnamed {
        /// Its position in the list.
        index: usize,
    },
    /// Two parameters have the same name.
    #[error("parameters {first} and {second} are both named `{name}`")]
    DuplicateName {
        /// The name.
        name: String,
        /// Position of the first.
        first: usize,
        /// Position of the second.
        second: usize,
    },
    /// A dimension is zero.
    #[error("parameter `{name}` of shape {shape:?} has a dimension of zero")]
    ZeroDimension {
        /// The parameter.
        name: String,
        /// Its shape.
        shape: Vec<usize>,
    },
    /// A parameter, or all parameters up to it, hold more numbers than memory can address.
    #[error("parameter `{name}` of shape {shape:?} takes the table beyond {} elements", MAX_ELEMENTS)]
    TooLarge {
        /// The parameter.
        name: String,
        /// Its shape.
        shape: Vec<usize>,
    },
    /// A parameter accessed by row has no dimension besides the row.
    #[error("parameter `{name}` of shape {shape:?} is accessed by row and needs two dimensions")]
    RowsWithoutWidth {
        /// The parameter.
        name: String,
        /// Its shape.
        shape: Vec<usize>,
    },
    /// Running statistics were to be accessed by row.
    #[error("`{name}` has running statistics, which cannot be accessed by row")]
    StateByRows {
        /// The parameter.
        name: String,
    },
    /// A frozen parameter was to be part of every step.
    #[error("`{name}` is frozen, so it cannot be part of every step")]
    DenseConstant {
        /// The parameter.
        name: String,
    },
    /// A parameter accessed by row has more rows than can be numbered.
    #[error("parameter `{name}` has {rows} rows, more than the {} that can be numbered", u32::MAX)]
    TooManyRows {
        /// The parameter.
        name: String,
        /// The number of rows.
        rows: usize,
    },
}

/// The number of elements of a parameter, if it is valid by itself.
fn checked_elements(spec: &ParameterSpec) -> Result<usize, ParameterError> {
    let (name, shape) = (|| spec.name.clone(), || spec.shape.clone());
    if spec.shape.contains(&0) {
        return Err(ParameterError::ZeroDimension { name: name(), shape: shape() });
    }
    match (spec.kind, spec.access) {
        (ParameterKind::State, Access::Rows) => return Err(ParameterError::StateByRows { name: name() }),
        (ParameterKind::Constant, Access::Dense) => return Err(ParameterError::DenseConstant { name: name() }),
        _ => {}
    }
    if spec.access == Access::Rows {
        if spec.shape.len() < 2 && spec.kind != ParameterKind::Constant {
            return Err(ParameterError::RowsWithoutWidth { name: name(), shape: shape() });
        }
        if u32::try_from(spec.rows()).is_err() {
            return Err(ParameterError::TooManyRows { name: name(), rows: spec.rows() });
        }
    }
    spec.shape
        .iter()
        .try_fold(1usize, |product, &dimension| product.checked_mul(dimension))
        .filter(|&elements| elements <= MAX_ELEMENTS)
        .ok_or_else(|| too_large(spec))
}

fn too_large(spec: &ParameterSpec) -> ParameterError {
    ParameterError::TooLarge { name: spec.name.clone(), shape: spec.shape.clone() }
}

/// FNV-1a as published: the standard library's hashers do not guarantee stable values.
struct Fnv1a(u64);

impl Fnv1a {
    fn new() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }

    fn bytes(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }

    fn number(&mut self, number: usize) {
        self.bytes(&(number as u64).to_le_bytes());
    }
}

#[cfg(test)]
#[path = "parameter_tests.rs"]
mod tests;
