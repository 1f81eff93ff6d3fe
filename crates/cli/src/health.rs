//! `windlass health`: asks tasks whether they are alive, for health checks in an image that holds no other program.

mod processes;

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::time::Duration;

use clap::{ArgMatches, CommandFactory, FromArgMatches, Parser};
use serde::Serialize;

use crate::failure::Failure;
use crate::output;

/// The routes on which a task answers whether it is alive, the most specific first.
const ROUTES: [&str; 2] = ["/livez", "/healthz"];
/// The timeout for connecting, and for each read.
const PATIENCE: Duration = Duration::from_secs(3);
/// The maximum length of the first line of a response.
const STATUS_BYTES: u64 = 256;

/// Ask tasks whether they are alive
#[derive(Debug, Parser)]
struct HealthCommand {
    /// Task to ask [default: every task of this program on this machine, or in this container]
    #[arg(value_name = "HOST:PORT")]
    address: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The responses of the tasks, as JSON.
#[derive(Serialize)]
struct Answered {
    address: SocketAddr,
    alive: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

pub(crate) fn command() -> clap::Command {
    HealthCommand::command().name("health")
}

/// Exits with 0 if every queried task is alive, otherwise with 1. A task that cannot be queried is not known to be
/// alive.
pub(crate) fn run(matches: &ArgMatches) -> Result<(), Failure> {
    let HealthCommand { address, json } = HealthCommand::from_arg_matches(matches).map_err(Failure::usage)?;
    let addresses = match address {
        Some(address) => vec![resolve(&address)?],
        None => processes::listening().map_err(|error| {
            Failure::internal(format!("cannot ask the tasks here: {error}"))
                .with_hint("name one: windlass health HOST:PORT".to_owned())
        })?,
    };
    if json {
        return answer_in_json(addresses);
    }
    if addresses.is_empty() {
        // A run in one process has no port, and is alive as long as its process is.
        output::print_line("no task of a cluster runs here");
    }
    for address in addresses {
        ask(address).map_err(|error| Failure::internal(unanswered(address, &error)))?;
        output::print_line(&format!("{address} is alive"));
    }
    Ok(())
}

/// Queries all tasks, so that all of them can be reported.
fn answer_in_json(addresses: Vec<SocketAddr>) -> Result<(), Failure> {
    let answered = addresses.into_iter().map(|address| {
        let error = ask(address).err().map(|error| unanswered(address, &error));
        Answered { address, alive: error.is_none(), error }
    });
    let answered: Vec<Answered> = answered.collect();
    output::print_json(&answered)?;
    answered.into_iter().find_map(|answered| answered.error).map_or(Ok(()), |error| Err(Failure::internal(error)))
}

fn resolve(address: &str) -> Result<SocketAddr, Failure> {
    let usage = |error: io::Error| {
        Failure::usage(format!("cannot resolve {address}: {error}"))
            .with_hint("give a host and a port, such as 127.0.0.1:2222".to_owned())
    };
    let first = address.to_socket_addrs().map_err(usage)?.next();
    first.ok_or_else(|| Failure::usage(format!("{address} has no address")))
}

fn unanswered(address: SocketAddr, error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
            format!("{address} does not answer within {} s", PATIENCE.as_secs())
        }
        io::ErrorKind::ConnectionRefused => {
            format!("{address} does not answer: connection refused: nothing is listening there")
        }
        // The task has answered.
        io::ErrorKind::InvalidData => format!("{address} {error}"),
        _ => format!("{address} does not answer: {error}"),
    }
}

/// Queries the first route that the task knows.
fn ask(address: SocketAddr) -> io::Result<()> {
    for route in ROUTES {
        let status = get(address, route)?;
        match status.split_whitespace().nth(1) {
            Some("200") => return Ok(()),
            Some("404") => {}
            _ => return Err(unlike_a_living_task(format!("is not alive: {route} says {status:?}"))),
        }
    }
    Err(unlike_a_living_task(format!("is not a task of a run: it knows none of {}", ROUTES.join(", "))))
}

fn unlike_a_living_task(answer: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, answer)
}

/// Returns the first line of the response.
fn get(address: SocketAddr, route: &str) -> io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    stream.write_all(format!("GET {route} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n").as_bytes())?;
    let mut status = String::new();
    BufReader::new(stream.take(STATUS_BYTES)).read_line(&mut status)?;
    Ok(status.trim_end().to_owned())
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener};
    use std::thread;

    use super::*;

    /// A server that answers each request with the status that `statuses` lists for its path.
    fn server(statuses: &'static [(&'static str, &'static str)]) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = BufReader::new(stream.unwrap());
                let mut request = String::new();
                stream.read_line(&mut request).unwrap();
                while stream.read_line(&mut String::new()).unwrap() > 2 {}
                let path = request.split(' ').nth(1).unwrap();
                let status = statuses.iter().find(|(known, _)| *known == path).map_or("404 Not Found", |found| found.1);
                write!(stream.get_mut(), "HTTP/1.1 {status}\r\ncontent-length: 0\r\n\r\n").unwrap();
            }
        });
        address
    }

    #[test]
    fn a_task_that_answers_ok_is_alive() {
        ask(server(&[("/livez", "200 OK")])).unwrap();
    }

    #[test]
    fn a_task_that_only_knows_healthz_is_asked_that() {
        ask(server(&[("/healthz", "200 OK")])).unwrap();
    }

    #[test]
    fn a_task_that_says_it_is_not_alive_is_believed() {
        let answer = ask(server(&[("/livez", "503 Service Unavailable"), ("/healthz", "200 OK")]));
        assert!(answer.unwrap_err().to_string().contains("503"));
    }

    #[test]
    fn a_server_that_knows_no_route_is_not_a_living_task() {
        let address = server(&[]);
        let told = unanswered(address, &ask(address).unwrap_err());
        assert_eq!(told, format!("{address} is not a task of a run: it knows none of /livez, /healthz"));
    }

    #[test]
    fn a_port_that_nobody_listens_on_is_not_alive() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        drop(listener);
        let told = unanswered(address, &ask(address).unwrap_err());
        assert_eq!(told, format!("{address} does not answer: connection refused: nothing is listening there"));
    }

    #[test]
    fn silence_is_told_as_such() {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 2222));
        let told = unanswered(address, &io::ErrorKind::WouldBlock.into());
        assert_eq!(told, "127.0.0.1:2222 does not answer within 3 s");
    }
}
