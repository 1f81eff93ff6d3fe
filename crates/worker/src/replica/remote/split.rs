//! A step whose batch is split: every share is computed by a worker that is alive, its own if possible. The seats of all
//! workers that compute are locked for as long as they do.

use std::sync::MutexGuard;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};
use windlass_core::parameter::ParameterTable;
use windlass_wire::compute::{self, ComputeError, Reply, Request};

use super::CrewError;
use super::crew::{AskError, Crew, size};
use super::seat::{Link, Seat, SeatState};
use super::share::{Prepared, Share, Values, accepted, not_finite};
use crate::buffer::TensorBuffer;
use crate::joined::protocol::{Answer, Ask, PING_EVERY, answer_limits, read, request_limits, written};
use crate::replica::StepResult;

/// The number of times, per worker of the crew, that a share may be lost with its worker. That many cannot be chance.
const MOST_LOSSES: usize = 5;

/// A share that is to be computed, preferably by this worker, with the rows that it needs.
pub(crate) struct Job<'a> {
    pub(crate) preferred: usize,
    pub(crate) share: &'a Share,
    pub(crate) rows: Vec<TensorBuffer>,
}

impl Crew {
    /// Computes all of these shares, each on a worker that is alive.
    pub(crate) fn compute(
        &self,
        table: &ParameterTable,
        values: &Values,
        jobs: &[Job<'_>],
        is_stopped: &dyn Fn() -> bool,
    ) -> anyhow::Result<Vec<StepResult>> {
        let mut results: Vec<Option<StepResult>> = jobs.iter().map(|_| None).collect();
        let mut losses = vec![0; jobs.len()];
        while results.iter().any(Option::is_none) {
            let open: Vec<usize> = (0..jobs.len()).filter(|job| results[*job].is_none()).collect();
            let changes = self.shared.changes();
            let (mut hands, others_are_busy) = self.hands(jobs, &open, is_stopped);
            if hands.is_empty() {
                match others_are_busy {
                    true if is_stopped() => return Err(CrewError::Interrupted.into()),
                    true => self.shared.await_change(changes),
                    false => self.shared.wait(is_stopped, |absent| absent.len() < self.len())?,
                }
                continue;
            }
            let replies = self.asked(table, values, jobs, &mut hands, is_stopped)?;
            for (hand, reply) in hands.iter_mut().zip(&replies) {
                if matches!(reply, Err(ComputeError::Stopped)) {
                    // The pending answer would be mistaken for the answer to the next request.
                    hand.state.link.iter_mut().for_each(|link| link.owes = true);
                }
            }
            for (hand, reply) in hands.iter_mut().zip(replies) {
                let (seat, share) = (&self.shared.seats[hand.seat], jobs[hand.job].share);
                match self.judged(seat, table, share, reply) {
                    Ok((result, micros)) => {
                        if let Some(what) = not_finite(table, &result) {
                            return Err(CrewError::NotFinite { worker: seat.to_string(), what }.into());
                        }
                        let mut counts = seat.counts();
                        counts.steps += 1;
                        counts.computed(share.samples, Duration::from_micros(micros));
                        drop(counts);
                        seat.measured(share.samples, micros);
                        results[hand.job] = Some(result);
                        let link = hand.state.link.as_ref();
                        if let Some(why) = link.and_then(|link| link.connection.broken()).map(ToString::to_string) {
                            self.shared.lost(seat, &mut hand.state, why);
                        }
                    }
                    Err(AskError::Model(reason)) => return Err(anyhow!("{seat}: {reason}")),
                    Err(AskError::Stopped) => return Err(CrewError::Interrupted.into()),
                    Err(AskError::Worker(reason)) => {
                        self.shared.lost(seat, &mut hand.state, reason.clone());
                        losses[hand.job] += 1;
                        if losses[hand.job] == MOST_LOSSES * self.len() {
                            let times = losses[hand.job];
                            let why =
                                format!("the same share was lost {times} times, the last time with {seat}: {reason}");
                            return Err(CrewError::Unreliable(why).into());
                        }
                    }
                }
            }
            drop(hands);
            self.shared.note_change();
        }
        Ok(results.into_iter().flatten().collect())
    }

    /// Assigns shares to workers: at most one to each living worker, its own if that is still open, unless the worker
    /// computes for another replica of this process, or does not answer a ping. Also returns whether any worker is busy
    /// in this way: they are waited for only if no other is present.
    fn hands<'a>(&'a self, jobs: &[Job<'_>], open: &[usize], is_stopped: &dyn Fn() -> bool) -> (Vec<Hand<'a>>, bool) {
        let mut hands: Vec<Hand<'a>> = Vec::new();
        let mut others: Vec<usize> = Vec::new();
        let mut others_are_busy = false;
        let seats = &self.shared.seats;
        let mut hand = |seat: usize, job: usize, state: Option<MutexGuard<'a, SeatState>>| {
            others_are_busy |= state.is_none();
            let state = state.filter(|state| state.is_ready())?;
            Some(Hand::new(&seats[seat], (seat, job), state))
        };
        for job in open {
            let preferred = jobs[*job].preferred;
            match hand(preferred, *job, seats[preferred].lock_if_free(is_stopped)) {
                Some(hand) => hands.push(hand),
                None => others.push(*job),
            }
        }
        for job in others {
            // The search begins after the preferred worker, so that several such shares do not all go to the first
            // worker.
            let after = (1..self.len()).map(|step| (jobs[job].preferred + step) % self.len());
            let mut free = after.filter(|seat| hands.iter().all(|hand| hand.seat != *seat));
            let found = free.find_map(|seat| hand(seat, job, seats[seat].try_lock()));
            hands.extend(found);
        }
        (hands, others_are_busy)
    }

