//! Flags, variables, files, checkpoints and defaults: each of them can make every setting, and their precedence.
//! `--print-config` prints the result, as a file that can be read again.

use insta::assert_snapshot;
use toml::{Table, Value};

use crate::layers::layers;
use crate::process::{Invocation, Told, windlass};

/// The settings with which a command would train, as tables.
fn settings(told: &Told) -> Table {
    assert_eq!(told.exit_code(), Some(0), "{told}");
    told.stdout.parse().unwrap_or_else(|error| panic!("{error} in {told}"))
}

/// A setting and its origin, as in `1000 # flag`.
fn setting(told: &Told, name: &str) -> String {
    let line = told.stdout.lines().find(|line| line.starts_with(&format!("{name} = ")));
    let line = line.unwrap_or_else(|| panic!("no {name} in {told}"));
    line.split_whitespace().skip(2).collect::<Vec<_>>().join(" ")
}

/// A command with a file that only prints settings.
fn printing(words: &str, file: &str) -> Invocation {
    windlass(&format!("{words} --print-config --config windlass.toml")).with_file("windlass.toml", file)
}

#[test]
fn by_default_a_run_has_the_defaults_of_its_flags_and_of_its_model() {
    assert_snapshot!(windlass("launch mnist --print-config").run());
    assert_snapshot!(windlass("train linear --print-config").run());
}

#[test]
fn comments_are_no_wider_than_a_terminal() {
    for model in ["linear", "mnist", "autoencoder", "stn", "seq2seq"] {
        let told = windlass(&format!("launch {model} --print-config")).run().succeeded();
        for line in told.stdout.lines() {
            assert!(line.chars().count() <= 80, "{line}");
        }
    }
}

#[test]
fn what_is_printed_can_be_read_again_and_means_the_same() {
    let rich = "launch seq2seq --colocate --workers 3 --mode ssp --staleness 4 --buckets 5,10 7,12 --cell lstm \
                --optimizer adam --optimizer-option beta2=0.98 --learning-rate 1e-7 --text-cache /tmp/cache \
                --dense-tables --clip-norm 2 --seed 18446744073709551615 --checkpoint-secs .5 --run-dir run --resume never";
    let plain = ["linear", "mnist", "autoencoder", "stn", "seq2seq"].map(|model| format!("launch {model}"));
    for words in plain.iter().map(String::as_str).chain([
        rich,
        "train mnist --hidden 8,9 --deterministic",
        "launch seq2seq --clip-norm 0",
    ]) {
        let first = windlass(&format!("{words} --print-config")).run().succeeded();
        let model = words.split_whitespace().take(2).collect::<Vec<_>>().join(" ");
        let again = printing(&model, &first.stdout).run();
        // A path from a file is resolved in the current directory, so that the output means the same wherever it is
        // read next.
        let text = first.stdout.replace("\"runs/", &format!("\"{}/runs/", again.directory().display()));
        assert_eq!(settings(&again), text.parse().unwrap(), "{first}\n{again}");
        assert!(!again.stdout.contains("# default"), "all is said by the file: {again}");
    }
}

#[test]
fn a_flag_goes_before_a_variable_before_a_file_before_a_default() {
    let file = "[train]\nlearning-rate = 0.3\nseed = 3\n[model]\nnoise = 0.3\n";
    for verb in ["train", "launch"] {
        let of_file = || printing(&format!("{verb} linear"), file);
        let told = windlass(&format!("{verb} linear --print-config")).run();
        for (name, default) in [("learning-rate", "0.01"), ("seed", "1"), ("noise", "0.33")] {
            assert_eq!(setting(&told, name), format!("{default} # default"));
        }
        let told = of_file().run();
        for (name, value) in [("learning-rate", "0.3"), ("seed", "3"), ("noise", "0.3")] {
            assert_eq!(setting(&told, name), format!("{value} # windlass.toml"));
        }
        let with_variables = |invocation: Invocation| {
            let variables = [("WINDLASS_LEARNING_RATE", "0.2"), ("WINDLASS_SEED", "2"), ("WINDLASS_NOISE", "0.2")];
            variables.iter().fold(invocation, |invocation, (name, value)| invocation.env(name, value))
        };
        let told = with_variables(of_file()).run();
        assert_eq!(setting(&told, "learning-rate"), "0.2 # WINDLASS_LEARNING_RATE");
        assert_eq!(setting(&told, "seed"), "2 # WINDLASS_SEED");
        assert_eq!(setting(&told, "noise"), "0.2 # WINDLASS_NOISE");
        let told = of_file().env("WINDLASS_LR", "0.4").run();
        assert_eq!(setting(&told, "learning-rate"), "0.4 # WINDLASS_LR");
        let flags = ["--lr=0.1", "--seed=1", "--noise=0.1"];
        let told = flags.iter().fold(with_variables(of_file()), |invocation, flag| invocation.with(flag)).run();
        for (name, value) in [("learning-rate", "0.1"), ("seed", "1"), ("noise", "0.1")] {
            assert_eq!(setting(&told, name), format!("{value} # flag"));
        }
    }
}

