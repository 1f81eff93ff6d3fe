//! A simulated process: its parts, and the dispatch of events to them.

use windlass_core::cluster::TaskId;
use windlass_core::lifecycle::Outcome;
use windlass_server::ServerEvent;
use windlass_server::coordinator::Farewell;
use windlass_wire::control::session::SessionEvent;

use crate::coordinator::CoordinatorNode;
use crate::server::ServerNode;
use crate::worker::WorkerNode;
use crate::world::{Connection, Happening, Message, Port, Timer, World};

/// A process of one task, or of a parameter server and its co-located worker.
pub(super) struct Process {
    pub(super) server: Option<ServerNode>,
    pub(super) coordinator: Option<CoordinatorNode>,
    pub(super) worker: Option<WorkerNode>,
    /// How much longer the process stays so that others can learn of the end, if it is ps 0 and has ended.
    pub(super) farewell: Option<Farewell>,
}

impl Process {
    /// The tasks that the process plays.
    pub(super) fn tasks(&self) -> Vec<TaskId> {
        let server = self.server.as_ref().map(ServerNode::task);
        server.into_iter().chain(self.worker.as_ref().map(WorkerNode::task)).collect()
    }

    /// True if all parts of the process have a session with the coordinator.
    pub(super) fn is_in_session(&self) -> bool {
        let server = self.server.as_ref().is_none_or(ServerNode::is_in_session);
        server && self.worker.as_ref().is_none_or(WorkerNode::is_in_session)
    }

    /// Passes an event to the part of the process that it is meant for.
    pub(super) fn happen(&mut self, happening: Happening, world: &mut World) {
        match happening {
            Happening::Arrived(connection, port, message) => self.arrived(connection, port, Some(message), world),
            Happening::Closed(connection, port) => self.arrived(connection, port, None, world),
            Happening::Connected(port, connection) => match port {
                Port::ServerSession => self.server(|server, world| server.connected(connection, world), world),
                Port::WorkerSession => self.worker(|worker, world| worker.connected(connection, world), world),
                Port::Lane(server) => {
                    self.worker(|worker, world| worker.lane_connected(server, connection, world), world)
                }
                Port::Coordinator | Port::Stream => {}
            },
            Happening::Looked(port, number, found) => match port {
                Port::ServerSession => {
                    self.server(|server, world| server.session(SessionEvent::Looked(number, found), world), world)
                }
                _ => self.worker(|worker, world| worker.session(SessionEvent::Looked(number, found), world), world),
            },
            Happening::Stop => {
                self.server(|server, world| server.handle(ServerEvent::Stop(Outcome::told_to_stop()), world), world);
                self.worker(WorkerNode::stop, world);
            }
            Happening::Timer(timer) => self.remind(timer, world),
        }
    }

    fn arrived(&mut self, connection: Connection, port: Port, message: Option<Message>, world: &mut World) {
        match (port, message) {
            (Port::ServerSession, message) => {
                self.server(|server, world| server.arrived(connection, message, world), world)
            }
            (Port::WorkerSession, message) => {
                self.worker(|worker, world| worker.arrived(connection, message, world), world)
            }
            (Port::Coordinator, message) => self.coordinator(
                |coordinator, world| match message {
                    Some(message) => coordinator.arrived(connection, message, world),
                    None => coordinator.closed(connection, world),
                },
                world,
            ),
            (Port::Stream, Some(Message::Frame(frame))) => {
                self.server(|server, world| server.stream(connection, Some(frame), world), world)
            }
            (Port::Stream, _) => self.server(|server, world| server.stream(connection, None, world), world),
            (Port::Lane(id), Some(Message::Answer(answer))) => {
                self.worker(|worker, world| worker.answered(id, connection, answer, world), world)
            }
            (Port::Lane(id), _) => self.worker(|worker, world| worker.lane_closed(id, connection, world), world),
        }
    }

    fn remind(&mut self, timer: Timer, world: &mut World) {
        match timer {
            // The process stays, not its parts.
            Timer::Farewell => {}
            Timer::Worker => self.worker(WorkerNode::tick, world),
            Timer::Tick => self.coordinator(CoordinatorNode::tick, world),
            Timer::StoreOpened => self.coordinator(CoordinatorNode::open, world),
            Timer::Found(..) | Timer::Published(..) | Timer::Released(_) => {
                self.coordinator(|coordinator, world| coordinator.stored(timer, world), world);
            }
            Timer::Session(Port::ServerSession) => {
                self.server(|server, world| server.session(SessionEvent::Tick, world), world)
            }
            Timer::Session(_) => {
                self.worker(|worker, world| worker.session(SessionEvent::Tick, world), world);
            }
            Timer::Shard(shards, timer) => {
                self.server(|server, world| server.remind_shard(shards, &timer, world), world)
            }
            Timer::Prepared(number) => self.server(|server, world| server.prepared(number, world), world),
            Timer::Written(shards, number, fails) => {
                self.server(|server, world| server.part_written((shards, number), fails, world), world)
            }
            Timer::Quiet => self.server(|server, world| server.handle(ServerEvent::Quiet, world), world),
            Timer::Computed(ticket) => self.worker(|worker, world| worker.computed(ticket, world), world),
            Timer::Retry(server, attempt) => {
                self.worker(|worker, world| worker.try_again(server, attempt, world), world)
            }
        }
    }

    /// A server or worker that has ended does nothing more.
    fn server(&mut self, act: impl FnOnce(&mut ServerNode, &mut World), world: &mut World) {
        if let Some(server) = self.server.as_mut().filter(|server| server.ended.is_none()) {
            act(server, world);
        }
    }

    fn worker(&mut self, act: impl FnOnce(&mut WorkerNode, &mut World), world: &mut World) {
        if let Some(worker) = self.worker.as_mut().filter(|worker| worker.ended.is_none()) {
            act(worker, world);
        }
    }

    fn coordinator(&mut self, act: impl FnOnce(&mut CoordinatorNode, &mut World), world: &mut World) {
        if let Some(coordinator) = &mut self.coordinator {
            act(coordinator, world);
            self.server(ServerNode::poll, world);
        }
    }
}
