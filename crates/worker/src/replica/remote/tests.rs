//! Tests of a crew with faulty workers, played by threads that speak the protocol until they break it.

use std::net::TcpListener;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use burn::tensor::TensorData;
use windlass_core::lifecycle::{Outcome, exit_code};
use windlass_core::parameter::{Access, ParameterKind, ParameterSpec, ParameterTable};
use windlass_wire::compute::{self, Connection, Limits, Section};
use windlass_wire::stream::Socket;

use super::CrewError;
use super::crew::{AskError, Crew, CrewConfig, LEAST_SILENCE};
use super::share::{Share, Values};
use super::split::Job;
use crate::joined::protocol::{
    Answer, Ask, Assignment, Capacity, PING_EVERY, PlacedStages, StageAsked, StageAssigned, StagePiece, StepAnswered,
    read, written,
};
use crate::replica::StepResult;
use crate::replica::packed::PackedPart;
use crate::travel::Parcel;

const PATIENCE: Duration = Duration::from_secs(20);
const LIMITS: Limits = Limits { head: 1 << 20, sections: 100, bytes: 1 << 20 };

fn table() -> ParameterTable {
    let spec = |name: &str, kind| ParameterSpec { name: name.into(), shape: vec![2], access: Access::Dense, kind };
    ParameterTable::new(vec![spec("weight", ParameterKind::Trained), spec("mean", ParameterKind::State)]).unwrap()
}

/// Answers a step as a worker.
type Play = fn(&mut Connection);

fn answer(connection: &mut Connection, answered: StepAnswered, tensors: &[Section<'_>]) {
    connection.send(&written(&Answer::Stepped(answered)), tensors, PATIENCE, &|| false).unwrap();
}

fn answered(samples: usize) -> StepAnswered {
    StepAnswered { loss: 0.5_f32.to_bits(), samples, micros: 10, gradients: vec![0], state: vec![1], usage: None }
}

fn well(connection: &mut Connection) {
    let tensors = [Section::floats(&[2], &[1.0, 2.0]), Section::floats(&[2], &[3.0, 4.0])];
    answer(connection, answered(3), &tensors);
}

/// Starts a worker that is ready for any model and answers every step with `play`. Also returns a receiver of what it
/// is asked.
fn worker(play: Play) -> (String, mpsc::Receiver<Ask>) {
    worker_with(play, 1)
}

fn worker_with(play: Play, towers: usize) -> (String, mpsc::Receiver<Ask>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let (sender, asked) = mpsc::channel();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let sender = sender.clone();
            let serve = move || {
                let mut connection = compute::accept(Socket::accepted(stream.unwrap()).unwrap(), "").unwrap();
                while let Ok(message) = connection.receive(&LIMITS, PATIENCE, &|| false) {
                    let ask = read::<Ask>(&message.head).unwrap();
                    match &ask {
                        Ask::Assign(_) => {
                            let capacity = Capacity { devices: vec!["cpu:0".into()], threads: Some(1), towers };
                            connection.send(&written(&Answer::Assigned(capacity)), &[], PATIENCE, &|| false).unwrap();
                        }
                        Ask::Step(_) => {
                            let _ = sender.send(ask);
                            play(&mut connection);
                        }
                        Ask::Wait => drop(sender.send(ask)),
                        Ask::Ping => {
                            connection.send(&written(&Answer::Here), &[], PATIENCE, &|| false).unwrap();
                        }
                        Ask::Leave { .. } | Ask::Stage(_) => return,
                    }
                }
            };
            std::thread::spawn(serve);
        }
    });
    (address, asked)
}

/// Returns which values came with the steps that a worker was asked for.
fn changed(asked: &mpsc::Receiver<Ask>) -> Vec<Vec<u32>> {
    let changed = |ask| if let Ask::Step(step) = ask { Some(step.changed) } else { None };
    asked.try_iter().filter_map(changed).collect()
}

fn crew(addresses: Vec<String>, silence: Duration) -> Crew {
    let crew = Crew::call(config(addresses, silence)).unwrap();
    crew.gather(&|| false).unwrap();
    crew
}

