//! Judges whether a run learns, by its training losses alone: compared with chance, with the first losses, and with the
//! best so far.
//!
//! It only judges. What to try is in [`advice`]; the worker decides whom to warn, and when.

pub mod advice;
#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};

/// Losses that are judged together, so that no single batch decides anything.
const BLOCK: u32 = 20;
/// A single loss counts as at most this many times the ceiling, so that it takes several for a block to blow up.
const CLIP: f64 = 4.0;
/// A loss this many times the ceiling has blown up: nothing is being learned. Healthy runs of the built-in models stay
/// below 1.
const BLOWN_UP: f64 = 1.25;
/// The same limit where chance is not known and the ceiling itself is a guess.
const BLOWN_UP_WITHOUT_CHANCE: f64 = 2.0;
/// A loss that has blown up has recovered when it is below this share of the ceiling.
const RECOVERED: f64 = 0.25;
/// A loss below this share of the untrained loss means that something was learned, which can be lost again.
const LEARNED: f64 = 0.8;
/// The share of the progress that may be lost.
const LOST: f64 = 0.5;
/// The number of consecutive blocks for which progress must be lost.
const BLOCKS_LOST: u32 = 3;
/// The step of the first check for a loss that does not move. The next check is at twice as many steps, and so on.
const FIRST_LOOK: u64 = 400;
/// A loss below this share of the untrained loss has moved.
const MOVED: f64 = 0.97;
/// A loss that fell by this share of itself from one half to the next is still moving.
const MOVING: f64 = 0.005;
/// Gradients that are at least this many updates old on average may be why little is learned.
const STALE: f64 = 2.0;
/// With stale gradients, a loss above this share of chance that fell by less than [`BRISK`] means slow learning.
const LITTLE: f64 = 0.25;
/// A loss that fell by this share of itself from one half to the next is falling well.
const BRISK: f64 = 0.15;
/// If the loss at chance is unknown, the ceiling is the largest of this many first losses.
const FIRST_LOSSES: u64 = 10;

/// What can be wrong with a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Trouble {
    /// The loss has grown far above its best, or above what it was before training.
    Diverging,
    /// The loss stays where it was before training.
    NotLearning,
    /// Gradients are stale, and the loss is still a large part of that of a guess and hardly falls.
    LearningSlowly,
}

/// What is wrong with a run, in numbers. All losses are smoothed, but not scaled.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Finding {
    /// The kind of trouble.
    pub trouble: Trouble,
    /// The global step at which it was found.
    #[serde(rename = "global_step")]
    pub step: u64,
    /// The loss at that step.
    pub loss: f64,
    /// The best loss so far.
    pub best: f64,
    /// The step of the best loss.
    pub best_step: u64,
    /// The first loss, unless the run resumes from a checkpoint.
    pub start: Option<f64>,
    /// The loss of a guess, if the model knows it.
    pub chance: Option<f64>,
}

/// Watches the losses of one worker.
#[derive(Debug, Clone)]
pub struct Learning {
    chance: Option<f64>,
    /// Whether the first losses are those of an untrained network.
    from_start: bool,
    observed: u64,
    /// The largest of the first losses; if chance is known, only the very first.
    first: f64,
    /// The losses of the open block, unclipped for messages and clipped for the verdict.
    block: [Mean; 2],
    start: Option<f64>,
    /// The mean of the last complete block, and its step.
    recent: Option<(f64, u64)>,
    best: Option<(f64, u64)>,
    /// For how many consecutive blocks progress has been lost.
    lost: u32,
    blown_up: bool,
    /// The halves that are compared at the next check.
    halves: [Mean; 2],
    next_look: u64,
    /// The total staleness of all gradients, in updates.
    staleness: u64,
    finding: Option<Finding>,
    told: Vec<Trouble>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Mean {
    sum: f64,
    count: u32,
}

impl Mean {
    fn add(&mut self, value: f64) {
        self.sum += value;
        self.count += 1;
    }

    fn value(&self) -> f64 {
        self.sum / f64::from(self.count.max(1))
    }
}

impl Learning {
    /// Starts watching after this global step. `chance` is the loss of a guess, if the model knows it.
    pub fn new(chance: Option<f64>, step: u64) -> Self {
        Self {
            chance,
            from_start: step == 0,
            observed: 0,
            first: f64::NEG_INFINITY,
            block: [Mean::default(); 2],
            start: None,
            recent: None,
            best: None,
            lost: 0,
            blown_up: false,
            halves: [Mean::default(); 2],
            next_look: FIRST_LOOK,
            staleness: 0,
            finding: None,
            told: Vec::new(),
        }
    }

    /// Records the loss of a step and how many updates old its gradient was. Returns each kind of problem once, when it
    /// is found.
    pub fn observe(&mut self, step: u64, loss: f64, staleness: u64) -> Option<Finding> {
        if !loss.is_finite() {
            return None; // That ends a run by itself.
        }
        self.observed += 1;
        self.staleness += staleness;
        if self.observed <= if self.chance.is_some() { 1 } else { FIRST_LOSSES } {
            self.first = self.first.max(loss);
        }
        let clipped = loss.min(self.ceiling().abs() * CLIP);
        self.block[0].add(loss);
        self.block[1].add(clipped);
        if self.block[0].count == BLOCK {
            let [mean, clipped] = std::mem::take(&mut self.block).map(|block| block.value());
            self.close_block(step, mean, clipped);
        }
        self.compare_halves(step, clipped);
        let news = self.finding.filter(|finding| !self.told.contains(&finding.trouble))?;
        self.told.push(news.trouble);
        Some(news)
    }

