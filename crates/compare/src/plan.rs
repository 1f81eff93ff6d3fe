//! The runs that a comparison consists of, their order, and where each of them is kept.

use std::path::PathBuf;

use crate::error::PlanError;
use crate::file::{CompareFile, LayoutEntry, Reference, ReferenceSource};
use crate::flags::{FlagRules, Flags};
use crate::layout::Layout;

/// The highest number of repetitions.
const MOST_REPETITIONS: u32 = 100;
/// The subdirectory of a comparison that holds its runs.
const RUNS: &str = "runs";

/// A validated comparison.
#[derive(Debug, Clone)]
pub struct Plan {
    /// A title for the comparison.
    pub title: Option<String>,
    /// The model.
    pub model: String,
    /// The score to show, if not the first.
    pub score: Option<String>,
    /// Where reference values come from.
    pub reference: Option<ReferenceSource>,
    /// The number of runs of each layout.
    pub repeat: u32,
    /// The rows of the table.
    pub entries: Vec<Entry>,
}

/// A layout to run, once or several times.
#[derive(Debug, Clone)]
pub struct Entry {
    /// The name of its row.
    pub name: String,
    /// The layout.
    pub layout: Layout,
    /// The flags of its runs.
    pub flags: Flags,
    /// The values that its results are compared with.
    pub reference: Reference,
}

/// One run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlannedRun {
    /// The index of its entry.
    pub entry: usize,
    /// The number of this repetition, from 1.
    pub repetition: u32,
    /// Its name, which is that of its directory.
    pub name: String,
    /// Its directory, relative to that of the comparison.
    pub directory: PathBuf,
    /// The words after the program's name that start it, without the output directory.
    pub arguments: Vec<String>,
}

/// The choices that a user makes on the command line, in addition to a file.
#[derive(Debug, Clone, Default)]
pub struct Wishes {
    /// Layouts, instead of those of the file.
    pub layouts: Option<Vec<Layout>>,
    /// The number of runs of each layout.
    pub repeat: Option<u32>,
    /// The score to show.
    pub score: Option<String>,
    /// The model and flags, or only flags if the file names the model.
    pub words: Vec<String>,
}

impl Wishes {
    /// The model, if one is given, and the words that are flags.
    fn split(&self) -> (Option<&String>, &[String]) {
        match self.words.split_first() {
            Some((model, words)) if !model.starts_with('-') => (Some(model), words),
            _ => (None, &self.words),
        }
    }

    /// The model that these and a file name together.
    ///
    /// # Errors
    /// If they name none, or two.
    pub fn model(&self, file: &CompareFile) -> Result<String, PlanError> {
        match (file.model.clone(), self.split().0.cloned()) {
            (Some(file), Some(given)) if file != given => Err(PlanError::TwoModels { file, given }),
            (file, given) => given.or(file).ok_or(PlanError::NoModel),
        }
    }
}

impl Plan {
    /// What a file and a command line say together. The command line takes precedence, by the rules of the model's
    /// flags.
    ///
    /// # Errors
    /// If that makes no comparison.
    pub fn new(file: CompareFile, wishes: Wishes, rules: &dyn FlagRules) -> Result<Self, PlanError> {
        let model = wishes.model(&file)?;
        let (_, words) = wishes.split();
        let (of_file, of_line) = (Flags::from_table(&file.flags)?, Flags::from_words(words)?);
        let entries: Vec<(Layout, LayoutEntry)> = match wishes.layouts {
            Some(layouts) => layouts.into_iter().flat_map(|layout| said_of(layout, &file.layouts)).collect(),
            None => {
                let parsed = file.layouts.into_iter().map(|entry| Ok((entry.layout.parse()?, entry)));
                parsed.collect::<Result<_, PlanError>>()?
            }
        };
        let entry = |(layout, entry): (Layout, LayoutEntry)| -> Result<Entry, PlanError> {
            let above = Flags::from_table(&entry.flags)?.overridden_by(&of_line, rules);
            let flags = of_file.clone().overridden_by(&above, rules);
            let name = entry.name.unwrap_or_else(|| layout.to_string());
            Ok(Entry { name: checked_name(name)?, layout, flags, reference: entry.reference })
        };
        let entries = entries.into_iter().map(entry).collect::<Result<Vec<_>, _>>()?;
        let repeat = wishes.repeat.or(file.repeat).unwrap_or(1);
        let score = wishes.score.or(file.score);
        let plan = Self { title: file.title, model, score, reference: file.reference, repeat, entries };
        plan.checked()
    }