fn config(addresses: Vec<String>, silence: Duration) -> CrewConfig {
    let assignment = Assignment {
        client: "a test".into(),
        run: 1,
        worker: 0,
        model: "any".into(),
        flags: std::collections::BTreeMap::new(),
        seed: 1,
        accumulate: 1,
        files: Vec::new(),
        parameters: table(),
        placed: None,
    };
    CrewConfig { addresses, assignment, silence, peer_timeout: PATIENCE }
}

fn share() -> Share {
    share_of(0)
}

/// Makes a share of this many tensors.
fn share_of(tensors: usize) -> Share {
    let mut parcel = Parcel::default();
    (0..tensors).for_each(|_| parcel.put(TensorData::from([1.0_f32])));
    Share { parts: vec![PackedPart { samples: 3, seed: 7, parcel }], rows: Vec::new(), samples: 3 }
}

fn values() -> Values {
    let mut values = Values::new(&table());
    values.load(vec![vec![1.0, 1.0].into(), vec![2.0, 2.0].into()]);
    values
}

/// Computes one share for each of the first `count` workers.
fn step(crew: &Crew, values: &Values, count: usize) -> anyhow::Result<Vec<StepResult>> {
    let shares: Vec<Share> = (0..count).map(|_| share()).collect();
    let jobs: Vec<Job<'_>> =
        shares.iter().enumerate().map(|(preferred, share)| Job { preferred, share, rows: Vec::new() }).collect();
    crew.compute(&table(), values, &jobs, &|| false)
}

#[test]
fn values_are_sent_only_when_they_have_changed() {
    let (address, asked) = worker(well);
    let (crew, mut values) = (crew(vec![address], PATIENCE), values());
    let expected = StepResult {
        loss: 0.5,
        gradients: vec![vec![1.0, 2.0].into(), Vec::new().into()],
        state: vec![Vec::new().into(), vec![3.0, 4.0].into()],
        samples: 3,
    };
    assert_eq!(step(&crew, &values, 1).unwrap(), [expected]);
    step(&crew, &values, 1).unwrap();
    values.load(vec![Vec::new().into(), vec![5.0, 5.0].into()]);
    step(&crew, &values, 1).unwrap();
    // The running state has changed with every step.
    assert_eq!(changed(&asked), [vec![0, 1], vec![1], vec![1]]);
}

#[test]
fn a_second_share_of_a_step_starts_from_the_running_state_of_the_first() {
    let (good, asked) = worker(well);
    let (bad, _) = worker(|_| std::thread::sleep(2 * LEAST_SILENCE));
    let crew = crew(vec![good, bad], LEAST_SILENCE);
    step(&crew, &values(), 2).unwrap();
    assert_eq!(changed(&asked), [vec![0, 1], vec![1]]);
}

#[test]
fn a_worker_that_waits_for_slower_ones_hears_of_its_client() {
    let (quick, asked) = worker(well);
    let (slow, _) = worker(|connection| {
        std::thread::sleep(Duration::from_secs(3));
        well(connection);
    });
    step(&crew(vec![quick, slow], PATIENCE), &values(), 2).unwrap();
    assert!(asked.try_iter().any(|ask| ask == Ask::Wait));
}

/// Whether the worker below may answer.
static MAY_ANSWER: AtomicBool = AtomicBool::new(false);

#[test]
fn batches_can_be_divided_while_a_step_is_under_way() {
    let (address, asked) = worker(|connection| {
        while !MAY_ANSWER.load(Ordering::Relaxed) {
            connection.send(&written(&Answer::Working), &[], PATIENCE, &|| false).unwrap();
            std::thread::sleep(Duration::from_millis(10));
        }
        well(connection);
    });
    let crew = crew(vec![address], PATIENCE);
    std::thread::scope(|scope| {
        let step = scope.spawn(|| step(&crew, &values(), 1).unwrap());
        asked.recv_timeout(PATIENCE).unwrap();
        assert_eq!((crew.pace(0).towers, crew.site(0).reachable, step.is_finished()), (1, true, false));
        MAY_ANSWER.store(true, Ordering::Relaxed);
    });
    assert!(crew.pace(0).speed.is_some());
}

