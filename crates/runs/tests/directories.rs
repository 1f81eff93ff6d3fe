//! Run directories as runs leave them: complete, from earlier versions, torn, empty, alive.

use std::fs::{self, File};
use std::path::Path;
use std::process::Command;

use windlass_page::{Curve, LastStatus, Phase, STATUS_FILE, Server, Status, Worker};
use windlass_runs::names::{LOCK_FILE, RUN_FILE, SUMMARY_FILE};
use windlass_runs::{Cell, Comparison, Ending, Layout, Removal, Run};

const SUMMARY: &str = r#"{"model": "mnist", "mode": "sync", "ps": 2, "workers": 3, "optimizer": "sgd",
    "global_step": 400, "wall_seconds": 2.5, "loss": 0.25,
    "bytes_per_step": {"sent": 1000.0, "received": 1000.0, "in_process": 500.0}, "metrics": {"test_accuracy": 0.975},
    "metric_kinds": {"test_accuracy": "fraction"}}"#;

fn settings(workers: u32, learning_rate: &str) -> String {
    format!(
        "# windlass launch mnist\n# All settings of this run, and where each comes from.\nmodel-name = \"mnist\"\n\n\
         [launch]\nps = 1  # default\nworkers = {workers}  # flag\ncolocate = false  # default\n\n\
         [train]\nmode = \"ssp\"  # flag\nstaleness = 4  # flag\noptimizer = \"adam\"  # default\n\
         learning-rate = {learning_rate}  # default\nsteps = 400  # default\nrun-dir = \"/somewhere/{workers}\"  # flag\n"
    )
}

fn last_status(exit_code: Option<u8>, phase: Phase, step: u64) -> String {
    let mut loss = Curve::new("loss");
    loss.push(step, 0.5);
    let mut accuracy = Curve::new("test accuracy");
    accuracy.is_fraction = true;
    accuracy.push(step, 0.75);
    let status = Status {
        model: "mnist".into(),
        phase,
        step,
        loss,
        scores: vec![accuracy],
        elapsed_secs: 60.0,
        ..Status::default()
    };
    serde_json::to_string(&LastStatus { written: 1000, began: None, address: "ps-0:2222".into(), exit_code, status })
        .unwrap()
}

fn write(directory: &Path, files: &[(&str, &str)]) {
    files.iter().for_each(|(name, text)| fs::write(directory.join(name), text).unwrap());
}

fn run_of(files: &[(&str, &str)]) -> Run {
    let directory = tempfile::tempdir().unwrap();
    write(directory.path(), files);
    Run::read(directory.path()).unwrap()
}

#[test]
fn a_finished_run_is_told_by_its_settings_and_its_summary() {
    let ended = last_status(Some(0), Phase::Over, 400);
    let run = run_of(&[(RUN_FILE, &settings(2, "0.01")), (SUMMARY_FILE, SUMMARY), (STATUS_FILE, &ended)]);
    assert_eq!((run.model.as_str(), run.mode.as_str(), run.optimizer.as_str()), ("mnist", "ssp 4", "adam"));
    assert_eq!(run.layout, Some(Layout { ps: 1, workers: 2, colocated: false, joined: false }));
    assert_eq!((run.step, run.target, run.loss, run.began), (400, Some(400), Some(0.25), Some(940)));
    assert_eq!((run.scores[0].to_string().as_str(), &run.ending), ("test accuracy 97.50%", &Ending::Finished));
    assert!(run.bytes > 0 && run.problems.is_empty(), "{:?}", run.problems);
}

/// The settings of a run whose tasks were started one by one.
fn by_hand(more: &str) -> String {
    format!(
        "model-name = \"mnist\"\n\n[train]\nworker-hosts = \"a:1,b:1\"  # flag\ncolocate = false  # default\n{more}"
    )
}

