//! How a gradient changes values: one fused pass over plain slices, one file per optimizer. The state ("slots") is kept
//! by the caller, who also decides when to apply and counts the steps.

use std::fmt;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::vector::vectorised;

mod adagrad;
mod adam;
mod momentum;
mod rmsprop;
mod sgd;
#[cfg(test)]
mod tests;
mod tiny;

pub use adagrad::Adagrad;
pub use adam::{Adam, AdamW};
pub use momentum::Momentum;
pub use rmsprop::RmsProp;
use sgd::Sgd;
pub(crate) use tiny::flush;

/// The largest number of slots of any optimizer.
pub const MAX_SLOTS: usize = 2;

/// An optimizer's state besides the values; each slot is as long as the values. Slots from [`Optimizer::slots`] on are
/// ignored and may be empty.
pub type Slots<'a> = [&'a mut [f32]; MAX_SLOTS];

/// One application of a gradient.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Update {
    /// The learning rate.
    pub learning_rate: f32,
    /// How many updates these values will have had, this one included; the first is 1.
    pub step: u64,
    /// A factor for the gradient: 1/k for the mean of k summed gradients.
    pub scale: f32,
}

/// An optimizer and its constants, chosen once for a run. Serialised as a map with its `name`; omitted constants take
/// their defaults.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(tag = "name", rename_all = "lowercase")]
pub enum Optimizer {
    /// Plain gradient descent: `p -= lr·g`.
    Sgd,
    /// Gradient descent with a velocity.
    Momentum(Momentum),
    /// Steps that shrink with the squares of all gradients so far.
    Adagrad(Adagrad),
    /// Bias-corrected moving averages of the gradient and its square.
    Adam(Adam),
    /// Adam with weight decay decoupled from the gradient.
    AdamW(AdamW),
    /// Steps divided by the root of a moving average of squared gradients.
    RmsProp(RmsProp),
}

impl Optimizer {
    /// Every optimizer with its usual constants.
    pub fn all() -> [Self; 6] {
        [
            Optimizer::Sgd,
            Optimizer::Momentum(Momentum::default()),
            Optimizer::Adagrad(Adagrad::default()),
            Optimizer::Adam(Adam::default()),
            Optimizer::AdamW(AdamW::default()),
            Optimizer::RmsProp(RmsProp::default()),
        ]
    }

    /// The optimizer of that name, with its usual constants.
    pub fn named(name: &str) -> Result<Self, UnknownOptimizer> {
        Self::all()
            .into_iter()
            .find(|optimizer| optimizer.name() == name)
            .ok_or_else(|| UnknownOptimizer { name: name.to_owned() })
    }

    /// The name in flags, files and messages.
    pub fn name(&self) -> &'static str {
        match self {
            Optimizer::Sgd => "sgd",
            Optimizer::Momentum(_) => "momentum",
            Optimizer::Adagrad(_) => "adagrad",
            Optimizer::Adam(_) => "adam",
            Optimizer::AdamW(_) => "adamw",
            Optimizer::RmsProp(_) => "rmsprop",
        }
    }

    /// The number of slots it keeps for each value; at most [`MAX_SLOTS`].
    pub fn slots(&self) -> usize {
        self.rule().slot_names().len()
    }

    /// The value of a slot before the first update.
    pub fn slot_initial(&self, slot: usize) -> f32 {
        self.rule().slot_initial(slot)
    }

    /// The name of a slot in files, such as `velocity`.
    ///
    /// # Panics
    /// Panics if there is no such slot.
    pub fn slot_name(&self, slot: usize) -> &'static str {
        self.rule().slot_names()[slot]
    }

    /// Updates the values, and their slots, by one gradient.
    ///
    /// # Panics
    /// Panics if the lengths differ or the step is 0. Data from the network has been checked before.
    pub fn apply(&self, update: &Update, values: &mut [f32], slots: Slots<'_>, gradient: &[f32]) {
        assert_eq!(values.len(), gradient.len(), "a gradient is as long as its values");
        for slot in &slots[..self.slots()] {
            assert_eq!(values.len(), slot.len(), "a slot is as long as its values");
        }
        assert!(update.step > 0, "steps count from 1");
        self.rule().apply(update, values, slots, gradient);
    }

    fn rule(&self) -> &dyn Rule {
        match self {
            Optimizer::Sgd => &Sgd,
            Optimizer::Momentum(rule) => rule,
            Optimizer::Adagrad(rule) => rule,
            Optimizer::Adam(rule) => rule,
            Optimizer::AdamW(rule) => rule,
            Optimizer::RmsProp(rule) => rule,
        }
    }
}

impl fmt::Display for Optimizer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(self.name())
    }
}

/// A name that is not an [`Optimizer`].
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("unknown optimizer `{name}`: expected one of {}", Optimizer::all().map(|known| known.name()).join(", "))]
pub struct UnknownOptimizer {
    /// The name given.
    pub name: String,
}

/// The update rule of one optimizer. [`Optimizer::apply`] has checked the lengths.
///
/// Loops zip over slices and have no branches, so that they compile to vector instructions. They multiply and add
/// separately: without a guaranteed instruction for it `mul_add` is a slow call. The numbers that they read and write
/// are never denormal (see `tiny`).
trait Rule {
    /// The names of the slots; at most [`MAX_SLOTS`].
    fn slot_names(&self) -> &'static [&'static str];

    fn slot_initial(&self, _slot: usize) -> f32 {
        0.0
    }

    /// One pass over the slices, `#[inline(always)]`.
    fn pass(&self, update: &Update, values: &mut [f32], slots: Slots<'_>, gradient: &[f32]);

    /// Like [`Rule::pass`], with the vector instructions of this processor.
    fn apply(&self, update: &Update, values: &mut [f32], slots: Slots<'_>, gradient: &[f32]) {
        vectorised(
            #[inline(always)]
            || self.pass(update, values, slots, gradient),
        );
    }
}
