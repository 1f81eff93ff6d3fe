//! The command line as a whole: subcommands, and the models that each of them takes.

use std::ffi::OsString;
use std::marker::PhantomData;
use std::path::Path;
use std::process::ExitCode;

use clap::{Arg, ArgMatches, Args, Command, FromArgMatches};
use windlass_worker::model::{Defaults, Model};

use crate::args::{CheckpointArgs, LaunchArgs, OutputArgs, TrainArgs, TrainingArgs, hyphenate};
use crate::eval::EvalArgs;
use crate::failure::Failure;
use crate::{bench, checkpoint, data, decode, eval, launch, model_flags, terminal, train};

/// What `windlass` itself is called.
const NAME: &str = "windlass";
/// Which version of it this is.
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The program, with the models that it knows. Users know it by the name of its file.
pub struct Program {
    models: Vec<Box<dyn Entry>>,
    has_tools: bool,
}

/// How this program was called: the first word of its command line.
pub(crate) fn called() -> String {
    std::env::args_os().next().map_or_else(|| NAME.to_owned(), |word| word.to_string_lossy().into_owned())
}

/// The program's name: how it was called, without the directory.
pub(crate) fn name() -> String {
    let called = called();
    Path::new(&called).file_name().map_or_else(|| NAME.to_owned(), |name| name.to_string_lossy().into_owned())
}

impl Default for Program {
    fn default() -> Self {
        Self::new()
    }
}

impl Program {
    /// A program without models.
    pub fn new() -> Self {
        Self { models: Vec::new(), has_tools: false }
    }

    /// Adds a model.
    #[must_use]
    pub fn with<M: Model>(mut self) -> Self {
        self.models.push(Box::new(ModelEntry::<M>(PhantomData)));
        self
    }

    /// Adds `decode`, `bench` and `data`, which are about the models that come with Windlass.
    #[must_use]
    pub fn with_tools(mut self) -> Self {
        self.has_tools = true;
        self
    }

    /// Does what the command line says.
    pub fn run(self) -> ExitCode {
        let arguments = hyphenate(std::env::args_os());
        let matches = self.command().get_matches_from(&arguments);
        match self.dispatch(&matches, &arguments) {
            Ok(()) => ExitCode::SUCCESS,
            Err(failure) => {
                terminal::print_failure(&failure);
                ExitCode::from(failure.exit_code)
            }
        }
    }

    fn command(&self) -> Command {
        let subcommands = |about: &'static str, name: &'static str, augment: fn(Command) -> Command| {
            // Otherwise a negative number would be refused as an unknown flag, and not by the flag it is given to.
            let negative = |arg: Arg| {
                let takes_values = arg.get_action().takes_values();
                arg.allow_negative_numbers(takes_values)
            };
            let models = self.models.iter();
            let models = models.map(|model| augment(model.command()).about(model.about()).mut_args(negative));
            Command::new(name)
                .about(about)
                .subcommand_required(true)
                .arg_required_else_help(true)
                .subcommand_value_name("MODEL")
                .subcommand_help_heading("Models")
                .disable_help_subcommand(true)
                .subcommands(models)
        };
        // Leaked once a process: clap keeps names for ever.
        let name: &'static str = name().leak();
        let version = if name == NAME { VERSION } else { concat!("with windlass ", env!("CARGO_PKG_VERSION")) };
        let tools = |command: Command| match self.has_tools {
            true => command.subcommands([decode::command(), checkpoint::command(), bench::command(), data::command()]),
            false => command.subcommand(checkpoint::command()),
        };
        let command = Command::new(name)
            .about("Train one neural network on many machines: parameter servers and workers in one binary")
            .version(version)
            .subcommand_required(true)
            .arg_required_else_help(true)
            .subcommand(subcommands(
                "Train a model in this process, or as one task of a cluster",
                "train",
                TrainArgs::augment_args,
            ))
            .subcommand(subcommands("Start a whole cluster on this machine and train on it", "launch", |command| {
                let command = TrainingArgs::augment_args(LaunchArgs::augment_args(command));
                OutputArgs::augment_args(CheckpointArgs::augment_args(command))
            }))
            .subcommand(subcommands("Score a checkpoint", "eval", EvalArgs::augment_args));
        tools(command)
    }

