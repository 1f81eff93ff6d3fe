//! Tests of `placed`: a model in stages computes what it does in one piece. Its stages branch; it has rows, running
//! statistics and dropout.

use anyhow::bail;
use burn::module::{Module, Param};
use burn::nn::{BatchNorm, BatchNormConfig, Dropout, DropoutConfig, Linear, LinearConfig};
use burn::tensor::{Distribution, Tensor, TensorData};
use rand::rngs::StdRng;
use std::time::Duration;

use windlass_core::parameter::ParameterKind;
use windlass_instruments::Instruments;
use windlass_wire::compute::{self, Limits, Section};
use windlass_wire::stream::Socket;

use super::*;
use crate::batches::order::DataPosition;
use crate::joined::protocol::{
    Answer, Ask, Assignment, Capacity, PlacedStages, StageAnswered, StageAsked, StagePiece, read, written,
};
use crate::joined::{Computing, JoinConfig, serve};
use crate::model::{Activation, Defaults, Feeds, Setup, Stage, StageInput, Staged, Staging};
use crate::randomness::Draw;
use crate::replica::remote::CrewConfig;

const DRAW: Draw = Draw { worker: 0, position: DataPosition { epoch: 1, batch: 1 }, first_part: 0 };
const ROWS: usize = 6;

/// A trunk that feeds two branches, which meet again with what the trunk has put out.
#[derive(Default, Clone)]
struct Branching {
    dropout: f64,
    has_norm: bool,
    is_summed: bool,
    /// A sample on which the right branch fails.
    fails_on: Option<f32>,
    /// The head takes a parameter that belongs to the trunk.
    is_greedy: bool,
}

#[derive(Module, Debug)]
struct Network {
    head: Linear,
    words: Param<Tensor<2>>,
    trunk: Linear,
    norm: BatchNorm,
    dropout: Dropout,
    scale: Param<Tensor<1>>,
    left: Linear,
    right: Linear,
}

#[derive(clap::Args, Debug, Clone)]
struct NoFlags {}

struct Samples {
    points: Tensor<2>,
    targets: Tensor<2>,
    places: Vec<u32>,
    rows: Vec<u32>,
}

crate::travels!(Samples { points, targets, places, rows });

impl Branching {
    fn trunk(&self, network: &Network, points: Tensor<2>, places: &[u32]) -> Tensor<2> {
        let places: Vec<i64> = places.iter().map(|place| i64::from(*place)).collect();
        let words = network.words.val().select(0, Tensor::from_data(&places[..], &points.device()));
        let features = network.trunk.forward(points + words);
        let features = if self.has_norm { network.norm.forward(features) } else { features };
        network.dropout.forward(features).tanh()
    }

    fn right(&self, network: &Network, features: Tensor<2>) -> Tensor<2> {
        network.right.forward(features) * network.scale.val().unsqueeze::<2>()
    }

    fn head(&self, network: &Network, parts: [Tensor<2>; 3], targets: Tensor<2>) -> Tensor<1> {
        let losses = (network.head.forward(Tensor::cat(parts.to_vec(), 1)) - targets).powi_scalar(2);
        if self.is_summed { losses.sum() } else { losses.mean() }
    }
}

impl Model for Branching {
    const NAME: &'static str = "branching";
    const ABOUT: &'static str = "";
    type Flags = NoFlags;
    type Network = Network;
    type Batch = Samples;

    fn defaults(_flags: &NoFlags) -> Defaults {
        Defaults::default()
    }

    fn load(_flags: &NoFlags, _setup: &Setup) -> anyhow::Result<Self> {
        Ok(Self::default())
    }

    fn network(&self, device: &Device) -> Network {
        let linear = |from, to| LinearConfig::new(from, to).init(device);
        Network {
            head: linear(8, 1),
            words: Param::from_tensor(Tensor::random([ROWS, 2], Distribution::Default, device)),
            trunk: linear(2, 4),
            norm: BatchNormConfig::new(4).init(device),
            dropout: DropoutConfig::new(self.dropout).init(),
            scale: Param::from_tensor(Tensor::from_data([0.5, -2.0], device)).no_grad(),
            left: linear(4, 2),
            right: linear(4, 2),
        }
    }

