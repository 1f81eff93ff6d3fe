use std::future::Future;

use super::*;
use crate::control::proto::{
    Busy, Initialised, Over, Start, Waiting, Welcome, coordinator_message as from_coordinator,
};

const LIMIT: Duration = Duration::from_secs(20);

/// A coordinator played by the test, one connection at a time.
struct Played(mpsc::UnboundedSender<Connection>);

/// The coordinator's end of a connection.
struct Connection {
    from_task: mpsc::Receiver<TaskMessage>,
    to_task: mpsc::Sender<CoordinatorMessage>,
}

impl Attach for Played {
    fn attach(&self) -> (mpsc::Sender<TaskMessage>, mpsc::Receiver<CoordinatorMessage>) {
        let (sender, from_task) = mpsc::channel(CHANNEL);
        let (to_task, receiver) = mpsc::channel(CHANNEL);
        let _ = self.0.send(Connection { from_task, to_task });
        (sender, receiver)
    }
}

impl Connection {
    /// Receives the next message other than a heartbeat.
    async fn receive(&mut self) -> TaskMessage {
        loop {
            let message = within(self.from_task.recv()).await.expect("the task is there");
            if !matches!(message.kind, Some(task_message::Kind::Heartbeat(_))) {
                return message;
            }
        }
    }

    async fn receive_hello(&mut self) -> (Hello, u64) {
        let message = self.receive().await;
        let Some(task_message::Kind::Hello(hello)) = message.kind else { panic!("{message:?} is no hello") };
        (hello, message.heard)
    }

    async fn send(&self, number: u64, kind: from_coordinator::Kind) {
        within(self.to_task.send(CoordinatorMessage { number, heard: 0, kind: Some(kind) })).await.unwrap();
    }

    async fn welcome(&self, incarnation: u64, heard: u64) {
        self.send(0, from_coordinator::Kind::Welcome(Welcome { incarnation, heard })).await;
    }
}

async fn within<T>(wait: impl Future<Output = T>) -> T {
    tokio::time::timeout(LIMIT, wait).await.expect("in time")
}

/// A session with a coordinator played by the test.
fn open_session() -> (Session, mpsc::UnboundedReceiver<Connection>) {
    let (played, connections) = mpsc::unbounded_channel();
    let coordinator = Coordinator::Local(Arc::new(Played(played)));
    (Session::open(coordinator, Hello::default(), Progress::default(), LIMIT), connections)
}

fn start() -> from_coordinator::Kind {
    from_coordinator::Kind::Start(Start::default())
}

fn initialised() -> task_message::Kind {
    task_message::Kind::Initialised(Initialised::default())
}

#[tokio::test]
async fn after_a_broken_connection_the_same_process_goes_on_and_hears_nothing_twice() {
    let (mut session, mut connections) = open_session();
    let mut first = within(connections.recv()).await.unwrap();
    let (hello, heard) = first.receive_hello().await;
    assert_eq!(heard, 0);
    first.welcome(5, 0).await;
    first.send(1, start()).await;
    assert!(matches!(within(session.receive()).await, Some(from_coordinator::Kind::Welcome(_))));
    assert!(matches!(within(session.receive()).await, Some(from_coordinator::Kind::Start(_))));
    drop(first);

    let mut second = within(connections.recv()).await.unwrap();
    let (again, heard) = second.receive_hello().await;
    assert_eq!((again.process, heard), (hello.process, 1));
    second.welcome(5, 0).await;
    second.send(1, start()).await;
    second.send(2, from_coordinator::Kind::Over(Over::default())).await;
    let welcome = within(session.receive()).await;
    assert!(
        matches!(welcome, Some(from_coordinator::Kind::Welcome(w)) if w.incarnation == 5),
        "it may look after itself"
    );
    assert!(matches!(within(session.receive()).await, Some(from_coordinator::Kind::Over(_))), "nothing comes twice");
    assert!(within(session.receive()).await.is_none());
}

#[tokio::test]
async fn a_message_that_was_lost_with_its_connection_is_sent_again_under_its_number() {
    let (session, mut connections) = open_session();
    let mut first = within(connections.recv()).await.unwrap();
    first.receive_hello().await;
    first.welcome(5, 0).await;
    session.sender().send(initialised()).await;
    assert_eq!(first.receive().await.number, 1);
    drop(first);

    let mut second = within(connections.recv()).await.unwrap();
    second.receive_hello().await;
    second.welcome(5, 0).await;
    let message = second.receive().await;
    assert_eq!((message.number, message.kind), (1, Some(initialised())));
    drop(second);

    let mut third = within(connections.recv()).await.unwrap();
    third.receive_hello().await;
    third.welcome(5, 1).await;
    session.sender().send(initialised()).await;
    assert_eq!(third.receive().await.number, 2, "what has been heard is not sent again");
}

