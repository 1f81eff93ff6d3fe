//! The page, its assets and its data over HTTP.
//!
//! Nothing served refers to another host, and the policy sent with it keeps browsers from loading or running anything
//! else. How much a viewer is sent is bounded: see [`Pace`]. How the run ended is sent without a pause, because the
//! process that serves the page soon ends, too.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use futures::Stream;
use serde_json::{Value, json};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::Instant;

use crate::changes;
use crate::html;
use crate::status::{Phase, Status};
use crate::view::View;

/// The path of the response that stays open. Code that closes long-lived connections must spare this one.
pub const EVENTS_PATH: &str = "/events";

/// Scripts, styles and images only from this origin and none inline; no frames and no forms.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'";
/// The maximum number of live viewers. Beyond it, the page is still served but does not update itself.
const MOST_VIEWERS: usize = 32;
/// The minimum interval between two events.
const EVENT_EVERY: Duration = Duration::from_secs(1);
/// The maximum interval between two events, even if nothing has changed. A page that receives nothing for longer tells
/// its viewer that it is not live.
const SPEAK_EVERY: Duration = Duration::from_secs(5);
/// The maximum average rate sent to one viewer. The limit is 20 KB; some is left for headers.
const BYTES_PER_SECOND: f64 = 16_000.0;

/// How long a viewer waits for the first status of a coordinator that has just started: it may replace another and have
/// to look up that one's progress first.
const FIRST_LOOK: Duration = Duration::from_millis(2500);

/// Those who have the page open. Clones are the same.
#[derive(Debug, Clone)]
pub struct Viewers(Arc<Semaphore>);

impl Default for Viewers {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(MOST_VIEWERS)))
    }
}

impl Viewers {
    /// Waits until all of them have been sent how the run ended, but no longer than this. For that, the sender of the
    /// status has to be dropped. There are no new ones from then on.
    pub async fn have_left(&self, longest: Duration) {
        let _ = tokio::time::timeout(longest, self.0.acquire_many(MOST_VIEWERS as u32)).await;
    }
}

#[derive(Clone)]
struct Source {
    status: watch::Receiver<Arc<Status>>,
    viewers: Viewers,
}

impl Source {
    async fn status(&self) -> Arc<Status> {
        await_first(&mut self.status.clone()).await;
        self.status.borrow().clone()
    }
}

/// Waits briefly until something is known of the run.
async fn await_first(status: &mut watch::Receiver<Arc<Status>>) {
    let nothing = Status::default();
    let _ = tokio::time::timeout(FIRST_LOOK, status.wait_for(|status| **status != nothing)).await;
}

/// Serves the page at `/`, its data at `/status.json`, and changes to it at [`EVENTS_PATH`] until the sender is dropped.
pub fn router(status: watch::Receiver<Arc<Status>>, viewers: Viewers) -> Router {
    let asset = |kind: &'static str, content: &'static str| {
        let headers = [(header::CONTENT_TYPE, kind), (header::CACHE_CONTROL, "no-cache")];
        get(move || std::future::ready((headers, content)))
    };
    Router::new()
        .route("/", get(page))
        .route("/status.json", get(status_json))
        .route(EVENTS_PATH, get(events))
        .route("/page.css", asset("text/css; charset=utf-8", include_str!("../assets/page.css")))
        .route("/page.js", asset("text/javascript; charset=utf-8", include_str!("../assets/page.js")))
        .route("/icon.svg", asset("image/svg+xml", include_str!("../assets/icon.svg")))
        .layer(axum::middleware::map_response(guard))
        .with_state(Source { status, viewers })
}

