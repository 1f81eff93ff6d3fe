//! A TCP proxy between the tasks of a test: it forwards bytes, and cuts or holds them on demand.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};

use crate::cluster::LIMIT;
use crate::numbers::Random;

/// When a proxy cuts its connections.
#[derive(Debug, Clone, Copy)]
pub enum Disconnection {
    /// Only on demand.
    Never,
    /// Each connection is cut after a random number of bytes in one of its directions, up to `bytes`, but only the
    /// first `connections` of them.
    Randomly { seed: u64, bytes: u64, connections: u64 },
}

/// A port that takes connections until it is dropped.
pub struct Door {
    address: String,
    closed: Arc<AtomicBool>,
}

impl Door {
    /// Opens a port, and passes every connection to `enter`.
    pub fn open(mut enter: impl FnMut(TcpStream) + Send + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let closed = Arc::new(AtomicBool::new(false));
        let is_closed = closed.clone();
        std::thread::spawn(move || {
            while let Ok((client, _)) = listener.accept() {
                if is_closed.load(Ordering::Relaxed) {
                    return;
                }
                enter(client);
            }
        });
        Self { address, closed }
    }

    pub fn address(&self) -> &str {
        &self.address
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        self.closed.store(true, Ordering::Relaxed);
        let _ = TcpStream::connect(&self.address);
    }
}

/// A proxy to one address. It ends when it is dropped.
pub struct Proxy {
    door: Door,
    state: Arc<State>,
}

#[derive(Default)]
struct State {
    live: Mutex<Vec<TcpStream>>,
    held: Mutex<bool>,
    released: Condvar,
    /// How many connections there have been, and how many of them, counted from the first, lead nowhere.
    connections: AtomicU64,
    stranded: AtomicU64,
    answered: Mutex<u64>,
    answers: Condvar,
}

impl Proxy {
    pub fn start(to: &str, cut: Disconnection) -> Self {
        let state = Arc::new(State::default());
        let (to, shared) = (to.to_owned(), state.clone());
        let enter = move |client| connect(&client, &to, cut, &shared);
        Self { door: Door::open(enter), state }
    }

    pub fn address(&self) -> &str {
        self.door.address()
    }

    /// Cuts every connection.
    pub fn cut(&self) {
        self.state.live.lock().unwrap().drain(..).for_each(close);
    }

    /// From now on lets no byte through, but keeps the connections open.
    pub fn hold(&self) {
        *self.state.held.lock().unwrap() = true;
    }

    /// Swallows what arrives on the current connections without closing them, as a broken network does. Later
    /// connections work.
    pub fn strand(&self) {
        self.state.stranded.store(self.state.connections.load(Ordering::SeqCst), Ordering::SeqCst);
    }

    /// Returns how many bytes the server has sent.
    pub fn answered(&self) -> u64 {
        *self.state.answered.lock().unwrap()
    }

    /// Waits until the server has sent more than that many bytes.
    pub fn wait_for_more_than(&self, bytes: u64) {
        let answered = self.state.answered.lock().unwrap();
        let waited = self.state.answers.wait_timeout_while(answered, LIMIT, |answered| *answered <= bytes).unwrap();
        assert!(!waited.1.timed_out(), "the server answers");
    }

    /// Releases the held bytes.
    pub fn release(&self) {
        *self.state.held.lock().unwrap() = false;
        self.state.released.notify_all();
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.release();
        self.cut();
    }
}

/// Forwards both directions of a connection, each until its budget of bytes is used up.
fn connect(client: &TcpStream, to: &str, cut: Disconnection, state: &Arc<State>) {
    let number = state.connections.fetch_add(1, Ordering::SeqCst);
    let (up, down) = budgets(cut, number);
    let Ok(server) = TcpStream::connect(to) else { return };
    state.live.lock().unwrap().extend([client.try_clone().unwrap(), server.try_clone().unwrap()]);
    for (from, to, budget, answers) in [(client, &server, up, false), (&server, client, down, true)] {
        let (from, to, state) = (from.try_clone().unwrap(), to.try_clone().unwrap(), state.clone());
        std::thread::spawn(move || forward((from, to), budget, &state, (number, answers)));
    }
}

/// After how many bytes a connection is cut, from the client and to it.
fn budgets(cut: Disconnection, connection: u64) -> (u64, u64) {
    match cut {
        Disconnection::Randomly { seed, bytes, connections } if connection < connections => {
            let mut random = Random::new(seed ^ (connection << 32));
            let budget = random.below(bytes);
            if random.below(2) == 0 { (budget, u64::MAX) } else { (u64::MAX, budget) }
        }
        _ => (u64::MAX, u64::MAX),
    }
}

fn forward(
    (mut from, mut to): (TcpStream, TcpStream),
    mut budget: u64,
    state: &State,
    (connection, answers): (u64, bool),
) {
    let mut buffer = [0; 16 * 1024];
    loop {
        let room = budget.min(buffer.len() as u64) as usize;
        let read = match from.read(&mut buffer[..room]) {
            Ok(0) | Err(_) => break,
            Ok(read) => read,
        };
        let mut held = state.held.lock().unwrap();
        while *held {
            held = state.released.wait(held).unwrap();
        }
        drop(held);
        if connection < state.stranded.load(Ordering::SeqCst) {
            return;
        }
        if answers {
            *state.answered.lock().unwrap() += read as u64;
            state.answers.notify_all();
        }
        if to.write_all(&buffer[..read]).is_err() {
            break;
        }
        budget -= read as u64;
    }
    close(from);
    close(to);
}

fn close(stream: TcpStream) {
    let _ = stream.shutdown(Shutdown::Both);
}