/// Accepts all connections, answers every assignment with `answer`, and reports when a connection has ended.
fn assigned(listener: TcpListener, answer: impl Fn() -> Answer + Send + 'static) -> mpsc::Receiver<()> {
    let (sender, ended) = mpsc::channel();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut connection = compute::accept(Socket::accepted(stream.unwrap()).unwrap(), "").unwrap();
            while let Ok(message) = connection.receive(&LIMITS, PATIENCE, &|| false) {
                let said = if matches!(read(&message.head), Ok(Ask::Assign(_))) { answer() } else { Answer::Here };
                connection.send(&written(&said), &[], PATIENCE, &|| false).unwrap();
            }
            let _ = sender.send(());
        }
    });
    ended
}

/// Listeners for two workers, in the order of their addresses.
fn listeners() -> ([TcpListener; 2], [String; 2]) {
    let mut listeners = [0; 2].map(|_| TcpListener::bind("127.0.0.1:0").unwrap());
    listeners.sort_by_key(|listener| listener.local_addr().unwrap().to_string());
    let addresses = listeners.each_ref().map(|listener| listener.local_addr().unwrap().to_string());
    (listeners, addresses)
}

/// A run with a stage at the second worker, and nothing for the first.
fn with_a_stage_at_the_second(addresses: [String; 2]) -> CrewConfig {
    let mut config = config(addresses.to_vec(), PATIENCE);
    let stages = vec![StageAssigned { stage: "only".into(), worker: 1, device: None }];
    config.assignment.placed = Some(PlacedStages { is_soft: false, stages });
    config
}

fn capacity() -> Answer {
    Answer::Assigned(Capacity { devices: Vec::new(), threads: None, towers: 1 })
}

fn refusal(is_busy: bool) -> Answer {
    Answer::Refused { reason: "it computes for another".to_owned(), is_busy }
}

#[test]
fn a_worker_is_left_to_others_while_an_earlier_one_computes_for_another_client() {
    let ([first, second], addresses) = listeners();
    let (is_seated, seated) = mpsc::channel();
    let is_free = Arc::new(AtomicBool::new(false));
    let set_free = is_free.clone();
    let was_called = AtomicBool::new(false);
    let _first = assigned(first, move || {
        if !was_called.swap(true, Ordering::Relaxed) {
            seated.recv_timeout(PATIENCE).expect("the second is called, too");
        }
        match is_free.load(Ordering::Relaxed) {
            true => capacity(),
            false => refusal(true),
        }
    });
    let let_go = assigned(second, move || {
        let _ = is_seated.send(());
        capacity()
    });
    let crew = Crew::call(config(addresses.to_vec(), PATIENCE)).unwrap();
    let_go.recv_timeout(PATIENCE).expect("the second is let go");
    set_free.store(true, Ordering::Relaxed);
    crew.gather(&|| false).unwrap();
    assert!(crew.tally().iter().all(|worker| worker.joined == 1));
}

#[test]
fn a_worker_without_a_stage_is_called_after_the_run_has_begun_and_may_refuse() {
    for is_busy in [true, false] {
        let ([first, second], addresses) = listeners();
        let calls = Arc::new(AtomicUsize::new(0));
        let (counted, seen) = (calls.clone(), calls.clone());
        let _first = assigned(first, move || {
            counted.fetch_add(1, Ordering::Relaxed);
            refusal(is_busy)
        });
        let (early, calls_before) = mpsc::channel();
        let _second = assigned(second, move || {
            std::thread::sleep(Duration::from_millis(300));
            let _ = early.send(seen.load(Ordering::Relaxed));
            capacity()
        });
        let crew = Crew::call(with_a_stage_at_the_second(addresses)).unwrap();
        crew.gather(&|| false).unwrap();
        assert_eq!(calls_before.recv_timeout(PATIENCE).unwrap(), 0, "it is called before the run begins");
        until(|| crew.shared.seats[0].lock().why == "it computes for another");
        // As when a worker with a stage was lost.
        crew.gather(&|| false).unwrap();
        assert_eq!(crew.tally().iter().map(|worker| worker.joined).collect::<Vec<_>>(), [0, 1]);
    }
}

