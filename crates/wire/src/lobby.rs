//! The connections of a port whose peers have not yet proved that they belong to the run.
//!
//! Anybody can connect. A connection stays in the lobby until a shard or the coordinator identifies the task at its
//! other end. It may stay only for a limited time, and when there are too many, one is closed to admit the next. A real
//! task that is closed by mistake reconnects, so strangers can neither fill the port nor lock anybody out. Each refusal
//! is logged with its reason and the peer's address, at a bounded rate.

use std::collections::BTreeMap;
use std::fmt::{self, Display};
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tracing::warn;
use windlass_core::cluster::TaskId;

/// How long a connection may stay in the lobby.
pub const STAY: Duration = Duration::from_secs(15);
/// How many connections may be in the lobby at once.
pub const CROWD: usize = 128;
/// How many workers may introduce the ps to each other at once. Their connections stay open, so they are counted
/// separately from those that are soon identified.
pub const INTRODUCTIONS: usize = 1024;
/// How many connections one task may have: the current one, and abandoned ones that the system still keeps.
const PER_TASK: usize = 8;
/// At most this many refusals are logged within [`LOGGED_WITHIN`]; the others are counted.
const LOGGED: u32 = 5;
const LOGGED_WITHIN: Duration = Duration::from_secs(10);

type Close = Box<dyn FnOnce() + Send>;

/// The connections of one port.
#[derive(Clone, Default)]
pub struct Lobby(Arc<Mutex<Guests>>);

#[derive(Default)]
struct Guests {
    next: u64,
    waiting: BTreeMap<u64, Guest>,
    admitted: BTreeMap<TaskId, BTreeMap<u64, Guest>>,
    introducing: BTreeMap<u64, Guest>,
    log: RefusalLog,
}

struct Guest {
    peer: Caller,
    since: Instant,
    /// The peer has sent a message that others are checking; that may take its time.
    has_spoken: bool,
    close: Option<Close>,
}

/// The other end of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Caller {
    /// A process on this host, through a Unix socket.
    Local,
    /// A network address.
    Remote(SocketAddr),
}

impl Caller {
    fn host(self) -> Option<IpAddr> {
        match self {
            Caller::Local => None,
            Caller::Remote(address) => Some(address.ip().to_canonical()),
        }
    }
}

impl Display for Caller {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Caller::Local => formatter.write_str("this host"),
            // As its user knows it: on a dual-stack port, IPv4 addresses are mapped into IPv6.
            Caller::Remote(address) => {
                write!(formatter, "{}", SocketAddr::new(address.ip().to_canonical(), address.port()))
            }
        }
    }
}

/// A connection's place in the lobby, released when the last clone is dropped.
#[derive(Clone)]
pub struct Visit(Arc<Stay>);

impl fmt::Debug for Visit {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Visit({})", self.0.peer)
    }
}

struct Stay {
    lobby: Lobby,
    id: u64,
    peer: Caller,
}

impl Lobby {
    /// Admits a connection. If there are too many, closes another: the oldest from the host that has the most.
    pub fn enter(&self, peer: Caller) -> Visit {
        self.enter_at(peer, Instant::now())
    }

    fn enter_at(&self, peer: Caller, now: Instant) -> Visit {
        let mut guests = self.lock();
        let closed = guests.make_room();
        guests.next += 1;
        let id = guests.next;
        guests.waiting.insert(id, Guest { peer, since: now, has_spoken: false, close: None });
        drop(guests);
        if let Some(guest) = closed {
            self.close(guest, "too many unidentified connections");
        }
        Visit(Arc::new(Stay { lobby: self.clone(), id, peer }))
    }

    /// Closes the connections that have been in the lobby too long.
    pub fn expire(&self, now: Instant) {
        let late = |_: &u64, guest: &mut Guest| !guest.has_spoken && now.saturating_duration_since(guest.since) >= STAY;
        let expired: Vec<Guest> = self.lock().waiting.extract_if(.., late).map(|(_, guest)| guest).collect();
        for guest in expired {
            self.close(guest, "it did not identify itself in time");
        }
    }

    fn close(&self, guest: Guest, reason: &str) {
        self.refused(guest.peer, &reason);
        if let Some(close) = guest.close {
            close();
        }
    }

    fn refused(&self, peer: Caller, reason: &dyn Display) {
        let Some(unsaid) = self.lock().log.note(Instant::now()) else { return };
        if unsaid > 0 {
            warn!("refused {unsaid} more connections");
        }
        warn!("refused a connection from {peer}: {reason}");
    }

    fn lock(&self) -> MutexGuard<'_, Guests> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Guests {
    fn guest(&mut self, id: u64) -> Option<&mut Guest> {
        let Self { waiting, admitted, introducing, .. } = self;
        let known = waiting.get_mut(&id).or_else(|| introducing.get_mut(&id));
        known.or_else(|| admitted.values_mut().find_map(|guests| guests.get_mut(&id)))
    }