#[test]
fn a_run_that_was_started_by_hand_is_laid_out_as_its_addresses_say() {
    let layout = |settings: &str| run_of(&[(RUN_FILE, settings)]).layout.unwrap().to_string();
    assert_eq!(layout(&by_hand("in-graph = true  # flag\n")), "2 joined workers");
    assert_eq!(layout(&by_hand("in-graph = true  # flag\nps-hosts = \"c:1\"  # flag\n")), "1 ps, 2 joined workers");
    assert_eq!(layout(&by_hand("place = \"hidden=/job:worker/task:1\"  # flag\n")), "2 joined workers");
    assert_eq!(layout(&by_hand("ps-hosts = \"c:1,d:1\"  # flag\n")), "2 ps, 2 workers");
    assert_eq!(layout("model-name = \"mnist\"\n[train]\nin-graph = false  # default\n"), "one process");
    // Only the summary is left.
    let joined = r#", "joined": [{"worker": "worker 0 at a:1", "steps": 5, "joined": 1}]}"#;
    let summary = SUMMARY.replace(r#""ps": 2"#, r#""ps": 0"#);
    let summary = format!("{}{joined}", summary.trim_end().strip_suffix('}').unwrap());
    let run = run_of(&[(SUMMARY_FILE, &summary)]);
    assert_eq!(run.layout.unwrap().to_string(), "1 joined worker");
    assert_eq!(run.summary.unwrap().traffic_per_step(), None);
}

#[test]
fn the_layout_of_a_run_with_a_client_follows_from_its_last_status() {
    let laid_out = |client: Option<Worker>, layout: &str| {
        let (workers, servers) = (vec![Worker::default(); 2], vec![Server::default()]);
        let status = Status { client, workers, servers, layout: layout.into(), ..Status::default() };
        let last = LastStatus { written: 1000, address: "ps-0:2222".into(), status, ..LastStatus::default() };
        run_of(&[(STATUS_FILE, &serde_json::to_string(&last).unwrap())]).layout.unwrap().to_string()
    };
    let client = || Some(Worker::default());
    assert_eq!(laid_out(client(), "a client, 2 joined workers"), "2 joined workers");
    assert_eq!(laid_out(client(), "1 ps, a client, 2 joined workers"), "1 ps, 2 joined workers");
    assert_eq!(laid_out(None, "1 ps, 2 workers"), "1 ps, 2 workers");
}

#[test]
fn the_summary_of_an_earlier_run_in_the_same_directory_is_not_taken_for_this_ones() {
    let died = last_status(None, Phase::Training, 700);
    let run = run_of(&[(RUN_FILE, &settings(2, "0.01")), (SUMMARY_FILE, SUMMARY), (STATUS_FILE, &died)]);
    assert_eq!((run.step, run.loss, &run.ending), (700, Some(0.5), &Ending::Died));
    assert_eq!((run.scores[0].to_string().as_str(), run.summary), ("test accuracy 75.00%", None));
}

#[test]
fn a_run_of_an_earlier_version_has_only_its_summary() {
    let run = run_of(&[(SUMMARY_FILE, SUMMARY)]);
    assert_eq!(run.layout.map(|layout| layout.to_string()).as_deref(), Some("2 ps, 3 workers"));
    assert_eq!((run.step, run.mode.as_str(), run.ending), (400, "sync", Ending::Finished));
}

#[test]
fn damage_is_told_and_the_rest_is_read_all_the_same() {
    let cut = format!("{}\nseed = ", &settings(2, "0.01")[..120]);
    let run = run_of(&[(RUN_FILE, &cut), (LOCK_FILE, ""), (SUMMARY_FILE, SUMMARY), (STATUS_FILE, "{\"wri")]);
    assert_eq!((run.step, run.problems.len()), (400, 2));
    assert!(run.problems[0].starts_with("run.toml: ") && run.problems[1].starts_with("status.json: "), "{run:?}");
}

/// Opening a FIFO for reading blocks until there is a writer.
fn make_fifo(path: &Path) {
    assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
}

#[test]
fn only_regular_files_are_read() {
    let ended = last_status(Some(0), Phase::Over, 400);
    let all = [(RUN_FILE, &*settings(2, "0.01")), (SUMMARY_FILE, SUMMARY), (STATUS_FILE, &*ended), (LOCK_FILE, "")];
    for (fifo, _) in all {
        let root = tempfile::tempdir().unwrap();
        let [odd, other] = ["a", "b"].map(|name| root.path().join(name));
        [&odd, &other].iter().for_each(|directory| fs::create_dir(directory).unwrap());
        write(&other, &all);
        write(&odd, &all.iter().copied().filter(|(name, _)| *name != fifo).collect::<Vec<_>>());
        make_fifo(&odd.join(fifo));
        let found = windlass_runs::find(root.path()).unwrap();
        assert_eq!(found.runs, [odd.clone(), other], "{fifo}");
        let expected = if fifo == LOCK_FILE { vec![] } else { vec![format!("{fifo}: not a regular file")] };
        assert_eq!(Run::read(&odd).unwrap().problems, expected);
    }
}

#[test]
fn damaged_checkpoints_are_told() {
    let directory = tempfile::tempdir().unwrap();
    let store = directory.path().join("checkpoints");
    fs::create_dir_all(store.join("generations")).unwrap();
    fs::write(store.join("000000012000-g000003-5d20c19e.json"), "{\"format\": 1").unwrap();
    let run = Run::read(directory.path()).unwrap();
    assert_eq!((run.checkpoints.len(), run.checkpoints[0].step), (1, 12000));
    assert!(run.checkpoints[0].damage.is_some() && run.problems.len() == 1, "{run:?}");
    assert_eq!(run.ending, Ending::NotBegun);
}

#[test]
fn a_run_that_holds_its_lock_is_active_and_is_not_removed() {
    let directory = tempfile::tempdir().unwrap();
    write(directory.path(), &[(RUN_FILE, &settings(2, "0.01")), (LOCK_FILE, "")]);
    let lock = File::options().write(true).open(directory.path().join(LOCK_FILE)).unwrap();
    lock.try_lock().unwrap();
    assert_eq!(Run::read(directory.path()).unwrap().ending, Ending::Running);
    let refused = Removal::prepare(directory.path()).unwrap_err().to_string();
    assert!(refused.contains("is active"), "{refused}");
    drop(lock);
    let removal = Removal::prepare(directory.path()).unwrap();
    let beginning = File::options().write(true).open(directory.path().join(LOCK_FILE)).unwrap();
    assert!(beginning.try_lock().is_err(), "no run begins in a directory that is being removed");
    removal.carry_out().unwrap();
    assert!(!directory.path().exists());
}

#[test]
fn nothing_is_removed_that_is_not_a_run_or_more_than_one() {
    let root = tempfile::tempdir().unwrap();
    let refused = |path: &Path| Removal::prepare(path).unwrap_err().to_string();
    assert!(refused(root.path()).contains("is not a run directory"));
    let outer = root.path().join("outer");
    fs::create_dir_all(outer.join("notes/inner")).unwrap();
    write(&outer, &[(RUN_FILE, &settings(2, "0.01"))]);
    write(&outer.join("notes/inner"), &[(RUN_FILE, &settings(2, "0.01"))]);
    assert!(refused(&outer).contains("holds other runs, such as"));
    let link = root.path().join("link");
    std::os::unix::fs::symlink(outer.join("notes/inner"), &link).unwrap();
    assert!(refused(&link).ends_with("is a link to a directory"));
    assert!(refused(&root.path().join("link/")).ends_with("is a link to a directory"));
    assert!(outer.join("notes/inner").join(RUN_FILE).exists());
}

#[test]
fn a_run_directory_with_files_of_somebody_elses_is_not_removed() {
    let root = tempfile::tempdir().unwrap();
    let project = root.path().join("project");
    fs::create_dir_all(project.join(".git")).unwrap();
    let of_the_run = [(RUN_FILE, ""), (LOCK_FILE, ""), ("worker-0.log", ""), ("history.jsonl", "")];
    write(&project, &of_the_run);
    write(&project, &[(RUN_FILE, &settings(2, "0.01")), ("main.rs", "")]);
    let refused = || Removal::prepare(&project).unwrap_err().to_string();
    assert!(refused().contains("holds more than a run: ") && refused().ends_with(".git"), "{}", refused());
    fs::remove_dir(project.join(".git")).unwrap();
    assert!(refused().ends_with("main.rs"), "{}", refused());
    fs::remove_file(project.join("main.rs")).unwrap();
    Removal::prepare(&project).unwrap().carry_out().unwrap();
    assert!(!project.exists());
}

#[test]
fn checkpoints_under_another_name_are_removed_with_the_run_and_those_elsewhere_stay() {
    let root = tempfile::tempdir().unwrap();
    let run = root.path().join("run");
    for (store, stays) in [(run.join("saved"), false), (root.path().join("elsewhere"), true)] {
        fs::create_dir_all(&run).unwrap();
        fs::create_dir_all(store.join("generations")).unwrap();
        write(&run, &[(RUN_FILE, &format!("{}checkpoint-dir = {store:?}\n", settings(2, "0.01")))]);
        let removal = Removal::prepare(&run).unwrap();
        assert_eq!(removal.remaining.as_deref(), stays.then(|| store.to_str().unwrap()));
        removal.carry_out().unwrap();
        assert_eq!((run.exists(), store.exists()), (false, stays));
    }
}

#[test]
fn a_run_whose_claim_cannot_be_read_is_not_removed() {
    let directory = tempfile::tempdir().unwrap();
    let generations = directory.path().join("checkpoints/generations");
    fs::create_dir(directory.path().join("checkpoints")).unwrap();
    // A link to itself cannot be followed, not even by root.
    std::os::unix::fs::symlink(&generations, &generations).unwrap();
    write(directory.path(), &[(RUN_FILE, &settings(2, "0.01")), (LOCK_FILE, "")]);
    let refused = Removal::prepare(directory.path()).unwrap_err().to_string();
    assert!(refused.starts_with("cannot tell whether the run in "), "{refused}");
}

#[test]
fn without_a_claim_to_look_at_a_fresh_status_is_that_of_an_active_run() {
    let directory = tempfile::tempdir().unwrap();
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
    let status = |written: u64, exit_code: Option<u8>| {
        let status = LastStatus { written, exit_code, ..LastStatus::default() };
        write(directory.path(), &[(STATUS_FILE, &serde_json::to_string(&status).unwrap())]);
        (Run::read(directory.path()).unwrap().ending == Ending::Running, Removal::prepare(directory.path()).is_err())
    };
    assert_eq!(status(now, None), (true, true));
    assert_eq!(status(now, Some(0)), (false, false));
    assert_eq!(status(now - 60, None), (false, false));
}

#[test]
fn a_default_that_only_some_runs_have_is_no_difference() {
    let launched =
        settings(2, "0.01").replace("[train]", "restart = 0  # default\n\n[train]\ncolocate = false  # default");
    let own = launched.find("[train]").unwrap();
    let alone = format!("model-name = \"mnist\"\n\n{}", launched[own..].replace("colocate = false  # default\n", ""));
    let names = |launched: &str| {
        let comparison = Comparison::new(&[run_of(&[(RUN_FILE, launched)]), run_of(&[(RUN_FILE, &alone)])]);
        comparison.settings.into_iter().map(|row| row.name).collect::<Vec<_>>()
    };
    assert_eq!(names(&launched), ["layout"]);
    assert_eq!(names(&launched.replace("restart = 0  # default", "restart = 3  # flag")), ["layout", "restart"]);
}

#[test]
fn runs_are_compared_by_what_differs() {
    let ended = last_status(Some(0), Phase::Over, 400);
    let first = run_of(&[(RUN_FILE, &settings(2, "0.01")), (SUMMARY_FILE, SUMMARY), (STATUS_FILE, &ended)]);
    let second = run_of(&[(RUN_FILE, &settings(8, "0.02"))]);
    let comparison = Comparison::new(&[first, second]);
    let names: Vec<&str> = comparison.settings.iter().map(|row| row.name.as_str()).collect();
    assert_eq!((names, comparison.same_settings), (vec!["layout", "learning-rate"], 4));
    assert_eq!(comparison.settings[1].values, [Cell::Text("0.01".into()), Cell::Text("0.02".into())]);
    let result = |name: &str| comparison.results.iter().find(|row| row.name == name).unwrap().values.clone();
    assert_eq!(result("test accuracy"), [Cell::Fraction(0.975), Cell::None]);
    assert_eq!(result("state"), [Cell::Text("finished".into()), Cell::Text("not begun".into())]);
    let json = serde_json::to_value(&comparison).unwrap();
    assert_eq!(result("traffic per step"), [Cell::Bytes(1500), Cell::None]);
    assert_eq!(json["results"][2]["values"], serde_json::json!([0.25, null]));
}
