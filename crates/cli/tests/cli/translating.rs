//! A translator after its training: scored, used for translation, and resumed after an interruption.

use std::fs;
use std::sync::LazyLock;

use insta::{assert_snapshot, with_settings};
use rustix::process::Signal;
use serde_json::Value;

use crate::checkpoints::values;
use crate::cluster::{Launched, summary};
use crate::process::{Invocation, Told, windlass};

/// A network trained on the self-test, in which sentences are reversed.
fn trained(steps: u64) -> Told {
    windlass(&format!("train seq2seq --self-test --threads 1 --steps {steps} --run-dir run")).run().succeeded()
}

fn decode(trained: &Told, flags: &str, input: &str) -> Told {
    trained.windlass(&format!("decode --checkpoint run/checkpoints {flags}")).with_input(input).run()
}

#[test]
fn sentences_are_translated_line_by_line_greedily_or_by_a_beam() {
    let trained = trained(300);
    let sentences = ["ba", "no ku", "me ba de", "ba fi ku me ba", "la"];
    for flags in ["", "--beam 4", "--beam 4 --length-penalty 0"] {
        let told = decode(&trained, flags, &sentences.join("\n")).succeeded();
        let said: Vec<&str> = told.stdout.lines().collect();
        assert_eq!(said.len(), sentences.len(), "{told}");
        let backwards = |sentence: &str| sentence.split(' ').rev().collect::<Vec<_>>().join(" ");
        let right = sentences.iter().zip(said).filter(|(sentence, said)| backwards(sentence) == *said).count();
        assert!(right >= 3, "{flags}: {told}");
    }
}

#[test]
fn every_line_is_answered_by_a_line() {
    let told = decode(&trained(5), "", "ba\n\n ba de fi go ku la me no\nba de nothing known\n").succeeded();
    assert_eq!(told.stdout.lines().count(), 4, "{told}");
    let said: Vec<&str> = told.stdout.lines().collect();
    assert_eq!((said[1], said[2]), ("", ""), "{told}");
    assert_snapshot!(told.without_log().stderr, @"line 3: the sentence has 8 words, and the network was trained with fewer than 7");
}

#[test]
fn attention_is_a_table_of_words_by_words() {
    let told = decode(&trained(100), "--attention", "ba xyzzy\n").succeeded();
    let (said, table) = told.stdout.split_once('\n').unwrap();
    let rows: Vec<&str> = table.lines().map(|row| row.split_whitespace().next().unwrap()).collect();
    assert_eq!(rows[1..].join(" "), said, "a row for each word: {told}");
    assert_eq!(table.lines().next().unwrap().split_whitespace().collect::<Vec<_>>(), ["ba", "xyzzy"]);
    let weights = table.lines().skip(1).flat_map(|row| row.split_whitespace().skip(1));
    assert!(weights.clone().count() >= 2 && weights.clone().all(|weight| weight.parse::<f64>().is_ok()), "{told}");
}

#[test]
fn for_programs_every_line_is_answered_by_json() {
    let told = decode(&trained(100), "--json --attention", "ba xyzzy\n\nba\n").succeeded();
    let lines: Vec<Value> = told.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 3, "{told}");
    assert_eq!((&lines[0]["source"], &lines[1]), (&serde_json::json!(["ba", "xyzzy"]), &Value::Null), "{told}");
    let (words, attention) = (lines[0]["words"].as_array().unwrap(), lines[0]["attention"].as_array().unwrap());
    assert_eq!(words.len(), attention.len(), "{told}");
    assert!(attention.iter().all(|weights| weights.as_array().is_some_and(|weights| weights.len() == 2)), "{told}");
}

#[test]
fn a_checkpoint_is_scored_by_bucket_as_at_the_end_of_its_training() {
    let trained = trained(30);
    let scored = trained.windlass("eval seq2seq --self-test --checkpoint run/checkpoints").run().succeeded();
    with_settings!({filters => [(r"\d+\.\d+", "[N]")]}, {
        assert_snapshot!(scored.stdout, @"step 30: bucket 0 perplexity [N], bucket 1 perplexity [N], dev perplexity [N], exact match [N]%, bleu [N]");
    });
    let json =
        trained.windlass("eval seq2seq --self-test --checkpoint run/checkpoints --format json").run().succeeded();
    let scores: serde_json::Value = serde_json::from_str(&json.stdout).unwrap();
    let expected = &summary(&trained)["metrics"];
    for (name, score) in scores["metrics"].as_object().unwrap() {
        let (score, expected) = (score.as_f64().unwrap(), expected[name].as_f64().unwrap());
        assert!((score - expected).abs() < 1e-3 * expected.max(1.0), "{name}: {score}, not {expected}");
    }
}

