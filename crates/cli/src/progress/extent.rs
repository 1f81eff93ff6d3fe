//! How far a run has progressed towards its limits.

use std::collections::BTreeMap;

use windlass_worker::event::{Event, Finished, Started, Step};

/// The progress of a run, as known from its workers' events.
#[derive(Debug, Default)]
pub(crate) struct Extent {
    steps: Option<u64>,
    epochs: Option<u64>,
    global_step: u64,
    shares: BTreeMap<u32, Share>,
}

/// A worker's part of the progress.
#[derive(Debug, Default)]
struct Share {
    epoch: u64,
    done: u64,
    /// Its total number of steps, if the run ends by epochs.
    of: Option<u64>,
    ended: bool,
}

impl Extent {
    pub(crate) fn see(&mut self, event: &Event) {
        match event {
            Event::Started(started) => self.started(started),
            Event::Step(step) | Event::Progress(step) => self.moved(step),
            Event::Finished(finished) => self.finished(finished),
            _ => {}
        }
    }

    fn started(&mut self, started: &Started) {
        (self.steps, self.epochs) = (started.steps, started.epochs);
        // Rolled back to a checkpoint, or resumed from one.
        self.global_step = started.from;
        let of = started.epochs.map(|epochs| epochs.saturating_mul(started.batches as u64));
        let share = self.shares.entry(started.worker).or_default();
        (share.of, share.epoch, share.ended) = (of, share.epoch.max(1), false);
    }

    fn moved(&mut self, step: &Step) {
        self.global_step = self.global_step.max(step.global_step);
        if let Some(share) = self.shares.get_mut(&step.worker) {
            (share.epoch, share.done) = (step.epoch, step.local_step);
        }
    }

    fn finished(&mut self, finished: &Finished) {
        self.global_step = self.global_step.max(finished.global_step);
        self.ended(finished.worker, finished.steps);
    }

    /// Ends a worker's share at what it has done so far.
    pub(super) fn left(&mut self, worker: u32) {
        let done = self.shares.get(&worker).map_or(0, |share| share.done);
        self.ended(worker, done);
    }

    fn ended(&mut self, worker: u32, done: u64) {
        if let Some(share) = self.shares.get_mut(&worker) {
            (share.done, share.of, share.ended) = (done, share.of.map(|_| done), true);
        }
    }

    /// Whether no worker is training any more.
    pub(super) fn is_trained(&self) -> bool {
        self.shares.values().all(|share| share.ended)
    }

    /// Whether a worker has begun to train.
    pub(crate) fn has_begun(&self) -> bool {
        !self.shares.is_empty()
    }

    pub(crate) fn global_step(&self) -> u64 {
        self.global_step
    }

    /// The completed fraction of the run, from 0 to 1; `None` if it continues until it is stopped.
    pub(crate) fn fraction(&self) -> Option<f64> {
        let part = |done: u64, of: u64| if of == 0 { 0.0 } else { (done as f64 / of as f64).min(1.0) };
        let by_steps = self.steps.map(|steps| part(self.global_step, steps));
        let by_epochs = self.epochs.map(|_| {
            let done = self.shares.values().map(|share| share.done).sum();
            part(done, self.shares.values().filter_map(|share| share.of).fold(0, u64::saturating_add))
        });
        match (by_steps, by_epochs) {
            (Some(by_steps), Some(by_epochs)) => Some(f64::max(by_steps, by_epochs)),
            (by_steps, by_epochs) => by_steps.or(by_epochs),
        }
    }

    /// The position of the run, in words.
    pub(super) fn place(&self) -> String {
        self.place_at(self.global_step)
    }

    /// The same, if the run is known to have reached this step.
    pub(crate) fn place_at(&self, global_step: u64) -> String {
        let step = match self.steps {
            Some(steps) => format!("step {global_step} of {steps}"),
            None => format!("step {global_step}"),
        };
        match self.epochs {
            // The epoch of the slowest worker, since the run waits for it.
            Some(epochs) => {
                let epoch = self.shares.values().map(|share| share.epoch).min().unwrap_or(1);
                format!("epoch {epoch} of {epochs}, {step}")
            }
            None => step,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn started(worker: u32, from: u64, steps: Option<u64>, epochs: Option<u64>) -> Started {
        Started {
            worker,
            chief: worker == 0,
            batches: 10,
            batch_size: 1,
            accumulate: 1,
            towers: 1,
            left_out: 0,
            from,
            steps,
            epochs,
            threads: 1,
            transports: Vec::new(),
        }
    }

    fn step(worker: u32, local_step: u64, global_step: u64) -> Step {
        Step {
            time: 0.0,
            worker,
            local_step,
            global_step,
            epoch: local_step / 10 + 1,
            batch: 1,
            batches: 10,
            loss: Some(1.0),
            step_ms: 1.0,
        }
    }

    #[test]
    fn a_run_by_steps_is_as_far_as_its_global_step() {
        let mut extent = Extent::default();
        extent.started(&started(0, 0, Some(200), None));
        extent.started(&started(1, 0, Some(200), None));
        extent.moved(&step(0, 10, 30));
        extent.moved(&step(1, 20, 29));
        assert_eq!((extent.fraction(), extent.place().as_str()), (Some(0.15), "step 30 of 200"));
    }

    #[test]
    fn a_run_by_epochs_is_as_far_as_its_workers_together() {
        let mut extent = Extent::default();
        extent.started(&started(0, 0, None, Some(2)));
        extent.started(&started(1, 0, None, Some(2)));
        extent.moved(&step(0, 15, 20));
        extent.moved(&step(1, 5, 20));
        assert_eq!((extent.fraction(), extent.place().as_str()), (Some(0.5), "epoch 1 of 2, step 20"));
    }

    #[test]
    fn nobody_waits_for_the_epochs_of_a_worker_that_has_left() {
        let mut extent = Extent::default();
        extent.started(&started(0, 0, None, Some(2)));
        extent.started(&started(1, 0, None, Some(2)));
        extent.moved(&step(0, 10, 15));
        extent.moved(&step(1, 5, 15));
        extent.left(1);
        assert_eq!(extent.fraction(), Some(0.6));
    }

    #[test]
    fn whichever_limit_is_nearer_counts() {
        let mut extent = Extent::default();
        extent.started(&started(0, 0, Some(1000), Some(2)));
        extent.moved(&step(0, 15, 15));
        assert_eq!(extent.fraction(), Some(0.75));
    }

    #[test]
    fn a_run_that_goes_back_to_a_checkpoint_is_no_further_than_that() {
        let mut extent = Extent::default();
        extent.started(&started(0, 0, Some(200), None));
        extent.moved(&step(0, 100, 100));
        extent.started(&started(0, 80, Some(200), None));
        assert_eq!(extent.fraction(), Some(0.4));
    }

    #[test]
    fn a_run_without_a_limit_has_no_fraction() {
        let mut extent = Extent::default();
        extent.started(&started(0, 0, None, None));
        extent.moved(&step(0, 7, 7));
        assert_eq!((extent.fraction(), extent.place().as_str()), (None, "step 7"));
    }
}
