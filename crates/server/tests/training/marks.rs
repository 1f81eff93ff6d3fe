//! Gradients whose sum shows which pushes of which worker it contains, and the check of that sum.
//!
//! A worker marks the elements and rows that it owns, by their number modulo the number of workers, and successive
//! pushes have different marks. So the final values account for each worker's pushes. All numbers are integers small
//! enough to be exact in `f32`, including the means of rounds.

use std::collections::BTreeMap;
use std::fmt;

use windlass_core::block::BLOCK_ELEMENTS;
use windlass_core::cluster::WorkerId;
use windlass_core::consistency::Mode;
use windlass_core::parameter::{Access, ParameterId};
use windlass_core::plan::{ServerPlan, ShardPlan, Sharding};
use windlass_core::run::RunSpec;
use windlass_wire::client::{Pulled, Push, RowGradient, RowRequest};
use windlass_wire::stream::frame::AnswerKind;

use crate::cluster::{Options, Site, Via};
use crate::network::{Orphan, Told};
use crate::numbers::{Random, by_rows, constant, dense, dense_elements, run};
use crate::worker::Worker;

/// The initial value of every element.
const FIRST: f32 = 1_000_000.0;
/// Remains an integer in a round's mean over up to four workers, and when each row is named twice.
const MARK: u64 = 24;
/// The number of pushes with different marks.
const MARKS: u64 = 10;

/// A run whose pushes are counted.
#[derive(Clone)]
pub struct Scenario {
    pub seed: u64,
    pub run: RunSpec,
    pub servers: u32,
    pub workers: u32,
    /// How often a worker pushes, if the run has no last step.
    pub pushes: u64,
    /// True if a push also requests the new values of rows.
    pub wants_rows: bool,
}

impl Scenario {
    /// Draws a layout from a seed: usually a few values, sometimes two or three blocks on every server; with or without
    /// rows.
    pub fn new(seed: u64, mode: Mode) -> Self {
        let mut random = Random::of(&[seed, u64::MAX]);
        let servers = [1, 3][random.below(2) as usize];
        let workers = 2 + random.below(2) as u32;
        let is_large = random.below(8) == 0;
        let has_rows = random.below(2) == 0;
        let mut parameters = if is_large {
            vec![dense("large", &[servers * BLOCK_ELEMENTS * 2 + random.below(50_000) as usize]), dense("b", &[300])]
        } else {
            vec![dense("a", &[3 + random.below(90) as usize]), dense("b", &[2, 4]), dense("c", &[7])]
        };
        if has_rows {
            parameters.push(by_rows("d", &[7 + random.below(20) as usize, 3]));
            parameters.push(by_rows("e", &[9, 1]));
        }
        // Balanced small parameters would all be on one server. Rows are on all servers.
        let is_balanced = is_large || (has_rows && random.below(2) == 0);
        let sharding = if is_balanced { Sharding::BALANCED } else { Sharding::RoundRobin };
        Self {
            seed,
            run: RunSpec { sharding, ..run(mode, parameters) },
            servers: servers as u32,
            workers,
            pushes: if is_large { 3 } else { 4 + random.below(4) },
            wants_rows: has_rows && random.below(2) == 0,
        }
    }

    /// Servers that are reached over a bad network.
    pub fn options(&self) -> Options {
        let row = |RowRequest { parameter, rows }: RowRequest| {
            let values = vec![FIRST; rows.len() * self.run.parameters[parameter].width()];
            RowGradient { parameter, rows, values }
        };
        Options {
            via: Via::Tcp,
            faults: Some(self.seed),
            first_values: Some(constant(&self.run, FIRST)),
            first_rows: self.all_rows().into_iter().map(row).collect(),
            last_rows: self.all_rows(),
            ..Options::default()
        }
    }

    /// Pushes as often as the run asks for. Returns for each push whether the worker was told that it counts.
    pub fn train(&self, worker: &mut Worker) -> Vec<bool> {
        let mut pulled = worker.client().pull(Vec::new()).unwrap();
        let mut applied = Vec::new();
        while if self.run.steps.is_some() { !pulled.over } else { worker.steps() < self.pushes } {
            pulled = worker.try_push(self.push(worker.id, worker.steps() + 1)).unwrap();
            applied.push(pulled.applied);
        }
        worker.settle();
        applied
    }

