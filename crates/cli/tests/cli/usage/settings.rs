//! Invalid configuration files and variables: the message says what is wrong, and where.

use insta::assert_snapshot;

use crate::process::{Invocation, Told, windlass};

fn with_file(words: &str, content: &str) -> Invocation {
    windlass(&format!("{words} --config windlass.toml")).with_file("windlass.toml", content)
}

/// The message for a file, with nothing started.
fn refusal(words: &str, content: &str) -> String {
    said(with_file(words, content).run())
}

fn said(told: Told) -> String {
    assert_eq!(told.exit_code(), Some(2), "{told}");
    assert_eq!(told.stdout, "", "{told}");
    told.stderr
}

#[test]
fn an_unknown_setting_is_refused_with_the_one_that_is_meant() {
    assert_snapshot!(refusal("launch mnist", "[train]\nmode = \"sync\"\nlearnig-rate = 0.1\n"), @r#"
    error: windlass.toml: line 3: train has no setting "learnig-rate"
    hint: did you mean learning-rate?
    "#);
    assert_snapshot!(refusal("launch mnist", "[train]\nxyzzy = 1\n"), @r#"
    error: windlass.toml: line 2: train has no setting "xyzzy"
    hint: `windlass launch mnist --help` lists them all
    "#);
    assert_snapshot!(refusal("launch mnist", "[trian]\nsteps = 1\n"), @r#"
    error: windlass.toml: line 1: "trian" is not one of the tables [train], [launch], [join] and [model]
    hint: did you mean [train]?
    "#);
}

#[test]
fn a_setting_in_the_wrong_table_is_refused_with_the_right_one() {
    assert_snapshot!(refusal("launch mnist", "steps = 5\n"), @r#"
    error: windlass.toml: line 1: "steps" is not one of the tables [train], [launch], [join] and [model]
    hint: put steps below [train]
    "#);
    assert_snapshot!(refusal("launch mnist", "[train]\nhidden = 5\n"), @r#"
    error: windlass.toml: line 2: train has no setting "hidden"
    hint: put it below [model]
    "#);
    assert_snapshot!(refusal("launch mnist", "[train]\nworkers = 5\n"), @r#"
    error: windlass.toml: line 2: train has no setting "workers"
    hint: put it below [launch]
    "#);
    assert_snapshot!(refusal("launch mnist", "[train]\nps-hosts = [\"a:1\"]\n"), @"
    error: windlass.toml: line 2: ps-hosts is for tasks that are started one by one
    hint: `launch` chooses the addresses of its tasks by itself; remove it, or use `train`
    ");
}

#[test]
fn a_setting_of_another_model_is_refused() {
    assert_snapshot!(refusal("launch mnist", "[model]\nsize = 200\n"), @"error: windlass.toml: line 2: size is a setting of seq2seq, not of mnist");
    assert_snapshot!(refusal("launch mnist", "model-name = \"seq2seq\"\n"), @"
    error: windlass.toml: line 1: this file is for seq2seq, not for mnist
    hint: windlass launch seq2seq --config windlass.toml
    ");
}

#[test]
fn a_value_of_the_wrong_type_is_refused() {
    for (line, because) in [
        ("steps = \"many\"", "invalid value 'many' for '--steps <N>': invalid digit found in string"),
        ("steps = 1.5", "invalid value '1.5' for '--steps <N>': invalid digit found in string"),
        ("steps = true", "invalid value 'true' for '--steps <N>': invalid digit found in string"),
        ("steps = [1, 2]", "steps takes one value, not a list"),
        ("steps = { a = 1 }", "steps cannot be a table"),
        ("steps = 2001-01-01", "steps cannot be a datetime"),
        ("deterministic = 1", "deterministic is a switch: write true or false"),
        ("train = 1", "train has no setting \"train\""),
        ("seed = 1\nseed = 2", "this is not TOML: duplicate key"),
        ("batch-size = 1\nbatch_size = 2", "batch-size is set twice"),
    ] {
        let said = refusal("train linear", &format!("[train]\n# A comment.\n{line}\n"));
        let number = 3 + line.matches('\n').count();
        assert!(said.starts_with(&format!("error: windlass.toml: line {number}: {because}")), "{line}: {said}");
    }
    assert_snapshot!(refusal("train linear", "[train]\nmode = \"snyc\"\n"), @"
    error: windlass.toml: line 2: invalid value 'snyc' for '--mode <MODE>' [possible values: async, sync, ssp]
    hint: a similar value exists: 'sync'
    ");
    assert_snapshot!(refusal("train linear", "train = 1\n"), @"error: windlass.toml: line 1: train is a table: write [train] and its settings below");
}

#[test]
fn a_file_that_is_no_toml_is_refused() {
    assert_snapshot!(refusal("train linear", "[train]\nsteps: 5\n"), @"error: windlass.toml: line 2: this is not TOML: key with no value, expected `=`");
}

#[test]
fn a_file_that_cannot_be_read_is_refused() {
    assert_snapshot!(said(windlass("train linear --config nowhere.toml").run()), @"error: cannot read the configuration file nowhere.toml: No such file or directory (os error 2)");
    assert_snapshot!(said(windlass("train linear --config .").run()), @"error: cannot read the configuration file .: it is a directory");
    let mut binary = windlass("train linear --config input").with_input(b"\xff\xfe");
    binary.command().stdin(std::process::Stdio::null());
    assert_snapshot!(said(binary.run()), @"error: cannot read the configuration file input: stream did not contain valid UTF-8");
}

#[test]
fn a_file_that_is_a_pipe_is_refused_and_not_waited_for() {
    for flag in ["--config", "--cluster"] {
        let command = windlass(&format!("train linear {flag} pipe"));
        let path = command.directory().join("pipe");
        let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        rustix::fs::mkfifoat(rustix::fs::CWD, &path, mode).unwrap();
        let said = said(command.run());
        assert!(said.ends_with(" file pipe: it is not a regular file\n"), "{said}");
    }
}

#[test]
fn a_mistake_in_what_only_launch_reads_is_told_by_train_too() {
    assert_snapshot!(refusal("train mnist", "[launch]\nworkrs = 4\n"), @r#"
    error: windlass.toml: line 2: launch has no setting "workrs"
    hint: did you mean workers?
    "#);
}

#[test]
fn a_mistake_in_what_only_join_reads_is_told_by_every_command() {
    for words in ["join", "train mnist", "launch mnist"] {
        for (name, hint) in [("thread", "did you mean threads?"), ("steps", "`windlass join --help` lists them all")] {
            let expected = format!("error: windlass.toml: line 2: join has no setting {name:?}\nhint: {hint}\n");
            assert_eq!(refusal(words, &format!("[join]\n{name} = 4\n")), expected);
        }
    }
    assert_snapshot!(refusal("join", "[launch]\nworkrs = 4\n"), @r#"
    error: windlass.toml: line 2: launch has no setting "workrs"
    hint: did you mean workers?
    "#);
    assert_snapshot!(refusal("join", "listen = \"a:1\"\n"), @r#"
    error: windlass.toml: line 1: "listen" is not one of the tables [train], [launch], [join] and [model]
    hint: put listen below [join]
    "#);
}

#[test]
fn a_bad_setting_of_a_joined_worker_is_refused_with_its_place() {
    let with = |name: &str, value: &str| said(windlass("join --listen 127.0.0.1:1").env(name, value).run());
    assert_snapshot!(with("WINDLASS_THREADS", "many"), @"error: WINDLASS_THREADS: invalid value 'many' for '--threads <N>': invalid digit found in string");
    assert_snapshot!(with("WINDLASS_THREADS", "0"), @"
    error: --threads is 0, but must be at least 1
    hint: --threads is set by WINDLASS_THREADS
    ");
    assert_snapshot!(said(windlass("join").env("WINDLASS_LISTEN", "nowhere").run()), @r#"
    error: --listen "nowhere": no port, expected host:port
    hint: for example --listen 0.0.0.0:2222 (--listen is set by WINDLASS_LISTEN)
    "#);
    assert_snapshot!(said(windlass("join").env("WINDLASS_THREADS", "2").run()), @"error: the following required arguments were not provided: --listen <HOST:PORT>");
}

#[test]
fn a_variable_that_would_print_instead_of_train_is_told_of() {
    let told = windlass("train linear --print-config").env("WINDLASS_PRINT_CLUSTER", "1").run();
    assert_eq!(told.exit_code(), Some(0), "{told}");
    assert_snapshot!(told.stderr, @"warning: WINDLASS_PRINT_CLUSTER sets nothing; pass --print-cluster on the command line");
}

#[test]
fn a_variable_with_a_bad_value_is_named() {
    let with = |name: &str, value: &str| said(windlass("launch mnist").env(name, value).run());
    assert_snapshot!(with("WINDLASS_STEPS", "many"), @"error: WINDLASS_STEPS: invalid value 'many' for '--steps <N>': invalid digit found in string");
    assert_snapshot!(with("WINDLASS_MODE", "snyc"), @"
    error: WINDLASS_MODE: invalid value 'snyc' for '--mode <MODE>' [possible values: async, sync, ssp]
    hint: a similar value exists: 'sync'
    ");
    assert_snapshot!(with("WINDLASS_DETERMINISTIC", "maybe"), @r#"
    error: WINDLASS_DETERMINISTIC is "maybe", but --deterministic is a switch
    hint: set it to true or false
    "#);
    assert_snapshot!(with("WINDLASS_HIDDEN", "8,x"), @"error: WINDLASS_HIDDEN: invalid value 'x' for '--hidden <UNITS>': invalid digit found in string");
}

#[test]
fn a_value_that_cannot_be_is_refused_with_its_place() {
    let variable = windlass("launch mnist --mode ssp --run-dir run").env("WINDLASS_STALENESS", "2");
    assert_snapshot!(said(variable.env("WINDLASS_STEPS", "0").run()), @"
    error: --steps must be at least 1
    hint: --steps is set by WINDLASS_STEPS
    ");
    assert_snapshot!(refusal("launch mnist --run-dir run", "[train]\nkeep = 0\n"), @"
    error: --keep must be at least 1
    hint: --keep is set by windlass.toml: line 2
    ");
    assert_snapshot!(refusal("launch linear", "[train]\ndeterministic = true\n"), @"
    error: --deterministic needs --mode sync
    hint: in other modes the result depends on which worker is faster (--deterministic is set by windlass.toml: line 2)
    ");
    let hosts = "[train]\nps-hosts = \"a\"\nworker-hosts = \"b:1\"\njob-name = \"ps\"\n";
    assert_snapshot!(refusal("train linear", hosts), @r#"
    error: entry 1 of 1 in --ps_hosts, "a": no port, expected host:port
    hint: add a port, as in a:2222 (--ps-hosts is set by windlass.toml: line 2)
    "#);
}

#[test]
fn settings_that_exclude_each_other_are_named_with_their_places() {
    let file = "[model]\nself-test = true\ntrain-from = \"a\"\ntrain-to = \"b\"\n";
    assert_snapshot!(refusal("train seq2seq", file), @"
    error: the argument '--self-test' cannot be used with: --train-from <FILE> --train-to <FILE>
    hint: --self-test is set by windlass.toml: line 2, --train-from is set by windlass.toml: line 3, --train-to is set by windlass.toml: line 4
    ");
    let half = with_file("train seq2seq", "[model]\ntrain-from = \"a\"\n").run();
    assert_eq!(half.exit_code(), Some(2), "{half}");
    assert!(half.stderr.contains("--train-to"), "{half}");
}

#[test]
fn a_variable_that_looks_like_a_setting_but_is_none_is_told_of() {
    let told =
        windlass("train linear --print-config").env("WINDLASS_LEARNIG_RATE", "1").env("WINDLASS_PORT", "x").run();
    assert_eq!(told.exit_code(), Some(0), "{told}");
    assert_snapshot!(told.stderr, @"warning: WINDLASS_LEARNIG_RATE sets nothing; did you mean WINDLASS_LEARNING_RATE?");
}

#[test]
fn a_switch_is_either_on_or_off() {
    assert_snapshot!(said(windlass("train linear --deterministic --deterministic=false").run()), @"error: --deterministic is both given and turned off");
}
