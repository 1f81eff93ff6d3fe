//! Describes a learning problem in words, and what the user can try in this situation.

use super::{Finding, Trouble};
use crate::consistency::Mode;

/// The circumstances that decide which advice helps.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Situation {
    /// How pushes become updates.
    pub mode: Mode,
    /// How many workers take part, if that is known in advance.
    pub workers: Option<u32>,
    /// The current learning rate.
    pub learning_rate: f32,
    /// Whether the rate of a push is already divided by its staleness.
    pub staleness_scaling: bool,
    /// The mean number of updates between reading parameters and pushing their gradient.
    pub mean_staleness: f64,
}

impl Situation {
    /// The number of workers that make each other's gradients stale, if any.
    fn stale_workers(&self) -> Option<u32> {
        // Between two pushes of one worker, each of the others makes about one.
        let workers = self.workers.unwrap_or(1 + self.mean_staleness.round() as u32);
        (workers > 1 && !matches!(self.mode, Mode::Sync { .. })).then_some(workers)
    }
}

/// Describes the problem in one sentence.
pub fn describe(finding: &Finding, situation: &Situation) -> String {
    let Finding { trouble, step, loss, best, best_step, start, chance } = *finding;
    let mut told = match trouble {
        Trouble::Diverging => format!("training diverges: at step {} the loss is {loss:.2}", count(step)),
        Trouble::LearningSlowly => format!("the run learns slowly: at step {} the loss is {loss:.2}", count(step)),
        Trouble::NotLearning => format!("the run is not learning: at step {} the loss is {loss:.2}", count(step)),
    };
    let mut facts = Vec::new();
    if best < loss {
        facts.push(format!("its best was {best:.2} at step {}", count(best_step)));
    }
    match (chance, start) {
        (Some(chance), _) => facts.push(format!("chance is {chance:.2}")),
        (None, Some(start)) => facts.push(format!("it began at {start:.2}")),
        (None, None) => {}
    }
    if situation.stale_workers().is_some() {
        facts.push(format!("gradients are {:.1} updates old on average", situation.mean_staleness));
    }
    if !facts.is_empty() {
        told += &format!(" ({})", facts.join("; "));
    }
    told
}

/// Suggests what to try, the best first.
pub fn advise(finding: &Finding, situation: &Situation) -> String {
    let Situation { learning_rate, staleness_scaling, .. } = *situation;
    if learning_rate == 0.0 {
        return "the learning rate is 0: set --learning-rate or another --learning-rate-schedule".to_owned();
    }
    if let Some(workers) = situation.stale_workers() {
        let scaling = if staleness_scaling { "" } else { "--staleness-scaling, " };
        let smaller = rate(learning_rate / workers as f32);
        return format!(
            "{workers} workers compute on old parameters: try --mode sync, {scaling}or --learning-rate {smaller}"
        );
    }
    let smaller = rate(learning_rate / 10.0);
    match finding.trouble {
        Trouble::Diverging => format!("the learning rate may be too large: try --learning-rate {smaller}"),
        Trouble::NotLearning | Trouble::LearningSlowly => format!(
            "the learning rate may be too large or too small: try --learning-rate {smaller} or {}, and check the data",
            rate(learning_rate * 10.0)
        ),
    }
}

/// Formats a rate with two significant digits.
fn rate(rate: f32) -> String {
    let written: f32 = format!("{rate:.1e}").parse().unwrap_or(rate);
    if (1e-4..1e4).contains(&written) { written.to_string() } else { format!("{written:e}") }
}

/// Formats a number with thousands separators.
fn count(number: u64) -> String {
    let digits = number.to_string();
    let groups = digits.as_bytes().rchunks(3).rev().map(|group| String::from_utf8_lossy(group).into_owned());
    groups.collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALONE: Situation = Situation {
        mode: Mode::Async,
        workers: Some(1),
        learning_rate: 0.01,
        staleness_scaling: false,
        mean_staleness: 0.0,
    };
    const SIXTEEN: Situation = Situation { workers: Some(16), mean_staleness: 15.2, ..ALONE };

    fn finding(trouble: Trouble) -> Finding {
        Finding { trouble, step: 12_345, loss: 2.3, best: 0.41, best_step: 1200, start: Some(2.4), chance: Some(2.303) }
    }

    #[test]
    fn a_divergence_is_told_in_numbers() {
        assert_eq!(
            describe(&finding(Trouble::Diverging), &SIXTEEN),
            "training diverges: at step 12,345 the loss is 2.30 (its best was 0.41 at step 1,200; chance is 2.30; \
             gradients are 15.2 updates old on average)"
        );
    }

    #[test]
    fn what_is_not_known_is_not_told() {
        let unknown = Finding { start: None, chance: None, best: 2.3, ..finding(Trouble::NotLearning) };
        assert_eq!(describe(&unknown, &ALONE), "the run is not learning: at step 12,345 the loss is 2.30");
        let began = Finding { chance: None, ..finding(Trouble::Diverging) };
        assert!(describe(&began, &ALONE).ends_with("(its best was 0.41 at step 1,200; it began at 2.40)"));
    }

    #[test]
    fn many_workers_are_advised_to_wait_for_each_other_or_to_go_slower() {
        let advice = advise(&finding(Trouble::NotLearning), &SIXTEEN);
        assert!(advice.ends_with("try --mode sync, --staleness-scaling, or --learning-rate 0.00062"), "{advice}");
        assert_eq!(advise(&finding(Trouble::NotLearning), &Situation { workers: None, ..SIXTEEN }), advice);
        let scaled = Situation { staleness_scaling: true, ..SIXTEEN };
        assert!(!advise(&finding(Trouble::Diverging), &scaled).contains("--staleness-scaling"));
    }

    #[test]
    fn a_run_without_stale_gradients_is_advised_on_its_rate() {
        let sync = Situation { mode: Mode::Sync { replicas_to_aggregate: None }, workers: Some(4), ..ALONE };
        for situation in [ALONE, sync] {
            let advice = advise(&finding(Trouble::Diverging), &situation);
            assert_eq!(advice, "the learning rate may be too large: try --learning-rate 0.001");
        }
        let still = advise(&finding(Trouble::NotLearning), &ALONE);
        assert!(still.contains("try --learning-rate 0.001 or 0.1"), "{still}");
        let zero = Situation { learning_rate: 0.0, ..SIXTEEN };
        assert!(advise(&finding(Trouble::NotLearning), &zero).starts_with("the learning rate is 0"));
    }

    #[test]
    fn rates_are_written_as_people_write_them() {
        assert_eq!([0.01 / 16.0, 0.5, 3e-7, 20.0].map(rate), ["0.00062", "0.5", "3e-7", "20"]);
    }
}
