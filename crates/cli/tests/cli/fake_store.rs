//! A minimal S3 server for checkpoints, which fails some requests or leaves them unanswered.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

use crate::process::Invocation;

/// A store that lives until the tests end.
pub struct FakeStore {
    address: String,
}

type Objects = Arc<Mutex<BTreeMap<String, Vec<u8>>>>;

/// The treatment of a request, decided by its first line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    Answered,
    /// It gets no response, on a connection that stays open.
    Hangs,
    /// It fails with an error that the client does not retry by itself.
    Fails,
}

impl FakeStore {
    /// Starts a store that leaves requests unanswered if `hangs` holds for their first line.
    pub fn start(hangs: impl Fn(&str) -> bool + Send + Sync + Clone + 'static) -> Self {
        Self::with(move |request| if hangs(request) { Fate::Hangs } else { Fate::Answered })
    }

    /// Starts a store that decides about each request.
    pub fn with(decide: impl Fn(&str) -> Fate + Send + Sync + Clone + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let objects = Objects::default();
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let (objects, decide) = (objects.clone(), decide.clone());
                thread::spawn(move || drop(serve(stream, &objects, decide)));
            }
        });
        Self { address }
    }

    /// Makes a command use the store.
    pub fn reaches(&self, command: Invocation) -> Invocation {
        command
            .env("AWS_ENDPOINT_URL", &format!("http://{}", self.address))
            .env("AWS_ALLOW_HTTP", "true")
            .env("AWS_ACCESS_KEY_ID", "id")
            .env("AWS_SECRET_ACCESS_KEY", "key")
            .env("AWS_REGION", "nowhere")
    }
}

/// Serves one connection up to the first request that gets no response.
fn serve(stream: TcpStream, objects: &Objects, decide: impl Fn(&str) -> Fate) -> std::io::Result<()> {
    let (mut reader, mut writer) = (BufReader::new(stream.try_clone()?), stream);
    loop {
        let mut request = String::new();
        if reader.read_line(&mut request)? == 0 {
            return Ok(());
        }
        let (mut length, mut only_new) = (0, false);
        loop {
            let mut line = String::new();
            reader.read_line(&mut line)?;
            match line.trim().to_lowercase().split_once(':') {
                Some(("content-length", value)) => length = value.trim().parse().unwrap_or(0),
                Some(("if-none-match", _)) => only_new = true,
                Some(_) => {}
                None => break,
            }
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body)?;
        let (status, answer) = match decide(&request) {
            Fate::Hangs => {
                // The connection stays open.
                std::mem::forget(writer);
                return Ok(());
            }
            Fate::Fails => ("400 Bad Request", Vec::new()),
            Fate::Answered => answer(&request, body, only_new, &mut objects.lock().unwrap()),
        };
        write!(writer, "HTTP/1.1 {status}\r\nContent-Length: {}\r\nETag: \"1\"\r\n", answer.len())?;
        writer.write_all(b"Last-Modified: Wed, 21 Oct 2015 07:28:00 GMT\r\n\r\n")?;
        writer.write_all(&answer)?;
    }
}

fn answer(
    request: &str,
    body: Vec<u8>,
    only_new: bool,
    objects: &mut BTreeMap<String, Vec<u8>>,
) -> (&'static str, Vec<u8>) {
    let mut words = request.split(' ');
    let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let name = path.trim_start_matches("/bucket").trim_start_matches('/').to_owned();
    match method {
        "GET" if query.contains("list-type=2") => ("200 OK", list(query, objects).into_bytes()),
        "GET" | "HEAD" => match objects.get(&name) {
            Some(object) => ("200 OK", object.clone()),
            None => ("404 Not Found", Vec::new()),
        },
        "PUT" if only_new && objects.contains_key(&name) => ("412 Precondition Failed", Vec::new()),
        "PUT" => {
            objects.insert(name, body);
            ("200 OK", Vec::new())
        }
        _ => ("204 No Content", Vec::new()),
    }
}

fn list(query: &str, objects: &BTreeMap<String, Vec<u8>>) -> String {
    let prefix = query.split('&').find_map(|part| part.strip_prefix("prefix=")).unwrap_or_default().replace("%2F", "/");
    let mut listed = String::from("<ListBucketResult><IsTruncated>false</IsTruncated>");
    for (name, object) in objects.iter().filter(|(name, _)| name.starts_with(&prefix)) {
        let inner = &name[prefix.len()..];
        // A listing of a folder does not include objects in its subfolders.
        if query.contains("delimiter") && inner.contains('/') {
            continue;
        }
        let size = object.len();
        write!(
            listed,
            "<Contents><Key>{name}</Key><LastModified>2015-10-21T07:28:00.000Z</LastModified><ETag>1</ETag>\
             <Size>{size}</Size></Contents>"
        )
        .unwrap();
    }
    listed + "</ListBucketResult>"
}
