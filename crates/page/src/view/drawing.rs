//! The cluster as a drawing: workers above, parameter servers and their shards below, and the traffic between them.
//!
//! Positions are in percent of the width and in pixels of the height, so that text has one size on every screen.

use serde::Serialize;
use windlass_core::cluster::TaskId;

use super::{Badge, state_badge, worker_badge};
use crate::figures::{bytes, percent, plain};
use crate::status::Status;

/// The most workers and servers in a row.
const WORKERS_ABREAST: usize = 8;
const SERVERS_ABREAST: usize = 4;
const WORKER_HEIGHT: f64 = 30.0;
const SERVER_HEIGHT: f64 = 58.0;
const ROW_GAP: f64 = 12.0;
/// The gap between the last row of workers and the bus, and between the bus and the first row of servers.
const BUS_GAP: f64 = 30.0;
/// The part of its share of the row that a box fills.
const FILLED: f64 = 0.86;
/// The maximum width of a box, in percent.
const WIDEST: f64 = 40.0;

#[derive(Debug, Default, Clone, Serialize)]
pub(crate) struct Drawing {
    pub height: f64,
    pub bus: f64,
    pub bus_label: f64,
    pub boxes: Vec<TaskBox>,
}

/// A task and its line to the bus, as attributes of SVG elements.
#[derive(Debug, Default, Clone, Serialize)]
pub(crate) struct TaskBox {
    pub title: String,
    pub label: String,
    pub detail: String,
    pub badge: Badge,
    pub x: String,
    pub y: f64,
    pub width: String,
    pub height: f64,
    pub middle: String,
    pub label_y: f64,
    pub detail_y: f64,
    /// The bar that shows the size of the shard relative to the largest.
    pub bar_y: f64,
    pub bar_width: String,
    pub bar_height: f64,
    /// The ends of its line to the bus.
    pub from: f64,
    pub to: f64,
}

impl Drawing {
    pub(super) fn new(status: &Status) -> Self {
        let workers = Rows { count: status.workers.len(), abreast: WORKERS_ABREAST, height: WORKER_HEIGHT, top: 0.0 };
        let bus = workers.bottom() + BUS_GAP;
        let servers = Rows {
            count: status.servers.len() + usize::from(status.client.is_some()),
            abreast: SERVERS_ABREAST,
            height: SERVER_HEIGHT,
            top: bus + BUS_GAP - ROW_GAP,
        };
        let worker_boxes = status.workers.iter().enumerate().map(|(place, worker)| {
            let task = TaskId::worker(worker.index);
            let label = if workers.count > SERVERS_ABREAST { format!("w{}", worker.index) } else { task.to_string() };
            let task_box = workers.place(place);
            let (from, label_y) = (task_box.y + WORKER_HEIGHT, task_box.y + 20.0);
            let title = named(task, &worker.address);
            TaskBox { title, label, badge: worker_badge(status, task, worker), from, to: bus, label_y, ..task_box }
        });
        let all: u64 = status.servers.iter().map(|server| server.shard_bytes).sum();
        let largest = status.servers.iter().map(|server| server.shard_bytes).max().unwrap_or(0);
        let client_box = status.client.iter().map(|client| {
            let task_box = servers.place(0);
            TaskBox {
                title: "the client".into(),
                label: "client".into(),
                detail: "data and loop".into(),
                badge: worker_badge(status, TaskId::CLIENT, client),
                from: bus,
                to: task_box.y,
                label_y: task_box.y + 20.0,
                detail_y: task_box.y + 38.0,
                bar_width: with_sign(0.0),
                ..task_box
            }
        });
        let server_boxes = status.servers.iter().enumerate().map(|(place, server)| {
            let task = TaskId::ps(server.index);
            let share = |whole: u64| if whole > 0 { server.shard_bytes as f64 / whole as f64 } else { 0.0 };
            let task_box = servers.place(place + usize::from(status.client.is_some()));
            TaskBox {
                title: format!("{}, {} of the parameters", named(task, &server.address), percent(share(all))),
                label: task.to_string(),
                detail: if server.shard_bytes == 0 { "idle".into() } else { bytes(server.shard_bytes) },
                badge: state_badge(server.state, server.silent_secs),
                from: bus,
                to: task_box.y,
                label_y: task_box.y + 20.0,
                detail_y: task_box.y + 38.0,
                bar_y: task_box.y + SERVER_HEIGHT - 10.0,
                bar_width: with_sign(servers.width() * share(largest)),
                bar_height: 10.0,
                ..task_box
            }
        });
        let boxes = worker_boxes.chain(client_box).chain(server_boxes).collect();
        Self { height: servers.bottom() + 2.0, bus, bus_label: bus - 8.0, boxes }
    }
}

