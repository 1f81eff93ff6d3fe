//! Tests of stages at joined workers: what they compute, and how answers of the wrong shape are handled.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use windlass_core::lifecycle::{Outcome, exit_code};
use windlass_instruments::Instruments;
use windlass_wire::compute::{self, Limits, Section};
use windlass_wire::stream::Socket;

use super::*;
use crate::gradient;
use crate::joined::protocol::{
    Answer, Ask, Assignment, Capacity, PlacedStages, StageAnswered, StageAsked, StagePiece, read, written,
};
use crate::joined::{Computing, JoinConfig, serve};
use crate::memory;
use crate::replica::remote::{CrewConfig, CrewError};

/// Starts a joined worker in this process that computes stages of this model for the duration of the test.
fn joined(model: &Branching) -> (String, Arc<Interrupt>) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let (model, config) = (model.clone(), join_config());
    let stop = config.stop.clone();
    std::thread::spawn(move || serving(listener, config, move |assignment| stages_of(&model, assignment)));
    (address, stop)
}

fn join_config() -> JoinConfig {
    JoinConfig {
        capacity: Capacity { devices: vec!["cpu:0".to_owned()], threads: Some(1), towers: 1 },
        once: false,
        is_launched: false,
        devices: Vec::new(),
        peer_timeout: PATIENCE,
        stop: Arc::new(Interrupt::default()),
        instruments: Instruments::default(),
    }
}

fn stages_of(model: &Branching, assignment: &Assignment) -> anyhow::Result<Computing> {
    let placed = assignment.placed.as_ref().unwrap();
    let own: Vec<_> = placed.of(assignment.worker).map(|stage| (stage.stage.clone(), Device::flex())).collect();
    Ok(Computing::Stages(StageWorker::of(model.clone(), &own, assignment.seed)?))
}

fn serving(
    listener: std::net::TcpListener,
    config: JoinConfig,
    build: impl Fn(&Assignment) -> anyhow::Result<Computing> + Send + Sync + 'static,
) -> Outcome {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    serve(runtime.handle(), listener, config, Arc::new(build)).unwrap()
}

const PATIENCE: Duration = Duration::from_secs(60);

/// Places the branches and the head at these workers, some of which may be the same; the trunk stays here.
fn at_workers(model: &Branching, addresses: Vec<String>, workers: [&[usize]; 3], micro_batches: usize) -> Placed {
    let place = |worker: &usize| Place { name: format!("/task:{worker}"), at: PlaceAt::Worker(*worker, None) };
    let places = ["left", "right", "head"].into_iter().zip(workers);
    let places = places.map(|(stage, workers)| (stage.to_owned(), workers.iter().map(place).collect())).collect();
    let placed = Placed::of(model.clone(), PlacedConfig { places, ..config([0; 4], micro_batches) }).unwrap();
    meet(placed, addresses)
}

/// Makes the assignment of these stages, for a model with these parameters.
fn assignment(parameters: ParameterTable, stages: Vec<StageAssigned>) -> Assignment {
    Assignment {
        client: "a test".to_owned(),
        run: 1,
        worker: 0,
        model: "branching".to_owned(),
        flags: std::collections::BTreeMap::new(),
        seed: 7,
        accumulate: 1,
        files: Vec::new(),
        parameters,
        placed: Some(PlacedStages { is_soft: false, stages }),
    }
}

/// Calls the workers of a divided model and waits for them.
fn meet(placed: Placed, addresses: Vec<String>) -> Placed {
    let assignment = assignment(placed.table().clone(), placed.assigned().to_vec());
    let crew = Crew::call(CrewConfig { addresses, assignment, silence: PATIENCE, peer_timeout: PATIENCE }).unwrap();
    crew.gather(&|| false).unwrap();
    placed.meet(Arc::new(crew), Arc::new(Interrupt::default()));
    placed
}

