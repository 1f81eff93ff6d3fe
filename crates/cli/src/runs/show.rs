//! `windlass runs show`: all that is known about one run.

use windlass_page::figures;
use windlass_runs::{Ending, Run, Setting};

use super::minute;
use crate::failure::Failure;
use crate::output::{plain_table, print_json, print_line, table_within};
use crate::terminal;

/// The maximum number of events shown.
const EVENTS: usize = 10;

pub(super) fn run(run: &Run, json: bool) -> Result<(), Failure> {
    if json {
        return print_json(run);
    }
    let parts = [facts(run), settings(run), checkpoints(run), events(run), problems(run)];
    print_line(&parts.into_iter().flatten().collect::<Vec<_>>().join("\n\n"));
    Ok(())
}

fn facts(run: &Run) -> Option<String> {
    let mut table = table_within(terminal::columns());
    let mut row = |name: &str, value: String| {
        table.add_row([name.to_owned(), figures::plain(&value)]);
    };
    let layout = run.layout.map(|layout| layout.to_string());
    let what = [&run.model, layout.as_ref().unwrap_or(&run.model), &run.mode, &run.optimizer];
    row("run", run.path.display().to_string());
    let what: Vec<&str> = what.into_iter().map(String::as_str).filter(|text| !text.is_empty()).collect();
    row("what", what.join(", "));
    row("state", state(run));
    if let Some(began) = run.began {
        let heard = run.last_heard.map(|last| format!(", last heard of at {} UTC", minute(last))).unwrap_or_default();
        row("began", format!("{} UTC{heard}", minute(began)));
    }
    let target = run.target.map(|target| format!(" of {}", figures::count(target))).unwrap_or_default();
    row("step", format!("{}{target}", figures::count(run.step)));
    if let Some(loss) = run.loss {
        row("loss", figures::value(loss));
    }
    if !run.scores.is_empty() {
        row("scores", run.scores.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "));
    }
    if let Some(summary) = &run.summary {
        row("took", figures::duration(summary.wall_seconds));
        if summary.steps_this_run > 0 {
            let speeds = [summary.steps_per_second, summary.samples_per_second].map(figures::rate);
            let [steps, samples] = speeds;
            row("speed", format!("{steps} steps/s, {samples} samples/s, median step {:.2} ms", summary.step_ms.p50));
        }
        if let Some(warning) = &summary.warning {
            row("warning", warning.message.clone());
        }
    }
    row("size", format!("{} on disk", figures::bytes(run.bytes)));
    Some(table.trim_fmt())
}

fn state(run: &Run) -> String {
    let page = run.last_status.as_ref().map(|last| last.address.as_str()).filter(|address| !address.is_empty());
    match (&run.ending, page) {
        (Ending::Running, Some(page)) => format!("active, live page at http://{page}/"),
        (ending, _) => match ending.why().filter(|why| !why.is_empty()) {
            Some(why) => format!("{}: {why}", ending.word()),
            None => ending.word().to_owned(),
        },
    }
}

fn settings(run: &Run) -> Option<String> {
    let all = &run.settings.as_ref()?.settings;
    let mut table = table_within(terminal::columns());
    table.set_header(["setting", "value", "set by"]);
    let shown: Vec<&Setting> = all.iter().filter(|setting| setting.matters()).collect();
    for setting in &shown {
        let name = format!("--{}", setting.name);
        table.add_row([name, setting.value.clone(), setting.origin.clone()].map(|text| figures::plain(&text)));
    }
    let rest = match all.len() - shown.len() {
        0 => String::new(),
        rest => format!("\n {rest} others are in {}", run.path.join("run.toml").display()),
    };
    (!shown.is_empty()).then(|| format!("{}{rest}", table.trim_fmt()))
}

fn checkpoints(run: &Run) -> Option<String> {
    if run.checkpoints.is_empty() {
        let is_elsewhere = run.checkpoints_in.contains("://");
        let text = if is_elsewhere { format!("in {}", figures::plain(&run.checkpoints_in)) } else { "none".to_owned() };
        return Some(format!(" checkpoints: {text}"));
    }
    let mut table = plain_table();
    table.set_header(["checkpoint", "taken (UTC)", "size"]);
    for saved in &run.checkpoints {
        let size = saved.bytes.map(figures::bytes).or(saved.damage.as_ref().map(|_| "damaged".to_owned()));
        let taken = saved.taken.map_or("–".into(), minute);
        table.add_row([format!("step {}", figures::count(saved.step)), taken, size.unwrap_or_default()]);
    }
    Some(table.trim_fmt())
}

fn events(run: &Run) -> Option<String> {
    let last = run.last_status.as_ref()?;
    let mut table = table_within(terminal::columns());
    table.set_header(["after", "what happened last"]);
    let events: Vec<_> = last.status.timeline.events().rev().take(EVENTS).collect();
    for event in events.iter().rev() {
        table.add_row([figures::duration(event.at_secs), figures::plain(&event.what)]);
    }
    (!events.is_empty()).then(|| table.trim_fmt())
}

fn problems(run: &Run) -> Option<String> {
    let lines = run.problems.iter().map(|problem| format!(" damaged: {}", figures::plain(problem)));
    (!run.problems.is_empty()).then(|| lines.collect::<Vec<_>>().join("\n"))
}