    fn make_room(&mut self) -> Option<Guest> {
        if self.waiting.len() < CROWD {
            return None;
        }
        let mut hosts: BTreeMap<Option<IpAddr>, (usize, u64)> = BTreeMap::new();
        for (id, guest) in &self.waiting {
            hosts.entry(guest.peer.host()).or_insert((0, *id)).0 += 1;
        }
        let (_, oldest) = hosts.into_values().max_by_key(|(count, oldest)| (*count, std::cmp::Reverse(*oldest)))?;
        self.waiting.remove(&oldest)
    }
}

impl Visit {
    /// Sets how to close the connection if it must go. If it has been evicted already, closes it now.
    pub fn on_close(&self, close: impl FnOnce() + Send + 'static) {
        let mut guests = self.0.lobby.lock();
        match guests.guest(self.0.id) {
            Some(guest) => guest.close = Some(Box::new(close)),
            None => {
                drop(guests);
                close();
            }
        }
    }

    /// As [`Visit::on_close`], for a handler that may already have passed the connection on.
    pub fn on_close_unless_set(&self, close: impl FnOnce() + Send + 'static) {
        let mut guests = self.0.lobby.lock();
        match guests.guest(self.0.id) {
            Some(guest) if guest.close.is_some() => {}
            Some(guest) => guest.close = Some(Box::new(close)),
            None => {
                drop(guests);
                close();
            }
        }
    }

    /// Records that the peer has identified itself and is being checked. The time that this takes is not held against
    /// it.
    pub fn has_spoken(&self) {
        if let Some(guest) = self.0.lobby.lock().waiting.get_mut(&self.0.id) {
            guest.has_spoken = true;
        }
    }

    /// Records that the peer was told that it does not belong here. It has a while to disconnect.
    pub fn was_dismissed(&self) {
        if let Some(guest) = self.0.lobby.lock().waiting.get_mut(&self.0.id) {
            (guest.has_spoken, guest.since) = (false, Instant::now());
        }
    }

    /// Records that the peer introduces the ps, and keeps its connection open meanwhile. Returns false if there are too
    /// many: they all say the same, and one that was closed to make room would call again at once.
    pub fn introduces(&self) -> bool {
        let mut guests = self.0.lobby.lock();
        if guests.introducing.len() >= INTRODUCTIONS {
            return false;
        }
        let guest = guests.waiting.remove(&self.0.id);
        guests.introducing.extend(guest.map(|guest| (self.0.id, guest)));
        true
    }

    /// Records which task the peer is: its connection may stay. A task may have a few; beyond that, its oldest is
    /// closed.
    pub fn admit(&self, task: TaskId) {
        let mut guests = self.0.lobby.lock();
        let Some(guest) = guests.waiting.remove(&self.0.id) else { return };
        let own = guests.admitted.entry(task).or_default();
        own.insert(self.0.id, guest);
        let closed = if own.len() > PER_TASK { own.pop_first() } else { None };
        drop(guests);
        if let Some(close) = closed.and_then(|(_, guest)| guest.close) {
            close();
        }
    }

    /// Logs why this connection is refused, unless too many refusals are being logged.
    pub fn refused(&self, reason: &dyn Display) {
        self.0.lobby.refused(self.0.peer, reason);
    }
}

impl Drop for Stay {
    fn drop(&mut self) {
        let mut guests = self.lobby.lock();
        if guests.waiting.remove(&self.id).or_else(|| guests.introducing.remove(&self.id)).is_none() {
            guests.admitted.retain(|_, own| {
                own.remove(&self.id);
                !own.is_empty()
            });
        }
    }
}

/// Decides which refusals are logged.
#[derive(Debug, Default)]
struct RefusalLog {
    since: Option<Instant>,
    logged: u32,
    unsaid: u64,
}