#[test]
fn stages_at_joined_workers_compute_what_the_whole_model_does() {
    let model = Branching { has_norm: true, fails_on: Some(3.0), ..Branching::default() };
    for workers in [[&[0][..], &[0], &[0]], [&[0], &[1], &[0]], [&[1], &[1], &[0]], [&[0, 1], &[1, 0], &[0]]] {
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
fn a_worker_that_is_short_of_memory_is_waited_for_and_named_with_the_reason() {
    let model = Branching::default();
    let has_memory = Arc::new(AtomicBool::new(false));
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let (own, is_free, join) = (model.clone(), has_memory.clone(), join_config());
    let stop = join.stop.clone();
    std::thread::spawn(move || {
        serving(listener, join, move |assignment| match is_free.load(Ordering::Relaxed) {
            true => stages_of(&own, assignment),
            false => Err(memory::tests::temporary().into()),
        })
    });
    let head = StageAssigned { stage: "head".to_owned(), worker: 0, device: None };
    let assignment = assignment(local(&model, 1).table().clone(), vec![head]);
    let config = CrewConfig { addresses: vec![address], assignment, silence: PATIENCE, peer_timeout: PATIENCE };
    let short = CrewConfig { peer_timeout: Duration::from_secs(2), ..config.clone() };
    let gave_up = Crew::call(short).unwrap().gather(&|| false).unwrap_err();
    assert!(matches!(&gave_up, CrewError::GaveUp(_)), "{gave_up}");
    assert!(gave_up.to_string().contains("the gradients need 3.0 kB, but only 2.0 kB of memory"), "{gave_up}");
    let crew = Crew::call(config).unwrap();
    has_memory.store(true, Ordering::Relaxed);
    crew.gather(&|| false).unwrap();
    stop.set();
}

#[test]
fn an_answer_of_the_wrong_shape_ends_the_step_and_names_worker_and_stage() {
    // A worker that answers with outputs of the wrong shape.
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
                // Three samples instead of seven.
                Ask::Stage(_) => (1, [3, 2]),
                _ => return,
            };
            let answer = Answer::Staged(StageAnswered { given: vec![true; given], ..StageAnswered::default() });
            let section = Section::floats(&shape, &values[..shape[0] * shape[1]]);
            connection.send(&written(&answer), &[section][..given], PATIENCE, &|| false).unwrap();
        }
    });
    let model = Branching::default();
    let place = |worker| Place { name: "/task:0".to_owned(), at: PlaceAt::Worker(worker, None) };
    let config = PlacedConfig { places: vec![("left".to_owned(), vec![place(0)])], ..config([0; 4], 1) };
    let placed = Placed::of(model, config).unwrap();
    let mut placed = meet(placed, vec![address.clone()]);
    // The head gets outputs of three samples beside outputs of seven.
    let failed = format!("{:#}", step(&mut placed, &SAMPLES).unwrap_err());
    let expected = format!("forward head 1: with outputs of shape [3, 2] from worker 0 at {address} (stage left): ");
    assert!(failed.starts_with(&expected), "{failed}");
    // With three samples, the gradient of the inputs is wrong: its shape should be [3, 4].
    let failed = format!("{:#}", step(&mut placed, &[4, 19, 2]).unwrap_err());
    let expected = format!(
        "backward left 1: worker 0 at {address} (stage left): it answered for stage left with a gradient of shape [3, 2] \
         instead of [3, 4]"
    );
    assert_eq!(failed, expected);
}