    fn checked(self) -> Result<Self, PlanError> {
        if self.entries.is_empty() {
            return Err(PlanError::NoLayouts);
        }
        if self.repeat == 0 || self.repeat > MOST_REPETITIONS {
            return Err(PlanError::Repeat { repeat: self.repeat });
        }
        let same = self.entries.iter().enumerate().find(|(index, entry)| {
            self.entries[..*index].iter().any(|earlier| earlier.name.eq_ignore_ascii_case(&entry.name))
        });
        match same {
            Some((_, entry)) => Err(PlanError::SameName { name: entry.name.clone() }),
            None => Ok(self),
        }
    }

    /// All runs in order: every layout once, then every layout again, so that changes in the machine's load over time
    /// do not count against a single layout.
    pub fn runs(&self) -> Vec<PlannedRun> {
        let rounds = 1..=self.repeat;
        rounds.flat_map(|repetition| (0..self.entries.len()).map(move |entry| self.run(entry, repetition))).collect()
    }

    /// Repetitions differ in their seed, unless the user has set it.
    fn run(&self, index: usize, repetition: u32) -> PlannedRun {
        let entry = &self.entries[index];
        let mut arguments = entry.layout.command(&self.model);
        arguments.extend(entry.flags.words());
        if repetition > 1 && !entry.flags.has("seed") {
            arguments.push(format!("--seed={repetition}"));
        }
        let name = match repetition {
            1 => entry.name.clone(),
            // Layout names contain no dots.
            repetition => format!("{}.{repetition}", entry.name),
        };
        PlannedRun { entry: index, repetition, directory: PathBuf::from(RUNS).join(&name), name, arguments }
    }

    /// The model and flags of each entry as `train` takes them, and its number of workers, for checking before anything
    /// is run.
    pub fn training_words(&self) -> Vec<(Vec<String>, u32)> {
        let words = |entry: &Entry| {
            let model = std::iter::once(self.model.clone());
            let words = model.chain(entry.layout.mode_flags()).chain(entry.flags.words());
            (words.collect(), entry.layout.workers())
        };
        self.entries.iter().map(words).collect()
    }
}

/// The entries in the file for a layout that was chosen on the command line, or a default one.
fn said_of(layout: Layout, entries: &[LayoutEntry]) -> Vec<(Layout, LayoutEntry)> {
    let of_file = entries.iter().filter(|entry| entry.layout.parse() == Ok(layout));
    let mut said: Vec<_> = of_file.map(|entry| (layout, entry.clone())).collect();
    if said.is_empty() {
        said.push((layout, LayoutEntry::default()));
    }
    said
}

