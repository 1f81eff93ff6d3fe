//! A run on a terminal screen, redrawn repeatedly with the same words as the page, for `windlass top`.
//!
//! Draws into any buffer. Must know neither the terminal nor the network: its user fetches statuses and reads keys.

mod tasks;

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span, Text};
use ratatui::widgets::{Paragraph, Sparkline};

use crate::chart::Chart;
use crate::figures::{duration, plain};
use crate::status::Status;
use crate::text::facts;
use crate::view::{Badge, EventRow, Finding, View};
use tasks::TaskTable;

/// The maximum number of lines of the headline, of the facts, and, unless the screen is tall, of the findings.
const MOST_LINES: usize = 3;
/// The height of the loss chart, including its title, on a screen of usual height.
const CHART_LINES: u16 = 4;
/// From this height on, a screen shows a loss chart of twice the height, and all findings.
const TALL: u16 = 40;
/// Lines that the tasks leave for events, including the title.
const FEWEST_EVENT_LINES: u16 = 4;
/// The range of heights in the loss chart, which is drawn in eighths of a line.
const LEVELS: u64 = 1000;

/// The run being shown, and which of its tasks are visible.
#[derive(Debug, Clone, Default)]
pub struct Screen {
    address: String,
    status: Option<Status>,
    /// The index of the first visible task.
    first: usize,
    /// How many tasks fit.
    visible: usize,
    has_colors: bool,
}

/// The run has not answered for a while.
#[derive(Debug, Clone, PartialEq)]
pub struct Silence {
    /// The duration of the silence, in seconds.
    pub secs: f64,
    /// The reason, as far as it is known.
    pub why: String,
}

/// Where to scroll to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scroll {
    /// One task up.
    Up,
    /// One task down.
    Down,
    /// One screenful of tasks up.
    PageUp,
    /// One screenful of tasks down.
    PageDown,
    /// To the first task.
    Home,
    /// To the last task.
    End,
}

impl Screen {
    /// A screen for the run at this address, which has not answered yet.
    pub fn new(address: impl Into<String>, has_colors: bool) -> Self {
        Self { address: address.into(), has_colors, ..Self::default() }
    }

    /// Records an answer of the run.
    pub fn answered(&mut self, status: Status) {
        self.status = Some(status);
    }

    /// Scrolls the tasks, if there are more than fit.
    pub fn scroll(&mut self, to: Scroll) {
        self.first = match to {
            Scroll::Up => self.first.saturating_sub(1),
            Scroll::Down => self.first.saturating_add(1),
            Scroll::PageUp => self.first.saturating_sub(self.visible),
            Scroll::PageDown => self.first.saturating_add(self.visible),
            Scroll::Home => 0,
            Scroll::End => usize::MAX,
        };
    }

    /// Draws the whole screen.
    pub fn draw(&mut self, frame: &mut Frame<'_>, silence: Option<&Silence>) {
        let [body, foot] = Layout::vertical([Constraint::Min(0), Constraint::Length(1)]).areas(frame.area());
        let all = match self.status.take() {
            Some(status) => {
                let all = self.draw_run(frame, body, &status);
                self.status = Some(status);
                all
            }
            None => {
                frame.render_widget(Paragraph::new(format!("○ Asking {}", plain(&self.address))), body);
                0
            }
        };
        frame.render_widget(Paragraph::new(self.foot(silence, all)), foot);
    }

    /// Draws the status. Returns how many tasks there are.
    fn draw_run(&mut self, frame: &mut Frame<'_>, area: Rect, status: &Status) -> usize {
        let view = View::new(status);
        let head = self.head(status, &view, area.width);
        let findings = self.findings(&view, area.width);
        let events = events(&view, |badge| self.tone(badge));
        let table = TaskTable::new(&view, |badge| self.tone(badge));
        let heights = Heights::new(
            area.height,
            [head.len(), findings.len(), events.len(), table.len()]
                .map(|lines| u16::try_from(lines).unwrap_or(u16::MAX)),
        );
        let Heights { head: top, chart, tasks, findings: middle, events: bottom } = heights;
        let parts = Layout::vertical([top, chart, tasks, middle, bottom].map(Constraint::Length)).areas(area);
        let [top, chart, tasks, middle, bottom] = parts;
        frame.render_widget(Paragraph::new(head), top);
        draw_loss(frame, chart, &view.charts[0], self.style(Color::Cyan));
        self.visible = usize::from(tasks.height).saturating_sub(1);
        self.first = self.first.min(table.rows().saturating_sub(self.visible));
        let rows = table.rows();
        frame.render_widget(table.widget(self.first, self.visible), tasks);
        frame.render_widget(Paragraph::new(findings), middle);
        frame.render_widget(Paragraph::new(events), bottom);
        rows
    }

