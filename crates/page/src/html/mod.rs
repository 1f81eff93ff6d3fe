//! The page, complete with all figures and charts, so that it can be read without the script.
//!
//! The script updates what is shown by these attributes, whose paths are relative to the nearest `data-item`, or else
//! to the view: `data-text` names the source of an element's text; `data-set` names those of its attributes
//! (`attribute=path;…`); `data-list` names the array that its children with `data-item` show, and `data-template` the
//! template for new ones; `data-chart`, `data-spark` and `data-split` mark drawings. maud escapes everything.

mod charts;
mod tables;

use maud::{DOCTYPE, Markup, PreEscaped, html};

use crate::view::{Badge, Fact, Finding, TaskBox, View};

/// The attributes by which the script changes an item.
const BINDINGS: [&str; 6] =
    [" data-text=\"", " data-set=\"", " data-list=\"", " data-template=\"", " data-spark=\"", " data-split=\""];

/// The whole document.
pub(crate) fn page(view: &View) -> String {
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { (view.title) }
                link rel="icon" href="icon.svg" type="image/svg+xml";
                link rel="stylesheet" href="page.css";
                script src="page.js" defer {}
                noscript { meta http-equiv="refresh" content="5"; }
            }
            body {
                a.skip href="#tasks" { "Skip to the tasks" }
                (head(view))
                main {
                    section aria-labelledby="curves" {
                        h2 #curves { "Loss and scores" }
                        (list("div", "charts", "chart", view.charts.iter().map(charts::chart)))
                    }
                    section aria-labelledby="speeds" {
                        h2 #speeds { "Samples per second" }
                        p.note data-text="speeds_note" { (view.speeds_note) }
                        (list("ul", "speeds", "speed", view.speeds.iter().map(|speed| charts::speed(speed, view.speed_top))))
                    }
                    section aria-labelledby="tasks" {
                        h2 #tasks tabindex="-1" { "Tasks" }
                        (tables::workers(view))
                        (tables::servers(view))
                    }
                    section aria-labelledby="cluster" {
                        h2 #cluster { "Cluster" }
                        (cluster(view))
                    }
                    section aria-labelledby="findings" {
                        h2 #findings { "What slows it down" }
                        (list("ul", "chains", "finding", view.chains.iter().map(finding)))
                        (list("ul", "findings", "finding", view.findings.iter().map(finding)))
                    }
                    section aria-labelledby="nodes" {
                        h2 #nodes { "Machines" }
                        (tables::nodes(view))
                    }
                    div.pair {
                        section aria-labelledby="checkpoints" {
                            h2 #checkpoints { "Checkpoints" }
                            (tables::checkpoints(view))
                        }
                        section aria-labelledby="timeline" {
                            h2 #timeline { "Timeline" }
                            (list("ol", "events", "event", view.events.iter().map(tables::event)))
                            p.note data-text="events_note" { (view.events_note) }
                        }
                    }
                    section aria-labelledby="goodput" {
                        h2 #goodput { "Goodput" }
                        p.figure { strong data-text="goodput.share" { (view.goodput.share) } " "
                            span data-text="goodput.text" { (view.goodput.text) } }
                        (charts::bar("goodput.bar", view.goodput.bar))
                    }
                }
                footer {
                    p { a href="status.json" { "The same as JSON" } ", or "
                        code { "windlass status HOST:PORT" } " in a terminal." }
                }
                (charts::hatching())
                (templates())
            }
        }
    }
    .into_string()
}

