//! The stages of a model that one process computes for another.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use anyhow::Context;
use burn::tensor::Device;
use windlass_core::footprint::gradient_bytes;
use windlass_core::parameter::{ParameterId, ParameterTable};

use super::PlaceError;
use super::host::StageHost;
use super::local_stage::LocalStage;
use crate::model::Model;
use crate::replica::local::{self, ReplicaError};
use crate::stages::StagePlan;

/// Some stages of a model, by name.
pub struct StageWorker {
    table: ParameterTable,
    /// The parameters of its stages.
    own: ParameterTable,
    hosts: BTreeMap<String, Box<dyn StageHost>>,
}

impl StageWorker {
    /// Makes these stages of a model, each on its device.
    pub fn of<M: Model>(model: M, stages: &[(String, Device)], seed: u64) -> Result<Self, PlaceError> {
        let staging = M::staging().ok_or(PlaceError::Whole { model: M::NAME })?;
        let model = Arc::new(model);
        let table = local::table(&*model, seed)?;
        let plan = StagePlan::new(staging.stages(&model), &table)?;
        let mut own = BTreeSet::<usize>::new();
        let mut hosts: BTreeMap<String, Box<dyn StageHost>> = BTreeMap::new();
        for (name, device) in stages {
            let Some(index) = plan.stages().iter().position(|stage| stage.name == *name) else {
                let (stage, there_are) = (name.clone(), plan.names());
                return Err(PlaceError::UnknownStage { model: M::NAME, stage, there_are });
            };
            own.extend(plan.stages()[index].parameters.iter().copied());
            let host = LocalStage::new(model.clone(), staging, (&plan, index), &table, (device, seed));
            hosts.insert(name.clone(), Box::new(host));
        }
        let own = own.into_iter().map(|index| table[ParameterId(index as u32)].clone()).collect();
        let own = ParameterTable::new(own).map_err(ReplicaError::from)?;
        Ok(Self { table, own, hosts })
    }

    /// Returns the memory that the gradients of its stages take, if each is on one device.
    pub(crate) fn gradient_bytes(&self) -> u64 {
        gradient_bytes(&self.own)
    }

    pub(crate) fn table(&self) -> &ParameterTable {
        &self.table
    }

    pub(crate) fn host(&mut self, stage: &str) -> anyhow::Result<&mut dyn StageHost> {
        match self.hosts.get_mut(stage) {
            Some(host) => Ok(&mut **host),
            None => Err(anyhow::anyhow!("stage {stage} was not given to this worker")).context("cannot compute it"),
        }
    }
}