    fn samples(&self) -> usize {
        20
    }

    fn batch(&self, samples: &[usize], device: &Device, _random: &mut StdRng) -> anyhow::Result<Samples> {
        let mut rows: Vec<u32> = samples.iter().map(|sample| (sample % ROWS) as u32).collect();
        let words = rows.clone();
        rows.sort_unstable();
        rows.dedup();
        let places = words.iter().map(|word| rows.binary_search(word).unwrap() as u32).collect();
        let points: Vec<f32> = samples.iter().flat_map(|sample| [*sample as f32, (sample % 3) as f32]).collect();
        let targets: Vec<f32> = samples.iter().map(|sample| (sample % 5) as f32).collect();
        Ok(Samples {
            points: Tensor::from_data(TensorData::new(points, [samples.len(), 2]), device),
            targets: Tensor::from_data(TensorData::new(targets, [samples.len(), 1]), device),
            places,
            rows,
        })
    }

    fn loss(&self, network: &Network, batch: Samples) -> Tensor<1> {
        let features = self.trunk(network, batch.points, &batch.places);
        let (left, right) = (network.left.forward(features.clone()), self.right(network, features.clone()));
        self.head(network, [features, left, right], batch.targets)
    }

    fn loss_is_summed(&self) -> bool {
        self.is_summed
    }

    fn evaluate(&self, network: &Network, _device: &Device) -> anyhow::Result<Metrics> {
        let sum = network.head.weight.val().sum() + network.words.val().sum();
        Ok(Metrics::new().loss("sum", sum.into_data().iter::<f64>().sum()))
    }

    fn row_parameters(&self) -> &[&str] {
        &["words"]
    }

    fn rows(&self, batch: &Samples) -> Vec<Vec<u32>> {
        vec![batch.rows.clone()]
    }

    fn staging() -> Option<Staging<Self>> {
        Some(Staging::declared())
    }
}

impl Staged for Branching {
    fn stages(&self) -> Vec<Stage> {
        vec![
            Stage::new("trunk").with("words").with("trunk").with("norm"),
            Stage::new("left").with("left").after("trunk"),
            Stage::new("right").with("right").with("scale").after("trunk"),
            Stage::new("head").with("head").after("trunk").after("left").after("right"),
        ]
    }

    fn feed(&self, batch: Samples, feeds: &mut Feeds) -> anyhow::Result<()> {
        feeds.to("trunk", (batch.points.clone(), batch.places))?;
        feeds.to("right", batch.points)?;
        feeds.to("head", batch.targets)
    }

    fn forward(&self, network: &Network, stage: &str, mut input: StageInput) -> anyhow::Result<Vec<Activation>> {
        Ok(match stage {
            "trunk" => {
                let (points, places): (Tensor<2>, Vec<u32>) = input.feed()?;
                vec![self.trunk(network, points, &places).into()]
            }
            "left" => vec![network.left.forward(input.tensor::<2>()?).into()],
            "right" => {
                let points = input.feed::<Tensor<2>>()?.into_data();
                if points.iter::<f32>().any(|value| Some(value) == self.fails_on) {
                    bail!("does not like a sample");
                }
                vec![self.right(network, input.tensor()?).into()]
            }
            _ => {
                let parts = [input.tensor()?, input.tensor()?, input.tensor()?];
                let loss = self.head(network, parts, input.feed()?);
                vec![
                    if self.is_greedy { loss + network.trunk.bias.as_ref().unwrap().val().mean() } else { loss }.into(),
                ]
            }
        })
    }
}

fn local(model: &Branching, parts: usize) -> Local<Branching> {
    Local::new(model.clone(), LocalConfig { accumulate: parts, ..LocalConfig::on_cpu(7) }).unwrap()
}

