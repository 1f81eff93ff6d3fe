//! `windlass decode`: translates sentences, one per line, with a network that `seq2seq` has trained.

use std::collections::HashMap;
use std::io::{self, BufRead, IsTerminal, Write};
use std::path::{Path, PathBuf};

use burn::tensor::Device;
use clap::{ArgMatches, Command, FromArgMatches, Parser};
use comfy_table::CellAlignment;
use serde::Serialize;
use windlass_core::lifecycle::exit_code;
use windlass_models::Seq2Seq;
use windlass_models::seq2seq::TRANSLATOR_FILE;
use windlass_models::seq2seq::decode::Beam;
use windlass_models::seq2seq::interpreter::{InterpretError, Interpreted, Interpreter};
use windlass_worker::model::Model;

use crate::checkpoint::{find, unusable};
use crate::failure::Failure;
use crate::logging;
use crate::output::plain_table;
use crate::terminal::Terminal;

/// Translate sentences from standard input with a trained seq2seq network
#[derive(Debug, Parser)]
struct DecodeCommand {
    /// Run directory or checkpoint location (uses the newest), or a manifest (a .json file)
    #[arg(long, value_name = "WHERE")]
    checkpoint: String,
    /// Vocabularies [default: those stored with the checkpoint]
    #[arg(long, value_name = "FILE")]
    translator: Option<PathBuf>,
    /// Beam width; 1 is greedy search
    #[arg(long, value_name = "N", default_value_t = 1)]
    beam: usize,
    /// Length normalisation of the beam: higher favours longer translations, 0 turns it off
    #[arg(long, value_name = "POWER", default_value_t = 0.6, allow_negative_numbers = true)]
    length_penalty: f64,
    /// Show the attention weights of each translation
    #[arg(long)]
    attention: bool,
    /// Print every translation as a JSON object on a line of its own
    #[arg(long)]
    json: bool,
}

/// A translation as JSON.
#[derive(Serialize)]
struct TranslatedJson<'a> {
    text: &'a str,
    source: &'a [String],
    words: &'a [String],
    /// By word of the translation, then by word of the source.
    #[serde(skip_serializing_if = "Option::is_none")]
    attention: Option<&'a [Vec<f32>]>,
}

pub(crate) fn command() -> Command {
    <DecodeCommand as clap::CommandFactory>::command().name("decode")
}

pub(crate) fn run(matches: &ArgMatches) -> Result<(), Failure> {
    let command = DecodeCommand::from_arg_matches(matches).map_err(Failure::usage)?;
    if command.beam == 0 {
        return Err(Failure::usage("--beam must be at least 1"));
    }
    if !(command.length_penalty >= 0.0 && command.length_penalty.is_finite()) {
        let penalty = command.length_penalty;
        return Err(Failure::usage(format!("--length-penalty is {penalty}, but must be zero or more")));
    }
    logging::start();
    let search = (command.beam > 1).then_some(Beam { width: command.beam, length_penalty: command.length_penalty });
    let interpreter = load(&command)?;
    let nothing = if command.json { "null" } else { "" };
    converse(io::stdin().lock(), io::stdin().is_terminal(), nothing, |sentence| {
        let translated = interpreter.translate(sentence, search)?;
        if command.json {
            return Ok(in_json(&translated, command.attention));
        }
        if !command.attention {
            return Ok(translated.text);
        }
        Ok(format!("{}\n{}", translated.text, attention(&translated)))
    })
}

/// Answers every line with one line, so that input and output files correspond line by line; `nothing` stands for a
/// missing translation. At a terminal it prompts for the next sentence.
fn converse(
    mut input: impl BufRead,
    asks: bool,
    nothing: &str,
    translate: impl Fn(&str) -> Result<String, InterpretError>,
) -> Result<(), Failure> {
    let mut output = io::stdout().lock();
    for number in 1.. {
        if asks {
            let _ = write!(output, "> ").and_then(|()| output.flush());
        }
        let mut line = Vec::new();
        if input.read_until(b'\n', &mut line).map_err(Failure::internal)? == 0 {
            break;
        }
        let line = std::str::from_utf8(&line).map_err(|_| Failure::usage(format!("line {number} is not UTF-8")))?;
        let said = match translate(line) {
            Ok(said) => said,
            Err(InterpretError::Blank) => nothing.to_owned(),
            Err(error) => {
                Terminal::default().print_error(&format!("line {number}: {error}"));
                nothing.to_owned()
            }
        };
        // The reader of the translations has closed the pipe.
        if writeln!(output, "{said}").and_then(|()| output.flush()).is_err() {
            break;
        }
    }
    Ok(())
}

fn load(command: &DecodeCommand) -> Result<Interpreter, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(Failure::internal)?;
    let (store, manifest) = runtime.block_on(find(&command.checkpoint))?;
    let misfit = |message| Failure { exit_code: exit_code::CHECKPOINT, message, hint: None };
    if manifest.run.model != Seq2Seq::NAME {
        return Err(misfit(format!(
            "checkpoint {} is for {}, which does not translate",
            manifest.id, manifest.run.model
        )));
    }
    let (description, name) = match &command.translator {
        Some(path) => (read(path)?, path.display().to_string()),
        None => match runtime.block_on(store.file(&manifest, TRANSLATOR_FILE)).map_err(unusable)? {
            Some(content) => (content, format!("{TRANSLATOR_FILE} of checkpoint {}", manifest.id)),
            // The checkpoint dates from before files were kept with checkpoints.
            None => {
                let path = Path::new(store.location()).with_file_name(TRANSLATOR_FILE);
                (read(&path)?, path.display().to_string())
            }
        },
    };
    let named = runtime.block_on(store.load_values(&manifest)).map_err(unusable)?;
    let values: HashMap<String, Vec<f32>> = named.into_iter().map(|named| (named.name, named.values)).collect();
    Interpreter::new(&description, |name| values.get(name).cloned(), &Device::flex())
        .map_err(|error| misfit(format!("{name} cannot be used: {error}")))
}

fn read(path: &Path) -> Result<String, Failure> {
    std::fs::read_to_string(path).map_err(|error| {
        Failure::usage(format!("cannot read the vocabularies in {}: {error}", path.display()))
            .with_hint(format!("name the {TRANSLATOR_FILE} of the run, with --translator"))
    })
}

fn in_json(translated: &Interpreted, with_attention: bool) -> String {
    let json = TranslatedJson {
        text: &translated.text,
        source: &translated.source,
        words: &translated.words,
        attention: with_attention.then_some(&translated.translation.attention),
    };
    serde_json::to_string(&json).unwrap_or_default()
}

/// A row for each word of the translation, a column for each word of the sentence.
fn attention(translated: &Interpreted) -> String {
    let mut table = plain_table();
    table.set_header(std::iter::once("").chain(translated.source.iter().map(String::as_str)));
    for (word, weights) in translated.words.iter().zip(&translated.translation.attention) {
        let cells = weights.iter().map(|weight| format!("{weight:.2}"));
        table.add_row(std::iter::once(word.clone()).chain(cells));
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table.to_string()
}
