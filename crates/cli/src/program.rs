//! The command line as a whole: subcommands, and the models that each of them takes.

use std::ffi::OsString;
use std::marker::PhantomData;
use std::path::Path;
use std::process::ExitCode;

use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Args, Command, FromArgMatches};
use windlass_worker::model::{Defaults, Model, Setup};

use crate::args::{
    CheckpointArgs, ClusterArgs, ConfigArgs, DeviceArgs, LaunchArgs, OutputArgs, PlaceArgs, TrainArgs, TrainingArgs,
    hyphenate,
};
use crate::config::{COMMAND_VARIABLE, TaskConfig};
use crate::eval::EvalArgs;
use crate::failure::Failure;
use crate::settings::{Resolver, Schema, Settings, may_set, names, setting_names, variable, without_effect};
use crate::terminal::{self, Terminal};
use crate::version::{self, VERSION};
use crate::{
    bench, checkpoint, compare, completions, data, decode, devices, eval, health, join, launch, man, manifest, misuse,
    model_flags, runs, stage_placement, status, termination, top, train, verbosity,
};

/// The name of the standard binary.
const NAME: &str = "windlass";
/// Flags that `train` refuses without a place for checkpoints and curves.
const OF_A_RUN_DIR: [&str; 5] = ["checkpoint_steps", "checkpoint_secs", "checkpoint_stall_secs", "keep", "histograms"];

/// The program with its models. It goes by the name of its executable file.
pub struct Program {
    models: Vec<Box<dyn Entry>>,
    has_tools: bool,
}

/// The first word of this program's command line.
pub(crate) fn called() -> String {
    std::env::args_os().next().map_or_else(|| NAME.to_owned(), |word| word.to_string_lossy().into_owned())
}

/// The program's name as it was called, without the directory.
pub(crate) fn name() -> String {
    let called = called();
    Path::new(&called).file_name().map_or_else(|| NAME.to_owned(), |name| name.to_string_lossy().into_owned())
}

/// A command that runs this program without settings from the environment, which would distort measurements.
pub(crate) fn own_program() -> Result<std::process::Command, Failure> {
    let mut command = std::process::Command::new(std::env::current_exe().map_err(Failure::internal)?);
    let variables = std::env::vars_os().map(|(name, _)| name);
    for name in variables.filter(|name| may_set(&name.to_string_lossy()) || name == "TF_CONFIG") {
        command.env_remove(name);
    }
    Ok(command)
}

impl Default for Program {
    fn default() -> Self {
        Self::new()
    }
}

impl Program {
    /// Creates a program without models.
    pub fn new() -> Self {
        Self { models: Vec::new(), has_tools: false }
    }

    /// Adds a model.
    #[must_use]
    pub fn with<M: Model>(mut self) -> Self {
        self.models.push(Box::new(ModelEntry::<M>(PhantomData)));
        self
    }

    /// Adds `decode`, `bench` and `data`, which work with the built-in models.
    #[must_use]
    pub fn with_tools(mut self) -> Self {
        self.has_tools = true;
        self
    }

    /// Runs the command line.
    pub fn run(self) -> ExitCode {
        let arguments = verbosity::behind_names(hyphenate(std::env::args_os()));
        match self.dispatch(&arguments) {
            Ok(()) => ExitCode::SUCCESS,
            Err(failure) => {
                terminal::print_failure(&failure);
                termination::leave_message(&failure);
                ExitCode::from(failure.exit_code)
            }
        }
    }