/// On these lanes of the CPU, by stage: trunk, left, right, head.
fn config(lanes: [usize; 4], micro_batches: usize) -> PlacedConfig {
    let place = |lane: usize| Place { name: format!("cpu:{lane}"), at: PlaceAt::Here(Device::flex()) };
    let places = ["trunk", "left", "right", "head"].into_iter().zip(lanes);
    PlacedConfig {
        client: ("cpu:0".to_owned(), Device::flex()),
        places: places.map(|(stage, lane)| (stage.to_owned(), place(lane))).collect(),
        micro_batches,
        threads: 2,
        seed: 7,
        trace: None,
    }
}

fn placed(model: &Branching, lanes: [usize; 4], micro_batches: usize) -> Placed {
    Placed::of(model.clone(), config(lanes, micro_batches)).unwrap()
}

/// A step on these samples with values that are not the first ones.
fn step(replica: &mut dyn Replica, samples: &[usize]) -> anyhow::Result<StepResult> {
    let batch = replica.source().batch(samples, DRAW)?;
    let values = loaded(replica, batch.rows());
    replica.load(values);
    replica.step(batch)
}

/// The first values and a little more, with these rows.
fn loaded(replica: &dyn Replica, rows: &[RowRequest]) -> Vec<TensorBuffer> {
    let mut values = replica.first_values();
    values.iter_mut().for_each(|values| values.iter_mut().for_each(|value| *value += 0.25));
    for RowRequest { parameter, rows } in rows {
        let (width, table) = (replica.table()[*parameter].width(), &mut values[parameter.0 as usize]);
        let own: Vec<f32> = rows.iter().flat_map(|row| &table[*row as usize * width..][..width]).copied().collect();
        *table = own.into();
    }
    values
}

fn assert_near(got: &StepResult, expected: &StepResult, what: &str) {
    assert_eq!(got.samples, expected.samples, "{what}");
    let near = |one: f32, other: f32| (one - other).abs() <= 1e-4 * (1.0 + other.abs());
    assert!(near(got.loss, expected.loss), "{what}: a loss of {} and not {}", got.loss, expected.loss);
    for (lists, name) in [((&got.gradients, &expected.gradients), "gradient"), ((&got.state, &expected.state), "state")]
    {
        assert_eq!(lists.0.len(), lists.1.len(), "{what}: {name}");
        for (index, (got, expected)) in lists.0.iter().zip(lists.1).enumerate() {
            assert_eq!(got.len(), expected.len(), "{what}: {name} {index}");
            let are_near = got.iter().zip(&**expected).all(|(one, other)| near(*one, *other));
            assert!(are_near, "{what}: {name} {index} is {got:?} and not {expected:?}");
        }
    }
}

const SAMPLES: [usize; 7] = [4, 19, 2, 11, 5, 17, 8];

#[test]
fn stages_compute_what_the_whole_model_does_wherever_they_are_and_however_a_batch_is_split() {
    for is_summed in [false, true] {
        let model = Branching { is_summed, ..Branching::default() };
        let expected = step(&mut local(&model, 1), &SAMPLES).unwrap();
        assert!(expected.gradients.iter().flat_map(|gradient| gradient.iter()).any(|value| value.abs() > 0.1));
        for lanes in [[0, 0, 0, 0], [0, 1, 0, 1], [0, 1, 2, 3]] {
            for micro_batches in [1, 2, 3, 4, 7] {
                let mut placed = placed(&model, lanes, micro_batches);
                for again in 0..2 {
                    let got = step(&mut placed, &SAMPLES).unwrap();
                    // Of a batch in parts it is another, as the next test shows.
                    let got = StepResult { state: expected.state.clone(), ..got };
                    let what = format!("{micro_batches} micro-batches on {lanes:?}, {again}, summed {is_summed}");
                    assert_near(&got, &expected, &what);
                }
            }
        }
    }
}

