//! What is served and printed for runs of all sizes: its form, its size, and that none of the data is taken for markup.

mod statuses;

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::{Request, Response, StatusCode, header};
use futures::{FutureExt, StreamExt};
use tokio::sync::watch;
use tower::ServiceExt;
use windlass_core::cluster::TaskId;
use windlass_core::hang::Wait;
use windlass_core::straggler::Verdict;
use windlass_page::{Curve, EVENTS_PATH, Event, EventKind, Phase, Site, State, Status, Viewers, router, text};

use statuses::{hanging, server, training, with_straggler_and_dead_worker};

/// The most that a browser may load to show the page.
const LIMIT_BYTES: usize = 150_000;
const ASSETS: [&str; 3] = ["/page.css", "/page.js", "/icon.svg"];

async fn get(status: Status, path: &str) -> Response<Body> {
    let (_sender, receiver) = watch::channel(Arc::new(status));
    router(receiver, Viewers::default()).oneshot(Request::get(path).body(Body::empty()).unwrap()).await.unwrap()
}

async fn body(status: Status, path: &str) -> String {
    let response = get(status, path).await;
    assert_eq!(response.status(), StatusCode::OK, "{path}");
    let bytes = axum::body::to_bytes(response.into_body(), 10 << 20).await.unwrap();
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[tokio::test]
async fn everything_a_browser_loads_is_small() {
    let mut assets = 0;
    for asset in ASSETS {
        assets += body(Status::default(), asset).await.len();
    }
    for workers in [0, 1, 32] {
        let page = body(training(workers), "/").await.len();
        println!("{workers} workers: page {page} bytes, assets {assets} bytes");
        assert!(page + assets < LIMIT_BYTES, "{workers} workers: {page} + {assets} bytes");
    }
}

#[tokio::test]
async fn nothing_served_names_another_host() {
    let namespace = "http://www.w3.org/2000/svg";
    let mut served = vec![(EVENTS_PATH, whole_view(with_straggler_and_dead_worker()).await)];
    for path in ["/", "/status.json"].into_iter().chain(ASSETS) {
        served.push((path, body(training(3), path).await));
    }
    for (path, content) in served {
        let content = content.replace(namespace, "");
        assert!(!content.contains("://"), "{path} has an address: {content}");
        assert!(!content.contains("src=\"//") && !content.contains("href=\"//"), "{path}");
    }
}

/// The first event sent to a viewer.
async fn whole_view(status: Status) -> String {
    let (_sender, receiver) = watch::channel(Arc::new(status));
    let request = Request::get(EVENTS_PATH).body(Body::empty()).unwrap();
    let mut events =
        router(receiver, Viewers::default()).oneshot(request).await.unwrap().into_body().into_data_stream();
    let whole = String::from_utf8(events.next().await.unwrap().unwrap().to_vec()).unwrap();
    assert!(whole.starts_with("data: {\"$set\":{"), "{whole}");
    whole
}

#[tokio::test]
async fn the_policy_forbids_whatever_is_not_ours() {
    for path in ["/", "/status.json", EVENTS_PATH, "/page.js", "/missing"] {
        let response = get(training(1), path).await;
        let policy = response.headers()[header::CONTENT_SECURITY_POLICY].to_str().unwrap();
        assert!(policy.starts_with("default-src 'none'; script-src 'self';"), "{path}: {policy}");
        assert!(!policy.contains("unsafe"), "{path}: {policy}");
        assert_eq!(response.headers()[header::X_CONTENT_TYPE_OPTIONS], "nosniff");
    }
}

#[tokio::test]
async fn the_page_has_no_script_or_style_of_its_own() {
    let page = body(training(3), "/").await;
    assert_eq!(page.matches("<script").count(), 1, "only the one that is loaded");
    assert!(page.contains(r#"<script src="page.js" defer></script>"#));
    assert!(!page.contains("style=") && !page.contains("<style") && !page.contains(" onclick"));
}

#[tokio::test]
async fn whatever_users_name_is_escaped() {
    let evil = "<img src=x onerror=alert(1)>\"'&\u{1b}[2J";
    let mut status = hanging();
    for text in [&mut status.model, &mut status.mode, &mut status.optimizer, &mut status.layout] {
        *text = evil.into();
    }
    status.loss.name = evil.into();
    status.workers[0].address = evil.into();
    status.servers[0].address = evil.into();
    status.nodes[0].name = evil.into();
    status.timeline.push(Event { at_secs: 1.0, kind: EventKind::Warning, what: evil.into() });
    status.straggler = Verdict::NotEnoughEvidence { lacking: evil.into() };
    for phase in [Phase::Training, Phase::Failed { why: evil.into() }] {
        let status = Status { phase, ..status.clone() };
        let page = body(status.clone(), "/").await;
        assert!(!page.contains("<img"), "markup got through");
        assert!(page.contains("&lt;img src=x onerror=alert(1)&gt;&quot;'&amp;"), "it is shown as text");
        assert!(!text(&status, 80).contains('\u{1b}'), "a terminal is not commanded");
    }
}

#[tokio::test]
async fn figures_and_curves_are_in_the_page_itself() {
    let page = body(training(2), "/").await;
    assert!(page.contains("Training: step 7,800 of 10,000, 2,050 steps/s, done in about 1 s"));
    assert!(page.contains("compute 60%, network 30%, data 5%, wait 5%"));
    let curve = page.split("<path class=\"line\" d=\"").nth(1).unwrap();
    assert!(curve.starts_with("M0 ") && curve.matches('L').count() > 300, "{}", &curve[..80]);
}

#[tokio::test]
async fn a_run_without_workers_has_a_page() {
    let page = body(Status::default(), "/").await;
    assert!(page.contains("Gathering: waiting for the first tasks"), "{page}");
    assert!(page.contains("no workers yet"));
}

#[tokio::test]
async fn the_status_can_be_read_back() {
    for status in [Status::default(), training(32), hanging(), with_straggler_and_dead_worker()] {
        let json = body(status.clone(), "/status.json").await;
        assert_eq!(serde_json::from_str::<Status>(&json).unwrap(), status);
    }
}

#[tokio::test(start_paused = true)]
async fn viewers_get_the_whole_view_once_and_then_what_changes() {
    let (sender, receiver) = watch::channel(Arc::new(training(32)));
    let request = Request::get(EVENTS_PATH).body(Body::empty()).unwrap();
    let mut events =
        router(receiver, Viewers::default()).oneshot(request).await.unwrap().into_body().into_data_stream();
    let whole = String::from_utf8(events.next().await.unwrap().unwrap().to_vec()).unwrap();
    assert!(whole.starts_with("data: {\"$set\":{"), "{}", &whole[..60]);
    sender.send_modify(|status| {
        let mut next = Status::clone(status);
        next.workers[31].step += 10;
        *status = Arc::new(next);
    });
    let change = String::from_utf8(events.next().await.unwrap().unwrap().to_vec()).unwrap();
    assert_eq!(change, "data: {\"workers\":{\"$at\":{\"31\":{\"step\":\"3,910\"}}}}\n\n");
    drop(sender);
    assert!(events.next().await.is_none(), "nothing can change any more");
}

#[tokio::test(start_paused = true)]
async fn a_viewer_sees_how_the_run_ended_without_a_pause_and_is_waited_for() {
    let (sender, receiver) = watch::channel(Arc::new(training(32)));
    let viewers = Viewers::default();
    let request = Request::get(EVENTS_PATH).body(Body::empty()).unwrap();
    let mut events = router(receiver, viewers.clone()).oneshot(request).await.unwrap().into_body().into_data_stream();
    events.next().await.unwrap().unwrap();
    let began = tokio::time::Instant::now();
    // As if it were asleep after the change before.
    sender.send_replace(Arc::new(Status { step: 7_801, ..training(32) }));
    assert!(events.next().now_or_never().is_none(), "it pauses");
    sender.send_replace(Arc::new(training(32).ended(Phase::Over)));
    let end = String::from_utf8(events.next().await.unwrap().unwrap().to_vec()).unwrap();
    assert!(end.contains(r#""word":"over""#), "{end}");
    sender.send_replace(Arc::new(Status { step: 10_000, ..training(32).ended(Phase::Over) }));
    drop(sender);
    let mut left = std::pin::pin!(viewers.have_left(Duration::from_secs(1)));
    assert!(left.as_mut().now_or_never().is_none(), "there is a viewer");
    let last = String::from_utf8(events.next().await.unwrap().unwrap().to_vec()).unwrap();
    assert!(last.contains("10,000"), "{last}");
    assert!(events.next().await.is_none(), "nothing can change any more");
    left.await;
    assert_eq!(began.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn viewers_are_waited_for_only_if_there_are_any_and_not_for_ever() {
    let (_sender, receiver) = watch::channel(Arc::new(training(1)));
    let (viewers, longest) = (Viewers::default(), Duration::from_millis(500));
    let router = router(receiver, viewers.clone());
    let began = tokio::time::Instant::now();
    viewers.have_left(longest).await;
    assert_eq!(began.elapsed(), Duration::ZERO);
    let _viewer = router.oneshot(Request::get(EVENTS_PATH).body(Body::empty()).unwrap()).await.unwrap();
    viewers.have_left(longest).await;
    // A timer is exact to a millisecond.
    assert!(began.elapsed() < 2 * longest && began.elapsed() >= longest, "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_viewer_hears_something_even_if_nothing_changes() {
    let (sender, receiver) = watch::channel(Arc::new(training(1)));
    let request = Request::get(EVENTS_PATH).body(Body::empty()).unwrap();
    let mut events =
        router(receiver, Viewers::default()).oneshot(request).await.unwrap().into_body().into_data_stream();
    let began = tokio::time::Instant::now();
    events.next().await.unwrap().unwrap();
    for heard in 1..=3 {
        // Sends the same status again, as happens while a run stands still.
        sender.send_modify(|_| {});
        assert_eq!(events.next().await.unwrap().unwrap(), "data: {}\n\n");
        assert!(began.elapsed() >= heard * Duration::from_secs(5), "{:?}", began.elapsed());
    }
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
}

#[tokio::test]
async fn scores_that_are_fractions_are_percentages_everywhere() {
    let mut status = training(1);
    status.scores[0].is_fraction = true;
    [(10, 0.5), (20, 0.9751)].into_iter().for_each(|(step, value)| status.scores[0].push(step, value));
    let page = body(status.clone(), "/").await;
    assert!(page.contains("97.51% at step 20; between 50.00% and 97.51%") && page.contains(">60%<"), "{page}");
    let text = text(&status, 80);
    assert!(text.contains("test accuracy 97.51%"), "{text}");
}

#[tokio::test]
async fn what_rollbacks_have_lost_is_a_figure() {
    let status = Status { rollbacks: 2, updates_lost: 3120, ..training(1) };
    let page = body(status.clone(), "/").await;
    assert!(page.contains("3,120 updates in 2 rollbacks"), "{page}");
    assert!(body(training(1), "/").await.contains("no updates"));
    assert!(text(&status, 100).contains("lost 3,120 updates in 2 rollbacks"));
    assert!(text(&Status { rollbacks: 1, updates_lost: 1, ..status }, 100).contains("lost 1 update in 1 rollback"));
}

#[tokio::test]
async fn there_is_a_limit_to_viewers_but_the_page_is_served_to_all() {
    let (_sender, receiver) = watch::channel(Arc::new(training(1)));
    let router = router(receiver, Viewers::default());
    let ask = |path: &str| router.clone().oneshot(Request::get(path).body(Body::empty()).unwrap());
    let mut viewers = Vec::new();
    for _ in 0..32 {
        viewers.push(ask(EVENTS_PATH).await.unwrap());
    }
    assert!(viewers.iter().all(|viewer| viewer.status() == StatusCode::OK));
    assert_eq!(ask(EVENTS_PATH).await.unwrap().status(), StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(ask("/").await.unwrap().status(), StatusCode::OK);
    viewers.pop();
    assert_eq!(ask(EVENTS_PATH).await.unwrap().status(), StatusCode::OK);
}

#[tokio::test]
async fn the_page_of_a_small_run() {
    let mut status = with_straggler_and_dead_worker();
    status.loss = Curve::new("training loss");
    [(10, 2.0), (20, 1.0), (30, 0.5)].into_iter().for_each(|(step, value)| status.loss.push(step, value));
    status.workers.iter_mut().for_each(|worker| worker.recent_samples_per_second.truncate(3));
    let page = body(status, "/").await;
    let shown = page.split("<template").next().unwrap();
    insta::assert_snapshot!(shown.replace("><", ">\n<"));
}

#[tokio::test]
async fn what_a_worker_computes_on_is_shown() {
    let site = |name: &str, replicas, reachable| Site { name: name.into(), replicas, reachable };
    let mut status = training(2);
    status.workers[0].sites = vec![site("cpu:0", 1, true)];
    status.workers[1].sites = vec![site("gpu:0", 2, true), site("worker 3 at <b>:2222", 1, false)];
    let page = body(status.clone(), "/").await;
    assert!(page.contains("on cpu:0") && page.contains("on 2 × gpu:0, worker 3 at &lt;b&gt;:2222 (out of reach)"));
    let text = text(&status, 80);
    assert!(text.contains("worker 1 computes on 2 × gpu:0, worker 3 at <b>:2222 (out of reach)"), "{text}");
    assert!(!text.contains("worker 0 computes"), "one device is what everybody expects: {text}");
}

#[test]
fn text_of_a_run_that_trains() {
    insta::assert_snapshot!(text(&training(2), 80));
}

#[test]
fn text_of_a_run_with_a_straggler_and_a_dead_worker() {
    insta::assert_snapshot!(text(&with_straggler_and_dead_worker(), 80));
}

#[test]
fn a_worker_that_is_not_heard_is_not_called_as_fast_as_the_others() {
    let mut status = training(4);
    status.workers[2].state = State::Dead;
    status.workers[3].silent_secs = Some(7.0);
    let shown = text(&status, 100);
    let expected = "✕ Worker 2 is dead, worker 3 is silent; the others take about the same time";
    assert!(shown.contains(expected) && !shown.contains("No stragglers"), "{shown}");
}

#[test]
fn text_of_a_run_that_died_is_of_the_past() {
    let shown = text(&training(2).ended(Phase::Died), 100);
    assert!(shown.starts_with("✕ Died at step ") && shown.contains("■ ended"), "{shown}");
    assert!(!shown.contains("alive") && !shown.contains("done in") && !shown.contains("stragglers"), "{shown}");
}

#[test]
fn text_of_a_run_that_hangs() {
    insta::assert_snapshot!(text(&hanging(), 80));
}

#[test]
fn text_of_many_workers_fits_one_screen() {
    let mut status = training(32);
    status.workers[7].state = State::Dead;
    let text = text(&status, 80);
    assert!(text.lines().count() <= 24, "{} lines", text.lines().count());
    insta::assert_snapshot!(text);
}

#[test]
fn text_of_many_tasks_that_hang_sums_up_those_that_wait() {
    let mut status = Status { servers: (0..32).map(server).collect(), ..training(32) };
    status.stalled_secs = 20.0;
    status.servers[5].silent_secs = Some(21.0);
    for worker in &mut status.workers {
        let secs = 12.0 + f64::from(worker.index) / 10.0;
        (worker.state, worker.wait) = (State::Waiting, Some(Wait { on: vec![TaskId::ps(5)], secs }));
    }
    insta::assert_snapshot!(text(&status, 80));
}

#[test]
fn text_of_a_run_that_gathers() {
    let awaited = Some(Wait { on: vec![TaskId::ps(1), TaskId::worker(0)], secs: 7.0 });
    insta::assert_snapshot!(text(&Status { awaited, ..Status::default() }, 80));
}

#[test]
fn no_line_of_text_is_wider_than_the_screen() {
    for width in [40, 60, 80, 120] {
        for status in [training(0), training(1), training(32), hanging(), with_straggler_and_dead_worker()] {
            let text = text(&status, width);
            let widest = text.lines().map(|line| line.chars().count()).max().unwrap();
            assert!(widest <= width, "{widest} columns of {width}:\n{text}");
        }
    }
}
