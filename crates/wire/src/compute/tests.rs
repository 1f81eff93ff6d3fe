//! Messages through real sockets: complete, truncated, hostile and silent.

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::thread;

use super::*;

const PATIENCE: Duration = Duration::from_secs(20);
const LIMITS: Limits = Limits { head: 1 << 10, sections: 8, bytes: 1 << 25 };

fn running() -> bool {
    false
}

/// Waits until the answer is "done".
const WAITING: Waiting<'_> = Waiting {
    patience: PATIENCE,
    is_answer: &|message| message.head == b"done",
    is_stopped: &running,
    heard: &|_, _| {},
    meanwhile: None,
};

/// Both ends of a stream between two processes on one host.
fn pair() -> (Connection, Connection) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let server = thread::spawn(move || accept(Socket::Unix(theirs), "a-name").unwrap());
    let (client, name) = begun(Socket::Unix(ours)).unwrap();
    assert_eq!(name, "a-name");
    (client, server.join().unwrap())
}

#[test]
fn tensors_of_every_kind_arrive_as_they_were() {
    let (mut client, mut server) = pair();
    assert_eq!((client.kind(), server.kind()), ("shared memory", "shared memory"));
    let floats: Vec<f32> = (0..3_000_000).map(|at| at as f32).collect();
    let sent = floats.clone();
    let sending = thread::spawn(move || {
        let sections = [
            Section::floats(&[1000, 3000], &sent),
            Section::integers(&[2], &[i64::MIN, 7]),
            Section::bytes(&[0, 5], &[]),
            Section::floats(&[], &[1.5]),
        ];
        client.send(b"words", &sections, PATIENCE, &running).unwrap();
        client
    });
    let message = server.receive(&LIMITS, PATIENCE, &running).unwrap();
    let _client = sending.join().unwrap();
    assert_eq!(message.head, b"words");
    let expected = [
        Tensor { shape: vec![1000, 3000], contents: Contents::F32(floats) },
        Tensor { shape: vec![2], contents: Contents::I64(vec![i64::MIN, 7]) },
        Tensor { shape: vec![0, 5], contents: Contents::U8(Vec::new()) },
        Tensor { shape: vec![], contents: Contents::F32(vec![1.5]) },
    ];
    assert!(message.sections == expected);
}

#[test]
fn several_tasks_are_asked_at_once_and_signs_of_life_are_no_answers() {
    let (clients, servers): (Vec<_>, Vec<_>) = (0..3).map(|_| pair()).unzip();
    let mut clients = clients;
    let serving: Vec<_> = servers
        .into_iter()
        .enumerate()
        .map(|(index, mut server)| {
            thread::spawn(move || {
                let asked = server.receive(&LIMITS, PATIENCE, &running).unwrap();
                if index == 1 {
                    return; // It dies.
                }
                server.send(b"working", &[], PATIENCE, &running).unwrap();
                let Contents::F32(values) = &asked.sections[0].contents else { panic!("floats were sent") };
                let doubled: Vec<f32> = values.iter().map(|value| value * 2.0).collect();
                server.send(b"done", &[Section::floats(&[doubled.len()], &doubled)], PATIENCE, &running).unwrap();
            })
        })
        .collect();
    let values = vec![3.0; 1_000_000];
    let shape = [values.len()];
    let requests = clients
        .iter_mut()
        .map(|connection| Request {
            connection,
            head: b"double".to_vec(),
            sections: vec![Section::floats(&shape, &values)],
            limits: LIMITS,
        })
        .collect();
    let heard = std::cell::RefCell::new(vec![Vec::new(); 3]);
    let hears = |index: usize, what| heard.borrow_mut()[index].push(what);
    let replies = exchange(requests, Waiting { heard: &hears, ..WAITING });
    serving.into_iter().for_each(|thread| thread.join().unwrap());
    let doubled = Tensor { shape: shape.to_vec(), contents: Contents::F32(vec![6.0; 1_000_000]) };
    assert!(replies[0].as_ref().unwrap().sections == [doubled.clone()]);
    assert!(matches!(replies[1], Err(ComputeError::Io(_))));
    assert!(replies[2].as_ref().unwrap().sections == [doubled]);
    let last: Vec<Option<Heard>> = heard.borrow().iter().map(|heard| heard.last().copied()).collect();
    assert_eq!(last, [Heard::Answer, Heard::Failed, Heard::Answer].map(Some));
}