    /// Returns the push of a worker with that number.
    pub fn push(&self, worker: WorkerId, sequence: u64) -> Push {
        let mark = -(mark(sequence) as f32);
        let own = |number: usize| self.owner(number) == worker;
        let mut dense = constant(&self.run, 0.0);
        for values in &mut dense {
            values.iter_mut().enumerate().filter(|(index, _)| own(*index)).for_each(|(_, value)| *value = mark);
        }
        // Every row twice, with half of the mark.
        let row = |RowRequest { parameter, rows }: RowRequest| {
            let rows: Vec<u32> = rows.into_iter().filter(|row| own(*row as usize)).collect::<Vec<_>>().repeat(2);
            let values = vec![mark / 2.0; rows.len() * self.run.parameters[parameter].width()];
            RowGradient { parameter, rows, values }
        };
        let wanted = if self.wants_rows { self.all_rows() } else { Vec::new() };
        Push { dense, rows: self.all_rows().into_iter().map(row).collect(), wanted, ..Push::default() }
    }

    /// Checks that every value is what the workers were told, and that they were told about every push.
    pub fn check(&self, site: &Site, last: &Pulled, applied: &[Vec<bool>]) {
        let plan = ShardPlan::new(&self.run.parameters, self.servers as usize, self.run.sharding);
        for (server, (link, plan)) in site.links.iter().zip(&plan.servers).enumerate() {
            if server > 0 && plan.segments.is_empty() && plan.stripes.is_empty() {
                continue;
            }
            let told = link.told();
            let account = Account { scenario: self, server, told: &told, orphan: link.orphaned() };
            assert!(link.contradictions().is_empty(), "{self}: ps {server}: {:?}", link.contradictions());
            account.check_told(applied);
            account.check_version(link.version());
            account.check_values(plan, last);
        }
    }

    fn all_rows(&self) -> Vec<RowRequest> {
        let by_rows = self.run.parameters.iter().filter(|(_, spec)| spec.access == Access::Rows);
        by_rows.map(|(parameter, spec)| RowRequest { parameter, rows: (0..spec.rows() as u32).collect() }).collect()
    }

    /// Returns who marks an element or a row.
    fn owner(&self, number: usize) -> WorkerId {
        WorkerId(number as u32 % self.workers)
    }
}

impl fmt::Display for Scenario {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, run, servers, workers, pushes, .. } = self;
        write!(formatter, "seed {seed}: {:?}, {servers} ps, {workers} workers, {}, ", run.mode, run.sharding)?;
        for (_, spec) in run.parameters.iter() {
            write!(formatter, "{}{:?} ", spec.name, spec.shape)?;
        }
        match run.steps {
            Some(steps) => write!(formatter, "until step {steps}"),
            None => write!(formatter, "{pushes} pushes each"),
        }
    }
}

/// Returns by how much a push of that number moves the worker's own elements when it alone is counted.
fn mark(sequence: u64) -> u64 {
    MARK << (sequence % MARKS)
}

/// The answers of one server, and their consequences.
struct Account<'a> {
    scenario: &'a Scenario,
    server: usize,
    told: &'a [Told],
    orphan: Option<Orphan>,
}