    /// The current problem as of the last complete block, if any; `None` if the run has recovered.
    pub fn finding(&self) -> Option<Finding> {
        let (finding, (loss, step)) = (self.finding?, self.recent?);
        Some(self.found(finding.trouble, step, loss))
    }

    /// How many updates old the gradients were, on average.
    pub fn mean_staleness(&self) -> f64 {
        self.staleness as f64 / self.observed.max(1) as f64
    }

    /// The loss of a network that has learned nothing.
    fn untrained(&self) -> Option<f64> {
        self.chance.or(self.start)
    }

    /// A network with a loss above this is worse than one that has learned nothing.
    fn ceiling(&self) -> f64 {
        self.chance.map_or(self.first, |chance| chance.max(self.first))
    }

    fn close_block(&mut self, step: u64, mean: f64, clipped: f64) {
        if self.from_start {
            self.start.get_or_insert(mean);
        }
        self.recent = Some((mean, step));
        let before = self.best.map(|(best, _)| best);
        if before.is_none_or(|best| mean < best) {
            self.best = Some((mean, step));
        }
        let ceiling = self.ceiling();
        let blown_up = if self.chance.is_some() { BLOWN_UP } else { BLOWN_UP_WITHOUT_CHANCE };
        self.blown_up |= clipped > ceiling + (blown_up - 1.0) * ceiling.abs();
        let untrained = self.chance.or(self.start.map(|_| ceiling));
        let is_lost = before.zip(untrained).is_some_and(|(best, untrained)| {
            best < untrained - (1.0 - LEARNED) * untrained.abs() && clipped > best + LOST * (untrained - best)
        });
        self.lost = if is_lost { self.lost + 1 } else { 0 };
        if self.blown_up && mean < RECOVERED * ceiling {
            self.blown_up = false;
        }
        if self.blown_up || self.lost >= BLOCKS_LOST {
            // Many divergences end in staying at chance.
            if !self.is_found(Trouble::NotLearning) && !self.is_found(Trouble::Diverging) {
                self.finding = Some(self.found(Trouble::Diverging, step, mean));
            }
        } else if self.is_found(Trouble::Diverging) {
            self.finding = None;
        }
        // A loss that did not move, or hardly moved, has moved since.
        let below = |share: f64| self.untrained().is_some_and(|loss| mean < loss - (1.0 - share) * loss.abs());
        let moved = match self.finding.map(|finding| finding.trouble) {
            Some(Trouble::NotLearning) => below(LEARNED),
            Some(Trouble::LearningSlowly) => below(LITTLE),
            _ => false,
        };
        if moved {
            self.finding = None;
        }
    }

    /// Compares the second quarter of the steps up to a check with the second half: even the loss of a network that
    /// learns slowly falls from one to the other, however far above chance it began.
    fn compare_halves(&mut self, step: u64, loss: f64) {
        let look = self.next_look;
        if self.observed > look / 4 {
            self.halves[usize::from(self.observed > look / 2)].add(loss);
        }
        if self.observed < look {
            return;
        }
        let [before, now] = std::mem::take(&mut self.halves).map(|half| half.value());
        // The second half of this check is the second quarter of the next.
        self.halves[0] = Mean { sum: now * (look / 2) as f64, count: (look / 2) as u32 };
        self.next_look = look * 2;
        let still = now > before - MOVING * before.abs();
        // A loss far above the ceiling has not stayed where it was: it diverges.
        let ceiling = self.ceiling();
        let untaught = now < ceiling + (BLOWN_UP - 1.0) * ceiling.abs()
            && self.untrained().is_some_and(|untrained| now > untrained - (1.0 - MOVED) * untrained.abs());
        if still && untaught {
            self.finding = Some(self.found(Trouble::NotLearning, step, now));
        } else if self.finding.is_none() && self.is_slow(before, now) {
            self.finding = Some(self.found(Trouble::LearningSlowly, step, now));
        }
    }

    /// Judged only if gradients are stale: otherwise a hard task is the likeliest reason. And only if the run began
    /// near chance: otherwise it has to get there first.
    fn is_slow(&self, before: f64, now: f64) -> bool {
        self.chance.is_some_and(|chance| {
            let began_at_chance = self.first <= BLOWN_UP * chance;
            began_at_chance && now > LITTLE * chance && now < chance && now > (1.0 - BRISK) * before
        }) && self.mean_staleness() >= STALE
    }

    fn is_found(&self, trouble: Trouble) -> bool {
        self.finding.is_some_and(|finding| finding.trouble == trouble)
    }

    fn found(&self, trouble: Trouble, step: u64, loss: f64) -> Finding {
        let (best, best_step) = self.best.unwrap_or((loss, step));
        Finding { trouble, step, loss, best, best_step, start: self.start, chance: self.chance }
    }
}
