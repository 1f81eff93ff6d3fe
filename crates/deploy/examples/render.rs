//! Prints a manifest without building the rest of Windlass:
//! `cargo run -p windlass-deploy --example render -- k8s --ps 2 --workers 4 -- mnist --mode sync`.

use std::process::ExitCode;

use clap::Parser;
use windlass_deploy::{Arguments, Request, render};

#[derive(Parser)]
struct Command {
    #[command(flatten)]
    arguments: Arguments,
}

fn main() -> ExitCode {
    let request = Request::try_from(Command::parse().arguments);
    match request.and_then(|request| render(&request)) {
        Ok(manifest) => {
            print!("{manifest}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("error: {error}");
            error.hint().into_iter().for_each(|hint| eprintln!("hint: {hint}"));
            ExitCode::from(2)
        }
    }
}