fn checked_name(name: String) -> Result<String, PlanError> {
    let is_good = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    match !name.is_empty() && name.len() <= 60 && name.bytes().all(is_good) {
        true => Ok(name),
        false => Err(PlanError::BadName { name }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::file;
    use crate::layout::parse_list;

    const FILE: &str = "model = 'mnist'\nlayouts = ['single', { layout = '1ps2w-sync', flags = { batch-size = 5 } }]\n\
                        [flags]\nsteps = 100\nbatch-size = 9";

    fn plan(text: &str, wishes: Wishes) -> Result<Plan, PlanError> {
        Plan::new(file::parse(text).unwrap(), wishes, &())
    }

    fn words(words: &str) -> Vec<String> {
        words.split_whitespace().map(str::to_owned).collect()
    }

    fn commands(plan: &Plan) -> Vec<String> {
        plan.runs().iter().map(|run| format!("{}: {}", run.directory.display(), run.arguments.join(" "))).collect()
    }

    #[test]
    fn layouts_take_turns_and_repetitions_differ_in_their_seed() {
        let plan = plan(FILE, Wishes { repeat: Some(2), ..Wishes::default() }).unwrap();
        assert_eq!(
            commands(&plan),
            [
                "runs/single: train mnist --batch-size=9 --steps=100",
                "runs/1ps2w-sync: launch mnist --ps 1 --workers 2 --mode sync --steps=100 --batch-size=5",
                "runs/single.2: train mnist --batch-size=9 --steps=100 --seed=2",
                "runs/1ps2w-sync.2: launch mnist --ps 1 --workers 2 --mode sync --steps=100 --batch-size=5 --seed=2",
            ]
        );
    }

    #[test]
    fn the_command_line_chooses_among_the_layouts_of_the_file_and_adds_flags() {
        let layouts = parse_list("1ps2w-sync,1ps1w").ok();
        let wishes = Wishes { layouts, words: words("--batch-size 7 --seed 3"), repeat: Some(2), ..Wishes::default() };
        assert_eq!(
            commands(&plan(FILE, wishes).unwrap()),
            [
                "runs/1ps2w-sync: launch mnist --ps 1 --workers 2 --mode sync --steps=100 --batch-size 7 --seed 3",
                "runs/1ps1w: launch mnist --ps 1 --workers 1 --mode async --steps=100 --batch-size 7 --seed 3",
                "runs/1ps2w-sync.2: launch mnist --ps 1 --workers 2 --mode sync --steps=100 --batch-size 7 --seed 3",
                "runs/1ps1w.2: launch mnist --ps 1 --workers 1 --mode async --steps=100 --batch-size 7 --seed 3",
            ]
        );
    }

    #[test]
    fn choosing_a_layout_chooses_every_entry_of_the_file_that_has_it() {
        let text = "model = 'mnist'\nlayouts = [{ layout = 'single', name = 'small' }, '1ps1w', \
                    { layout = 'single', name = 'large', flags = { hidden = 900 } }]";
        let wishes = Wishes { layouts: parse_list("single").ok(), ..Wishes::default() };
        let expected = ["runs/small: train mnist", "runs/large: train mnist --hidden=900"];
        assert_eq!(commands(&plan(text, wishes).unwrap()), expected);
    }

    #[test]
    fn without_a_file_the_command_line_says_it_all() {
        let wishes =
            Wishes { layouts: parse_list("single").ok(), words: words("linear --epochs 2"), ..Wishes::default() };
        assert_eq!(commands(&plan("", wishes).unwrap()), ["runs/single: train linear --epochs 2"]);
    }

    #[test]
    fn what_makes_no_comparison_is_refused() {
        let refusal = |text: &str, wishes: Wishes| plan(text, wishes).unwrap_err().to_string();
        let of_words = |text: &str| Wishes { words: words(text), ..Wishes::default() };
        assert_eq!(refusal("layouts = ['single']", Wishes::default()), "no model given");
        assert_eq!(refusal("", of_words("mnist")), "no layouts given");
        assert_eq!(refusal(FILE, of_words("linear")), "the file compares layouts of mnist, and not of linear");
        assert_eq!(
            refusal(FILE, Wishes { repeat: Some(0), ..Wishes::default() }),
            "repeat is 0, but must be from 1 to 100"
        );
        let twice = "model = 'mnist'\nlayouts = ['single', 'single']";
        assert_eq!(refusal(twice, Wishes::default()), "two layouts are called single");
        let bad = "model = 'mnist'\nlayouts = [{ layout = 'single', name = '../x' }]";
        assert_eq!(
            refusal(bad, Wishes::default()),
            "\"../x\" is not a name for a layout: use letters, digits, - and _"
        );
    }
}
