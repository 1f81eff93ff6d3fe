//! The tables. On a narrow screen a row becomes a card, in which each cell is labelled by its `data-label`.

use maud::{Markup, html};

use super::{badge, charts, list};
use crate::view::{CheckpointRow, EventRow, NodeRow, ServerRow, View, WorkerRow};

pub(super) fn workers(view: &View) -> Markup {
    let rows = list("tbody", "workers", "worker", view.workers.iter().map(worker));
    let heads = ["State", "Step", "Last heard", "Samples/s", "Recent time", "Staleness", "Dropped", "Waiting"];
    html! {
        p.legend aria-hidden="true" {
            @for part in charts::SPLIT {
                svg width="12" height="10" { rect class=(part) fill="url(#hatching)" width="12" height="10" {} } " " (part) " "
            }
        }
        (table("Workers", "Worker", &heads, rows))
    }
}

pub(super) fn worker(row: &WorkerRow) -> Markup {
    html! {
        tr data-item data-tone=(row.badge.tone) data-set="data-tone=badge.tone" {
            th scope="row" {
                span data-text="name" { (row.name) }
                span.small data-text="address" { (row.address) }
                span.small data-text="sites" { (row.sites) }
            }
            td data-label="State" { (badge("badge", &row.badge)) }
            (number("Step", "step", &row.step))
            (number("Last heard", "age", &row.age))
            (number("Samples/s", "speed", &row.speed))
            td.wide data-label="Recent time" { (charts::split(row.split, &row.split_text)) }
            (number("Staleness", "staleness", &row.staleness))
            (number("Dropped", "dropped", &row.dropped))
            td data-label="Waiting" data-text="wait" { (row.wait) }
        }
    }
}

pub(super) fn servers(view: &View) -> Markup {
    let rows = list("tbody", "servers", "server", view.servers.iter().map(server));
    let heads = ["State", "Last heard", "Shard", "Parameters", "Applied", "Repeated", "Dropped"];
    table("Parameter servers", "Server", &heads, rows)
}

pub(super) fn server(row: &ServerRow) -> Markup {
    html! {
        tr data-item data-tone=(row.badge.tone) data-set="data-tone=badge.tone" {
            th scope="row" { span data-text="name" { (row.name) } span.small data-text="address" { (row.address) } }
            td data-label="State" { (badge("badge", &row.badge)) }
            (number("Last heard", "age", &row.age))
            (number("Shard", "shard", &row.shard))
            (number("Parameters", "parameters", &row.parameters))
            (number("Applied", "applied", &row.applied))
            (number("Repeated", "repeated", &row.repeated))
            (number("Dropped", "dropped", &row.dropped))
        }
    }
}

pub(super) fn nodes(view: &View) -> Markup {
    let heads = ["Tasks", "CPU", "Memory", "Received", "Sent", "GPU"];
    table("Use of the machines", "Machine", &heads, list("tbody", "nodes", "node", view.nodes.iter().map(node)))
}

pub(super) fn node(row: &NodeRow) -> Markup {
    html! {
        tr data-item {
            th scope="row" data-text="name" { (row.name) }
            td data-label="Tasks" data-text="tasks" { (row.tasks) }
            td data-label="CPU" { span data-text="cpu" { (row.cpu) } (charts::bar("cpu_bar", row.cpu_bar)) }
            td data-label="Memory" { span data-text="memory" { (row.memory) } (charts::bar("memory_bar", row.memory_bar)) }
            (number("Received", "received", &row.received))
            (number("Sent", "sent", &row.sent))
            (number("GPU", "gpu", &row.gpu))
        }
    }
}

pub(super) fn checkpoints(view: &View) -> Markup {
    let rows = list("tbody", "checkpoints", "checkpoint", view.checkpoints.iter().map(checkpoint));
    html! {
        (table("Checkpoints that can be used", "Step", &["Saved", "Size"], rows))
        p.note data-text="checkpoints_note" { (view.checkpoints_note) }
    }
}

pub(super) fn checkpoint(row: &CheckpointRow) -> Markup {
    html! {
        tr data-item {
            th scope="row" data-label="Step" data-text="step" { (row.step) }
            (number("Saved", "age", &row.age))
            (number("Size", "size", &row.size))
        }
    }
}

pub(super) fn event(row: &EventRow) -> Markup {
    html! {
        li data-item {
            span.at data-text="at" { (row.at) } " " (badge("badge", &row.badge)) " " span data-text="what" { (row.what) }
        }
    }
}

fn number(label: &str, path: &str, value: &str) -> Markup {
    html! { td.number data-label=(label) data-text=(path) { (value) } }
}

/// A table. If the heading above it says the same as its caption, only screen readers get the caption.
fn table(caption: &str, first: &str, heads: &[&str], rows: Markup) -> Markup {
    let is_text = |head: &str| ["State", "Recent time", "Waiting", "Tasks", "CPU", "Memory"].contains(&head);
    html! {
        table {
            caption class=[(!caption.starts_with("Workers") && !caption.starts_with("Parameter")).then_some("unseen")] { (caption) }
            thead { tr {
                th scope="col" { (first) }
                @for head in heads { th scope="col" class=[(!is_text(head)).then_some("number")] { (head) } }
            } }
            (rows)
        }
    }
}
