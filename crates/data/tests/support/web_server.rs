//! A minimal web server that answers each request as a test directs.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

/// A request as received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// The path, such as `/data/file`.
    pub path: String,
    /// The first byte of the requested range, if any.
    pub from: Option<usize>,
}

/// The response to send.
#[derive(Clone, Debug)]
pub struct Reply {
    status: u16,
    headers: Vec<String>,
    body: Vec<u8>,
    cut_after: Option<usize>,
}

impl Reply {
    /// An answer without a body.
    pub fn status(status: u16) -> Self {
        Self { status, headers: vec!["Content-Length: 0".to_owned()], body: Vec::new(), cut_after: None }
    }

    /// A whole file.
    pub fn whole(body: &[u8]) -> Self {
        let headers = vec![format!("Content-Length: {}", body.len())];
        Self { status: 200, headers, body: body.to_vec(), cut_after: None }
    }

    /// A file whose size is not announced.
    pub fn of_unknown_size(body: &[u8]) -> Self {
        Self { headers: Vec::new(), ..Self::whole(body) }
    }

    /// The end of a file, announced as beginning at `first`.
    pub fn range(body: &[u8], first: usize) -> Self {
        let mut reply = Self::whole(&body[first..]);
        reply.status = 206;
        reply.headers.push(format!("Content-Range: bytes {first}-{}/{}", body.len() - 1, body.len()));
        reply
    }

    /// The whole file or the requested range, as a well-behaved server responds.
    pub fn serve(body: &[u8], request: &Request) -> Self {
        match request.from {
            None => Self::whole(body),
            Some(from) if from < body.len() => Self::range(body, from),
            Some(_) => Self::status(416),
        }
    }

    /// The same response, but the connection breaks after this many bytes of the body.
    pub fn cut_after(self, bytes: usize) -> Self {
        Self { cut_after: Some(bytes), ..self }
    }

    fn send(&self, stream: &mut TcpStream) -> std::io::Result<()> {
        write!(stream, "HTTP/1.1 {} Reply\r\nConnection: close\r\n", self.status)?;
        for header in &self.headers {
            write!(stream, "{header}\r\n")?;
        }
        stream.write_all(b"\r\n")?;
        stream.write_all(&self.body[..self.cut_after.unwrap_or(self.body.len())])
    }
}

/// A server on its own port; it stops when dropped.
pub struct WebServer {
    address: SocketAddr,
    requests: Arc<Mutex<Vec<Request>>>,
    thread: Option<JoinHandle<()>>,
}

impl WebServer {
    /// Starts a server that responds with `answer` of a request's number and the request.
    pub fn start(mut answer: impl FnMut(usize, &Request) -> Reply + Send + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let requests = Arc::new(Mutex::new(Vec::new()));
        let log = Arc::clone(&requests);
        let thread = std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                // The last connection comes from `drop` and sends no request.
                let Some(request) = read_request(&stream) else { return };
                let number = log.lock().unwrap().len();
                log.lock().unwrap().push(request.clone());
                // The client may hang up before the response ends.
                let _ = answer(number, &request).send(&mut stream);
            }
        });
        Self { address, requests, thread: Some(thread) }
    }

    /// The address of the directory that serves the files.
    pub fn base_url(&self) -> String {
        format!("http://{}/data/", self.address)
    }

    /// All requests so far.
    pub fn requests(&self) -> Vec<Request> {
        self.requests.lock().unwrap().clone()
    }

    /// The byte at which each request so far asked to start.
    pub fn ranges(&self) -> Vec<Option<usize>> {
        self.requests().iter().map(|request| request.from).collect()
    }
}

impl Drop for WebServer {
    fn drop(&mut self) {
        drop(TcpStream::connect(self.address));
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn read_request(stream: &TcpStream) -> Option<Request> {
    let mut lines = BufReader::new(stream).lines().map_while(Result::ok);
    let path = lines.next()?.split(' ').nth(1)?.to_owned();
    let mut from = None;
    for line in lines.take_while(|line| !line.is_empty()) {
        if let Some(range) = line.to_ascii_lowercase().strip_prefix("range: bytes=") {
            from = range.strip_suffix('-')?.parse().ok();
        }
    }
    Some(Request { path, from })
}