    /// The headline, the facts, and the progress bar.
    fn head(&self, status: &Status, view: &View, width: u16) -> Vec<Line<'static>> {
        let width = usize::from(width);
        let wrapped = |text: &str, style: Style| -> Vec<Line<'static>> {
            let lines = textwrap::wrap(text, width.max(1)).into_iter().take(MOST_LINES);
            lines.map(|line| Line::styled(line.into_owned(), style)).collect()
        };
        let state = self.tone(view.badge).add_modifier(Modifier::BOLD);
        let mut lines = wrapped(&format!("{} {}", view.badge.symbol, view.headline), state);
        lines.extend(wrapped(&facts(status), Style::new()));
        if status.target.is_some() {
            lines.push(self.bar(view.progress, width));
        }
        lines
    }

    fn bar(&self, percent: f64, width: usize) -> Line<'static> {
        let label = format!(" {percent:5.1}%");
        let room = width.saturating_sub(label.len());
        let filled = (percent / 100.0 * room as f64).floor() as usize;
        let done = Span::styled("█".repeat(filled), self.style(Color::Green));
        Line::from(vec![done, Span::raw("░".repeat(room.saturating_sub(filled))), Span::raw(label)])
    }

    /// The tasks that are waited for, or that slow the run down.
    fn findings(&self, view: &View, width: u16) -> Vec<Line<'static>> {
        let options = textwrap::Options::new(usize::from(width.max(4))).subsequent_indent("  ");
        let lines = |finding: &Finding| {
            let text = format!("{} {}", finding.badge.symbol, finding.text);
            let style = self.tone(finding.badge);
            let lines = textwrap::wrap(&text, &options).into_iter();
            lines.map(|line| Line::styled(line.into_owned(), style)).collect::<Vec<_>>()
        };
        view.chains.iter().chain(&view.findings).flat_map(lines).collect()
    }

    /// The available keys, or a notice that the run does not answer.
    fn foot(&self, silence: Option<&Silence>, tasks: usize) -> Line<'static> {
        if let Some(Silence { secs, why }) = silence {
            let text = format!("✕ no answer for {}, trying again: {}", duration(*secs), plain(why));
            return Line::styled(text, self.style(Color::Red).add_modifier(Modifier::BOLD));
        }
        let hidden = tasks > self.visible;
        let last = (self.first + self.visible).min(tasks);
        let scroll =
            if hidden { format!(" · ↑ ↓ tasks {}–{last} of {tasks}", self.first + 1) } else { String::new() };
        Line::styled(format!("q quit{scroll} · {}", plain(&self.address)), self.style(Color::DarkGray))
    }

    fn tone(&self, badge: Badge) -> Style {
        match badge.tone {
            "good" => self.style(Color::Green),
            "wait" => self.style(Color::Yellow),
            "bad" => self.style(Color::Red),
            "done" => self.style(Color::Cyan),
            _ => Style::new(),
        }
    }

    fn style(&self, color: Color) -> Style {
        if self.has_colors { Style::new().fg(color) } else { Style::new() }
    }
}

fn title(text: impl Into<String>) -> Line<'static> {
    Line::styled(text.into(), Modifier::BOLD)
}

/// The events, latest first.
fn events(view: &View, tone: impl Fn(Badge) -> Style) -> Vec<Line<'static>> {
    let event = |event: &EventRow| {
        let symbol = Span::styled(format!("{} ", event.badge.symbol), tone(event.badge));
        Line::from(vec![Span::raw(format!("{:>11}  ", event.at)), symbol, Span::raw(event.what.clone())])
    };
    let note = (!view.events_note.is_empty()).then(|| Line::raw(view.events_note.clone()));
    std::iter::once(title("events, the latest first")).chain(view.events.iter().map(event)).chain(note).collect()
}