fn until(is_so: impl Fn() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < PATIENCE, "it never is");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A worker that reports what it is asked, and answers nothing except perhaps its assignment.
fn mute(answers_assignment: bool) -> (String, mpsc::Receiver<Ask>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let (sender, asked) = mpsc::channel();
    std::thread::spawn(move || {
        let mut connection = compute::accept(Socket::accepted(listener.accept().unwrap().0).unwrap(), "").unwrap();
        while let Ok(message) = connection.receive(&LIMITS, 10 * PATIENCE, &|| false) {
            let ask = read::<Ask>(&message.head).unwrap();
            if answers_assignment && matches!(ask, Ask::Assign(_)) {
                connection.send(&written(&capacity()), &[], PATIENCE, &|| false).unwrap();
            }
            let _ = sender.send(ask);
        }
    });
    (address, asked)
}

const ENDED: &str = "the run has ended";

fn ended() -> Outcome {
    Outcome { exit_code: exit_code::NUMERIC, reason: ENDED.to_owned() }
}

fn is_told_the_end(asked: &mpsc::Receiver<Ask>) {
    let last = asked.iter().last().expect("it was asked something");
    assert_eq!(last, Ask::Leave { reason: ENDED.to_owned(), exit_code: exit_code::NUMERIC });
}

#[test]
fn a_worker_that_is_being_assigned_when_the_run_ends_hears_how() {
    let (address, asked) = mute(false);
    let crew = Crew::call(config(vec![address], PATIENCE)).unwrap();
    assert!(matches!(asked.recv_timeout(PATIENCE).unwrap(), Ask::Assign(_)));
    crew.leave(&ended());
    assert!(!crew.shared.seats[0].is_being_assigned(), "the process may end now");
    is_told_the_end(&asked);
}

#[test]
fn a_worker_that_is_needed_for_nothing_hears_the_end_of_the_shortest_run() {
    let ([first, second], addresses) = listeners();
    let (told, heard) = mpsc::channel();
    std::thread::spawn(move || {
        let mut connection = compute::accept(Socket::accepted(first.accept().unwrap().0).unwrap(), "").unwrap();
        while let Ok(message) = connection.receive(&LIMITS, PATIENCE, &|| false) {
            let _ = told.send(read::<Ask>(&message.head).unwrap());
        }
    });
    let _second = assigned(second, capacity);
    let crew = Crew::call(with_a_stage_at_the_second(addresses)).unwrap();
    crew.gather(&|| false).unwrap();
    crew.leave(&ended());
    is_told_the_end(&heard);
}

#[test]
fn a_worker_that_does_not_answer_is_named_and_the_end_does_not_wait_for_it() {
    let (address, asked) = mute(true);
    let patience = Duration::from_millis(500);
    let crew = Crew::call(CrewConfig { peer_timeout: patience, ..config(vec![address.clone()], PATIENCE) }).unwrap();
    assert!(matches!(asked.recv_timeout(PATIENCE).unwrap(), Ask::Assign(_)));
    crew.gather(&|| false).unwrap();
    assert_eq!(asked.recv_timeout(PATIENCE).unwrap(), Ask::Ping);
    let error = crew.gather(&|| false).unwrap_err().to_string();
    assert_eq!(error, format!("gave up waiting for worker 0 at {address} (does not answer) after 0 s"));
    assert_eq!(crew.tally()[0].joined, 1);
    crew.leave(&ended());
    is_told_the_end(&asked);
}

/// A crew whose first worker is being pinged, and does not answer.
fn with_an_unanswered_ping(others: Vec<String>) -> (Crew, mpsc::Receiver<Ask>) {
    let (address, asked) = mute(true);
    let crew = crew([vec![address], others].concat(), PATIENCE);
    assert!(matches!(asked.recv_timeout(PATIENCE).unwrap(), Ask::Assign(_)));
    assert_eq!(asked.recv_timeout(PATIENCE).unwrap(), Ask::Ping);
    (crew, asked)
}