    fn command(&self) -> Command {
        let subcommands = |about: &'static str, name: &'static str, augment: fn(Command) -> Command| {
            // Otherwise a negative number would be rejected as an unknown flag, rather than by the flag that it is
            // given to.
            let negative = |arg: Arg| {
                let takes_values = arg.get_action().takes_values();
                arg.allow_negative_numbers(takes_values)
            };
            let models = self.models.iter();
            let models = models.map(|model| augment(model.command()).about(model.about()).mut_args(negative));
            Command::new(name)
                .about(about)
                .after_help(format!("`{} {name} MODEL --help` lists the options of a model.", self::name()))
                .subcommand_required(true)
                .arg_required_else_help(true)
                .subcommand_value_name("MODEL")
                .subcommand_help_heading("Models")
                .disable_help_subcommand(true)
                .subcommands(models)
        };
        // Leaked once per process: clap keeps names forever.
        let name: &'static str = name().leak();
        let version = if name == NAME { VERSION } else { concat!("with windlass ", env!("CARGO_PKG_VERSION")) };
        let tools = |command: Command| match self.has_tools {
            true => command.subcommands([decode::command(), checkpoint::command(), bench::command(), data::command()]),
            false => command.subcommand(checkpoint::command()),
        };
        let command = Command::new(name)
            .about("Train one neural network on many machines: parameter servers and workers in one binary")
            .version(version)
            .long_version(version::long(version))
            .subcommand_required(true)
            .arg_required_else_help(true)
            .subcommand(subcommands(
                "Train a model in this process, or as one task of a cluster",
                "train",
                TrainArgs::augment_args,
            ))
            .subcommand(subcommands("Start a whole cluster on this machine and train on it", "launch", |command| {
                let command = LaunchArgs::augment_args(ConfigArgs::augment_args(command));
                let command = DeviceArgs::augment_args(TrainingArgs::augment_args(command));
                let command = PlaceArgs::augment_args(command);
                OutputArgs::augment_args(CheckpointArgs::augment_args(command))
            }))
            .subcommand(subcommands("Score a checkpoint", "eval", |command| {
                EvalArgs::augment_args(command.mut_args(as_in_training))
            }));
        let watching = [compare::command(), runs::command(), status::command(), top::command()];
        let supporting =
            [devices::command(), manifest::command(), health::command(), completions::command(), man::command()];
        let command = command.subcommand(join::command());
        let command = tools(command).subcommands(watching).subcommands(supporting);
        verbosity::with_flags(command)
    }

    fn dispatch(&self, arguments: &[OsString]) -> Result<(), Failure> {
        let root = self.command();
        if let Some(schema) = self.schema(root.clone(), arguments) {
            let (matches, settings) = self.resolve(&root, arguments, &schema)?;
            verbosity::choose(&matches, Some(&schema))?;
            let done = match matches.subcommand().expect("the schema is of one") {
                ("join", matches) => join::run(matches, &settings, self.joined()),
                (verb, matches) => self.run_model(verb, matches, &settings),
            };
            // A launched task has all settings from one file, and its launcher knows their origins.
            let is_launched = std::env::var_os(COMMAND_VARIABLE).is_some();
            return done.map_err(|failure| if is_launched { failure } else { settings.explain(failure) });
        }
        let verb = arguments.get(1).and_then(|verb| verb.to_str()).unwrap_or_default();
        let parsed = root.clone().try_get_matches_from(arguments).unwrap_or_else(|error| self.refuse(error, verb));
        verbosity::choose(&parsed, None)?;
        match parsed.subcommand() {
            Some(("decode", matches)) => decode::run(matches),
            Some(("checkpoint", matches)) => checkpoint::run(matches),
            Some(("compare", matches)) => {
                let check = |words: &[String], workers| self.check_run(words, Some(workers), true);
                let schema = |model: &str| self.schema(root.clone(), &["", "train", model].map(OsString::from));
                compare::run(matches, check, schema)
            }
            Some(("runs", matches)) => runs::run(matches),
            Some(("status", matches)) => status::run(matches),
            Some(("top", matches)) => top::run(matches),
            Some(("devices", matches)) => devices::run(matches),
            Some(("manifest", matches)) => {
                manifest::run(matches, |words, workers, has_run_dir| self.check_training(words, workers, has_run_dir))
            }
            Some(("bench", matches)) => bench::run(matches),
            Some(("data", matches)) => data::run(matches),
            Some(("health", matches)) => health::run(matches),
            Some(("completions", matches)) => completions::run(matches, root),
            Some(("man", matches)) => man::run(matches, root),
            _ => unreachable!("clap requires a subcommand, and those of models a model"),
        }
    }