/// A task with its address, if known. Workers have none unless they are joined workers.
fn named(task: TaskId, address: &str) -> String {
    if address.is_empty() { task.to_string() } else { format!("{task} at {}", plain(address)) }
}

/// Boxes in rows.
struct Rows {
    count: usize,
    abreast: usize,
    height: f64,
    top: f64,
}

impl Rows {
    fn columns(&self) -> usize {
        self.count.clamp(1, self.abreast)
    }

    fn width(&self) -> f64 {
        (100.0 / self.columns() as f64 * FILLED).min(WIDEST)
    }

    fn bottom(&self) -> f64 {
        self.top + self.count.div_ceil(self.abreast) as f64 * (self.height + ROW_GAP)
    }

    fn place(&self, place: usize) -> TaskBox {
        let (row, column) = (place / self.columns(), place % self.columns());
        let middle = (column as f64 + 0.5) * 100.0 / self.columns() as f64;
        TaskBox {
            x: with_sign(middle - self.width() / 2.0),
            y: self.top + ROW_GAP + row as f64 * (self.height + ROW_GAP),
            width: with_sign(self.width()),
            height: self.height,
            middle: with_sign(middle),
            bar_width: with_sign(0.0),
            ..TaskBox::default()
        }
    }
}

fn with_sign(percent: f64) -> String {
    format!("{}%", (percent * 100.0).round() / 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::{Server, Worker};

    fn number(percent: &str) -> f64 {
        percent.trim_end_matches('%').parse().unwrap()
    }

    #[test]
    fn boxes_of_any_cluster_lie_in_the_drawing_and_not_on_each_other() {
        for (workers, servers) in [(0, 0), (1, 1), (5, 2), (32, 9)] {
            let workers = (0..workers).map(|index| Worker { index, ..Worker::default() }).collect();
            let servers = (0..servers).map(|index| Server { index, shard_bytes: 5, ..Server::default() }).collect();
            let drawing = Drawing::new(&Status { workers, servers, ..Status::default() });
            for (place, one) in drawing.boxes.iter().enumerate() {
                assert!(number(&one.x) >= 0.0 && number(&one.x) + number(&one.width) <= 100.0);
                assert!(one.y + one.height <= drawing.height);
                for other in &drawing.boxes[place + 1..] {
                    let beside = number(&one.x) + number(&one.width) <= number(&other.x)
                        || number(&other.x) + number(&other.width) <= number(&one.x);
                    assert!(beside || one.y + one.height <= other.y || other.y + other.height <= one.y);
                }
            }
        }
    }

    #[test]
    fn the_largest_shard_has_the_longest_bar() {
        let server = |index, shard_bytes| Server { index, shard_bytes, ..Server::default() };
        let status = Status { servers: vec![server(0, 100), server(1, 50), server(2, 0)], ..Status::default() };
        let boxes = Drawing::new(&status).boxes;
        assert_eq!(number(&boxes[0].bar_width), number(&boxes[0].width));
        assert!((number(&boxes[1].bar_width) * 2.0 - number(&boxes[0].bar_width)).abs() < 0.02);
        assert_eq!((boxes[2].bar_width.as_str(), boxes[2].detail.as_str()), ("0%", "idle"));
    }
}
