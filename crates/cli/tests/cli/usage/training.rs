//! Invalid trainings: unknown words, numbers out of range, flags that contradict each other.

use insta::assert_snapshot;

use crate::process::windlass;

#[test]
fn an_unknown_model_is_refused() {
    assert_snapshot!(windlass("train cats").run(), @"
    exit code 2
    --- stdout
    --- stderr
    error: there is no model 'cats'

      tip: the models are linear, mnist, autoencoder, stn, seq2seq

    Usage: windlass train [OPTIONS] <MODEL>

    For more information, try '--help'.
    ");
}

#[test]
fn a_model_that_is_misspelled_is_suggested() {
    let told = windlass("launch mnsit").run();
    assert!(told.stderr.contains("there is no model 'mnsit'\n\n  tip: did you mean 'mnist'? the models are"), "{told}");
}

#[test]
fn an_unknown_optimizer_is_refused() {
    assert_snapshot!(windlass("train linear --optimizer adamant").run(), @"
    exit code 2
    --- stdout
    --- stderr
    error: unknown optimizer `adamant`: expected one of sgd, momentum, adagrad, adam, adamw, rmsprop
    ");
}

#[test]
fn an_unknown_constant_of_an_optimizer_is_refused() {
    assert_snapshot!(windlass("train linear --optimizer adam --optimizer-option momentum=0.9").run(), @r#"
    exit code 2
    --- stdout
    --- stderr
    error: --optimizer-option momentum=0.9: adam has no setting "momentum"
    hint: the settings of adam are beta1 (from 0 to below 1), beta2 (from 0 to below 1), epsilon (above zero)
    "#);
}

#[test]
fn a_constant_of_an_optimizer_that_is_no_number_is_refused() {
    assert_snapshot!(windlass("train linear --optimizer momentum --optimizer-option momentum=much").run(), @"
    exit code 2
    --- stdout
    --- stderr
    error: --optimizer-option momentum=much: momentum must be from 0 to below 1
    hint: the settings of momentum are momentum (from 0 to below 1), nesterov (true or false)
    ");
    assert_snapshot!(windlass("train linear --optimizer momentum --optimizer-option momentum=null").run(), @"
    exit code 2
    --- stdout
    --- stderr
    error: --optimizer-option momentum=null: momentum must be from 0 to below 1
    hint: the settings of momentum are momentum (from 0 to below 1), nesterov (true or false)
    ");
    assert_snapshot!(windlass("train linear --optimizer momentum --optimizer-option momentum").run(), @"
    exit code 2
    --- stdout
    --- stderr
    error: --optimizer-option momentum: write NAME=VALUE
    hint: the settings of momentum are momentum (from 0 to below 1), nesterov (true or false)
    ");
}

#[test]
fn a_constant_of_an_optimizer_out_of_range_is_refused() {
    assert_snapshot!(windlass("train linear --optimizer adagrad --optimizer-option epsilon=0").run(), @"
    exit code 2
    --- stdout
    --- stderr
    error: --optimizer-option epsilon=0: epsilon must be above zero
    hint: the settings of adagrad are epsilon (above zero), initial_accumulator (zero or more)
    ");
    assert_snapshot!(windlass("train linear --optimizer sgd --optimizer-option momentum=0.9").run(), @r#"
    exit code 2
    --- stdout
    --- stderr
    error: --optimizer-option momentum=0.9: sgd has no setting "momentum"
    hint: sgd has no settings
    "#);
}

#[test]
fn an_unknown_schedule_is_refused() {
    assert_snapshot!(windlass("train linear --lr-schedule cosine").run(), @r#"
    exit code 2
    --- stdout
    --- stderr
    error: "cosine" is not a schedule: write constant, exponential:DECAY:STEPS, step:DECAY:STEPS or cosine:STEPS
    "#);
}

#[test]
fn an_unknown_sharding_is_refused() {
    assert_snapshot!(windlass("train linear --sharding fair").run(), @"
    exit code 2
    --- stdout
    --- stderr
    error: unknown sharding `fair`: expected balanced or round_robin
    ");
}

#[test]
fn an_unknown_mode_is_refused() {
    assert_snapshot!(windlass("train linear --mode chaos").run(), @"
    exit code 2
    --- stdout
    --- stderr
    error: invalid value 'chaos' for '--mode <MODE>'
      [possible values: async, sync, ssp]

    For more information, try '--help'.
    ");
}

#[test]
fn an_unknown_variant_is_refused() {
    assert_snapshot!(windlass("train mnist --variant tanh").run(), @"
    exit code 2
    --- stdout
    --- stderr
    error: invalid value 'tanh' for '--variant <VARIANT>'
      [possible values: relu, sigmoid]

    For more information, try '--help'.
    ");
}

#[test]
fn replicas_to_aggregate_needs_sync() {
    assert_snapshot!(windlass("train linear --replicas-to-aggregate 1").run(), @"
    exit code 2
    --- stdout
    --- stderr
    error: --replicas-to-aggregate needs --mode sync
    hint: other modes apply every gradient by itself
    ");
}

#[test]
fn no_more_replicas_are_aggregated_than_there_are() {
    assert_snapshot!(windlass("launch linear --workers 2 --mode sync --replicas-to-aggregate 3").run(), @"
    exit code 2
    --- stdout
    --- stderr
    error: --replicas-to-aggregate is 3, more than the run's 2 workers
    ");
    assert_snapshot!(windlass("train linear --mode sync --replicas-to-aggregate 2").run(), @"
    exit code 2
    --- stdout
    --- stderr
    error: --replicas-to-aggregate is 2, more than the run's 1 worker
    ");
}

#[test]
fn staleness_needs_ssp() {
    assert_snapshot!(windlass("train linear --staleness 3").run(), @"
    exit code 2
    --- stdout
    --- stderr
    error: --staleness needs --mode ssp
    ");
}

#[test]
fn ssp_needs_staleness() {
    assert_snapshot!(windlass("train linear --mode ssp").run(), @"
    exit code 2
    --- stdout
    --- stderr
    error: --mode ssp needs --staleness
    hint: how many steps a worker may be ahead of the slowest, such as --staleness 3
    ");
}

#[test]
fn no_steps_at_all_are_refused() {
    assert_snapshot!(windlass("train linear --steps 0").run(), @"
    exit code 2
    --- stdout
    --- stderr
    error: --steps must be at least 1
    ");
}

#[test]
fn a_negative_number_of_steps_is_refused() {
    assert_snapshot!(windlass("train linear --steps -1").run(), @"
    exit code 2
    --- stdout
    --- stderr
    error: invalid value '-1' for '--steps <N>': invalid digit found in string

    For more information, try '--help'.
    ");
}

#[test]
fn a_learning_rate_that_is_no_number_is_refused() {
    assert_snapshot!(windlass("train linear --learning-rate NaN").run(), @"
    exit code 2
    --- stdout
    --- stderr
    error: --learning-rate is NaN, but must be a finite number, zero or more
    ");
    assert_snapshot!(windlass("train linear --learning-rate -0.1").run(), @"
    exit code 2
    --- stdout
    --- stderr
    error: --learning-rate is -0.1, but must be a finite number, zero or more
    ");
    assert_snapshot!(windlass("launch linear --learning-rate inf").run(), @"
    exit code 2
    --- stdout
    --- stderr
    error: --learning-rate is inf, but must be a finite number, zero or more
    ");
}

#[test]
fn no_threads_at_all_are_refused() {
    assert_snapshot!(windlass("train linear --threads 0").run(), @"
    exit code 2
    --- stdout
    --- stderr
    error: --threads is 0, but must be at least 1
    ");
}

#[test]
fn a_timeout_that_is_no_time_is_refused() {
    assert_snapshot!(windlass("train linear --worker-timeout 0").run(), @"
    exit code 2
    --- stdout
    --- stderr
    error: --worker-timeout is 0, but must be a number of seconds above zero
    ");
    assert_snapshot!(windlass("launch linear --peer-timeout -1").run(), @"
    exit code 2
    --- stdout
    --- stderr
    error: --peer-timeout is -1, but must be a number of seconds above zero
    ");
    assert_snapshot!(windlass("train linear --peer-timeout 1e19").run(), @"
    exit code 2
    --- stdout
    --- stderr
    error: --peer-timeout is 10000000000000000000, but must be at most 315360000 (ten years)
    ");
}

#[test]
fn flags_for_checkpoints_and_curves_need_a_place_for_them() {
    assert_snapshot!(windlass("train linear --checkpoint-secs 5").run(), @"
    exit code 2
    --- stdout
    --- stderr
    error: --checkpoint-secs has no effect: there is nowhere to write checkpoints
    hint: --run-dir DIR keeps them with the run, --checkpoint-dir WHERE elsewhere
    ");
    assert_snapshot!(windlass("train linear --keep 0").run(), @"
    exit code 2
    --- stdout
    --- stderr
    error: --keep must be at least 1
    ");
    assert_snapshot!(windlass("train linear --histograms").run(), @"
    exit code 2
    --- stdout
    --- stderr
    error: --histograms needs --run-dir
    ");
    // The file may also be meant for other runs.
    windlass("train linear --steps 10 --config file.toml")
        .with_file("file.toml", "[train]\nkeep = 2\n")
        .run()
        .succeeded();
}

#[test]
fn an_evaluator_prints_its_place_and_does_not_begin_to_score() {
    assert_snapshot!(windlass("train linear --job_name evaluator --run-dir run --print-cluster").run(), @"
    exit code 0
    --- stdout
    an evaluator: reads the checkpoints and connects to no other task
    --- stderr
    ");
}

#[test]
fn deterministic_needs_sync() {
    assert_snapshot!(windlass("launch linear --deterministic").run(), @"
    exit code 2
    --- stdout
    --- stderr
    error: --deterministic needs --mode sync
    hint: in other modes the result depends on which worker is faster
    ");
}

#[test]
fn staleness_scaling_is_not_for_sync() {
    assert_snapshot!(windlass("launch linear --mode sync --staleness-scaling").run(), @"
    exit code 2
    --- stdout
    --- stderr
    error: --staleness-scaling needs --mode async or ssp
    hint: gradients of a sync round are never stale: omit the flag
    ");
}

#[test]
fn a_ps_is_not_for_a_colocated_launch() {
    assert_snapshot!(windlass("launch linear --colocate --ps 2").run(), @"
    exit code 2
    --- stdout
    --- stderr
    error: the argument '--colocate' cannot be used with '--ps <P>'

    Usage: windlass launch linear --colocate

    For more information, try '--help'.
    ");
}

#[test]
fn a_run_directory_that_cannot_be_made_is_refused_before_training() {
    assert_snapshot!(windlass("train linear --run-dir /dev/null/run").run(), @"
    exit code 2
    --- stdout
    --- stderr
    error: cannot make the run directory /dev/null/run: Not a directory (os error 20)
    ");
    assert_snapshot!(windlass("launch linear --run-dir /dev/null/run").run(), @"
    exit code 2
    --- stdout
    --- stderr
    error: cannot make the run directory /dev/null/run: Not a directory (os error 20)
    ");
}

#[test]
fn a_negative_deviation_is_refused() {
    assert_snapshot!(windlass("train linear --noise -1").run(), @"
    exit code 2
    --- stdout
    --- stderr
    error: --noise is -1, expected zero or more
    ");
}

#[test]
fn flags_of_another_model_are_refused() {
    assert_snapshot!(windlass("train linear --variant relu").run(), @"
    exit code 2
    --- stdout
    --- stderr
    error: unexpected argument '--variant' found

    Usage: windlass train linear [OPTIONS]

    For more information, try '--help'.
    ");
}

#[test]
fn a_place_in_a_cluster_is_not_for_launch() {
    assert_snapshot!(windlass("launch linear --ps_hosts a:2222").run(), @"
    exit code 2
    --- stdout
    --- stderr
    error: unexpected argument '--ps-hosts' found

      tip: `windlass train linear` takes --ps-hosts; `launch` starts all tasks and chooses their addresses

    Usage: windlass launch linear [OPTIONS]

    For more information, try '--help'.
    ");
    let told = windlass("launch linear --job_name ps").run();
    assert!(told.stderr.contains("tip: `windlass train linear` takes --job-name;"), "{told}");
}

#[test]
fn how_many_tasks_there_are_is_not_for_train() {
    assert_snapshot!(windlass("train linear --workers 3").run(), @"
    exit code 2
    --- stdout
    --- stderr
    error: unexpected argument '--workers' found

      tip: `windlass launch linear` takes --workers; `train` runs in one process, or as one task of the cluster that --ps_hosts and --worker_hosts name

    Usage: windlass train linear [OPTIONS]

    For more information, try '--help'.
    ");
}

#[test]
fn flags_between_the_launcher_and_its_tasks_are_not_suggested() {
    for words in
        ["train linear --restart 1", "train linear --restartd", "launch linear --progres", "train linear --started"]
    {
        let told = windlass(words).run();
        assert_eq!(told.exit_code(), Some(2), "{told}");
        for internal in ["--restarted", "--progress", "--started-at"] {
            assert!(!told.stderr.contains(internal), "{told}");
        }
    }
}

#[test]
fn a_run_directory_whose_name_is_not_utf_8_is_refused() {
    use std::os::unix::ffi::OsStrExt;
    for verb in ["train", "launch"] {
        let name = std::ffi::OsStr::from_bytes(b"run-\xff");
        let told = windlass(&format!("{verb} linear --run-dir")).with(name).run();
        assert_eq!(told.exit_code(), Some(2), "{told}");
        let error = "error: the name of the run directory run-\u{fffd} is not UTF-8\nhint: choose another --run-dir\n";
        assert_eq!(told.stderr, error);
        assert_eq!(std::fs::read_dir(told.directory()).unwrap().count(), 0, "nothing was made");
    }
}

#[test]
fn a_least_size_of_shards_that_are_not_cut_by_size_is_refused() {
    assert_snapshot!(windlass("train linear --sharding round_robin --min-shard-bytes 0").run(), @"
    exit code 2
    --- stdout
    --- stderr
    error: --min-shard-bytes needs --sharding balanced
    ");
}
