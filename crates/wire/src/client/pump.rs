//! Drives the lanes of a request: through sockets as each allows, by calls where the server is in this process, and
//! over a new connection when one breaks.

use std::io;
use std::sync::PoisonError;
use std::time::{Duration, Instant};

use tracing::{debug, warn};
use windlass_core::cluster::ServerId;

use super::lane::{Lane, gather, scatter};
use super::{ClientError, FloatBuffer, Link, ParameterClient, Pending};
use crate::control::proto::Endpoint;
use crate::endpoint;
use crate::retry::REPORT_EVERY;
use crate::stream::Socket;
use crate::stream::exchange::wait_ready;
use crate::stream::handshake;

/// How often a long wait checks whether it should end.
const CHECK_EVERY: Duration = Duration::from_millis(250);
/// A server that makes a worker wait reports this every two seconds. If a server on another host has been silent for
/// this long, the connection is presumed dead, and a new one is tried.
const SILENCE: Duration = Duration::from_secs(8);
/// How long a process that was told to stop keeps trying to deliver a push that it has begun.
const DELIVER_WITHIN: Duration = Duration::from_millis(500);
/// The pause between two attempts to connect.
const RECONNECT_PAUSE: Duration = Duration::from_millis(100);

impl<B: FloatBuffer> ParameterClient<B> {
    /// Moves bytes until `far_enough` holds for every remote lane.
    pub(super) fn pump(&mut self, far_enough: impl Fn(&Lane) -> bool) -> Result<(), ClientError> {
        let pumped = self.pump_until(far_enough);
        self.tell_awaited(Vec::new());
        pumped
    }

    fn pump_until(&mut self, far_enough: impl Fn(&Lane) -> bool) -> Result<(), ClientError> {
        let started = Instant::now();
        let mut spoken = started;
        loop {
            self.renew_connections()?;
            if let Some((index, error)) = self.advance(&far_enough)? {
                self.retry(index, error)?;
                continue;
            }
            if !self.wait_for_sockets(&far_enough)? {
                return Ok(());
            }
            if started.elapsed() >= CHECK_EVERY {
                self.tell_awaited(self.awaited(&far_enough));
            }
            self.interrupt.check(self.incarnation)?;
            if let Some(index) = self.silent_server(&far_enough) {
                self.retry(index, io::Error::new(io::ErrorKind::TimedOut, "no answer"))?;
            }
            if spoken.elapsed() >= REPORT_EVERY {
                spoken = Instant::now();
                self.report_wait(&far_enough, started);
            }
        }
    }

    /// Writes and reads on every remote lane as far as its socket allows. Returns the first failure.
    pub(super) fn advance(
        &mut self,
        far_enough: &impl Fn(&Lane) -> bool,
    ) -> Result<Option<(usize, io::Error)>, ClientError> {
        let advanced = self.advance_lanes(far_enough);
        // Wakes servers only when all have what they need and this worker is about to wait.
        for server in &mut self.servers {
            if let Link::Remote { socket: Some(socket), .. } = &mut server.link {
                socket.send_staged();
            }
        }
        advanced
    }

    fn advance_lanes(
        &mut self,
        far_enough: &impl Fn(&Lane) -> bool,
    ) -> Result<Option<(usize, io::Error)>, ClientError> {
        let active = self.active_servers();
        let Some(Pending { push, arriving, lanes }) = &mut self.pending else { return Ok(None) };
        let gradients = gather(&self.plan, &push.dense);
        let mut places = scatter(&self.plan, arriving);
        for (lane, index) in lanes.iter_mut().zip(&active) {
            let server = &mut self.servers[*index];
            let Link::Remote { socket: Some(socket), .. } = &mut server.link else { continue };
            if far_enough(lane) {
                continue;
            }
            match lane.advance(socket, &gradients[*index], &mut places[*index]) {
                Ok(()) => lane.check(server.id)?,
                Err(error) => return Ok(Some((*index, error))),
            }
        }
        Ok(None)
    }

    /// Waits briefly for the sockets of lanes that are not far enough. Returns false if there are none.
    fn wait_for_sockets(&self, far_enough: &impl Fn(&Lane) -> bool) -> Result<bool, ClientError> {
        let mut waiting = Vec::new();
        for (lane, index) in self.lanes_short_of(far_enough) {
            if let Link::Remote { socket: Some(socket), .. } = &self.servers[index].link {
                waiting.push((socket, !lane.is_sent()));
            }
        }
        if waiting.is_empty() {
            return Ok(false);
        }
        let waited = wait_ready(&waiting, CHECK_EVERY);
        let poll_failed =
            |source| ClientError::GaveUp { server: ServerId(0), address: "poll".to_owned(), seconds: 0.0, source };
        waited.map(|()| true).map_err(poll_failed)
    }