#[tokio::test]
async fn a_task_that_was_declared_dead_hears_its_new_incarnation_and_repeats_nothing() {
    let (mut session, mut connections) = open_session();
    let mut first = within(connections.recv()).await.unwrap();
    first.receive_hello().await;
    first.welcome(5, 0).await;
    session.sender().send(initialised()).await;
    first.receive().await;
    drop(first);
    let mut second = within(connections.recv()).await.unwrap();
    second.receive_hello().await;
    second.welcome(8, 0).await;
    for incarnation in [5, 8] {
        let welcome = within(session.receive()).await;
        assert!(matches!(welcome, Some(from_coordinator::Kind::Welcome(w)) if w.incarnation == incarnation));
    }
    drop(session);
    let message = second.receive().await;
    assert!(matches!(message.kind, Some(task_message::Kind::Goodbye(_))), "{message:?}");
}

#[tokio::test]
async fn nothing_is_said_before_the_welcome() {
    let (session, mut connections) = open_session();
    session.sender().send(initialised()).await;
    let mut connection = within(connections.recv()).await.unwrap();
    connection.receive_hello().await;
    connection.send(0, from_coordinator::Kind::Waiting(Waiting::default())).await;
    connection.welcome(1, 0).await;
    assert_eq!(connection.receive().await.kind, Some(initialised()));
}

#[tokio::test]
async fn a_coordinator_that_closes_every_connection_is_given_up_after_the_patience() {
    let (played, mut connections) = mpsc::unbounded_channel();
    let coordinator = Coordinator::Local(Arc::new(Played(played)));
    let patience = Duration::from_millis(200);
    let mut session = Session::open(coordinator, Hello::default(), Progress::default(), patience);
    let refuse = tokio::spawn(async move {
        let mut attempts = 0;
        while let Some(connection) = connections.recv().await {
            drop(connection);
            attempts += 1;
        }
        attempts
    });
    let over = within(session.receive()).await;
    assert!(matches!(over, Some(from_coordinator::Kind::Over(over)) if over.exit_code == 5));
    assert!(within(refuse).await.unwrap() < 20, "there are pauses between the attempts");
}

#[tokio::test]
async fn what_the_coordinator_has_heard_is_not_kept_for_the_next_connection() {
    let (mut session, mut connections) = open_session();
    let mut first = within(connections.recv()).await.unwrap();
    first.receive_hello().await;
    first.welcome(5, 0).await;
    for number in 1..=20 {
        session.sender().send(initialised()).await;
        assert_eq!(first.receive().await.number, number);
    }
    // The acknowledgement arrives with another message, while the session lasts.
    let kind = Some(from_coordinator::Kind::Waiting(Waiting::default()));
    within(first.to_task.send(CoordinatorMessage { number: 0, heard: 19, kind })).await.unwrap();
    while !matches!(within(session.receive()).await, Some(from_coordinator::Kind::Waiting(_))) {}
    drop(first);

    let mut second = within(connections.recv()).await.unwrap();
    second.receive_hello().await;
    // As if the coordinator had forgotten: its earlier acknowledgement counts.
    second.welcome(5, 0).await;
    assert_eq!(second.receive().await.number, 20);
}

#[tokio::test]
async fn a_task_that_cannot_be_let_in_yet_says_hello_again_until_it_is() {
    let (mut session, mut connections) = open_session();
    for _ in 0..2 {
        let mut connection = within(connections.recv()).await.unwrap();
        connection.receive_hello().await;
        let reason = "another process plays worker 1".to_owned();
        connection.send(0, from_coordinator::Kind::Busy(Busy { reason })).await;
    }
    let mut connection = within(connections.recv()).await.unwrap();
    let (hello, _) = connection.receive_hello().await;
    assert!(!hello.begun);
    connection.welcome(9, 0).await;
    assert!(matches!(within(session.receive()).await, Some(from_coordinator::Kind::Welcome(w)) if w.incarnation == 9));
}