#[test]
fn a_stop_is_heard_while_a_worker_does_not_answer_a_ping() {
    let (crew, _asked) = with_an_unanswered_ping(Vec::new());
    let share = share();
    let looks = AtomicUsize::new(0);
    let is_stopped = || looks.fetch_add(1, Ordering::Relaxed) > 3;
    let job = Job { preferred: 0, share: &share, rows: Vec::new() };
    let error = crew.compute(&table(), &values(), &[job], &is_stopped).unwrap_err();
    assert_eq!(error.downcast::<CrewError>().unwrap(), CrewError::Interrupted);
    let head = written(&Ask::Stage(StageAsked { stage: "only".to_owned(), piece: StagePiece::Finish }));
    assert!(matches!(crew.ask((0, 1), (head, Vec::new()), LIMITS, &is_stopped), Err(AskError::Stopped)));
    assert_eq!(crew.joined(0, &is_stopped), None);
    assert!(crew.devices(0, &is_stopped).is_empty());
    assert!(crew.shared.seats[0].try_lock().is_none(), "the ping was waited for");
}

#[test]
fn another_worker_computes_the_share_of_one_that_does_not_answer_a_ping() {
    let (good, asked) = worker(well);
    let (crew, _asked) = with_an_unanswered_ping(vec![good]);
    assert_eq!(step(&crew, &values(), 2).unwrap().len(), 2);
    assert_eq!(changed(&asked).len(), 2);
    assert!(crew.shared.seats[0].try_lock().is_none(), "the ping was waited for");
}

#[test]
fn a_worker_with_more_towers_than_can_be_is_not_believed() {
    for towers in [0, 257, usize::MAX] {
        let (address, _) = worker_with(well, towers);
        let config = CrewConfig { peer_timeout: Duration::from_millis(500), ..config(vec![address], PATIENCE) };
        let error = Crew::call(config).unwrap().gather(&|| false).unwrap_err().to_string();
        assert!(error.contains(&format!("it says that it has {towers} towers")), "{error}");
    }
}

/// Checks that a worker with this answer is dropped: the other worker computes both shares, with correct results.
fn is_dropped(play: Play) {
    let (bad, asked) = worker(play);
    let (good, _) = worker(well);
    let crew = crew(vec![bad, good], LEAST_SILENCE);
    let results = step(&crew, &values(), 2).unwrap();
    assert_eq!(results.len(), 2);
    assert!(results.iter().all(|result| *result.gradients[0] == [1.0, 2.0]));
    assert!(asked.try_recv().is_ok(), "it was asked");
    let tally = crew.tally();
    assert_eq!((tally[0].steps, tally[1].steps), (0, 2));
}

#[test]
fn a_gradient_of_another_length_drops_the_worker() {
    is_dropped(|connection| {
        let tensors = [Section::floats(&[3], &[1.0; 3]), Section::floats(&[2], &[3.0, 4.0])];
        answer(connection, answered(3), &tensors);
    });
}

#[test]
fn a_gradient_of_what_has_none_or_is_not_there_drops_the_worker() {
    is_dropped(|connection| {
        let tensors = [Section::floats(&[2], &[1.0; 2]), Section::floats(&[2], &[3.0, 4.0])];
        answer(connection, StepAnswered { gradients: vec![0, 1], state: vec![], ..answered(3) }, &tensors);
    });
    is_dropped(|connection| {
        answer(connection, StepAnswered { gradients: vec![], ..answered(3) }, &[Section::floats(&[2], &[3.0, 4.0])]);
    });
    is_dropped(|connection| {
        let tensors = [Section::integers(&[2], &[1, 2]), Section::floats(&[2], &[3.0, 4.0])];
        answer(connection, answered(3), &tensors);
    });
    is_dropped(|connection| answer(connection, answered(3), &[]));
}

