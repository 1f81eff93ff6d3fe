//! Produces items ahead of their use on a separate thread.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Items that a thread makes ahead of their use, in order. Dropping this ends the thread after the item in progress,
/// without waiting for it: a disk may hang.
pub(crate) struct Prefetch<T>(Arc<Shared<T>>);

struct Shared<T> {
    state: Mutex<State<T>>,
    /// Signals that an item is ready, or that there will be no more.
    filled: Condvar,
    /// Signals that there is room, or that no more items will be taken.
    taken: Condvar,
}

struct State<T> {
    ready: VecDeque<T>,
    /// The most items that are ready at a time. The thread is woken only when half of them are left, not for each item.
    most: usize,
    /// Set when no more items will be taken.
    abandoned: bool,
    /// Set when no more items will come.
    ended: bool,
}

impl<T: Send + 'static> Prefetch<T> {
    /// Starts a thread with this name that makes items, `most` of them ahead. If `make` uses rayon, it computes on that
    /// thread only: the others train.
    pub(crate) fn start(name: &str, most: usize, make: impl FnMut() -> T + Send + 'static) -> io::Result<Self> {
        let state = State { ready: VecDeque::new(), most, abandoned: false, ended: false };
        let shared = Arc::new(Shared { state: Mutex::new(state), filled: Condvar::new(), taken: Condvar::new() });
        let filling = Filling(shared.clone());
        let pool = rayon::ThreadPoolBuilder::new().num_threads(1).thread_name(named(name));
        // A panic has been printed by then, and is reported as the end of the items. By default rayon would abort.
        let pool = pool.panic_handler(|_| {}).build().map_err(io::Error::other)?;
        pool.spawn(move || filling.run(make));
        Ok(Self(shared))
    }

    /// Returns the next item if it is ready within this time.
    pub(crate) fn next_within(&mut self, patience: Duration) -> Next<T> {
        let state = self.0.lock();
        let is_awaited = |state: &mut State<T>| state.ready.is_empty() && !state.ended;
        let waited = self.0.filled.wait_timeout_while(state, patience, is_awaited);
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        let next = match state.ready.pop_front() {
            Some(next) => Next::Ready(next),
            None if state.ended => Next::Panicked,
            None => Next::NotYet,
        };
        if state.ready.len() == state.most / 2 {
            self.0.taken.notify_one();
        }
        next
    }
}

/// The result of asking for the next item.
#[derive(Debug, PartialEq)]
pub(crate) enum Next<T> {
    /// The item.
    Ready(T),
    /// The item is still being made.
    NotYet,
    /// The thread has panicked, and there will be no more.
    Panicked,
}

impl<T> Drop for Prefetch<T> {
    fn drop(&mut self) {
        self.0.lock().abandoned = true;
        self.0.taken.notify_one();
    }
}

impl<T> Shared<T> {
    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Marks the end of the thread, even after a panic, and wakes the consumer.
struct Filling<T>(Arc<Shared<T>>);

impl<T> Filling<T> {
    fn run(self, mut make: impl FnMut() -> T) {
        loop {
            let made = make();
            let mut state = self.0.lock();
            state.ready.push_back(made);
            self.0.filled.notify_one();
            if state.ready.len() >= state.most {
                while state.ready.len() > state.most / 2 && !state.abandoned {
                    state = self.0.taken.wait(state).unwrap_or_else(PoisonError::into_inner);
                }
            }
            if state.abandoned {
                return;
            }
        }
    }
}

impl<T> Drop for Filling<T> {
    fn drop(&mut self) {
        self.0.lock().ended = true;
        self.0.filled.notify_one();
    }
}

fn named(name: &str) -> impl FnMut(usize) -> String + 'static {
    let name = name.to_owned();
    move |_| name.clone()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc;

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn things_come_in_order_and_only_a_few_are_made_ahead() {
        let (allowed, may_make) = mpsc::channel();
        let (made, counted) = mpsc::channel();
        let mut next = 0..;
        let mut prefetch = Prefetch::start("numbers", 4, move || {
            may_make.recv().unwrap();
            let number = next.next().unwrap();
            made.send(number).unwrap();
            number
        })
        .unwrap();
        assert_eq!(prefetch.next_within(Duration::ZERO), Next::NotYet);
        (0..100).for_each(|_| allowed.send(()).unwrap());
        // The thread makes these and sleeps.
        let first: Vec<i32> = (0..4).map(|_| counted.recv().unwrap()).collect();
        assert_eq!(first, [0, 1, 2, 3]);
        for number in 0..100 {
            assert_eq!(prefetch.next_within(LONG), Next::Ready(number));
            assert!(counted.try_iter().all(|made| made <= number + 5));
        }
    }

    #[test]
    fn a_thread_that_nobody_takes_from_ends() {
        struct Flag(mpsc::Sender<()>);
        impl Drop for Flag {
            fn drop(&mut self) {
                let _ = self.0.send(());
            }
        }
        let (sender, ended) = mpsc::channel();
        let flag = Flag(sender);
        let prefetch = Prefetch::start("idle", 4, move || std::mem::size_of_val(&flag)).unwrap();
        drop(prefetch);
        ended.recv().unwrap();
    }

    #[test]
    fn what_was_made_before_a_panic_is_there_and_then_nothing() {
        let count = AtomicUsize::new(0);
        let mut prefetch = Prefetch::start("clumsy", 4, move || {
            let made = count.fetch_add(1, Ordering::Relaxed);
            if made == 2 {
                // Unwinds like a panic, without its message on the terminal.
                std::panic::resume_unwind(Box::new("clumsy"));
            }
            made
        })
        .unwrap();
        assert_eq!([0; 3].map(|_| prefetch.next_within(LONG)), [Next::Ready(0), Next::Ready(1), Next::Panicked]);
    }
}
