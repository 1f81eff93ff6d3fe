//! Checks that every name that controllers derive from a run's name fits into a DNS label of 63 characters. The name of
//! a TrainJob's runtime may have 253, which two labels never reach.

use crate::names::LABEL;
use crate::{Error, Kind, Request};

/// A suffix like those that Kubernetes appends to the names of pods.
const RANDOM: &str = "-abcde";

/// A name that consists of the run's name and other text.
struct Derived {
    what: &'static str,
    text: String,
    /// How often it contains the run's name.
    times: usize,
}

/// Refuses a name that is too long for the names derived from it.
pub(crate) fn check(request: &Request) -> Result<(), Error> {
    let (name, derived) = (request.name.as_str(), derived(request));
    let longest =
        |derived: &Derived| LABEL.saturating_sub(derived.text.len() - derived.times * name.len()) / derived.times;
    let longest = derived.iter().map(longest).min().unwrap_or(LABEL);
    match derived.into_iter().find(|derived| derived.text.len() > LABEL) {
        None => Ok(()),
        Some(Derived { what, text, .. }) => Err(Error::NameTooLong {
            name: name.to_owned(),
            length: name.len(),
            longest,
            kind: request.kind,
            what,
            derived: text,
        }),
    }
}

/// The longest derived names of each kind of object.
fn derived(request: &Request) -> Vec<Derived> {
    let name = &request.name;
    let once = |what, text| Derived { what, text, times: 1 };
    let mut names = vec![once("the label of its pods", name.to_string())];
    for (job, count) in request.jobs() {
        let last = count - 1;
        match request.kind {
            Kind::K8s => names.push(once("a pod", format!("{name}-{job}-{last}{RANDOM}"))),
            Kind::JobSet | Kind::TrainJob => names.push(once("a pod", format!("{name}-{job}-0-{last}{RANDOM}"))),
            Kind::TfJob => names.push(once("a Service", format!("{name}-{job}-{last}"))),
            Kind::Compose => names.push(once("a container", format!("{name}-{job}-{last}-1"))),
            Kind::Slurm => {}
        }
    }
    if matches!(request.kind, Kind::JobSet | Kind::TrainJob) {
        // JobSet writes the coordinator's address into a label.
        let (job, _) = request.servers();
        let text = format!("{name}-{job}-0-0.{name}");
        names.push(Derived { what: "the coordinator's label", text, times: 2 });
    }
    names
}