#[test]
fn an_answer_for_other_samples_drops_the_worker() {
    is_dropped(|connection| {
        let tensors = [Section::floats(&[2], &[1.0; 2]), Section::floats(&[2], &[3.0, 4.0])];
        answer(connection, answered(4), &tensors);
    });
}

#[test]
fn garbage_silence_and_a_message_that_is_too_large_drop_the_worker() {
    is_dropped(|connection| connection.send(b"{\"say\":", &[], PATIENCE, &|| false).unwrap());
    is_dropped(|_| std::thread::sleep(2 * LEAST_SILENCE));
    is_dropped(|connection| {
        let many = vec![0.0; 1000];
        answer(connection, answered(3), &[Section::floats(&[1000], &many), Section::floats(&[2], &[3.0, 4.0])]);
    });
}

#[test]
fn a_model_that_cannot_compute_ends_the_run_and_names_the_worker() {
    let (address, _) = worker(|connection| {
        let failed = Answer::Failed { reason: "panicked while computing".into() };
        connection.send(&written(&failed), &[], PATIENCE, &|| false).unwrap();
    });
    let error = step(&crew(vec![address.clone()], PATIENCE), &values(), 1).unwrap_err().to_string();
    assert_eq!(error, format!("worker 0 at {address}: panicked while computing"));
}

#[test]
fn numbers_that_are_not_finite_end_the_run_and_name_worker_and_parameter() {
    fn ends(play: Play, expected: &str) {
        let (good, _) = worker(well);
        let (bad, _) = worker(play);
        let error = step(&crew(vec![good, bad.clone()], PATIENCE), &values(), 2).unwrap_err();
        let (worker, what) = (format!("worker 1 at {bad}"), expected.to_owned());
        assert_eq!(error.downcast::<CrewError>().unwrap(), CrewError::NotFinite { worker, what });
    }
    ends(
        |connection| {
            let tensors = [Section::floats(&[2], &[1.0, f32::NAN]), Section::floats(&[2], &[3.0, 4.0])];
            answer(connection, answered(3), &tensors);
        },
        "its gradient of weight contains NaN",
    );
    ends(
        |connection| {
            let tensors = [Section::floats(&[2], &[1.0, 2.0]), Section::floats(&[2], &[f32::INFINITY, 4.0])];
            answer(connection, answered(3), &tensors);
        },
        "its running state of mean contains inf",
    );
    ends(
        |connection| {
            let tensors = [Section::floats(&[2], &[1.0, 2.0]), Section::floats(&[2], &[3.0, 4.0])];
            answer(connection, StepAnswered { loss: f32::NAN.to_bits(), ..answered(3) }, &tensors);
        },
        "its loss is NaN",
    );
}

/// Whether the busy neighbour below may answer.
static NEIGHBOUR_MAY_ANSWER: AtomicBool = AtomicBool::new(false);

#[test]
fn a_replica_without_its_worker_hears_the_stop_while_its_neighbour_computes_for_another() {
    let (lost, _) = worker(|connection| connection.send(b"{\"say\":", &[], PATIENCE, &|| false).unwrap());
    let (busy, asked) = worker(|connection| {
        while !NEIGHBOUR_MAY_ANSWER.load(Ordering::Relaxed) {
            connection.send(&written(&Answer::Working), &[], PATIENCE, &|| false).unwrap();
            std::thread::sleep(Duration::from_millis(10));
        }
        well(connection);
    });
    let crew = crew(vec![lost, busy], PATIENCE);
    let (table, share, values) = (table(), share(), values());
    let step = |preferred, is_stopped: &dyn Fn() -> bool| {
        crew.compute(&table, &values, &[Job { preferred, share: &share, rows: Vec::new() }], is_stopped)
    };
    std::thread::scope(|scope| {
        let neighbour = scope.spawn(|| step(1, &|| false).unwrap());
        asked.recv_timeout(PATIENCE).unwrap();
        // Its own worker comes and goes with every share; the wait is stopped after it has seen that no other worker is
        // free.
        let looks = AtomicUsize::new(0);
        let error = step(0, &|| looks.fetch_add(1, Ordering::Relaxed) > 3).unwrap_err();
        assert_eq!(error.downcast::<CrewError>().unwrap(), CrewError::Interrupted);
        assert!(!neighbour.is_finished());
        NEIGHBOUR_MAY_ANSWER.store(true, Ordering::Relaxed);
    });
}