/// Draws the loss over the whole run, and describes it in words.
fn draw_loss(frame: &mut Frame<'_>, area: Rect, chart: &Chart, style: Style) {
    let [head, bars] = Layout::vertical([Constraint::Length(1), Constraint::Min(0)]).areas(area);
    let name = if chart.name.is_empty() { "loss" } else { &chart.name };
    frame.render_widget(Text::from(title(format!("{name}: {}", chart.caption))), head);
    frame.render_widget(Sparkline::default().data(columns(chart, bars.width)).max(LEVELS).style(style), bars);
}

/// The height of the curve in every column; a column between two points repeats the height of the earlier one.
fn columns(chart: &Chart, width: u16) -> Vec<Option<u64>> {
    let mut columns = vec![None; usize::from(width)];
    let (Some(last), false) = (columns.len().checked_sub(1), chart.points.is_empty()) else { return columns };
    let mut points = chart.points.iter().peekable();
    let mut height = None;
    for (column, shown) in columns.iter_mut().enumerate() {
        while let Some((_, y)) =
            points.next_if(|(x, _)| (chart.scale.across(*x as f64) / 100.0 * last as f64) <= column as f64)
        {
            height = y.map(|y| {
                let share = 1.0 - chart.scale.down(y).clamp(0.0, 100.0) / 100.0;
                // Even the lowest value should be visible.
                ((share * LEVELS as f64) as u64).max(LEVELS / 24)
            });
        }
        *shown = height;
    }
    columns
}

/// The height of each part, in lines.
#[derive(Debug, Default, PartialEq, Eq)]
struct Heights {
    head: u16,
    chart: u16,
    tasks: u16,
    findings: u16,
    events: u16,
}

impl Heights {
    /// Divides `all` lines among parts that need these numbers of lines. The head comes first, then some tasks,
    /// findings, events and the loss chart; more tasks and events get the rest.
    fn new(all: u16, [head, findings, events, tasks]: [u16; 4]) -> Self {
        let mut left = all;
        let mut take = |wanted: u16| {
            let taken = wanted.min(left);
            left -= taken;
            taken
        };
        let head = take(head);
        let mut tasks_got = take(tasks.min(4));
        let findings = take(findings.min(if all >= TALL { u16::MAX } else { MOST_LINES as u16 }));
        let mut events_got = take(events.min(FEWEST_EVENT_LINES));
        let chart = take(if all >= TALL { 2 * CHART_LINES } else { CHART_LINES });
        tasks_got += take(tasks - tasks_got);
        events_got += take(events - events_got);
        Self { head, chart, tasks: tasks_got, findings, events: events_got }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_matters_most_is_on_a_small_screen_and_tasks_get_the_rest_of_a_large_one() {
        let wanted = [4, 1, 10, 35];
        let heights = |all| Heights::new(all, wanted);
        assert_eq!(heights(3), Heights { head: 3, ..Heights::default() });
        assert_eq!(heights(23), Heights { head: 4, chart: 4, tasks: 10, findings: 1, events: 4 });
        assert_eq!(heights(100), Heights { head: 4, chart: 8, tasks: 35, findings: 1, events: 10 });
    }

    #[test]
    fn a_curve_has_as_many_columns_as_the_screen_whatever_it_has_of_points() {
        let mut curve = crate::Curve::new("loss");
        assert_eq!(columns(&Chart::new(&curve), 3), [None::<u64>; 3]);
        curve.push(10, 2.0);
        assert!(columns(&Chart::new(&curve), 0).is_empty());
        (2..100).for_each(|point| curve.push(point * 10, 2.0 / point as f64));
        curve.push(1000, f64::NAN);
        let drawn = columns(&Chart::new(&curve), 40);
        assert_eq!((drawn[0], drawn[39]), (Some(LEVELS), None));
        assert!(drawn[..39].is_sorted_by(|one, next| one >= next), "{drawn:?}");
    }
}