impl Account<'_> {
    /// Checks that every push was answered once, and that the first server said what the worker understood.
    fn check_told(&self, applied: &[Vec<bool>]) {
        let Self { scenario, server, .. } = self;
        for (worker, applied) in applied.iter().enumerate() {
            let told = self.told.iter().filter(|told| told.worker.0 as usize == worker);
            let told: Vec<bool> = told.map(|told| told.kind == AnswerKind::Values).collect();
            assert_eq!(told.len(), applied.len(), "{scenario}: pushes of worker {worker} that ps {server} told of");
            if *server == 0 {
                assert_eq!(&told, applied, "{scenario}: what ps 0 and worker {worker} say of its pushes");
            }
        }
    }

    fn check_version(&self, version: u64) {
        let Self { scenario, server, .. } = self;
        let updates = if self.has_rounds() { self.rounds().len() } else { self.counted().count() } as u64;
        // Its header may have come in time to be given a step, even if no more of it did.
        let one_more = self.orphan.is_some_and(|orphan| orphan.began) && !self.has_rounds();
        let possible = updates..=updates + u64::from(one_more);
        assert!(possible.contains(&version), "{scenario}: ps {server} is at {version} after {updates} updates");
        if let Some(steps) = scenario.run.steps {
            assert_eq!(updates, steps, "{scenario}: updates on ps {server}");
        }
    }

    fn check_values(&self, plan: &ServerPlan, last: &Pulled) {
        let owed: Vec<f32> = (0..self.scenario.workers).map(|worker| FIRST + self.owed(WorkerId(worker))).collect();
        let parameters = &self.scenario.run.parameters;
        let mut pieces = Pieces { account: self, owed, orphaned: BTreeMap::new() };
        let mut offset = 0;
        for segment in &plan.segments {
            for index in segment.range.clone() {
                let value = last.dense[segment.parameter.0 as usize][index];
                pieces.check(offset / BLOCK_ELEMENTS, segment.parameter, index, value);
                offset += 1;
            }
        }
        let blocks = offset.div_ceil(BLOCK_ELEMENTS);
        let dense = parameters.iter().filter(|(_, spec)| dense_elements(spec) > 0).count();
        for (section, stripe) in plan.stripes.iter().enumerate() {
            let width = parameters[stripe.parameter].width();
            for row in (0..stripe.count).map(|local| stripe.global(local)) {
                // Parameters by rows come after the dense ones.
                for value in &last.rows[stripe.parameter.0 as usize - dense][row * width..][..width] {
                    pieces.check(blocks + section, stripe.parameter, row, *value);
                }
            }
        }
        let orphaned: Vec<bool> = pieces.orphaned.into_values().collect();
        let is_beginning = orphaned.is_sorted_by(|before, after| before >= after);
        assert!(is_beginning, "{}: ps {}: pieces of an orphan applied: {orphaned:?}", self.scenario, self.server);
    }

    /// Returns by how much the pushes that count, as workers were told, move a worker's own values.
    fn owed(&self, worker: WorkerId) -> f32 {
        let rounds = self.rounds();
        let share = |told: &Told| mark(told.sequence) / if self.has_rounds() { rounds[&told.base] } else { 1 };
        self.counted().filter(|told| told.worker == worker).map(share).sum::<u64>() as f32
    }

    /// Returns how many gradients each round averages.
    fn rounds(&self) -> BTreeMap<u64, u64> {
        let mut rounds = BTreeMap::new();
        self.counted().for_each(|told| *rounds.entry(told.base).or_default() += 1);
        rounds
    }

    fn counted(&self) -> impl Iterator<Item = &Told> {
        self.told.iter().filter(|told| told.kind == AnswerKind::Values)
    }

    fn has_rounds(&self) -> bool {
        matches!(self.scenario.run.mode, Mode::Sync { .. })
    }
}

/// The blocks and row sections of one server, as they are looked through.
struct Pieces<'a> {
    account: &'a Account<'a>,
    /// What the values of each worker must be.
    owed: Vec<f32>,
    /// For each piece that arrived before its process was dead: whether the orphan was applied to it.
    orphaned: BTreeMap<usize, bool>,
}

impl Pieces<'_> {
    fn check(&mut self, piece: usize, parameter: ParameterId, number: usize, value: f32) {
        let Account { scenario, server, orphan, .. } = self.account;
        let owner = scenario.owner(number);
        let mut owed = self.owed[owner.0 as usize];
        // A push whose process dies in the middle of it is applied as far as it came, unless it waits for a round.
        let orphan = orphan.filter(|orphan| orphan.worker == owner && piece < orphan.pieces);
        if let Some(orphan) = orphan.filter(|_| !self.account.has_rounds()) {
            let applied = *self.orphaned.entry(piece).or_insert(value != owed);
            owed += if applied { mark(orphan.sequence) as f32 } else { 0.0 };
        }
        assert!(
            value == owed,
            "{scenario}: ps {server}, {}[{number}], piece {piece}: {value} where {owner} is owed {owed}: {} too many",
            scenario.run.parameters[parameter].name,
            (value - owed) / MARK as f32
        );
    }
}