#[test]
fn running_statistics_and_dropout_are_those_of_a_batch_computed_in_as_many_parts() {
    for (dropout, has_norm) in [(0.5, false), (0.0, true), (0.5, true)] {
        let model = Branching { dropout, has_norm, ..Branching::default() };
        for micro_batches in [1, 2] {
            let expected = step(&mut local(&model, micro_batches), &SAMPLES).unwrap();
            let mut placed = placed(&model, [0, 1, 2, 3], micro_batches);
            for _ in 0..3 {
                assert_near(
                    &step(&mut placed, &SAMPLES).unwrap(),
                    &expected,
                    &format!("{micro_batches} micro-batches"),
                );
            }
            assert!(expected.state.iter().any(|state| !state.is_empty()));
        }
    }
}

#[test]
fn a_stage_that_fails_is_named_and_the_next_step_is_as_if_it_had_not() {
    let model = Branching { has_norm: true, fails_on: Some(3.0), ..Branching::default() };
    let mut placed = placed(&model, [0, 1, 2, 3], 2);
    let failed = step(&mut placed, &[1, 5, 3, 9]).unwrap_err();
    assert_eq!(format!("{failed:#}"), "forward right 2: does not like a sample");
    let expected = step(&mut local(&model, 2), &SAMPLES).unwrap();
    assert_near(&step(&mut placed, &SAMPLES).unwrap(), &expected, "after a failure");
}

#[test]
fn a_stage_that_takes_the_parameter_of_another_makes_no_loss() {
    let mut placed = placed(&Branching { is_greedy: true, ..Branching::default() }, [0, 1, 1, 1], 1);
    assert!(step(&mut placed, &SAMPLES).unwrap().loss.is_nan());
}

#[test]
fn a_step_that_is_thrown_away_changes_nothing() {
    let model = Branching { has_norm: true, ..Branching::default() };
    let mut placed = placed(&model, [0, 1, 0, 1], 2);
    let batch = |placed: &Placed| placed.source().batch(&SAMPLES, DRAW).unwrap();
    placed.rehearse(batch(&placed)).unwrap();
    assert_eq!(placed.evaluate().unwrap(), local(&model, 1).evaluate().unwrap());
    let first = placed.first_values();
    let (rows, step_batch) = (batch(&placed).rows().to_vec(), batch(&placed));
    let words = rows[0].parameter.0 as usize;
    let mut values: Vec<TensorBuffer> = vec![TensorBuffer::default(); first.len()];
    values[words] =
        rows[0].rows.iter().flat_map(|row| &first[words][*row as usize * 2..][..2]).copied().collect::<Vec<_>>().into();
    placed.load(values.clone());
    let after = placed.step(step_batch).unwrap();
    let mut fresh = local(&model, 2);
    let batch = fresh.source().batch(&SAMPLES, DRAW).unwrap();
    fresh.load(values);
    assert_near(&after, &fresh.step(batch).unwrap(), "after a rehearsal");
}

#[test]
fn the_whole_network_is_scored_with_the_values_that_were_loaded_last() {
    let model = Branching::default();
    let (mut placed, mut local) = (placed(&model, [0, 1, 0, 1], 2), local(&model, 1));
    let values = loaded(&local, &[]);
    placed.load(values.clone());
    local.load(values);
    assert_eq!(placed.evaluate().unwrap(), local.evaluate().unwrap());
    step(&mut placed, &SAMPLES).unwrap();
    let kinds: Vec<ParameterKind> = placed.table().iter().map(|(_, spec)| spec.kind).collect();
    assert!(kinds.contains(&ParameterKind::Constant) && kinds.contains(&ParameterKind::State));
}