#[test]
fn a_variable_that_is_empty_sets_nothing() {
    let told = windlass("train linear --print-config").env("WINDLASS_SEED", "").run();
    assert_eq!(setting(&told, "seed"), "1 # default");
}

#[test]
fn a_variable_may_name_the_file() {
    let file = windlass("train linear --print-config").with_file("a.toml", "[train]\nseed = 9\n");
    assert_eq!(setting(&file.env("WINDLASS_CONFIG", "a.toml").run(), "seed"), "9 # a.toml");
}

#[test]
fn lists_and_switches_are_set_by_variable_and_by_file() {
    let variables = windlass("train seq2seq --print-config").env("WINDLASS_BUCKETS", "5,10 7,12");
    let variables = variables.env("WINDLASS_DENSE_TABLES", "1").env("WINDLASS_OPTIMIZER_OPTION", "beta2=0.9 beta1=0.5");
    let told = variables.run();
    assert_eq!(setting(&told, "buckets"), "[\"5,10\", \"7,12\"] # WINDLASS_BUCKETS");
    assert_eq!(setting(&told, "dense-tables"), "true # WINDLASS_DENSE_TABLES");
    assert_eq!(settings(&told)["train"]["optimizer-option"].as_array().unwrap().len(), 2);
    let file = "[train]\nps_hosts = [\"a:1\", \"b:1\"]\nworker_hosts = \"c:1\"\njob_name = \"ps\"\ntask_index = 1\n\
                [model]\nhidden = [8, 9]\n";
    let told = printing("train mnist", file).run();
    assert_eq!(setting(&told, "hidden"), "[8, 9] # windlass.toml");
    assert_eq!(setting(&told, "ps-hosts"), "\"a:1,b:1\" # windlass.toml");
    let told = windlass("train mnist --print-config").env("WINDLASS_HIDDEN", "8,9").run();
    assert_eq!(setting(&told, "hidden"), "[8, 9] # WINDLASS_HIDDEN");
}

#[test]
fn a_switch_that_is_on_can_be_turned_off() {
    let file = "[train]\nmode = \"sync\"\ndeterministic = true\n";
    assert_eq!(setting(&printing("launch linear", file).run(), "deterministic"), "true # windlass.toml");
    let told = printing("launch linear --deterministic=false", file).run();
    assert_eq!(setting(&told, "deterministic"), "false # flag");
    let told = printing("launch linear", file).env("WINDLASS_DETERMINISTIC", "no").run();
    assert_eq!(setting(&told, "deterministic"), "false # WINDLASS_DETERMINISTIC");
    let told = printing("launch linear --deterministic=true", "[train]\nmode = \"sync\"\n").run();
    assert_eq!(setting(&told, "deterministic"), "true # flag");
}

#[test]
fn what_a_flag_says_replaces_what_does_not_go_with_it_in_a_file() {
    let file = "[launch]\nps = 3\n[train]\nsteps = 50\nmode = \"ssp\"\nstaleness = 3\noptimizer = \"adam\"\n\
                optimizer-option = [\"beta2=0.9\"]\n";
    let told = printing("launch linear --colocate --epochs 2 --mode sync --optimizer sgd", file).run();
    let settings = settings(&told);
    assert_eq!(settings["train"]["epochs"], Value::Integer(2));
    for name in ["steps", "staleness", "optimizer-option"] {
        assert!(settings["train"].get(name).is_none(), "{name} in {told}");
    }
    assert_eq!(setting(&told, "colocate"), "true # flag");
    let told = printing("launch linear --ps 2", "[launch]\ncolocate = true\n").run();
    assert_eq!(setting(&told, "ps"), "2 # flag");
    assert_eq!(setting(&told, "colocate"), "false # default");
}

#[test]
fn a_place_in_a_cluster_is_set_by_flag_variable_file_and_then_tf_config() {
    let tf_config = r#"{"cluster": {"ps": ["t:1"], "worker": ["t:2"]}, "task": {"type": "worker", "index": 0}}"#;
    let file = "[train]\nps-hosts = [\"f:1\"]\nworker-hosts = [\"f:2\"]\njob-name = \"ps\"\n";
    let base = |words: &str| {
        let words = format!("train linear --print-cluster --config windlass.toml {words}");
        windlass(&words)
            .env("TF_CONFIG", tf_config)
            .with_file("cluster.toml", "[cluster]\nps = [\"c:1\"]\nworker = [\"c:2\"]")
    };
    let from = |told: Told| told.succeeded().stdout.lines().take(2).collect::<Vec<_>>().join("; ");
    let empty = || base("").with_file("windlass.toml", "");
    assert_eq!(from(empty().run()), "cluster from TF_CONFIG; task worker 0 at t:2 from TF_CONFIG");
    let cluster_file = || base("").with_file("windlass.toml", "[train]\ncluster = \"cluster.toml\"\n");
    assert_eq!(from(cluster_file().run()), "cluster from cluster.toml; task worker 0 at c:2 from TF_CONFIG");
    let of_file = |words: &str| base(words).with_file("windlass.toml", file);
    assert_eq!(from(of_file("").run()), "cluster from windlass.toml; task ps 0 at f:1 from windlass.toml");
    let variables = |words: &str| {
        let hosts = of_file(words).env("WINDLASS_PS_HOSTS", "v:1").env("WINDLASS_WORKER_HOSTS", "v:2");
        hosts.env("WINDLASS_JOB_NAME", "worker")
    };
    let expected = "cluster from WINDLASS_WORKER_HOSTS; task worker 0 at v:2 from WINDLASS_JOB_NAME";
    assert_eq!(from(variables("").run()), expected);
    let flags = "--job_name ps --ps_hosts a:1 --worker_hosts a:2";
    let expected = "cluster from flags --ps_hosts/--worker_hosts; task ps 0 at a:1 from flags --job_name/--task_index";
    assert_eq!(from(variables(flags).run()), expected);
}

