//! The network between simulated processes: connections with delays. Messages stay in order on a connection, but not
//! between connections, and those in flight may be lost when a connection breaks.

use std::time::Duration;

use windlass_core::cluster::TaskId;

use super::{Connection, Event, Happening, Message, Pid, Port, World};

#[derive(Debug)]
pub(super) struct Link {
    pub(super) pids: [Pid; 2],
    pub(super) ports: [Port; 2],
    pub(super) open: [bool; 2],
    /// When the last message in each direction arrives.
    last: [Duration; 2],
    /// True if nothing more gets through.
    pub(super) broken: bool,
}

impl World {
    /// Connects a process to the one that listens for a task, and reports the result to it.
    pub fn connect(&mut self, pid: Pid, port: Port, to: TaskId, at: Port) {
        let there = self.directory.get(&to).copied().filter(|there| self.conditions[*there].alive);
        let unreachable = |pid: Pid| self.conditions[pid].cut_off_until > self.now;
        let delay = match there {
            Some(there) if there == pid => Duration::ZERO,
            Some(there) if unreachable(pid) || unreachable(there) => {
                return self.at(self.now + Duration::from_secs(5), Event::To(pid, Happening::Connected(port, None)));
            }
            _ => self.random.micros(100, 3000),
        };
        let connection = there.map(|there| {
            let (open, last) = ([true; 2], [self.now + delay; 2]);
            self.links.push(Link { pids: [pid, there], ports: [port, at], open, last, broken: false });
            self.links.len() - 1
        });
        self.at(self.now + delay, Event::To(pid, Happening::Connected(port, connection)));
    }

    /// Sends a message on a connection, from this process's end.
    pub fn send(&mut self, connection: Connection, pid: Pid, port: Port, message: Message) {
        let Some((arrives, there, at)) = self.arrival(connection, pid, port) else { return };
        self.at(arrives, Event::To(there, Happening::Arrived(connection, at, message)));
    }

    /// Closes a connection at this process's end; the other end is told after what is in flight.
    pub fn close(&mut self, connection: Connection, pid: Pid, port: Port) {
        let arrival = self.arrival(connection, pid, port);
        let link = &mut self.links[connection];
        link.open[usize::from(link.pids[0] != pid || link.ports[0] != port)] = false;
        let Some((arrives, there, at)) = arrival else { return };
        self.at(arrives, Event::To(there, Happening::Closed(connection, at)));
    }

    /// Stops sending on a connection at this process's end. The other end learns of it after what is in flight, and
    /// then closes its side.
    pub fn stop_sending(&mut self, connection: Connection, pid: Pid, port: Port) {
        let Some((arrives, there, at)) = self.arrival(connection, pid, port) else { return };
        self.at(arrives, Event::To(there, Happening::Closed(connection, at)));
        let answered = arrives.max(self.conditions[there].paused_until) + self.random.micros(50, 1500);
        self.at(answered, Event::To(pid, Happening::Closed(connection, port)));
    }

    fn arrival(&mut self, connection: Connection, pid: Pid, port: Port) -> Option<(Duration, Pid, Port)> {
        let link = &self.links[connection];
        let end = usize::from(link.pids[0] != pid || link.ports[0] != port);
        if !link.open[end] || link.broken {
            return None;
        }
        let there = link.pids[1 - end];
        let delay = match there == pid {
            true => Duration::ZERO,
            false if self.random.percent(3) => self.random.millis(1, 60),
            false => self.random.micros(50, 1500),
        };
        let healed = match there == pid {
            true => Duration::ZERO,
            false => self.conditions[pid].cut_off_until.max(self.conditions[there].cut_off_until),
        };
        let link = &mut self.links[connection];
        let arrives = (self.now.max(healed) + delay).max(link.last[end]);
        link.last[end] = arrives;
        Some((arrives, there, link.ports[1 - end]))
    }

    /// Breaks all connections of a process with others. Messages in flight may be lost. The process learns of it
    /// immediately, if it lives, and the others after a delay.
    pub fn disconnect(&mut self, pid: Pid, after: Duration) {
        for connection in 0..self.links.len() {
            let link = &mut self.links[connection];
            if !link.pids.contains(&pid) || link.pids[0] == link.pids[1] || link.open == [false; 2] || link.broken {
                continue;
            }
            let (pids, ports, open) = (link.pids, link.ports, link.open);
            let notify = (0..2).filter(|end| open[*end] && self.conditions[pids[*end]].alive);
            for end in notify.collect::<Vec<_>>() {
                let delay = if pids[end] == pid { Duration::ZERO } else { after };
                let at = self.now + delay + self.random.micros(10, 2000);
                self.at(at, Event::To(pids[end], Happening::Closed(connection, ports[end])));
            }
            self.links[connection].broken = true;
            // Messages held up by a network partition are not sent again.
            let held_up = pids.iter().any(|pid| self.conditions[*pid].cut_off_until > self.now);
            if self.random.percent(50) || held_up {
                self.lose(connection);
            }
        }
    }

    /// Closes all connections of a process that ends, after what is in flight.
    pub fn disconnect_gently(&mut self, pid: Pid) {
        for connection in 0..self.links.len() {
            for end in 0..2 {
                let (there, port) = (self.links[connection].pids[end], self.links[connection].ports[end]);
                if there == pid && self.links[connection].open[end] {
                    self.close(connection, pid, port);
                }
            }
        }
    }

    /// True if the coordinator has closed a session of this process, and the process does not know it yet.
    pub fn is_being_dismissed(&self, pid: Pid) -> bool {
        let is_closed = |link: &Link| link.ports[1] == Port::Coordinator && link.open == [true, false];
        self.links.iter().any(|link| link.pids[0] == pid && !link.broken && is_closed(link))
    }

    /// Drops the messages in flight on a connection.
    fn lose(&mut self, connection: Connection) {
        let is_lost = |event: &Event| matches!(event, Event::To(_, Happening::Arrived(on, ..)) if *on == connection);
        self.queue.retain(|_, event| !is_lost(event));
    }
}