    /// Replaces the connections to other hosts after the session had to be reopened: they may be dead as well, and TCP
    /// would take many seconds to find out.
    fn renew_connections(&mut self) -> Result<(), ClientError> {
        let welcomes = self.interrupt.welcomes();
        if self.welcomes == welcomes {
            return Ok(());
        }
        self.welcomes = welcomes;
        // An earlier incarnation has no use for connections.
        self.interrupt.check(self.incarnation)?;
        for index in self.active_servers() {
            if self.is_on_another_host(index) {
                self.reconnect(index, io::Error::new(io::ErrorKind::ConnectionReset, "the session was reopened"))?;
            }
        }
        Ok(())
    }

    fn is_on_another_host(&self, index: usize) -> bool {
        matches!(&self.servers[index].link, Link::Remote { socket: Some(Socket::Tcp(_)), .. })
    }

    /// A server whose connection has been idle for so long that a new one should be tried.
    fn silent_server(&self, far_enough: &impl Fn(&Lane) -> bool) -> Option<usize> {
        let patience = |index| match self.is_on_another_host(index) {
            true => SILENCE.min(self.peer_timeout / 2),
            false => self.peer_timeout / 2,
        };
        self.lanes_short_of(far_enough).find(|(lane, index)| lane.is_silent(patience(*index))).map(|(_, index)| index)
    }

    /// The tasks that this worker waits for: servers that do not answer, or the workers that those wait for in turn.
    fn awaited(&self, far_enough: &impl Fn(&Lane) -> bool) -> Vec<String> {
        let mut awaited: Vec<String> = Vec::new();
        for (lane, index) in self.lanes_short_of(far_enough) {
            match lane.waiting_text().and_then(|text| text.split_once(" in step ")) {
                Some((workers, _)) => awaited.extend(workers.split(", ").map(str::to_owned)),
                None => awaited.push(self.servers[index].id.to_string()),
            }
        }
        awaited.sort();
        awaited.dedup();
        awaited
    }

    /// Publishes whom this worker waits for to the coordinator. Most waits are too short to report.
    fn tell_awaited(&mut self, awaited: Vec<String>) {
        if std::mem::replace(&mut self.tells_of_wait, !awaited.is_empty()) || !awaited.is_empty() {
            self.progress.lock().unwrap_or_else(PoisonError::into_inner).awaited = awaited;
        }
    }

    fn report_wait(&self, far_enough: &impl Fn(&Lane) -> bool, started: Instant) {
        let seconds = started.elapsed().as_secs();
        for (lane, index) in self.lanes_short_of(far_enough) {
            let server = self.servers[index].id;
            match lane.waiting_text() {
                Some(text) => warn!("waiting for {text} (reported by {server}, {seconds} s)"),
                None => warn!("waiting for {server} to answer ({seconds} s)"),
            }
        }
    }

    /// The remote lanes for which `far_enough` does not hold, each with its server.
    fn lanes_short_of(&self, far_enough: &impl Fn(&Lane) -> bool) -> impl Iterator<Item = (&Lane, usize)> {
        let lanes = self.pending.iter().flat_map(|pending| &pending.lanes).zip(self.active_servers());
        lanes.filter(move |(lane, index)| matches!(self.servers[*index].link, Link::Remote { .. }) && !far_enough(lane))
    }

    /// Serves the lanes of servers in this process, where the call itself waits. Returns false if a call was broken off
    /// so that the other servers can be attended to.
    pub(super) fn serve_locally(&mut self) -> Result<bool, ClientError> {
        if !self.servers.iter().any(|server| matches!(server.link, Link::Local(_))) {
            return Ok(true);
        }
        let active = self.active_servers();
        let Some(Pending { push, arriving, lanes }) = &mut self.pending else { return Ok(true) };
        let gradients = gather(&self.plan, &push.dense);
        let mut places = scatter(&self.plan, arriving);
        let mut all_answered = true;
        for (lane, index) in lanes.iter_mut().zip(&active).filter(|(lane, _)| !lane.is_answered()) {
            let server = &self.servers[*index];
            let Link::Local(shard) = &server.link else { continue };
            lane.serve(server.id, shard.as_ref(), &gradients[*index], &mut places[*index], &self.interrupt)?;
            if !lane.is_answered() {
                all_answered = false;
                if self.interrupt.is_set() {
                    continue; // it does not wait, but all servers are to have its push
                }
                warn!("waiting for {} (reported by {})", lane.waiting_text().unwrap_or_default(), server.id);
            }
        }
        if !all_answered {
            self.interrupt.check(self.incarnation)?;
        }
        Ok(all_answered)
    }