#[test]
fn whoever_has_answered_hears_that_others_have_not() {
    let (clients, servers): (Vec<_>, Vec<_>) = (0..2).map(|_| pair()).unzip();
    let (mut clients, mut servers) = (clients, servers.into_iter());
    let (heard, is_heard) = std::sync::mpsc::channel();
    let (mut quick, mut slow) = (servers.next().unwrap(), servers.next().unwrap());
    let quick = thread::spawn(move || {
        quick.receive(&LIMITS, PATIENCE, &running).unwrap();
        quick.send(b"done", &[], PATIENCE, &running).unwrap();
        for _ in 0..2 {
            assert_eq!(quick.receive(&LIMITS, PATIENCE, &running).unwrap().head, b"wait");
        }
        heard.send(()).unwrap();
        quick.receive(&LIMITS, PATIENCE, &running).unwrap_err();
    });
    let slow = thread::spawn(move || {
        slow.receive(&LIMITS, PATIENCE, &running).unwrap();
        is_heard.recv_timeout(PATIENCE).unwrap();
        slow.send(b"done", &[], PATIENCE, &running).unwrap();
        slow.receive(&LIMITS, PATIENCE, &running).unwrap_err();
    });
    let request = |connection| Request { connection, head: b"do".to_vec(), sections: Vec::new(), limits: LIMITS };
    let meanwhile = Some((&b"wait"[..], Duration::from_millis(10)));
    let replies = exchange(clients.iter_mut().map(request).collect(), Waiting { meanwhile, ..WAITING });
    assert!(replies.iter().all(|reply| reply.as_ref().unwrap().head == b"done"));
    drop(clients);
    [quick, slow].into_iter().for_each(|thread| thread.join().unwrap());
}

#[test]
fn an_answer_counts_even_if_its_task_is_gone_before_the_others_have_answered() {
    // A ring in shared memory accepts messages for a task that is gone, but a socket does not.
    let sockets = || {
        let (ours, theirs) = UnixStream::pair().unwrap();
        [ours, theirs].map(|end| Connection::new(Socket::Unix(end)).unwrap())
    };
    let ([mut gone, mut quick], [mut waiting, mut slow]) = (sockets(), sockets());
    quick.send(b"done", &[], PATIENCE, &running).unwrap();
    let (quick, slow) = (std::cell::RefCell::new(Some(quick)), std::cell::RefCell::new(&mut slow));
    // The quick task leaves when its answer has been read. The client then tells it to wait every time before it looks
    // for a stop.
    let hears = |index: usize, heard| {
        if (index, heard) == (0, Heard::Answer) {
            quick.borrow_mut().take();
        }
    };
    let looks = std::cell::Cell::new(0);
    let is_stopped = || {
        looks.set(looks.get() + 1);
        if looks.get() == 3 {
            slow.borrow_mut().send(b"done", &[], PATIENCE, &running).unwrap();
        }
        false
    };
    let request = |connection| Request { connection, head: b"do".to_vec(), sections: Vec::new(), limits: LIMITS };
    let meanwhile = Some((&b"wait"[..], Duration::ZERO));
    let asked = Waiting { meanwhile, heard: &hears, is_stopped: &is_stopped, ..WAITING };
    let replies = exchange(vec![request(&mut gone), request(&mut waiting)], asked);
    assert!(replies.iter().all(|reply| reply.as_ref().unwrap().head == b"done"));
    assert!(matches!(gone.broken(), Some(ComputeError::Io(_))), "{:?}", gone.broken());
    assert!(waiting.broken().is_none());
}