fn head(view: &View) -> Markup {
    html! {
        header {
            p.brand { strong { "Windlass" } " "
                span #link data-tone="idle" { noscript { "reloads every 5 s without JavaScript" } } }
            h1 {
                span.state aria-hidden="true" data-tone=(view.badge.tone) data-set="data-tone=badge.tone"
                    data-text="badge.symbol" { (view.badge.symbol) } " "
                span #headline data-text="headline" { (view.headline) }
            }
            p #announcement .unseen role="status" {}
            progress max="100" value=(view.progress) data-set="value=progress" aria-label="steps done" {}
            (list("dl", "facts", "fact", view.facts.iter().map(fact)))
        }
    }
}

/// The items of an array, in an element whose children the script adds and removes.
fn list(element: &str, path: &str, template: &str, items: impl Iterator<Item = Markup>) -> Markup {
    let items = without_bindings(html! { @for item in items { (item) } });
    match element {
        "ul" => html! { ul class=(path) data-list=(path) data-template=(template) { (items) } },
        "ol" => html! { ol class=(path) data-list=(path) data-template=(template) { (items) } },
        "dl" => html! { dl class=(path) data-list=(path) data-template=(template) { (items) } },
        "g" => html! { g class=(path) data-list=(path) data-template=(template) { (items) } },
        "tbody" => html! { tbody data-list=(path) data-template=(template) { (items) } },
        _ => html! { div class=(path) data-list=(path) data-template=(template) { (items) } },
    }
}

/// Items as first shown. The script replaces them by its own, so they can do without bindings, which would be a third
/// of a page of many workers. Text from users cannot look like an attribute, because its quotes are escaped.
fn without_bindings(items: Markup) -> Markup {
    let mut rest = items.0.as_str();
    let mut kept = String::with_capacity(rest.len());
    while let Some(found) = rest.find(" data-") {
        let (before, binding) = rest.split_at(found);
        kept.push_str(before);
        let after = BINDINGS.iter().find_map(|name| binding.strip_prefix(name));
        rest = match after.and_then(|value| value.split_once('"')) {
            Some((_, after)) => after,
            None => {
                kept.push_str(" data-");
                &binding[" data-".len()..]
            }
        };
    }
    kept.push_str(rest);
    PreEscaped(kept)
}

/// A state as symbol, word and colour.
fn badge(path: &str, badge: &Badge) -> Markup {
    html! {
        span.badge data-tone=(badge.tone) data-set={ "data-tone=" (path) ".tone" } {
            span aria-hidden="true" data-text={ (path) ".symbol" } { (badge.symbol) } " "
            span data-text={ (path) ".word" } { (badge.word) }
        }
    }
}

fn fact(fact: &Fact) -> Markup {
    html! { div data-item { dt data-text="label" { (fact.label) } dd data-text="value" { (fact.value) } } }
}

fn finding(finding: &Finding) -> Markup {
    html! { li data-item { (badge("badge", &finding.badge)) " " span data-text="text" { (finding.text) } } }
}

fn cluster(view: &View) -> Markup {
    let drawing = &view.drawing;
    html! {
        p.note { "Workers (w) send gradients to the parameter servers (ps), which send values back. "
            "A bar shows the size of a shard in relation to the largest." }
        svg.cluster role="group" aria-label="The cluster" width="100%" height=(drawing.height)
            data-set="height=drawing.height" {
            line.bus x1="0" x2="100%" y1=(drawing.bus) y2=(drawing.bus) data-set="y1=drawing.bus;y2=drawing.bus" {}
            text.bus x="0" y=(drawing.bus_label) data-set="y=drawing.bus_label" { "gradients ↓" }
            text.bus.end x="100%" y=(drawing.bus_label) data-set="y=drawing.bus_label" { "↑ values" }
            (list("g", "drawing.boxes", "box", drawing.boxes.iter().map(task_box)))
        }
    }
}

fn task_box(task: &TaskBox) -> Markup {
    html! {
        g data-item data-tone=(task.badge.tone) data-set="data-tone=badge.tone" {
            title data-text="title" { (task.title) }
            line x1=(task.middle) x2=(task.middle) y1=(task.from) y2=(task.to)
                data-set="x1=middle;x2=middle;y1=from;y2=to" {}
            rect.box x=(task.x) y=(task.y) width=(task.width) height=(task.height) rx="4"
                data-set="x=x;y=y;width=width;height=height" {}
            rect.shard x=(task.x) y=(task.bar_y) width=(task.bar_width) height=(task.bar_height) rx="4"
                data-set="x=x;y=bar_y;width=bar_width;height=bar_height" {}
            text x=(task.middle) y=(task.label_y) data-set="x=middle;y=label_y" {
                tspan.symbol data-text="badge.symbol" { (task.badge.symbol) } " "
                tspan data-text="label" { (task.label) }
            }
            text.detail x=(task.middle) y=(task.detail_y) data-set="x=middle;y=detail_y" data-text="detail" {
                (task.detail)
            }
        }
    }
}

/// The templates for new items. SVG elements need an `svg` element around them to be parsed as such.
fn templates() -> Markup {
    let item = |id: &str, markup: Markup| html! { template id={ "new-" (id) } { (markup) } };
    let shape = |id: &str, markup: Markup| item(id, html! { svg { (markup) } });
    html! {
        (item("fact", fact(&Fact::default())))
        (item("finding", finding(&Finding::default())))
        (item("chart", charts::chart(&Default::default())))
        (item("speed", charts::speed(&Default::default(), 1.0)))
        (item("worker", tables::worker(&Default::default())))
        (item("server", tables::server(&Default::default())))
        (item("node", tables::node(&Default::default())))
        (item("checkpoint", tables::checkpoint(&Default::default())))
        (item("event", tables::event(&Default::default())))
        (shape("box", task_box(&TaskBox::default())))
        (shape("x-tick", charts::x_tick(&Default::default())))
        (shape("y-tick", charts::y_tick(&Default::default())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_lose_their_bindings_and_keep_everything_else() {
        let address = " data-text=\"x\" data-";
        let item = html! { td.number data-label="Step" data-text="step" data-set="x=y" { (address) } };
        let expected = "<td class=\"number\" data-label=\"Step\"> data-text=&quot;x&quot; data-</td>";
        assert_eq!(without_bindings(item).0, expected);
    }
}