#[test]
fn every_piece_of_a_step_is_in_the_trace_and_counts_as_work_of_its_device() {
    let trace = Trace::default();
    assert_eq!(trace.to_json(), None);
    let config = PlacedConfig { trace: Some(trace.clone()), ..config([0, 1, 0, 1], 2) };
    let mut placed = Placed::of(Branching::default(), config).unwrap();
    for _ in 0..TRACED_STEPS + 3 {
        step(&mut placed, &SAMPLES).unwrap();
    }
    let trace: serde_json::Value = serde_json::from_str(&trace.to_json().unwrap()).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    let complete: Vec<_> = events.iter().filter(|event| event["ph"] == "X").collect();
    // Of each stage two micro-batches to and fro, its values and its gradients.
    assert_eq!(complete.len(), TRACED_STEPS * 4 * (2 * 2 + 2));
    let mut names: Vec<(u64, &str)> = complete
        .iter()
        .map(|event| (event["args"]["step"].as_u64().unwrap(), event["name"].as_str().unwrap()))
        .collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), complete.len(), "each piece of a step is there once");
    assert!(names.contains(&(1, "backward right 2")));
    assert!(complete.iter().all(|event| event["ts"].as_f64().unwrap() >= 0.0 && event["dur"].as_f64().unwrap() >= 0.0));
    let lanes: Vec<&str> = events.iter().filter_map(|event| event["args"]["name"].as_str()).collect();
    assert_eq!(lanes, ["cpu:0", "cpu:1"]);
    let reports = placed.lanes();
    assert_eq!(reports[1].stages, ["left", "head"]);
    assert!(reports.iter().all(|report| report.busy > 0.0 && report.busy <= 1.0), "{reports:?}");
}

#[test]
fn what_cannot_be_divided_is_refused_by_name() {
    let place = Place { name: "cpu:1".to_owned(), at: PlaceAt::Here(Device::flex()) };
    let config = PlacedConfig { places: vec![("tail".to_owned(), place)], ..config([0; 4], 1) };
    let refused = Placed::of(Branching::default(), config).err().unwrap();
    assert_eq!(refused.to_string(), "--place: branching has no stage \"tail\"");
    assert_eq!(refused.hint().unwrap(), "its stages are trunk, left, right, head");
}

/// A joined worker in this process that computes stages of this model, for as long as the test runs.
fn joined(model: &Branching) -> (String, Arc<Interrupt>) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let stop = Arc::new(Interrupt::default());
    let (model, config) = (
        model.clone(),
        JoinConfig {
            capacity: Capacity { devices: vec!["cpu:0".to_owned()], threads: Some(1), towers: 1 },
            once: false,
            peer_timeout: PATIENCE,
            stop: stop.clone(),
            instruments: Instruments::default(),
        },
    );
    let build = move |assignment: &Assignment| {
        let placed = assignment.placed.as_ref().unwrap();
        let own: Vec<_> = placed.of(assignment.worker).map(|stage| (stage.stage.clone(), Device::flex())).collect();
        Ok(Computing::Stages(StageWorker::of(model.clone(), &own, assignment.seed)?))
    };
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        serve(runtime.handle(), listener, config, Arc::new(build)).unwrap();
    });
    (address, stop)
}

const PATIENCE: Duration = Duration::from_secs(60);

/// The branches and the head at these workers, two of which may be the same; the trunk is here.
fn at_workers(model: &Branching, addresses: Vec<String>, workers: [usize; 3], micro_batches: usize) -> Placed {
    let place = |worker: usize| Place { name: format!("/task:{worker}"), at: PlaceAt::Worker(worker, None) };
    let places = ["left", "right", "head"].into_iter().zip(workers);
    let places = places.map(|(stage, worker)| (stage.to_owned(), place(worker))).collect();
    let placed = Placed::of(model.clone(), PlacedConfig { places, ..config([0; 4], micro_batches) }).unwrap();
    let assignment = Assignment {
        client: "a test".to_owned(),
        run: 1,
        worker: 0,
        model: "branching".to_owned(),
        flags: std::collections::BTreeMap::new(),
        seed: 7,
        accumulate: 1,
        files: Vec::new(),
        parameters: placed.table().clone(),
        placed: Some(PlacedStages { is_soft: false, stages: placed.assigned().to_vec() }),
    };
    let crew = Crew::call(CrewConfig { addresses, assignment, silence: PATIENCE, peer_timeout: PATIENCE }).unwrap();
    crew.gather(&|| false).unwrap();
    placed.meet(Arc::new(crew), Arc::new(Interrupt::default()));
    placed
}

