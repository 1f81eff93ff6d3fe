//! Splits the row sections of a request over the servers by stripe, and reassembles their answers.

use windlass_core::parameter::ParameterTable;
use windlass_core::plan::ServerPlan;

use super::{FloatBuffer, Push, RowRequest};

/// The sections that go to one server.
pub(super) struct RowsOut {
    pub(super) sections: u32,
    pub(super) wanted_sections: u32,
    words: Vec<u32>,
}

impl RowsOut {
    pub(super) fn new(table: &ParameterTable, plan: &ServerPlan, push: &Push<impl FloatBuffer>) -> Self {
        let mut out = Self { sections: 0, wanted_sections: 0, words: Vec::new() };
        for gradient in &push.rows {
            let Some(stripe) = plan.stripes.iter().find(|stripe| stripe.parameter == gradient.parameter) else {
                continue;
            };
            let width = table.get(gradient.parameter).map_or(1, |spec| spec.width());
            let here: Vec<(usize, usize)> = local_rows(stripe, &gradient.rows).collect();
            out.words.extend([gradient.parameter.0, here.len() as u32]);
            out.words.extend(here.iter().map(|(_, local)| *local as u32));
            for (position, _) in &here {
                let values = &gradient.values.floats()[position * width..(position + 1) * width];
                out.words.extend_from_slice(bytemuck::cast_slice(values));
            }
            out.sections += 1;
        }
        for wanted in &push.wanted {
            let Some(stripe) = plan.stripes.iter().find(|stripe| stripe.parameter == wanted.parameter) else {
                continue;
            };
            let here: Vec<(usize, usize)> = local_rows(stripe, &wanted.rows).collect();
            out.words.extend([wanted.parameter.0, here.len() as u32]);
            out.words.extend(here.iter().map(|(_, local)| *local as u32));
            out.wanted_sections += 1;
        }
        out
    }

    pub(super) fn bytes(&self) -> &[u8] {
        bytemuck::cast_slice(&self.words)
    }
}

/// Where the row values received from one server belong.
pub(super) struct RowsIn {
    values: Vec<f32>,
    /// The request, the row within it, and the row's width.
    places: Vec<(usize, usize, usize)>,
}

impl RowsIn {
    pub(super) fn new(table: &ParameterTable, plan: &ServerPlan, wanted: &[RowRequest]) -> Self {
        let mut places = Vec::new();
        for (request, wanted) in wanted.iter().enumerate() {
            let Some(stripe) = plan.stripes.iter().find(|stripe| stripe.parameter == wanted.parameter) else {
                continue;
            };
            let width = table.get(wanted.parameter).map_or(1, |spec| spec.width());
            places.extend(local_rows(stripe, &wanted.rows).map(|(position, _)| (request, position, width)));
        }
        let total = places.iter().map(|(_, _, width)| width).sum();
        Self { values: vec![0.0; total], places }
    }

    pub(super) fn values_mut(&mut self) -> &mut [f32] {
        &mut self.values
    }

    pub(super) fn deliver(&self, answers: &mut [Vec<f32>]) {
        let mut at = 0;
        for (request, position, width) in &self.places {
            answers[*request][position * width..(position + 1) * width].copy_from_slice(&self.values[at..at + width]);
            at += width;
        }
    }
}

/// Buffers for the values of all requested rows.
pub(super) fn empty_answers(table: &ParameterTable, wanted: &[RowRequest]) -> Vec<Vec<f32>> {
    let width = |wanted: &RowRequest| table.get(wanted.parameter).map_or(1, |spec| spec.width());
    wanted.iter().map(|wanted| vec![0.0; wanted.rows.len() * width(wanted)]).collect()
}

/// The rows that lie in this stripe: their position in the request and their number in the stripe.
fn local_rows<'a>(
    stripe: &'a windlass_core::plan::RowStripe,
    rows: &'a [u32],
) -> impl Iterator<Item = (usize, usize)> + 'a {
    rows.iter().enumerate().filter_map(|(position, row)| Some((position, stripe.local(*row as usize)?)))
}