    fn dispatch(&self, matches: &ArgMatches, arguments: &[OsString]) -> Result<(), Failure> {
        match matches.subcommand() {
            Some(("train" | "launch" | "eval", _)) => {
                let completed = self.with_flags_of_checkpoint(matches, arguments)?;
                let (command, matches) = completed.as_ref().unwrap_or(matches).subcommand().expect("it had one before");
                let (model, matches) = self.model(matches);
                match command {
                    "train" => model.train(matches),
                    "launch" => model.launch(matches),
                    _ => model.eval(matches),
                }
            }
            Some(("decode", matches)) => decode::run(matches),
            Some(("checkpoint", matches)) => checkpoint::run(matches),
            Some(("bench", matches)) => bench::run(matches),
            Some(("data", matches)) => data::run(matches),
            _ => unreachable!("clap requires a subcommand"),
        }
    }

    /// What the command line says together with the model flags of the checkpoint that it is about, if the user has
    /// left some of them out.
    fn with_flags_of_checkpoint(
        &self,
        matches: &ArgMatches,
        arguments: &[OsString],
    ) -> Result<Option<ArgMatches>, Failure> {
        let Some((command, matches)) = matches.subcommand() else { return Ok(None) };
        let (model, matches) = self.model(matches);
        let manifest = match command {
            "eval" => Some(eval::manifest(&parse(matches)?)?),
            _ => model_flags::resumed(&parse(matches)?, &parse(matches)?)?,
        };
        let Some(manifest) = manifest.filter(|manifest| manifest.run.model == model.name()) else { return Ok(None) };
        let missing = model_flags::missing(&model.command(), matches, &manifest.run.identity.flags);
        if missing.is_empty() {
            return Ok(None);
        }
        // After the program, the command and the model: flags of theirs there are none.
        let (before, after) = arguments.split_at(3.min(arguments.len()));
        let completed = before.iter().chain(&missing).chain(after);
        let parsed = self.command().try_get_matches_from(completed);
        parsed.map(Some).map_err(|error| model_flags::contradiction(manifest.id, &error))
    }

    fn model<'a>(&self, matches: &'a ArgMatches) -> (&dyn Entry, &'a ArgMatches) {
        let (name, matches) = matches.subcommand().expect("clap requires a model");
        let model = self.models.iter().find(|model| model.name() == name).expect("clap knows the models");
        (model.as_ref(), matches)
    }
}

/// A model, whatever its types.
trait Entry {
    fn name(&self) -> &'static str;
    fn about(&self) -> &'static str;
    fn command(&self) -> Command;
    fn train(&self, matches: &ArgMatches) -> Result<(), Failure>;
    fn launch(&self, matches: &ArgMatches) -> Result<(), Failure>;
    fn eval(&self, matches: &ArgMatches) -> Result<(), Failure>;
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

    fn train(&self, matches: &ArgMatches) -> Result<(), Failure> {
        train::run::<M>(matches, &parse(matches)?)
    }

    fn launch(&self, matches: &ArgMatches) -> Result<(), Failure> {
        let flags: M::Flags = parse(matches)?;
        let defaults: Defaults = M::defaults(&flags);
        let launch: LaunchArgs = parse(matches)?;
        let output: OutputArgs = parse(matches)?;
        let checkpoint: CheckpointArgs = parse(matches)?;
        let training: TrainingArgs = parse(matches)?;
        let args = TrainArgs { cluster: crate::args::ClusterArgs::default(), training, checkpoint, output };
        launch::run(M::NAME, &model_flags::recorded::<M>(matches), &launch, &args, &defaults)
    }

    fn eval(&self, matches: &ArgMatches) -> Result<(), Failure> {
        eval::run::<M>(&parse(matches)?, model_flags::recorded::<M>(matches), &parse(matches)?)
    }
}

/// What a command's flags say.
pub(crate) fn parse<T: FromArgMatches>(matches: &ArgMatches) -> Result<T, Failure> {
    T::from_arg_matches(matches).map_err(|error| Failure::usage(error.to_string().trim_end()))
}