#[test]
fn a_sender_knows_what_its_reader_refuses() {
    let limits = Limits { head: 4, sections: 2, bytes: 16 };
    let two = Section::floats(&[2], &[1.0, 2.0]);
    assert_eq!(limits.check(b"head", &[two, two]), Ok(()));
    let refusal = |head: &[u8], sections: &[Section<'_>]| limits.check(head, sections).unwrap_err().to_string();
    assert_eq!(refusal(b"heads", &[]), "message head of 5 bytes exceeds the limit of 4");
    assert_eq!(refusal(b"", &[two; 3]), "message tensor count of 3 exceeds the limit of 2");
    let three = Section::floats(&[3], &[1.0; 3]);
    assert_eq!(refusal(b"", &[two, three]), "message tensor data of 20 bytes exceeds the limit of 16");
}

#[test]
fn whoever_says_nothing_is_given_up_and_whoever_is_told_to_stop_stops() {
    let (mut client, _server) = pair();
    let silent = client.receive(&LIMITS, Duration::from_millis(1), &running);
    assert!(matches!(silent, Err(ComputeError::Silent(_))));
    assert!(matches!(client.receive(&LIMITS, PATIENCE, &|| true), Err(ComputeError::Stopped)));
}

#[test]
fn any_number_of_signs_of_life_is_read_in_a_small_stack() {
    let (mut client, mut server) = pair();
    let speaking = thread::spawn(move || {
        server.receive(&LIMITS, PATIENCE, &running).unwrap();
        (0..100_000).for_each(|_| server.send(b"working", &[], PATIENCE, &running).unwrap());
        server.send(b"done", &[], PATIENCE, &running).unwrap();
    });
    let asking = thread::Builder::new().stack_size(256 << 10).spawn(move || {
        let request = Request { connection: &mut client, head: b"do".to_vec(), sections: Vec::new(), limits: LIMITS };
        exchange(vec![request], WAITING).remove(0).unwrap()
    });
    assert_eq!(asking.unwrap().join().unwrap().head, b"done");
    speaking.join().unwrap();
}

/// The reader's error on these bytes.
fn refusal(bytes: &[u8]) -> ComputeError {
    let (mut ours, theirs) = UnixStream::pair().unwrap();
    ours.write_all(bytes).unwrap();
    drop(ours);
    Connection::new(Socket::Unix(theirs)).unwrap().receive(&LIMITS, PATIENCE, &running).unwrap_err()
}

#[test]
fn hostile_bytes_are_refused_before_room_is_made_for_them() {
    let header = |numbers: [u32; 3]| {
        let mut bytes = b"WCMP".to_vec();
        numbers.iter().for_each(|number| bytes.extend(number.to_le_bytes()));
        bytes
    };
    let tensor = |kind: u8, sizes: &[u64]| {
        let mut bytes = header([0, 1, 2 + 8 * sizes.len() as u32]);
        bytes.extend([kind, sizes.len() as u8]);
        sizes.iter().for_each(|size| bytes.extend(size.to_le_bytes()));
        bytes
    };
    assert!(matches!(refusal(b"GET / HTTP/1.1\r\n\r\n"), ComputeError::Message(MessageError::Magic)));
    let too_large = [
        header([u32::MAX, 0, 0]),
        header([0, u32::MAX, 0]),
        header([0, 1, u32::MAX]),
        tensor(1, &[u64::MAX]),
        tensor(1, &[u64::MAX, u64::MAX, 0]),
        tensor(3, &[1 << 26]),
    ];
    for bytes in too_large {
        let refused = refusal(&bytes);
        assert!(matches!(refused, ComputeError::Message(MessageError::TooLarge { .. })), "{refused}");
    }
    let malformed = [tensor(9, &[1]), tensor(1, &[1; 17]), [header([0, 1, 4]), vec![1, 0, 0, 0]].concat()];
    for bytes in malformed {
        let refused = refusal(&bytes);
        assert!(matches!(refused, ComputeError::Message(_)), "{refused}");
    }
    // The maximum size is announced, and no bytes follow.
    assert!(matches!(refusal(&tensor(1, &[1 << 20])), ComputeError::Io(_)));
}
