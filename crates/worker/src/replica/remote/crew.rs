//! The joined workers of a run. Every share of a step is computed by a worker that is alive; a lost worker is called
//! repeatedly, and used again when it is back.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock};
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};
use windlass_core::lifecycle::{Outcome, exit_code};
use windlass_core::parameter::ParameterTable;
use windlass_instruments::{Site, Sites};
use windlass_wire::compute::{self, ComputeError, Limits, Reply, Request, Section, Tensor};

use super::CrewError;
use super::keeping::Shared;
use super::seat::{Link, Pace, Seat, SeatState};
use super::share::{Prepared, Share, Values, accepted, not_finite};
use crate::buffer::TensorBuffer;
use crate::joined::protocol::{
    Answer, Ask, Assignment, PING_EVERY, SIGN_OF_LIFE, answer_limits, read, request_limits, written,
};
use crate::replica::StepResult;
use crate::summary::JoinedSummary;

/// The number of times, per worker of the crew, that a share may be lost with its worker. That many cannot be chance.
const MOST_LOSSES: usize = 5;

/// The lower limit of [`CrewConfig::silence`]: a worker that computes reports every second, if all goes well.
pub(super) const LEAST_SILENCE: Duration = SIGN_OF_LIFE.saturating_mul(3);

/// The configuration of a crew.
#[derive(Debug, Clone)]
pub struct CrewConfig {
    /// The addresses of the workers.
    pub addresses: Vec<String>,
    /// What they are to compute.
    pub assignment: Assignment,
    /// A worker that is silent for this long while a request is pending is lost. At least three seconds.
    pub silence: Duration,
    /// How long to wait for absent workers before giving up.
    pub peer_timeout: Duration,
}

/// The joined workers of a run.
pub struct Crew {
    pub(super) shared: Arc<Shared>,
}

/// A share that is to be computed, preferably by this worker, with the rows that it needs.
pub(crate) struct Job<'a> {
    pub(crate) preferred: usize,
    pub(crate) share: &'a Share,
    pub(crate) rows: Vec<TensorBuffer>,
}

impl Crew {
    /// Starts calling the workers.
    pub fn call(config: CrewConfig) -> std::io::Result<Self> {
        let config = CrewConfig { silence: config.silence.max(LEAST_SILENCE), ..config };
        let addresses = config.addresses.iter().cloned();
        let seats = addresses
            .enumerate()
            .map(|(index, address)| Seat::new(index, address, config.assignment.placed.as_ref()))
            .collect();
        let (changes, changed) = (Mutex::new(0), Condvar::new());
        let (outcome, has_begun) = (OnceLock::new(), AtomicBool::new(false));
        let shared = Arc::new(Shared { config, seats, outcome, has_begun, changes, changed });
        for index in 0..shared.seats.len() {
            let shared = shared.clone();
            let keep = move || shared.keep(&shared.seats[index]);
            std::thread::Builder::new().name(format!("joined-{index}")).spawn(keep)?;
        }
        Ok(Self { shared })
    }

    /// The number of workers.
    pub fn len(&self) -> usize {
        self.shared.seats.len()
    }

    /// Whether there are no workers.
    pub fn is_empty(&self) -> bool {
        self.shared.seats.is_empty()
    }

    /// Waits until every worker that has something to compute has joined.
    pub fn gather(&self, is_stopped: &dyn Fn() -> bool) -> Result<(), CrewError> {
        self.shared.wait(is_stopped, |absent| absent.is_empty())?;
        self.shared.begin();
        Ok(())
    }

    /// How much work a worker can be given. Never waits.
    pub(crate) fn pace(&self, seat: usize) -> Pace {
        self.shared.seats[seat].pace()
    }

    /// Whether a worker is present, as far as that is known without waiting.
    pub(crate) fn is_present(&self, seat: usize) -> bool {
        self.shared.seats[seat].is_present()
    }

    /// The devices that a worker computes on, if it is present.
    pub(crate) fn devices(&self, seat: usize, is_stopped: &dyn Fn() -> bool) -> Vec<String> {
        let state = self.shared.seats[seat].lock_until(is_stopped);
        let devices = |state: &SeatState| state.link.as_ref().map(|link| link.capacity.devices.clone());
        state.and_then(|state| devices(&state)).unwrap_or_default()
    }

    /// What each worker has done, for the final summary. Never waits.
    pub fn tally(&self) -> Vec<JoinedSummary> {
        let told = |seat: &Seat| {
            let counts = seat.counts();
            let (sent_bytes, received_bytes) = counts.traffic();
            let (worker, joined) = (seat.to_string(), seat.joined());
            JoinedSummary { worker, steps: counts.steps, joined, sent_bytes, received_bytes }
        };
        self.shared.seats.iter().map(told).collect()
    }

    /// The status of a worker, as shown to observers of the run. Never waits.
    pub(crate) fn site(&self, seat: usize) -> Site {
        self.shared.seats[seat].site()
    }