    /// Does what a command is for that is about a model.
    fn run_model(&self, verb: &str, matches: &ArgMatches, settings: &Settings) -> Result<(), Failure> {
        let (model, matches) = self.model(matches);
        match verb {
            "train" => model.train(matches, settings.clone()),
            "launch" => model.launch(matches, settings.clone()),
            _ => model.eval(matches),
        }
    }

    /// How each model is made for a joined worker.
    fn joined(&self) -> Vec<(&'static str, join::Build)> {
        self.models.iter().map(|model| (model.name(), model.joined())).collect()
    }

    /// Prints what is wrong with a command line, and exits as clap does.
    fn refuse(&self, error: clap::Error, verb: &str) -> ! {
        let models: Vec<&str> = self.models.iter().map(|model| model.name()).collect();
        misuse::with_models(error, verb, &models).exit()
    }

    /// Refuses a model and flags that `train` would refuse, or with which a manifest cannot start a run.
    fn check_training(&self, words: &[String], workers: u32, has_run_dir: bool) -> Result<(), Failure> {
        let parsed = self.parse_training(words)?;
        let (_, matches) = parsed.subcommand().expect("it is train");
        let (_, matches) = self.model(matches);
        check_for_manifest(&parse(matches)?, &parse(matches)?)?;
        let (training, place): (TrainingArgs, PlaceArgs) = (parse(matches)?, parse(matches)?);
        if stage_placement::names_tasks(&place) {
            return Err(Failure::usage("a manifest starts runs whose workers have all of the model")
                .with_hint("--place on devices of a worker, as cpu:1 or gpu:1, works in every worker".to_owned()));
        }
        if training.in_graph {
            return Err(Failure::usage("a manifest starts runs without --in-graph")
                .with_hint("the workers of a manifest have the data themselves: omit the flag".to_owned()));
        }
        let is_given = |flag: &&str| matches.value_source(flag) == Some(ValueSource::CommandLine);
        if let Some(flag) = OF_A_RUN_DIR.into_iter().find(is_given).filter(|_| !has_run_dir) {
            let hint = "--storage WHERE, before the model, says where".to_owned();
            let message = format!("--{}: there is nowhere to write checkpoints and curves", flag.replace('_', "-"));
            return Err(Failure::usage(message).with_hint(hint));
        }
        self.check_run(words, Some(workers), has_run_dir)
    }

    /// Refuses a model and flags that no run with this number of workers could have. With `has_run_dir`, the run will
    /// have a directory that the words do not name, and so a location for checkpoints.
    fn check_run(&self, words: &[String], workers: Option<u32>, has_run_dir: bool) -> Result<(), Failure> {
        let parsed = self.parse_training(words)?;
        let (_, matches) = parsed.subcommand().expect("it is train");
        let (model, matches) = self.model(matches);
        model.check(matches, workers, has_run_dir)
    }

    fn parse_training(&self, words: &[String]) -> Result<ArgMatches, Failure> {
        let line = [name(), "train".to_owned()].into_iter().chain(words.iter().cloned()).map(OsString::from);
        let parsed = self.command().try_get_matches_from(hyphenate(line));
        parsed.map_err(|error| if error.use_stderr() { self.refuse(error, "train") } else { no_flag_of_a_run(words) })
    }

