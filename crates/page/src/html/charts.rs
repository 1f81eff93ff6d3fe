//! Curves and bars as SVG. Lines are in a nested drawing that is stretched; text and ticks are outside it and are not.

use maud::{Markup, html};

use super::{badge, list};
use crate::chart::{Chart, Tick, spark_path};
use crate::view::Speed;

/// The parts of a worker's time, in the order of [`split`].
pub(super) const SPLIT: [&str; 4] = ["compute", "network", "data", "wait"];

/// The pattern for waiting, which is recognisable without colour.
pub(super) fn hatching() -> Markup {
    html! {
        svg.unseen aria-hidden="true" width="0" height="0" {
            pattern #hatching width="5" height="5" patternUnits="userSpaceOnUse" patternTransform="rotate(45)" {
                rect.whole width="5" height="5" {}
                rect.hatch width="2" height="5" {}
            }
        }
    }
}

pub(super) fn chart(chart: &Chart) -> Markup {
    html! {
        figure.chart data-item data-chart {
            figcaption {
                span data-text="name" { (chart.name) } " " strong data-text="latest" { (chart.latest) }
            }
            svg.plot tabindex="0" role="img" width="100%" height="160" aria-label=(chart.caption)
                data-set="aria-label=caption" {
                (list("g", "y_ticks", "y-tick", chart.y_ticks.iter().map(y_tick)))
                (list("g", "x_ticks", "x-tick", chart.x_ticks.iter().map(x_tick)))
                svg viewBox="0 0 100 100" preserveAspectRatio="none" width="100%" height="100%" {
                    path.line d=(chart.path()) {}
                }
                line.cursor y1="0" y2="100%" x1="0" x2="0" visibility="hidden" {}
            }
            p.note.reading data-text="caption" { (chart.caption) }
        }
    }
}

pub(super) fn y_tick(tick: &Tick) -> Markup {
    html! {
        g data-item {
            line x1="0" x2="100%" y1=(tick.at) y2=(tick.at) data-set="y1=at;y2=at" {}
            text x="0" dx="-8" y=(tick.at) dy="4" data-set="y=at" data-text="label" { (tick.label) }
        }
    }
}

pub(super) fn x_tick(tick: &Tick) -> Markup {
    html! {
        g data-item {
            text x=(tick.at) y="100%" dy="18" data-set="x=at" data-text="label" { (tick.label) }
        }
    }
}

pub(super) fn speed(speed: &Speed, top: f64) -> Markup {
    html! {
        li data-item data-tone=(speed.badge.tone) data-set="data-tone=badge.tone" {
            span.name data-text="name" { (speed.name) } " " (badge("badge", &speed.badge)) " "
            strong data-text="now" { (speed.now) }
            svg data-spark="recent" viewBox="0 0 100 100" preserveAspectRatio="none" width="100%" height="36"
                aria-hidden="true" { path.line d=(spark_path(&speed.recent, top)) {} }
        }
    }
}

/// A bar filled to a percentage, which is printed next to it.
pub(super) fn bar(path: &str, percent: f64) -> Markup {
    let width = format!("{percent}%");
    html! {
        svg.bar width="100%" height="8" aria-hidden="true" {
            rect.whole width="100%" height="8" rx="2" {}
            rect.part height="8" rx="2" width=(width) data-set={ "width=" (path) "%" } {}
        }
    }
}

/// The split of a worker's time, with the same information as text.
pub(super) fn split(parts: [f64; 4], text: &str) -> Markup {
    let starts = parts.iter().scan(0.0, |sum, part| Some(std::mem::replace(sum, *sum + part)));
    html! {
        svg.split data-split="split" width="100%" height="10" aria-hidden="true" {
            rect.whole width="100%" height="10" {}
            @for ((part, share), start) in SPLIT.into_iter().zip(parts).zip(starts) {
                rect class=(part) fill="url(#hatching)" height="10" x={ (start) "%" } width={ (share) "%" } {}
            }
        }
        span.small data-text="split_text" { (text) }
    }
}