    /// Returns a function for the current status of all workers that have something to compute.
    pub fn sites(&self) -> Sites {
        let shared = self.shared.clone();
        Arc::new(move || shared.seats.iter().filter(|seat| seat.is_needed).map(Seat::site).collect())
    }

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
                    Err(Trouble::Model(reason)) => return Err(anyhow!("{seat}: {reason}")),
                    Err(Trouble::Stopped) => return Err(CrewError::Interrupted.into()),
                    Err(Trouble::Worker(reason)) => {
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

    /// How many times a worker has joined, if it is present.
    pub(crate) fn joined(&self, seat: usize, is_stopped: &dyn Fn() -> bool) -> Option<u64> {
        let seat = &self.shared.seats[seat];
        let state = seat.lock_until(is_stopped)?;
        state.is_ready().then(|| seat.joined())
    }

    /// Counts a step that a worker took part in.
    pub(crate) fn count_step(&self, seat: usize) {
        self.shared.seats[seat].counts().steps += 1;
    }

    /// The name of a worker.
    pub(crate) fn name(&self, seat: usize) -> String {
        self.shared.seats[seat].to_string()
    }

    /// Asks one worker for something that no other can answer, because it depends on what this worker has been sent
    /// since it joined for the `joined`th time. The limits apply to both the request and the answer.
    pub(crate) fn ask(
        &self,
        (seat, joined): (usize, u64),
        (head, sections): (Vec<u8>, Vec<Section<'_>>),
        limits: Limits,
        is_stopped: &dyn Fn() -> bool,
    ) -> Result<(Answer, Vec<Tensor>), Trouble> {
        let seat = &self.shared.seats[seat];
        let mut state = seat.lock_until(is_stopped).ok_or(Trouble::Stopped)?;
        let why = state.why.clone();
        let is_same = seat.joined() == joined;
        let link = state.link.as_mut().filter(|link| is_same && !link.owes);
        let Some(link) = link else {
            return Err(Trouble::Worker(if is_same { why } else { "it has rejoined".to_owned() }));
        };
        limits.check(&head, &sections).map_err(|error| Trouble::Model(format!("it cannot be asked: {error}")))?;
        link.spoken = Instant::now();
        seat.counts().asks(size(&head, &sections));
        let (began, heard) = (Instant::now(), |_, heard| seat.counts().heard(heard));
        let request = Request { connection: &mut link.connection, head, sections, limits };
        let reply = compute::exchange(vec![request], self.shared.waiting(is_stopped, &heard, None)).pop();
        // Workers do not measure single pieces.
        seat.counts().computed(0, began.elapsed());
        let answered = match reply {
            Some(Ok(message)) => {
                seat.counts().answered(message.size());
                read(&message.head).map(|answer| (answer, message.sections)).map_err(|it| it.to_string())
            }
            Some(Err(ComputeError::Stopped)) | None => {
                link.owes = true;
                return Err(Trouble::Stopped);
            }
            Some(Err(error)) => Err(error.to_string()),
        };
        match answered {
            Ok((Answer::Failed { reason }, _)) => Err(Trouble::Model(reason)),
            Ok((Answer::Staged(mut answer), tensors)) => {
                answer.usage.take().into_iter().for_each(|usage| seat.counts().uses(*usage));
                Ok((Answer::Staged(answer), tensors))
            }
            Ok(answered) => Ok(answered),
            Err(why) => {
                self.shared.lost(seat, &mut state, why.clone());
                Err(Trouble::Worker(why))
            }
        }
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
    ) -> Result<(StepResult, u64), Trouble> {
        let message = reply.map_err(|error| match error {
            ComputeError::Stopped => Trouble::Stopped,
            error => Trouble::Worker(error.to_string()),
        })?;
        match read(&message.head) {
            Ok(Answer::Stepped(mut answer)) => {
                answer.usage.take().into_iter().for_each(|usage| seat.counts().uses(*usage));
                let result = accepted(table, share, &answer, message.sections).map_err(Trouble::Worker)?;
                Ok((result, answer.micros))
            }
            Ok(Answer::Failed { reason }) => Err(Trouble::Model(reason)),
            Ok(_) => Err(Trouble::Worker("it did not answer what it was asked".to_owned())),
            Err(error) => Err(Trouble::Worker(error.to_string())),
        }
    }

    /// Tells the workers that the run is over, and how it ended.
    pub fn leave(&self, outcome: &Outcome) {
        // A second call has nothing new to tell, since the run is already over.
        let is_first = self.shared.outcome.set(outcome.clone()).is_ok();
        let outcome = self.shared.outcome.get().unwrap_or(outcome);
        for seat in &self.shared.seats {
            // A worker that is still computing for a waiting replica learns of it when the connection closes.
            if let Some(link) = seat.lock_unless_computing().and_then(|mut state| state.link.take()) {
                link.leave(outcome);
            }
        }
        if is_first {
            self.shared.end_calls();
        }
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        self.leave(&Outcome { exit_code: exit_code::INTERNAL, reason: "its client has ended".to_owned() });
    }
}

fn size(head: &[u8], sections: &[Section<'_>]) -> u64 {
    head.len() as u64 + sections.iter().map(Section::size).sum::<u64>()
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

/// Why a share was not computed.
pub(crate) enum Trouble {
    /// The worker is at fault or has been lost.
    Worker(String),
    /// The model could not compute the share, and would fail elsewhere, too.
    Model(String),
    Stopped,
}