    /// The settings of the command that the first words name, if it takes them from elsewhere than flags, too.
    fn schema(&self, mut root: Command, arguments: &[OsString]) -> Option<Schema> {
        root.build();
        let verb = arguments.get(1)?.to_str()?;
        let model = match verb {
            "join" => None,
            "train" | "launch" | "eval" => Some(arguments.get(2)?.to_str()?),
            _ => return None,
        };
        let of_verb = root.find_subcommand(verb)?;
        let command = model.map_or(Some(of_verb), |model| of_verb.find_subcommand(model))?.clone();
        Some(Schema {
            verb: verb.to_owned(),
            model: model.map(str::to_owned),
            command,
            launch: names(&LaunchArgs::augment_args(Command::new(""))),
            cluster: names(&ClusterArgs::augment_args(Command::new(""))),
            join: setting_names(&join::command()),
            models: self.models.iter().map(|model| (model.name(), names(&model.command()))).collect(),
        })
    }

    /// Everything that the user has set, completed with the model's flags from the relevant checkpoint.
    fn resolve(
        &self,
        root: &Command,
        arguments: &[OsString],
        schema: &Schema,
    ) -> Result<(ArgMatches, Settings), Failure> {
        self.warn_of_variables(root);
        let mut resolver = Resolver::new(root, arguments, schema)?;
        let matches = resolver.matches().map_err(|error| resolver.blame(error))?;
        let (verb, of_verb) = matches.subcommand().expect("the schema is of one");
        if schema.model.is_none() {
            let settings = resolver.settings(&matches);
            return Ok((matches, settings));
        }
        let (model, of_model) = self.model(of_verb);
        let manifest = match verb {
            "eval" => Some(eval::manifest(&parse(of_model)?)?),
            _ => model_flags::resumed(&parse(of_model)?, &parse(of_model)?)?,
        };
        let Some(manifest) = manifest.filter(|manifest| manifest.run.model == model.name()) else {
            let settings = resolver.settings(&matches);
            return Ok((matches, settings));
        };
        let flags = model_flags::of_checkpoint(&model.command(), &manifest.run.identity.flags);
        resolver.add_checkpoint(&manifest.id.to_string(), flags);
        let matches = resolver.matches().map_err(|error| model_flags::contradiction(manifest.id, &error))?;
        let settings = resolver.settings(&matches);
        Ok((matches, settings))
    }

    /// Warns about variables that have no effect but look like settings.
    fn warn_of_variables(&self, root: &Command) {
        let verbs = ["train", "launch", "eval"].into_iter().filter_map(|verb| root.find_subcommand(verb));
        let of_models = verbs.flat_map(Command::get_subcommands);
        let flags = of_models.chain(root.find_subcommand("join")).flat_map(names);
        let flags = flags.chain(verbosity::FLAGS.map(str::to_owned));
        let known: Vec<String> = flags.filter_map(|flag| variable(&flag)).collect();
        let set = std::env::vars_os().map(|(name, _)| name);
        // Tasks inherit the environment of their launcher, which has already warned.
        if std::env::var_os(COMMAND_VARIABLE).is_none() {
            let told = without_effect(set, &known);
            told.iter().for_each(|text| Terminal::default().print_error(&format!("warning: {text}")));
        }
    }

    fn model<'a>(&self, matches: &'a ArgMatches) -> (&dyn Entry, &'a ArgMatches) {
        let (name, matches) = matches.subcommand().expect("clap requires a model");
        let model = self.models.iter().find(|model| model.name() == name).expect("clap knows the models");
        (model.as_ref(), matches)
    }
}

/// A model with its types erased.
trait Entry {
    fn name(&self) -> &'static str;
    fn about(&self) -> &'static str;
    fn command(&self) -> Command;
    fn train(&self, matches: &ArgMatches, settings: Settings) -> Result<(), Failure>;
    fn launch(&self, matches: &ArgMatches, settings: Settings) -> Result<(), Failure>;
    fn eval(&self, matches: &ArgMatches) -> Result<(), Failure>;
    /// Returns the function that builds the model for a joined worker.
    fn joined(&self) -> join::Build;
    /// Refuses flags of `train` that are invalid for a run with this number of workers, with or without a run
    /// directory.
    fn check(&self, matches: &ArgMatches, workers: Option<u32>, has_run_dir: bool) -> Result<(), Failure>;
}