#[test]
fn stages_at_joined_workers_compute_what_the_whole_model_does() {
    let model = Branching { has_norm: true, fails_on: Some(3.0), ..Branching::default() };
    for workers in [[0, 0, 0], [0, 1, 0], [1, 1, 0]] {
        let (first, second) = (joined(&model), joined(&model));
        let mut placed = at_workers(&model, vec![first.0, second.0], workers, 2);
        let expected = step(&mut local(&model, 2), &SAMPLES).unwrap();
        for _ in 0..3 {
            assert_near(&step(&mut placed, &SAMPLES).unwrap(), &expected, &format!("{workers:?}"));
        }
        let failed = format!("{:#}", step(&mut placed, &[1, 5, 3, 9]).unwrap_err());
        assert!(
            failed.starts_with("forward right 2: worker") && failed.ends_with("does not like a sample"),
            "{failed}"
        );
        first.1.set();
        second.1.set();
    }
}

#[test]
fn an_answer_of_the_wrong_shape_ends_the_step_and_names_worker_and_stage() {
    // A worker that has other layers than it says.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        let limits = Limits { head: 1 << 20, sections: 100, bytes: 1 << 20 };
        let socket = Socket::accepted(listener.accept().unwrap().0).unwrap();
        let mut connection = compute::accept(socket, "").unwrap();
        while let Ok(message) = connection.receive(&limits, PATIENCE, &|| false) {
            let values = [1.0; 6];
            let (given, shape) = match read::<Ask>(&message.head).unwrap() {
                Ask::Assign(_) => {
                    let capacity = Capacity { devices: Vec::new(), threads: None, towers: 1 };
                    connection.send(&written(&Answer::Assigned(capacity)), &[], PATIENCE, &|| false).unwrap();
                    continue;
                }
                Ask::Stage(StageAsked { piece: StagePiece::Begin { .. }, .. }) => (0, [1, 6]),
                Ask::Stage(StageAsked { piece: StagePiece::Forward { .. }, stage }) if stage == "head" => (1, [1, 1]),
                // Of seven samples, there are only three.
                Ask::Stage(_) => (1, [3, 2]),
                _ => return,
            };
            let answer = Answer::Staged(StageAnswered { given: vec![true; given], state: Vec::new() });
            let section = Section::floats(&shape, &values[..shape[0] * shape[1]]);
            connection.send(&written(&answer), &[section][..given], PATIENCE, &|| false).unwrap();
        }
    });
    let model = Branching::default();
    let place = |worker| Place { name: "/task:0".to_owned(), at: PlaceAt::Worker(worker, None) };
    let config = PlacedConfig { places: vec![("left".to_owned(), place(0))], ..config([0; 4], 1) };
    let placed = Placed::of(model, config).unwrap();
    let assignment = Assignment {
        client: "a test".to_owned(),
        run: 1,
        worker: 0,
        model: "branching".to_owned(),
        flags: std::collections::BTreeMap::new(),
        seed: 7,
        accumulate: 1,
        files: Vec::new(),
        parameters: placed.table().clone(),
        placed: Some(PlacedStages { is_soft: false, stages: placed.assigned().to_vec() }),
    };
    let addresses = vec![address.clone()];
    let crew = Crew::call(CrewConfig { addresses, assignment, silence: PATIENCE, peer_timeout: PATIENCE }).unwrap();
    crew.gather(&|| false).unwrap();
    placed.meet(Arc::new(crew), Arc::new(Interrupt::default()));
    let mut placed = placed;
    // The head gets outputs of three samples beside those of seven.
    let failed = format!("{:#}", step(&mut placed, &SAMPLES).unwrap_err());
    let expected = format!("forward head 1: with outputs of shape [3, 2] from worker 0 at {address} (stage left): ");
    assert!(failed.starts_with(&expected), "{failed}");
    // With three samples it is the gradient of the inputs that is wrong: it should be of shape [3, 4].
    let failed = format!("{:#}", step(&mut placed, &[4, 19, 2]).unwrap_err());
    let expected = format!(
        "backward left 1: worker 0 at {address} (stage left): it answered for stage left with a gradient of shape [3, 2] \
         instead of [3, 4]"
    );
    assert_eq!(failed, expected);
}
