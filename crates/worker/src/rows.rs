//! Parameters accessed by row: in a step, a worker holds only the rows of these that its batch touches.
//!
//! To the network they are small tensors, and to the servers they are sections beside the dense buffers. This module
//! converts between the two; the model decides which rows a batch touches.

use windlass_core::parameter::{Access, ParameterId, ParameterKind, ParameterSpec, ParameterTable};
use windlass_wire::client::{ClientError, RowGradient, RowRequest};

use crate::buffer::{ParameterClient, Pulled, TensorBuffer};

/// The most values of a whole table that are requested at a time.
const PIECE_VALUES: usize = 1 << 20;

/// A model named a parameter that it does not have.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the model has no parameter `{path}` to access by row; it has {}", known.join(", "))]
pub struct UnknownRowParameter {
    /// The path that the model named.
    pub path: String,
    /// The paths of the model's parameters.
    pub known: Vec<String>,
}

/// The parameters that are accessed by row, in the order in which the model names them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct RowParameters(Vec<ParameterId>);

impl RowParameters {
    /// Finds the parameters by path, and marks them in `specs`.
    pub(crate) fn mark(specs: &mut [ParameterSpec], paths: &[&str]) -> Result<Self, UnknownRowParameter> {
        let mut mark = |path: &&str| match specs.iter().position(|spec| spec.name == *path) {
            Some(index) => {
                specs[index].access = Access::Rows;
                Ok(ParameterId(index as u32))
            }
            None => {
                let known = specs.iter().map(|spec| spec.name.clone()).collect();
                Err(UnknownRowParameter { path: (*path).to_owned(), known })
            }
        };
        paths.iter().map(&mut mark).collect::<Result<_, _>>().map(Self)
    }

    /// Finds the parameters in a table where they are already marked.
    pub(crate) fn find(table: &ParameterTable, paths: &[&str]) -> Self {
        let find = |path: &&str| table.iter().find(|(_, spec)| spec.name == *path).map(|(id, _)| id);
        Self(paths.iter().filter_map(find).collect())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Makes a request from one list of rows per parameter.
    pub(crate) fn requests(&self, rows: Vec<Vec<u32>>) -> Vec<RowRequest> {
        assert_eq!(rows.len(), self.0.len(), "one list of rows a parameter that is reached by rows");
        self.0.iter().zip(rows).map(|(parameter, rows)| RowRequest { parameter: *parameter, rows }).collect()
    }
}

/// Requests all rows of constant parameters, except those whose rows are already in `asked`.
pub(crate) fn constants(table: &ParameterTable, asked: &[RowRequest]) -> Vec<RowRequest> {
    let is_asked = |parameter| asked.iter().any(|request| request.parameter == parameter);
    let requests = all(table).into_iter();
    requests
        .filter(|request| table[request.parameter].kind == ParameterKind::Constant && !is_asked(request.parameter))
        .collect()
}

/// Returns one buffer per parameter; those accessed by row hold the requested rows.
pub(crate) fn join(pulled: Pulled, wanted: &[RowRequest]) -> Vec<TensorBuffer> {
    let mut values = pulled.dense;
    for (request, rows) in wanted.iter().zip(pulled.rows) {
        values[request.parameter.0 as usize] = rows.into();
    }
    values
}

/// The inverse of [`join`]: takes the buffers of these rows out of one buffer per parameter. Constants have no buffer
/// in a step.
pub(crate) fn split(values: &mut [TensorBuffer], rows: Vec<RowRequest>) -> Vec<RowGradient<TensorBuffer>> {
    let take = |RowRequest { parameter, rows }| {
        let values = std::mem::take(&mut values[parameter.0 as usize]);
        (!values.is_empty()).then_some(RowGradient { parameter, rows, values })
    };
    rows.into_iter().filter_map(take).collect()
}

/// Requests all rows of all parameters accessed by row.
pub(crate) fn all(table: &ParameterTable) -> Vec<RowRequest> {
    let by_rows = table.iter().filter(|(_, spec)| spec.access == Access::Rows);
    by_rows.map(|(parameter, spec)| RowRequest { parameter, rows: (0..spec.rows() as u32).collect() }).collect()
}

/// Pulls all values of all parameters. Tables are pulled piece by piece, so their pieces differ in age while others
/// train.
pub(crate) fn pull_whole(
    client: &mut ParameterClient,
    table: &ParameterTable,
) -> Result<Vec<TensorBuffer>, ClientError> {
    let mut whole = client.pull(Vec::new())?.dense;
    pull_rows(client, table, all(table), &mut whole)?;
    Ok(whole)
}

/// Pulls the values of these rows only, piece by piece; the other buffers are empty.
pub(crate) fn pull_only(
    client: &mut ParameterClient,
    table: &ParameterTable,
    rows: Vec<RowRequest>,
) -> Result<Vec<TensorBuffer>, ClientError> {
    let mut values = vec![TensorBuffer::default(); table.len()];
    pull_rows(client, table, rows, &mut values)?;
    Ok(values)
}

fn pull_rows(
    client: &mut ParameterClient,
    table: &ParameterTable,
    wanted: Vec<RowRequest>,
    whole: &mut [TensorBuffer],
) -> Result<(), ClientError> {
    for RowRequest { parameter, rows } in wanted {
        let piece = (PIECE_VALUES / table[parameter].width()).max(1);
        let mut values = Vec::with_capacity(table[parameter].elements());
        for rows in rows.chunks(piece) {
            let pulled = client.pull(vec![RowRequest { parameter, rows: rows.to_vec() }])?;
            pulled.rows.iter().for_each(|rows| values.extend_from_slice(rows));
        }
        whole[parameter.0 as usize] = values.into();
    }
    Ok(())
}
