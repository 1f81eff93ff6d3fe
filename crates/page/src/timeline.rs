//! The latest events of a run: a bounded list.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

/// The maximum number of events kept.
const MOST_EVENTS: usize = 100;

/// The latest events of a run, oldest first.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Timeline {
    events: VecDeque<Event>,
    /// How many older events were dropped.
    forgotten: u64,
}

/// An event.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Event {
    /// The time of the event, in seconds since the run began.
    pub at_secs: f64,
    /// The kind of event.
    pub kind: EventKind,
    /// The event in words: `worker 3 joined`.
    pub what: String,
}

/// Kinds of events.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EventKind {
    /// A task joined or rejoined.
    Joined,
    /// A task finished its work.
    Finished,
    /// A task was declared dead.
    DeclaredDead,
    /// The run rolled back to a checkpoint.
    RolledBack,
    /// A checkpoint was saved.
    Saved,
    /// The run entered another phase.
    Phase,
    /// Something went wrong that the run survives, such as a failed checkpoint.
    Warning,
}

impl Timeline {
    /// A timeline from which this many events have already been dropped.
    pub fn after(forgotten: u64) -> Self {
        Self { events: VecDeque::new(), forgotten }
    }

    /// Adds an event, and drops the oldest one if there are too many.
    pub fn push(&mut self, event: Event) {
        self.events.push_back(event);
        while self.events.len() > MOST_EVENTS {
            self.events.pop_front();
            self.forgotten = self.forgotten.saturating_add(1);
        }
    }

    /// The events that are kept, oldest first.
    pub fn events(&self) -> impl DoubleEndedIterator<Item = &Event> {
        self.events.iter()
    }

    /// How many older events were dropped.
    pub fn forgotten(&self) -> u64 {
        self.forgotten
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_events_are_forgotten_and_counted() {
        let mut timeline = Timeline::default();
        for second in 0..250 {
            timeline.push(Event { at_secs: f64::from(second), kind: EventKind::Saved, what: String::new() });
        }
        assert_eq!((timeline.events().count(), timeline.forgotten()), (MOST_EVENTS, 150));
        assert_eq!(timeline.events().next().unwrap().at_secs, 150.0);
    }
}
