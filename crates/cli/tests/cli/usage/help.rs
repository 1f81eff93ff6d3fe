//! The help texts.

use insta::assert_snapshot;

use crate::process::windlass;

#[test]
fn without_a_command_there_is_help() {
    assert_snapshot!(windlass("").run(), @"
    exit code 2
    --- stdout
    --- stderr
    Train one neural network on many machines: parameter servers and workers in one binary

    Usage: windlass [OPTIONS] <COMMAND>

    Commands:
      train        Train a model in this process, or as one task of a cluster
      launch       Start a whole cluster on this machine and train on it
      eval         Score a checkpoint
      join         Run a worker that computes for clients (in-graph and placed runs)
      decode       Translate sentences from standard input with a trained seq2seq network
      checkpoint   Manage the checkpoints of a run
      bench        Measure how fast this machine trains in each layout
      data         Get data sets
      compare      Run a model in several layouts and compare the results
      runs         List, show, compare and remove run directories
      status       Show how a run is doing
      top          Watch a run on a live screen
      devices      List what this machine and this build can compute on
      manifest     Print a manifest or script that starts a run on Kubernetes, Compose or Slurm
      health       Ask tasks whether they are alive
      completions  Print a completion script for a shell
      man          Print the manual page, or write one for every command
      help         Print this message or the help of the given subcommand(s)

    Options:
      -q, --quiet    Print only warnings, errors and results
      -v, --verbose  Also log debug messages
      -h, --help     Print help
      -V, --version  Print version
    ");
}

#[test]
fn the_models_are_listed_by_what_they_do() {
    assert_snapshot!(windlass("train").run(), @"
    exit code 2
    --- stdout
    --- stderr
    Train a model in this process, or as one task of a cluster

    Usage: windlass train [OPTIONS] <MODEL>

    Models:
      linear       fit a line to 101 noisy points of y = 2x + 10
      mnist        classify handwritten digits with a 784-100-10 network
      autoencoder  reconstruct handwritten digits through a layer of 200 units
      stn          classify digits in clutter with a spatial transformer and convolutions
      seq2seq      translate with an attention-based encoder-decoder

    Options:
      -q, --quiet    Print only warnings, errors and results
      -v, --verbose  Also log debug messages
      -h, --help     Print help

    `windlass train MODEL --help` lists the options of a model.
    ");
}

#[test]
fn of_train() {
    assert_snapshot!(windlass("train mnist --help").run());
}

#[test]
fn of_launch() {
    assert_snapshot!(windlass("launch mnist --help").run());
}

#[test]
fn of_join() {
    assert_snapshot!(windlass("join --help").run());
}

#[test]
fn of_eval_flags_of_the_model_are_as_in_training() {
    let told = windlass("eval mnist --help").run().succeeded();
    assert!(told.stdout.contains("Units per hidden layer, separated by commas [default: as in training]"), "{told}");
    assert!(!told.stdout.contains("[default: 100]") && !told.stdout.contains("[default: relu]"), "{told}");
}

#[test]
fn of_data() {
    assert_snapshot!(windlass("data download --help").run(), @"
    exit code 0
    --- stdout
    Download a data set and verify it; an interrupted download resumes where it stopped

    Usage: windlass data download [OPTIONS] <DATASET>

    Arguments:
      <DATASET>  Data set: mnist

    Options:
          --dir <DIR>       Where to put it [default: data/mnist]
          --base-url <URL>  Base URL to download from, instead of the public mirrors
      -q, --quiet           Print only warnings, errors and results
      -v, --verbose         Also log debug messages
      -h, --help            Print help
    --- stderr
    ");
}