struct ModelEntry<M>(PhantomData<M>);

impl<M: Model> Entry for ModelEntry<M> {
    fn name(&self) -> &'static str {
        M::NAME
    }

    fn about(&self) -> &'static str {
        M::ABOUT
    }

    fn command(&self) -> Command {
        M::Flags::augment_args(Command::new(M::NAME).next_help_heading("Model"))
    }

    fn train(&self, matches: &ArgMatches, settings: Settings) -> Result<(), Failure> {
        train::run::<M>(matches, &TrainArgs { settings, ..parse(matches)? })
    }

    fn launch(&self, matches: &ArgMatches, settings: Settings) -> Result<(), Failure> {
        let flags: M::Flags = parse(matches)?;
        let defaults: Defaults = M::defaults(&flags);
        let launch: LaunchArgs = parse(matches)?;
        let place: PlaceArgs = parse(matches)?;
        let training: TrainingArgs = parse(matches)?;
        let setup = Setup { seed: training.seed, data_dir: training.data_dir.clone() };
        stage_placement::check_stages::<M>(&place, &flags, &setup).map_err(|error| stage_placement::failure(&error))?;
        let args = TrainArgs {
            config: parse(matches)?,
            cluster: ClusterArgs::default(),
            training,
            device: parse(matches)?,
            place,
            checkpoint: parse(matches)?,
            output: parse(matches)?,
            settings,
        };
        launch::run(M::NAME, &model_flags::recorded::<M>(matches), &launch, &args, &defaults)
    }

    fn joined(&self) -> join::Build {
        join::build::<M>
    }

    fn check(&self, matches: &ArgMatches, workers: Option<u32>, has_run_dir: bool) -> Result<(), Failure> {
        let (flags, mut args): (M::Flags, TrainArgs) = (parse(matches)?, parse(matches)?);
        if has_run_dir {
            // Any name will do: nothing is created.
            args.output.run_dir.get_or_insert_with(|| "run".into());
        }
        TaskConfig::new(&args, &M::defaults(&flags), workers).map(drop)
    }

    fn eval(&self, matches: &ArgMatches) -> Result<(), Failure> {
        eval::run::<M>(&parse(matches)?, model_flags::recorded::<M>(matches), &parse(matches)?)
    }
}

/// Refuses settings that do not fit a manifest, or that it cannot carry.
fn check_for_manifest(config: &ConfigArgs, cluster: &ClusterArgs) -> Result<(), Failure> {
    if config.print_config || cluster.print_cluster {
        return Err(Failure::usage("a run that only prints its settings or its cluster needs no manifest"));
    }
    if config.config.is_some() || cluster.cluster.is_some() {
        let hint = "give the settings as flags: --print-config shows what the file sets".to_owned();
        return Err(Failure::usage("a manifest cannot bring along a file").with_hint(hint));
    }
    Ok(())
}

/// The failure for a flag such as `--help`, with which `train` prints something and trains nothing.
fn no_flag_of_a_run(words: &[String]) -> Failure {
    Failure::usage(format!("{:?} only prints something, and starts no run", words.join(" ")))
}

/// Notes in the help of a model's flag that its default applies only where no checkpoint says otherwise.
fn as_in_training(arg: Arg) -> Arg {
    let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
    match arg.get_default_values() {
        [] => arg,
        _ if !arg.get_action().takes_values() => arg,
        _ => arg.hide_default_value(true).help(format!("{help} [default: as in training]")),
    }
}

/// Reads a command's flags from the matches.
pub(crate) fn parse<T: FromArgMatches>(matches: &ArgMatches) -> Result<T, Failure> {
    T::from_arg_matches(matches).map_err(|error| Failure::usage(error.to_string().trim_end()))
}
