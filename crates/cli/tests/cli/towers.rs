//! `--towers`: several replicas in one worker, which train the same network as one.

use insta::assert_snapshot;

use crate::cluster::summary;
use crate::process::windlass;

/// The loss after a run with these flags, and the number of samples that went into it.
fn trained(words: &str) -> (f64, u64) {
    let told = windlass(&format!("{words} --evaluate end --run-dir run")).run().succeeded();
    let summary = summary(&told);
    (summary["loss"].as_f64().unwrap(), summary["global_step"].as_u64().unwrap())
}

#[test]
fn towers_learn_what_one_replica_does() {
    for words in [
        "train mnist --hidden 16 --batch-size 50 --steps 60 --seed 3",
        "launch mnist --hidden 16 --batch-size 50 --steps 60 --seed 3 --mode sync",
        "launch mnist --hidden 16 --batch-size 50 --steps 60 --seed 3 --mode sync --colocate",
    ] {
        for towers in [2, 4] {
            assert_same(words, &format!("{words} --towers {towers}"));
        }
    }
}

/// Each part of a step draws its own negative samples, wherever it is computed.
#[test]
fn towers_learn_to_translate_as_parts_one_after_the_other_do() {
    let words = "train seq2seq --size 16 --layers 1 --steps 20 --seed 3";
    assert_same(&format!("{words} --batch-size 3 --accumulate 3"), &format!("{words} --batch-size 9 --towers 3"));
}

fn assert_same(one: &str, other: &str) {
    let ((alone, steps), (together, also)) = (trained(one), trained(other));
    assert_eq!(steps, also, "{other}");
    assert!((alone - together).abs() < 2e-3 * alone, "{other}: {together}, and {one}: {alone}");
}

#[test]
fn a_run_with_towers_can_be_repeated_bit_for_bit() {
    let words = "launch mnist --hidden 16 --batch-size 50 --steps 60 --seed 3 --mode sync --towers 3";
    assert_eq!(trained(words), trained(words));
}

#[test]
fn towers_that_cannot_be_are_refused() {
    assert_snapshot!(windlass("train mnist --towers 0").run(), @"
    exit code 2
    --- stdout
    --- stderr
    error: --towers is 0, but must be at least 1
    ");
    assert_snapshot!(windlass("launch mnist --towers 1000").run(), @"
    exit code 2
    --- stdout
    --- stderr
    error: --towers is 1000, but there are at most 256 in a worker
    ");
    assert_snapshot!(windlass("train linear --batch-size 3 --towers 4").run(), @"
    exit code 2
    --- stdout
    --- stderr
    error: --towers is 4, but a worker's step has only 3 samples
    hint: raise --batch-size, or use fewer towers
    ");
}
