//! Serves the page of a simulated run, so that it can be tried without training:
//! `cargo run -p windlass-page --example fake_run -- --workers 8 --fault straggler`.

mod simulated;

use std::sync::Arc;
use std::time::Duration;

use clap::{Parser, ValueEnum};
use tokio::net::TcpListener;
use tokio::sync::watch;

use simulated::Run;
use windlass_page::{Viewers, router};

/// The interval between two statuses.
const TICK: Duration = Duration::from_millis(250);

/// Serve the page of a simulated run.
#[derive(Parser)]
struct Args {
    /// Workers
    #[arg(long, default_value_t = 4)]
    workers: u32,
    /// Parameter servers
    #[arg(long, default_value_t = 2)]
    servers: u32,
    /// What goes wrong
    #[arg(long, value_enum, default_value_t = Fault::None)]
    fault: Fault,
    /// When it goes wrong, in seconds of the run
    #[arg(long, default_value_t = 3.0)]
    fault_at: f64,
    /// Let it go wrong when a line comes on stdin instead
    #[arg(long)]
    fault_on_enter: bool,
    /// Simulate this many seconds before the first viewer comes
    #[arg(long, default_value_t = 0.0)]
    warm_up: f64,
    /// End the run at this step
    #[arg(long, default_value_t = 1_000_000)]
    steps: u64,
    /// Where to listen
    #[arg(long, default_value = "127.0.0.1:0")]
    listen: String,
}

/// What goes wrong with the last worker, or with the last server.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Fault {
    /// Nothing
    None,
    /// The last worker is declared dead
    Dead,
    /// The network of the last worker is slow
    Straggler,
    /// The last server falls silent, and everybody waits for it
    Hang,
    /// The run fails
    Failed,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> std::io::Result<()> {
    let args = Args::parse();
    let fault_at = if args.fault_on_enter { f64::INFINITY } else { args.fault_at };
    let mut run = Run::new(args.workers, args.servers, args.fault, fault_at, args.steps);
    let tick = TICK.as_secs_f64();
    (0..(args.warm_up / tick) as u64).for_each(|_| run.advance(tick));

    let (sender, receiver) = watch::channel(Arc::new(run.status().clone()));
    let listener = TcpListener::bind(&args.listen).await?;
    println!("http://{}/", listener.local_addr()?);
    let (entered, enter) = watch::channel(false);
    if args.fault_on_enter {
        std::thread::spawn(move || {
            let mut line = String::new();
            // The end of the input triggers no fault.
            if std::io::stdin().read_line(&mut line).is_ok_and(|bytes| bytes > 0) {
                entered.send_replace(true);
            }
        });
    }
    tokio::spawn(async move {
        let mut ticks = tokio::time::interval(TICK);
        let mut is_wrong = false;
        loop {
            ticks.tick().await;
            if *enter.borrow() && !std::mem::replace(&mut is_wrong, true) {
                run.go_wrong();
            }
            run.advance(tick);
            let _ = sender.send(Arc::new(run.status().clone()));
        }
    });
    axum::serve(listener, router(receiver, Viewers::default())).await
}