#[test]
fn a_file_goes_before_what_a_checkpoint_remembers_and_may_contradict_it() {
    let train = "train mnist --evaluate end --threads 1 --run-dir run";
    let trained = windlass(&format!("{train} --hidden 8 --steps 2")).run().succeeded();
    let told = trained.windlass(&format!("{train} --print-config")).run();
    assert!(setting(&told, "hidden").starts_with("[8] # checkpoint "), "{told}");
    assert_eq!(setting(&told, "variant"), format!("\"relu\" {}", &setting(&told, "hidden")["[8] ".len()..]));
    let with_file = |words: &str, file: &str| {
        trained.windlass(&format!("{train} --config windlass.toml {words}")).with_file("windlass.toml", file)
    };
    let told = with_file("--print-config", "[model]\nhidden = 9\n").run();
    assert_eq!(setting(&told, "hidden"), "[9] # windlass.toml");
    for (file, variable) in [("[model]\nhidden = 9\n", None), ("", Some("9")), ("[model]\nhidden = 100\n", None)] {
        let invocation = with_file("--steps 4", file);
        let told = variable.into_iter().fold(invocation, |told, value| told.env("WINDLASS_HIDDEN", value)).run();
        assert_eq!(told.exit_code(), Some(4), "{told}");
        let place = if variable.is_some() { "WINDLASS_HIDDEN" } else { "windlass.toml: line 2" };
        assert!(told.stderr.contains(&format!("--hidden is set by {place}")), "{told}");
    }
    with_file("--steps 4", "[model]\nhidden = 8\n").run().succeeded();
}

#[test]
fn an_evaluation_takes_variables_too() {
    let trained = windlass("train linear --epochs 1 --run-dir run").run().succeeded();
    let told = trained.windlass("eval linear").env("WINDLASS_CHECKPOINT", "run").env("WINDLASS_FORMAT", "json").run();
    assert!(told.succeeded().stdout.starts_with('{'));
}

#[test]
fn a_joined_worker_takes_variables_and_a_file_too() {
    let file = "model-name = \"mnist\"\n[join]\nlisten = \"[::1]:1\"\nonce = true\nthreads = 4\npeer_timeout = 60\n\
                [launch]\nworkers = 3\n[train]\nseed = 3\n[model]\nhidden = 9\n";
    let told = printing("join --threads 2", file).env("WINDLASS_PEER_TIMEOUT", "30").env("WINDLASS_TOWERS", "2");
    // Its place in a cluster is for `launch` alone to give.
    let told = told.env("WINDLASS_TASK_INDEX", "1").run();
    assert_snapshot!(told, @r#"
    exit code 0
    --- stdout
    [join]
    listen = "[::1]:1"                  # windlass.toml
    once = true                         # windlass.toml
    towers = 2                          # WINDLASS_TOWERS
    threads = 2                         # flag
    peer-timeout = 30                   # WINDLASS_PEER_TIMEOUT
    soft-placement = "off"              # default
    log-placement = false               # default
    # not set: bind, device, devices
    --- stderr
    "#);
    let again =
        windlass("join --print-config").env("WINDLASS_CONFIG", "again.toml").with_file("again.toml", &told.stdout);
    assert_eq!(settings(&again.run()), settings(&told));
}

#[test]
fn the_table_of_joined_workers_is_nothing_to_a_run() {
    for words in ["train linear", "launch linear"] {
        let told = printing(words, "[join]\nlisten = \"a:1\"\nthreads = 7\n").run();
        assert!(settings(&told)["train"].get("threads").is_none(), "{told}");
    }
}

#[test]
fn the_flags_of_a_model_of_ones_own_are_set_the_same_way() {
    let own = |words: &str| layers(&format!("{words} --print-config"));
    let told = own("launch layers").env("WINDLASS_DROPOUT", "0.25").env("WINDLASS_ONE_BATCH", "true").run();
    assert_eq!(setting(&told, "dropout"), "0.25 # WINDLASS_DROPOUT");
    assert_eq!(setting(&told, "one-batch"), "true # WINDLASS_ONE_BATCH");
    let file = "[model]\nfreeze = \"all\"\ndropout = 0.5\n";
    let told = own("train layers --config a.toml --dropout 0.125").with_file("a.toml", file).run();
    assert_eq!(setting(&told, "freeze"), "\"all\" # a.toml");
    assert_eq!(setting(&told, "dropout"), "0.125 # flag");
}