#[test]
fn what_cannot_be_decoded_is_refused() {
    let trained = trained(1);
    let refused = |told: Told, exit_code: i32| {
        assert_eq!(told.exit_code(), Some(exit_code), "{told}");
        told.without_log().stderr
    };
    assert_snapshot!(refused(decode(&trained, "--beam 0", ""), 2), @"error: --beam must be at least 1");
    assert_snapshot!(refused(decode(&trained, "--length-penalty -1", ""), 2), @"error: --length-penalty is -1, but must be zero or more");
    let nowhere = trained.windlass("decode --checkpoint nowhere").run();
    assert_snapshot!(refused(nowhere, 2), @"
    error: there is no directory nowhere
    hint: a run keeps its checkpoints in RUN_DIR/checkpoints
    ");
    let binary = trained.windlass("decode --checkpoint run/checkpoints").with_input(b"ba\n\xff\n").run();
    assert_snapshot!(refused(binary, 2), @"error: line 2 is not UTF-8");
    let kept = fs::read_dir(trained.directory().join("run/checkpoints/files")).unwrap().next().unwrap().unwrap();
    let text = fs::read_to_string(kept.path()).unwrap();
    fs::write(trained.directory().join("other.json"), text.replace("\"size\":32", "\"size\":31")).unwrap();
    assert_snapshot!(refused(decode(&trained, "--translator other.json", ""), 4), @"error: other.json cannot be used: it belongs to another network: parameter `from_embedding` of shape [12, 31] has 384 values");
    assert_snapshot!(refused(decode(&trained, "--translator none.json", ""), 2), @"
    error: cannot read the vocabularies in none.json: No such file or directory (os error 2)
    hint: name the translator.json of the run, with --translator
    ");
    let digits = trained.windlass("train linear --steps 3 --threads 1 --run-dir other").run().succeeded();
    let told = digits.windlass("decode --checkpoint other/checkpoints").run();
    with_settings!({filters => [(r"\d{12}-[0-9a-z-]+", "[ID]")]}, {
        assert_snapshot!(refused(told, 4), @"error: checkpoint [ID] is for linear, which does not translate");
    });
}

/// The steps of a run of two workers in sync mode, whose tables are accessed by row, and whose learning rate falls
/// whenever losses do not.
const STEPS: u64 = 300;
const FLAGS: &str = "seq2seq --self-test --mode sync --min-shard-bytes 0 --threads 1 --evaluate end --log-every 10 --checkpoint-secs 0 \
                     --checkpoint-steps 50 --report-every 7 --learning-rate-decay 0.9 --format json --run-dir run";

/// The final values of a run without interruptions.
static UNDISTURBED: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let told = on(windlass, "launch", "--ps 2").run().succeeded();
    let rate = told.event("report")["learning_rate"].as_f64().unwrap();
    assert!(rate < 0.007, "the rate falls a few times, but was {rate} in the end");
    values(&told)
});

/// A run to the last step, by this command and with these additional flags.
fn on(windlass: impl FnOnce(&str) -> Invocation, command: &str, flags: &str) -> Invocation {
    windlass(&format!("{command} {FLAGS} --steps {STEPS} {flags}"))
}

/// Asserts that a run resumed from a checkpoint, and finished.
fn went_on(told: Told) -> Told {
    let told = told.succeeded();
    let summary = summary(&told);
    assert_eq!(summary["global_step"], STEPS);
    assert!((1..STEPS).contains(&summary["resumed_at"].as_u64().unwrap()), "{summary:#}");
    told
}

#[test]
fn tables_of_rows_are_taken_up_where_a_killed_run_saved_them() {
    let run = Launched::by(on(windlass, "launch", "--ps 2"));
    run.logged("ps-0", "checkpoint of step ");
    let killed = run.0.killed();
    let resumed = went_on(on(|words| killed.windlass(words), "launch", "--ps 2").run());
    assert!(values(&resumed) == *UNDISTURBED, "the values differ");
}

#[test]
fn workers_pull_their_rows_again_when_a_ps_is_lost() {
    let run = Launched::by(on(windlass, "launch", "--ps 2 --restart 1"));
    run.logged("ps-0", "checkpoint of step ");
    run.task("ps", 1).signal(Signal::KILL);
    assert!(values(&went_on(run.wait())) == *UNDISTURBED, "the values differ");
}

#[test]
fn a_run_that_loses_a_ps_before_its_first_checkpoint_begins_anew_with_whole_tables() {
    let flags = "--ps 2 --restart 1".to_owned();
    let command = on(|words| windlass(&words.replace("--checkpoint-steps 50", "")), "launch", &flags);
    let run = Launched::by(command);
    run.event("step", 0);
    run.task("ps", 1).signal(Signal::KILL);
    let told = run.wait().succeeded();
    assert_eq!(summary(&told)["resumed_at"], 0);
    assert!(values(&told) == *UNDISTURBED, "the values differ");
}

#[test]
fn tables_of_rows_go_from_a_cluster_to_one_process_and_to_a_colocated_run() {
    let run = Launched::by(on(windlass, "launch", "--ps 2"));
    run.logged("ps-0", "checkpoint of step ");
    let killed = run.0.killed();
    let steps = |steps: u64| format!("--steps {steps}");
    let command = on(|words| killed.windlass(&words.replace(&steps(STEPS), &steps(STEPS - 1))), "train", "");
    let single = command.run().succeeded();
    assert_eq!(summary(&single)["global_step"], STEPS - 1);
    let colocated = went_on(on(|words| single.windlass(words), "launch", "--colocate").run());
    assert_eq!(summary(&colocated)["resumed_at"], STEPS - 1);
}