async fn guard(mut response: Response) -> Response {
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(header::REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    response
}

async fn page(State(source): State<Source>) -> impl IntoResponse {
    let status = source.status().await;
    ([(header::CONTENT_TYPE, "text/html; charset=utf-8")], html::page(&View::new(&status)))
}

async fn status_json(State(source): State<Source>) -> impl IntoResponse {
    let status = source.status().await;
    Json(Status::clone(&status))
}

async fn events(State(source): State<Source>) -> Response {
    match source.viewers.0.try_acquire_owned() {
        Ok(seat) => Sse::new(stream(source.status, seat)).keep_alive(KeepAlive::default()).into_response(),
        Err(_) => (StatusCode::SERVICE_UNAVAILABLE, "too many viewers\n").into_response(),
    }
}

/// Sends the whole view, then its changes, until nothing can change any more.
fn stream(
    status: watch::Receiver<Arc<Status>>,
    seat: OwnedSemaphorePermit,
) -> impl Stream<Item = Result<Event, Infallible>> {
    let viewer = Viewer { status, shown: None, has_ended: false, pace: Pace::default(), _seat: seat };
    futures::stream::unfold(viewer, |mut viewer| async move {
        let Some(data) = viewer.next().await else {
            // What was sent before is written to the socket before the seat is given up: the process may then end.
            tokio::task::yield_now().await;
            return None;
        };
        Some((Ok(Event::default().data(data)), viewer))
    })
}

struct Viewer {
    status: watch::Receiver<Arc<Status>>,
    shown: Option<Value>,
    /// Whether the run has ended in what is shown.
    has_ended: bool,
    pace: Pace,
    _seat: OwnedSemaphorePermit,
}

impl Viewer {
    async fn next(&mut self) -> Option<String> {
        loop {
            if self.shown.is_none() {
                await_first(&mut self.status).await;
            } else {
                match tokio::time::timeout_at(self.pace.speak_at, self.status.changed()).await {
                    Ok(changed) => changed.ok()?,
                    Err(_) => return Some(self.nothing_new()),
                }
                // Neither how the run ended nor the last that is known of it may come too late.
                let ends = self.status.wait_for(|status| !self.has_ended && has_ended(&status.phase));
                let _ = tokio::time::timeout_at(self.pace.next_at, ends).await;
            }
            let status = self.status.borrow_and_update().clone();
            self.has_ended = has_ended(&status.phase);
            let view = serde_json::to_value(View::new(&status)).ok()?;
            let change = match &self.shown {
                None => Some(json!({ "$set": view })),
                Some(shown) => changes::between(shown, &view),
            };
            self.shown = Some(view);
            if let Some(change) = change {
                let data = change.to_string();
                self.pace.sent(data.len());
                return Some(data);
            }
            if Instant::now() >= self.pace.speak_at {
                return Some(self.nothing_new());
            }
        }
    }

    /// An empty change, which shows that the run is still live.
    fn nothing_new(&mut self) -> String {
        self.pace.sent(0);
        "{}".to_owned()
    }
}

fn has_ended(phase: &Phase) -> bool {
    matches!(phase, Phase::Over | Phase::Stopped { .. } | Phase::Failed { .. })
}

/// Spaces events so that a viewer gets at most one per [`EVENT_EVERY`], and [`BYTES_PER_SECOND`] on average. What
/// happens meanwhile is part of the next event.
struct Pace {
    next_at: Instant,
    speak_at: Instant,
}

impl Default for Pace {
    fn default() -> Self {
        let now = Instant::now();
        Self { next_at: now, speak_at: now + SPEAK_EVERY }
    }
}

impl Pace {
    fn sent(&mut self, bytes: usize) {
        let now = Instant::now();
        self.next_at = now + pause(bytes);
        self.speak_at = now + SPEAK_EVERY.max(pause(bytes));
    }
}

fn pause(bytes: usize) -> Duration {
    EVENT_EVERY.max(Duration::from_secs_f64(bytes as f64 / BYTES_PER_SECOND))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_first_viewers_of_a_coordinator_see_what_it_knows_and_wait_for_that_only_a_moment() {
        let (sender, status) = watch::channel(Arc::default());
        let source = Source { status, viewers: Viewers::default() };
        assert_eq!(source.status().await.step, 0, "nothing is known in time");
        let known = async {
            tokio::time::sleep(FIRST_LOOK / 2).await;
            sender.send_replace(Arc::new(Status { step: 7, ..Status::default() }));
        };
        assert_eq!(tokio::join!(source.status(), known).0.step, 7);
        assert_eq!(source.status().await.step, 7);
    }

    #[test]
    fn large_events_are_followed_by_long_pauses() {
        assert_eq!(pause(100), EVENT_EVERY);
        assert_eq!(pause(48_000), Duration::from_secs(3));
    }
}