#[test]
fn a_gradient_that_is_not_finite_ends_the_step_and_names_worker_and_parameter() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        let limits = Limits { head: 1 << 20, sections: 100, bytes: 1 << 20 };
        let socket = Socket::accepted(listener.accept().unwrap().0).unwrap();
        let mut connection = compute::accept(socket, "").unwrap();
        // All values are ones except the last gradient's. The left branch has a weight of 4 x 2 and a bias of 2.
        let (ones, mut bad) = ([1.0; 28], [1.0; 2]);
        bad[1] = f32::NAN;
        let (samples, forward, backward) = (SAMPLES.len(), [SAMPLES.len(), 2], [SAMPLES.len(), 4]);
        while let Ok(message) = connection.receive(&limits, PATIENCE, &|| false) {
            let sections = match read::<Ask>(&message.head).unwrap() {
                Ask::Assign(_) => {
                    let capacity = Capacity { devices: Vec::new(), threads: None, towers: 1 };
                    connection.send(&written(&Answer::Assigned(capacity)), &[], PATIENCE, &|| false).unwrap();
                    continue;
                }
                Ask::Stage(StageAsked { piece, .. }) => match piece {
                    StagePiece::Begin { .. } => Vec::new(),
                    StagePiece::Forward { .. } => vec![Section::floats(&forward, &ones[..2 * samples])],
                    StagePiece::Backward { .. } => vec![Section::floats(&backward, &ones[..4 * samples])],
                    StagePiece::Finish => vec![Section::floats(&[8], &ones[..8]), Section::floats(&[2], &bad)],
                },
                _ => return,
            };
            let answer =
                Answer::Staged(StageAnswered { given: vec![true; sections.len()], ..StageAnswered::default() });
            connection.send(&written(&answer), &sections, PATIENCE, &|| false).unwrap();
        }
    });
    let place = Place { name: "/task:0".to_owned(), at: PlaceAt::Worker(0, None) };
    let config = PlacedConfig { places: vec![("left".to_owned(), vec![place])], ..config([0; 4], 1) };
    let mut placed = meet(Placed::of(Branching::default(), config).unwrap(), vec![address.clone()]);
    let error = step(&mut placed, &SAMPLES).unwrap_err().downcast::<CrewError>().unwrap();
    let worker = format!("worker 0 at {address} (stage left)");
    assert_eq!(error, CrewError::NotFinite { worker, what: "its gradient of left.bias contains NaN".to_owned() });
}

#[test]
fn a_loss_that_is_not_finite_is_that_of_the_model_and_not_the_fault_of_a_worker() {
    let model = Branching { is_greedy: true, ..Branching::default() };
    let worker = joined(&model);
    let mut placed = at_workers(&model, vec![worker.0], [&[0], &[0], &[0]], 2);
    let result = step(&mut placed, &SAMPLES).unwrap();
    assert!(result.loss.is_nan() && result.gradients.iter().all(|gradient| gradient.is_empty()));
    worker.1.set();
}

#[test]
fn a_worker_that_is_given_gradients_that_are_not_finite_is_not_blamed_for_its_own() {
    let model = Branching { has_kink: true, ..Branching::default() };
    let worker = joined(&model);
    let place = Place { name: "/task:0".to_owned(), at: PlaceAt::Worker(0, None) };
    let config = PlacedConfig { places: vec![("left".to_owned(), vec![place])], ..config([0; 4], 1) };
    let mut placed = meet(Placed::of(model, config).unwrap(), vec![worker.0]);
    let result = step(&mut placed, &SAMPLES).unwrap();
    let (parameter, _) = gradient::not_finite(&result.gradients).unwrap();
    assert!(result.loss.is_finite() && !result.gradients[parameter].is_empty());
    worker.1.set();
}

#[test]
fn a_worker_of_one_run_hears_how_that_ends_while_it_makes_its_stages() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let model = Branching::default();
    let stages = vec![StageAssigned { stage: "left".to_owned(), worker: 0, device: None }];
    let assignment = assignment(local(&model, 1).table().clone(), stages);
    let (leave, is_gone) = std::sync::mpsc::channel();
    let is_gone = Mutex::new(is_gone);
    let build = move |assignment: &Assignment| {
        is_gone.lock().unwrap().recv_timeout(PATIENCE)?;
        stages_of(&model, assignment)
    };
    let config = JoinConfig { once: true, ..join_config() };
    let worker = std::thread::spawn(move || serving(listener, config, build));
    let mut client = compute::connect(&address).unwrap();
    let ended = Ask::Leave { reason: "the loss is NaN".to_owned(), exit_code: exit_code::NUMERIC };
    for ask in [Ask::Assign(Box::new(assignment)), ended] {
        client.send(&written(&ask), &[], PATIENCE, &|| false).unwrap();
    }
    drop(client);
    leave.send(()).unwrap();
    assert_eq!(worker.join().unwrap().exit_code, exit_code::NUMERIC);
}