    /// Sends all requests at once and waits for the replies.
    fn asked(
        &self,
        table: &ParameterTable,
        values: &Values,
        jobs: &[Job<'_>],
        hands: &mut [Hand<'_>],
        is_stopped: &dyn Fn() -> bool,
    ) -> anyhow::Result<Vec<Reply>> {
        let limits = answer_limits(table);
        let mut links: Vec<(&mut Link, usize, &Seat)> = hands
            .iter_mut()
            .filter_map(|hand| Some((hand.state.link.as_mut()?, hand.job, &self.shared.seats[hand.seat])))
            .collect();
        let seats: Vec<&Seat> = links.iter().map(|(_, _, seat)| *seat).collect();
        let prepared: Vec<Prepared<'_>> = links
            .iter_mut()
            .map(|(link, job, _)| Prepared::new(values, &jobs[*job].rows, jobs[*job].share, &mut link.has))
            .collect();
        let lengths: Vec<Vec<[usize; 1]>> = prepared.iter().map(Prepared::lengths).collect();
        let requests =
            links.into_iter().zip(&prepared).zip(&lengths).map(|(((link, job, seat), prepared), lengths)| {
                link.spoken = Instant::now();
                let (head, sections) = (prepared.head.clone(), prepared.sections(lengths));
                let samples = jobs[job].share.samples;
                let fits = request_limits(table).check(&head, &sections);
                fits.with_context(|| {
                    format!("a share of {samples} samples is too large, use a smaller --batch-size or more workers")
                })?;
                seat.counts().asks(size(&head, &sections));
                Ok(Request { connection: &mut link.connection, head, sections, limits })
            });
        let requests = requests.collect::<anyhow::Result<Vec<_>>>()?;
        let (wait, heard) = (written(&Ask::Wait), |index: usize, heard| seats[index].counts().heard(heard));
        let replies = compute::exchange(requests, self.shared.waiting(is_stopped, &heard, Some((&wait, PING_EVERY))));
        for (seat, reply) in seats.iter().zip(&replies) {
            reply.iter().for_each(|message| seat.counts().answered(message.size()));
        }
        Ok(replies)
    }

    fn judged(
        &self,
        seat: &Seat,
        table: &ParameterTable,
        share: &Share,
        reply: Reply,
    ) -> Result<(StepResult, u64), AskError> {
        let message = reply.map_err(|error| match error {
            ComputeError::Stopped => AskError::Stopped,
            error => AskError::Worker(error.to_string()),
        })?;
        match read(&message.head) {
            Ok(Answer::Stepped(mut answer)) => {
                answer.usage.take().into_iter().for_each(|usage| seat.counts().uses(*usage));
                let result = accepted(table, share, &answer, message.sections).map_err(AskError::Worker)?;
                Ok((result, answer.micros))
            }
            Ok(Answer::Failed { reason }) => Err(AskError::Model(reason)),
            Ok(_) => Err(AskError::Worker("it did not answer what it was asked".to_owned())),
            Err(error) => Err(AskError::Worker(error.to_string())),
        }
    }
}

/// A worker with something to compute.
struct Hand<'a> {
    seat: usize,
    job: usize,
    state: MutexGuard<'a, SeatState>,
    at: &'a Seat,
}

impl<'a> Hand<'a> {
    fn new(at: &'a Seat, (seat, job): (usize, usize), state: MutexGuard<'a, SeatState>) -> Self {
        at.set_computing(true);
        Self { seat, job, state, at }
    }
}

impl Drop for Hand<'_> {
    fn drop(&mut self) {
        self.at.set_computing(false);
    }
}