impl RefusalLog {
    /// Records a refusal. Returns `None` if it should not be logged, else how many were skipped since the last that
    /// was.
    fn note(&mut self, now: Instant) -> Option<u64> {
        if self.since.is_none_or(|since| now.saturating_duration_since(since) >= LOGGED_WITHIN) {
            (self.since, self.logged) = (Some(now), 0);
        }
        if self.logged == LOGGED {
            self.unsaid += 1;
            return None;
        }
        self.logged += 1;
        Some(std::mem::take(&mut self.unsaid))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    fn from(host: u8, port: u16) -> Caller {
        Caller::Remote(([10, 0, 0, host], port).into())
    }

    /// Admits a connection that sends its peer's name when it is closed.
    fn enter(lobby: &Lobby, peer: Caller, now: Instant, closed: &mpsc::Sender<Caller>) -> Visit {
        let (visit, closed) = (lobby.enter_at(peer, now), closed.clone());
        visit.on_close(move || closed.send(peer).unwrap());
        visit
    }

    #[test]
    fn whoever_does_not_say_who_it_is_in_time_is_closed() {
        let (lobby, begun) = (Lobby::default(), Instant::now());
        let (closed, is_closed) = mpsc::channel();
        let [_silent, admitted, speaking, _later] = [(1, 0), (2, 0), (3, 0), (4, 1)]
            .map(|(host, after)| enter(&lobby, from(host, 1), begun + Duration::from_secs(after), &closed));
        admitted.admit(TaskId::worker(0));
        speaking.has_spoken();
        lobby.expire(begun + STAY - Duration::from_millis(1));
        assert!(is_closed.try_recv().is_err());
        lobby.expire(begun + STAY);
        assert_eq!(is_closed.try_iter().collect::<Vec<_>>(), [from(1, 1)]);
    }

    #[test]
    fn in_a_crowd_the_oldest_of_the_host_with_the_most_connections_is_closed() {
        let (lobby, now) = (Lobby::default(), Instant::now());
        let (closed, is_closed) = mpsc::channel();
        let _worker = enter(&lobby, from(1, 1), now, &closed);
        let _strangers: Vec<Visit> = (0..CROWD as u16).map(|port| enter(&lobby, from(2, port), now, &closed)).collect();
        let _second = enter(&lobby, from(3, 1), now, &closed);
        assert_eq!(is_closed.try_iter().collect::<Vec<_>>(), [from(2, 0), from(2, 1)]);
    }

    #[test]
    fn those_who_were_admitted_or_have_left_do_not_crowd_the_lobby() {
        let (lobby, now) = (Lobby::default(), Instant::now());
        let (closed, is_closed) = mpsc::channel();
        let workers: Vec<Visit> = (0..CROWD as u16).map(|port| enter(&lobby, from(1, port), now, &closed)).collect();
        workers.iter().zip(0..).for_each(|(visit, index)| visit.admit(TaskId::worker(index)));
        (0..2 * CROWD as u16).for_each(|port| drop(enter(&lobby, from(2, port), now, &closed)));
        assert!(is_closed.try_recv().is_err());
        drop(workers);
        assert!(lobby.lock().waiting.is_empty() && lobby.lock().admitted.is_empty());
    }

    #[test]
    fn those_who_introduce_do_not_crowd_the_lobby_and_are_bounded() {
        let (lobby, now) = (Lobby::default(), Instant::now());
        let (closed, is_closed) = mpsc::channel();
        let mut workers = Vec::new();
        for port in 0..INTRODUCTIONS as u16 {
            workers.push(enter(&lobby, from(1, port), now, &closed));
            assert!(workers[usize::from(port)].introduces());
        }
        let _stranger = enter(&lobby, from(2, 1), now, &closed);
        lobby.expire(now + STAY - Duration::from_millis(1));
        assert!(is_closed.try_recv().is_err());
        let one_more = enter(&lobby, from(1, 5000), now, &closed);
        assert!(!one_more.introduces());
        assert!(is_closed.try_recv().is_err(), "nobody has to make room for it");
        drop(workers);
        assert!(lobby.lock().introducing.is_empty());
        assert!(one_more.introduces());
    }

    #[test]
    fn a_task_that_connects_again_and_again_loses_its_oldest_connection() {
        let (lobby, now) = (Lobby::default(), Instant::now());
        let (closed, is_closed) = mpsc::channel();
        let visits: Vec<Visit> = (0..=PER_TASK as u16).map(|port| enter(&lobby, from(1, port), now, &closed)).collect();
        visits.iter().for_each(|visit| visit.admit(TaskId::worker(0)));
        assert_eq!(is_closed.try_iter().collect::<Vec<_>>(), [from(1, 0)]);
    }

    #[test]
    fn a_connection_that_had_to_go_before_it_could_be_closed_is_closed_then() {
        let (lobby, begun) = (Lobby::default(), Instant::now());
        let visit = lobby.enter_at(from(1, 1), begun);
        lobby.expire(begun + STAY);
        let (closed, is_closed) = mpsc::channel();
        visit.on_close(move || closed.send(()).unwrap());
        assert!(is_closed.try_recv().is_ok());
    }

    #[test]
    fn refusals_are_logged_at_a_bounded_rate_and_the_others_are_counted() {
        let (mut log, now) = (RefusalLog::default(), Instant::now());
        let logged: Vec<bool> = (0..LOGGED + 3).map(|_| log.note(now).is_some()).collect();
        assert_eq!(logged.iter().filter(|logged| **logged).count(), LOGGED as usize);
        assert_eq!(log.note(now + LOGGED_WITHIN), Some(3));
        assert_eq!(log.note(now + LOGGED_WITHIN), Some(0));
    }
}