/// Whether the slow worker below may answer.
static SLOW_MAY_ANSWER: AtomicBool = AtomicBool::new(false);

#[test]
fn the_share_of_a_worker_that_is_lost_after_it_has_answered_is_not_recomputed() {
    let (lost, asked) = worker(|connection| {
        well(connection);
        connection.handle().unwrap().shutdown();
    });
    let (slow, _) = worker(|connection| {
        while !SLOW_MAY_ANSWER.load(Ordering::Relaxed) {
            connection.send(&written(&Answer::Working), &[], PATIENCE, &|| false).unwrap();
            std::thread::sleep(Duration::from_millis(10));
        }
        well(connection);
    });
    let crew = crew(vec![lost, slow], PATIENCE);
    let (table, values, shares) = (table(), values(), [share(), share()]);
    let job = |(preferred, share)| Job { preferred, share, rows: Vec::new() };
    let jobs: Vec<Job<'_>> = shares.iter().enumerate().map(job).collect();
    // The first message that it is sent resets the connection, and the second one fails.
    let began = Instant::now();
    let is_stopped = || {
        SLOW_MAY_ANSWER.store(began.elapsed() > 5 * PING_EVERY / 2, Ordering::Relaxed);
        false
    };
    let results = crew.compute(&table, &values, &jobs, &is_stopped).unwrap();
    assert!(results.iter().all(|result| *result.gradients[0] == [1.0, 2.0]));
    assert_eq!(crew.tally().iter().map(|worker| worker.steps).collect::<Vec<_>>(), [1, 1]);
    assert_eq!(changed(&asked).len(), 1, "its share was computed again");
    until(|| crew.shared.seats[0].joined() == 2);
}

#[test]
fn a_share_that_no_worker_takes_ends_the_run_and_says_why() {
    let (address, asked) = worker(well);
    let crew = crew(vec![address], PATIENCE);
    let share = share_of((1 << 16) + 100);
    let job = Job { preferred: 0, share: &share, rows: Vec::new() };
    let error = crew.compute(&table(), &values(), &[job], &|| false).unwrap_err();
    assert_eq!(
        format!("{error:#}"),
        "a share of 3 samples is too large, use a smaller --batch-size or more workers: message tensor count of 65638 exceeds the limit of 65540"
    );
    assert!(asked.try_recv().is_err(), "it was asked");
}

#[test]
fn a_model_that_no_worker_could_be_told_of_is_refused_with_its_size() {
    let (address, asked) = mute(true);
    let mut config = config(vec![address.clone()], PATIENCE);
    config.assignment.files = vec![("vocabulary".to_owned(), "x".repeat(32 << 20))];
    let error = Crew::call(config).unwrap().gather(&|| false).unwrap_err();
    let CrewError::Refused { worker, reason } = error else { panic!("{error}") };
    assert_eq!(worker, format!("worker 0 at {address}"));
    let (what, most) = reason.split_once(": message head of 335").expect(&reason);
    assert_eq!(what, "the description of the model, with its files and list of parameters, is too large");
    assert!(most.ends_with(" bytes exceeds the limit of 33554432"), "{reason}");
    assert!(asked.try_recv().is_err(), "it was asked");
}

#[test]
fn a_share_that_every_worker_is_lost_with_is_given_up() {
    let (address, asked) = worker(|connection| answer(connection, answered(4), &[]));
    let crew = crew(vec![address.clone()], PATIENCE);
    let error = step(&crew, &values(), 1).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!(
            "gave up: the same share was lost 5 times, the last time with worker 0 at {address}: it answered for 4 samples instead of 3"
        )
    );
    assert_eq!(changed(&asked).len(), 5);
}
