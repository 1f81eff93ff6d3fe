//! The flags of `windlass manifest`, for the command line to flatten into its own.

use std::str::FromStr;

use clap::Args;

use crate::{Error, Kind, Layout, Name, Namespace, Quantity, Request, Storage};

/// Flags that describe a run to be started elsewhere.
#[derive(Debug, Clone, Args)]
pub struct Arguments {
    /// Kind of manifest
    #[arg(value_enum)]
    pub kind: Kind,
    /// Parameter servers; 0 lets the workers hold the parameters, as train --colocate does
    #[arg(long, value_name = "P", default_value_t = 1)]
    pub ps: u32,
    /// Workers
    #[arg(long, value_name = "W", default_value_t = 2)]
    pub workers: u32,
    /// GPUs for each worker
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub gpus: u32,
    /// CPUs for each task, such as 500m or 4
    #[arg(long, value_name = "AMOUNT", default_value = "2", value_parser = hinted::<Quantity>)]
    pub cpu: Quantity,
    /// Memory for each task, such as 512Mi or 4Gi
    #[arg(long, value_name = "AMOUNT", default_value = "2Gi", value_parser = hinted::<Quantity>)]
    pub memory: Quantity,
    /// Container image whose entry point is windlass [default: windlass, in this version]
    #[arg(long, value_name = "IMAGE")]
    pub image: Option<String>,
    /// Where checkpoints and curves are kept: pvc:NAME, nfs:SERVER:/PATH, s3://BUCKET/PREFIX, gs://… or az://…; with
    /// slurm and compose also file:/PATH
    #[arg(long, value_name = "WHERE", value_parser = hinted::<Storage>)]
    pub storage: Option<Storage>,
    /// Kubernetes Secret with the variables that an object store needs, such as AWS_ACCESS_KEY_ID; with compose, the
    /// file NAME.env beside the manifest
    #[arg(long, value_name = "NAME", default_value = "windlass-storage")]
    pub storage_secret: String,
    /// Seconds that a task has to write its last checkpoint when it is told to stop; more than the default for
    /// checkpoints above 400 MB on a slow store [default: three times --checkpoint-stall-secs, plus 30]
    #[arg(long, value_name = "SECONDS")]
    pub grace: Option<u32>,
    /// Namespace; required for trainjob [default: that of kubectl]
    #[arg(long, value_name = "NAME", value_parser = hinted::<Namespace>)]
    pub namespace: Option<Namespace>,
    /// Name of the run [default: that of the model]
    #[arg(long, value_name = "NAME", value_parser = hinted::<Name>)]
    pub name: Option<Name>,
    /// Kueue queue, or Slurm partition
    #[arg(long, value_name = "NAME")]
    pub queue: Option<String>,
    /// Let Prometheus in this namespace scrape the tasks (pods labelled app.kubernetes.io/name: prometheus) [default: no
    /// scraper]
    #[arg(long, value_name = "NAMESPACE", value_parser = hinted::<Namespace>)]
    pub scrape_from: Option<Namespace>,
    /// Which tasks share a node
    #[arg(long, value_enum, default_value_t = Layout::Apart)]
    pub layout: Layout,
    /// The model and its flags, as after `windlass train`
    #[arg(last = true, required = true, value_name = "MODEL FLAGS")]
    pub command: Vec<String>,
}

/// Parses a value; the error text includes the hint.
fn hinted<T: FromStr<Err = Error>>(text: &str) -> Result<T, String> {
    text.parse().map_err(|error: Error| match error.hint() {
        Some(hint) => format!("{error}; {hint}"),
        None => error.to_string(),
    })
}

impl TryFrom<Arguments> for Request {
    type Error = Error;

    fn try_from(arguments: Arguments) -> Result<Request, Error> {
        let model = arguments.command.first().ok_or(Error::NoModel)?;
        let name = match arguments.name {
            Some(name) => name,
            // A flag in the model's place is refused by that name elsewhere.
            None if model.starts_with('-') => return Err(Error::NoModel),
            None => model.replace('_', "-").parse()?,
        };
        let defaults = Request::new(arguments.kind, name, arguments.command);
        Ok(Request {
            namespace: arguments.namespace,
            ps: arguments.ps,
            workers: arguments.workers,
            gpus: arguments.gpus,
            cpu: arguments.cpu,
            memory: arguments.memory,
            image: arguments.image.unwrap_or(defaults.image),
            storage: arguments.storage,
            storage_secret: arguments.storage_secret,
            grace_seconds: arguments.grace,
            queue: arguments.queue,
            scrape_from: arguments.scrape_from,
            layout: arguments.layout,
            ..defaults
        })
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        arguments: Arguments,
    }

    fn request(words: &str) -> Result<Request, Error> {
        Command::try_parse_from(words.split_whitespace()).expect("valid flags").arguments.try_into()
    }

    #[test]
    fn a_run_is_named_after_its_model_unless_it_has_a_name() {
        assert_eq!(request("manifest k8s -- mnist --steps 5").unwrap().name.as_str(), "mnist");
        assert_eq!(request("manifest k8s -- my_model").unwrap().name.as_str(), "my-model");
        assert_eq!(request("manifest k8s --name digits -- mnist").unwrap().name.as_str(), "digits");
    }

    #[test]
    fn flags_after_two_hyphens_are_the_runs() {
        let request = request("manifest jobset --ps 2 --workers 3 -- mnist --ps 9").unwrap();
        assert_eq!((request.ps, request.workers), (2, 3));
        assert_eq!(request.command, ["mnist", "--ps", "9"]);
    }

    #[test]
    fn bad_values_are_refused_with_the_reason() {
        let refusal = |words: &str| {
            let parsed = Command::try_parse_from(words.split_whitespace());
            parsed.map(drop).expect_err("refused").to_string()
        };
        assert!(refusal("manifest k8s --storage ftp://x -- mnist").contains("unknown scheme ftp://"));
        assert!(refusal("manifest k8s --memory 4GB -- mnist").contains("unknown suffix; use a number with"));
        assert!(refusal("manifest k8s --namespace Team -- mnist").contains("upper-case"));
    }
}