    /// Delivers the rest of a push before this process, which was told to stop, leaves: otherwise the push would be
    /// part of a round on some servers only. Waits for no answer, and only briefly for a server that accepts nothing.
    pub fn deliver(&mut self) {
        let began = Instant::now();
        if !self.interrupt.is_set() {
            return;
        }
        let _ = self.serve_locally();
        while began.elapsed() < DELIVER_WITHIN && matches!(self.advance(&Lane::is_sent), Ok(None)) {
            if !matches!(self.wait_for_sockets(&Lane::is_sent), Ok(true)) {
                return;
            }
        }
    }

    /// Resends the request of a broken lane on a new connection, unless it has been failing for too long.
    pub(super) fn retry(&mut self, index: usize, error: io::Error) -> Result<(), ClientError> {
        let position = self.active_servers().iter().position(|active| *active == index);
        let lane = self.pending.as_mut().zip(position).map(|(pending, position)| &mut pending.lanes[position]);
        let (failing, pause) = lane.map_or_else(Default::default, Lane::fail);
        self.interrupt.check(self.incarnation)?;
        if failing > self.peer_timeout {
            let (server, address) = (self.servers[index].id, self.address(index));
            return Err(ClientError::GaveUp { server, address, seconds: failing.as_secs_f64(), source: error });
        }
        std::thread::sleep(pause);
        self.reconnect(index, error)
    }

    fn address(&self, index: usize) -> String {
        match &self.servers[index].link {
            Link::Local(_) => String::new(),
            Link::Remote { endpoint, .. } => endpoint.address.clone(),
        }
    }

    /// Replaces a broken connection and restarts its request.
    pub(super) fn reconnect(&mut self, index: usize, mut error: io::Error) -> Result<(), ClientError> {
        let awaited = vec![self.servers[index].id.to_string()];
        let server = &mut self.servers[index];
        let Link::Remote { endpoint, socket } = &mut server.link else { return Ok(()) };
        let broke = socket.take().is_some();
        let started = Instant::now();
        // A server that accepts and drops connections is logged no more often than one that does not answer.
        let is_due = |spoken: Option<Instant>| spoken.is_none_or(|spoken| spoken.elapsed() >= REPORT_EVERY);
        if broke && is_due(server.spoken) {
            server.spoken = Some(started);
            warn!("lost the connection to {} at {}: {error}", server.id, endpoint.address);
        }
        loop {
            match connect(endpoint) {
                Ok(connected) => {
                    debug!(server = %server.id, transport = connected.kind(), "connected");
                    *socket = Some(connected);
                    break;
                }
                Err(again) => error = again,
            }
            self.interrupt.check(self.incarnation)?;
            if started.elapsed() > self.peer_timeout {
                let seconds = started.elapsed().as_secs_f64();
                return Err(ClientError::GaveUp {
                    server: server.id,
                    address: endpoint.address.clone(),
                    seconds,
                    source: error,
                });
            }
            if started.elapsed() >= REPORT_EVERY && is_due(server.spoken) {
                server.spoken = Some(Instant::now());
                let seconds = started.elapsed().as_secs();
                warn!("waiting for {} at {} ({seconds} s): {error}", server.id, endpoint.address);
            }
            if started.elapsed() >= CHECK_EVERY && !std::mem::replace(&mut self.tells_of_wait, true) {
                self.progress.lock().unwrap_or_else(PoisonError::into_inner).awaited.clone_from(&awaited);
            }
            std::thread::sleep(RECONNECT_PAUSE);
        }
        let position = self.active_servers().iter().position(|active| *active == index);
        if let (Some(pending), Some(position)) = (&mut self.pending, position) {
            pending.lanes[position].restart();
        }
        Ok(())
    }
}

fn connect(to: &Endpoint) -> io::Result<Socket> {
    let mut socket = handshake::begin(endpoint::connect(to)?).map_err(|error| endpoint::in_words(&error))?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}
