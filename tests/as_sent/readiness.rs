//! R26: the inner service is asked whether it is ready, as it wants to be.

use std::{
    convert::Infallible,
    future::{Ready, ready},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use tokio::{task::JoinSet, time::sleep};
use tower::{
    Layer, Service, ServiceExt, buffer::BufferLayer, limit::ConcurrencyLimitLayer,
    load_shed::LoadShedLayer,
};
use tower_webhook_dedup::{InFlight, Key, MissingId, RequestBody};

use crate::{
    http_support::{Handler, by_id, c0, millis, post, post_body, secs, send, send_later},
    stores::Faulty,
};

/// R26 (a): panics when it is called without having been asked first.
struct Probe {
    ready: bool,
    calls: Arc<AtomicUsize>,
}

impl Clone for Probe {
    fn clone(&self) -> Self {
        Self {
            ready: false,
            calls: self.calls.clone(),
        }
    }
}

impl<B> Service<Request<RequestBody<B>>> for Probe {
    type Response = Response<Full<Bytes>>;
    type Error = Infallible;
    type Future = Ready<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        if !self.ready {
            self.ready = true;
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<RequestBody<B>>) -> Self::Future {
        assert!(std::mem::take(&mut self.ready), "called unready");
        self.calls.fetch_add(1, Ordering::Relaxed);
        ready(Ok(Response::default()))
    }
}

fn probe() -> Probe {
    Probe {
        ready: false,
        calls: Arc::default(),
    }
}

/// R26 (a)
#[tokio::test(start_paused = true)]
async fn the_inner_service_is_called_only_after_it_said_that_it_is_ready() {
    let probe = probe();
    let store = Faulty::new();
    store.hold(&Key::new("t", "standby"), secs(2)).await;
    let layer = by_id(store).missing_id(MissingId::Forward);
    let mut service = layer.layer(probe.clone());
    for n in 0..20 {
        let request = match n % 4 {
            0 => post_body("{}"),
            1 => Request::get("/").body(Full::default()).unwrap(),
            _ => post(&format!("e{n}")),
        };
        let ready = ServiceExt::<Request<Full<Bytes>>>::ready(&mut service)
            .await
            .unwrap();
        ready.call(request).await.unwrap();
    }
    send(&service, post("standby")).await;
    let twins = [service.clone(), service.clone()].map(|twin| send_later(&twin, post("twin")));
    for twin in twins {
        twin.await.unwrap();
    }
    assert!(layer.drain_handle().drain(secs(60)).await.is_complete());
    assert_eq!(probe.calls.load(Ordering::Relaxed), 20 + 1 + 1);
}

/// R26 (b)
#[tokio::test(start_paused = true)]
async fn a_concurrency_limit_inside_holds_and_duplicates_do_not_wait_for_it() {
    let (running, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let handler = Handler::new({
        let (running, most) = (running.clone(), most.clone());
        move |_| {
            let (running, most) = (running.clone(), most.clone());
            async move {
                let now = running.fetch_add(1, Ordering::SeqCst) + 1;
                most.fetch_max(now, Ordering::SeqCst);
                sleep(secs(1)).await;
                running.fetch_sub(1, Ordering::SeqCst);
                200
            }
        }
    });
    let service = c0(Faulty::new())
        .in_flight(InFlight::RetryLater)
        .layer(ConcurrencyLimitLayer::new(1).layer(handler.clone()));
    let mut answers = JoinSet::new();
    for n in 0..20 {
        answers.spawn(send(&service, post(&format!("e{n}"))));
    }
    handler.began(2).await;
    sleep(millis(1)).await;
    let asked = tokio::time::Instant::now();
    let bodies = handler.bodies();
    let [done, runs] = [0, 1].map(|n| send(&service, post_body(&bodies[n])));
    assert_eq!(done.await.brief(), (200, "duplicate"));
    assert_eq!(runs.await.brief(), (503, "in-flight"));
    assert!(asked.elapsed().is_zero());
    let answers = answers.join_all().await;
    assert!(answers.iter().all(|it| it.brief() == (200, "run")));
    assert_eq!(most.load(Ordering::SeqCst), 1);
}

/// R26 (c)
#[tokio::test(start_paused = true)]
async fn a_buffer_of_one_inside_serves_all() {
    let handler = Handler::ok();
    let service = c0(Faulty::new()).layer(BufferLayer::new(1).layer(handler.clone()));
    let mut answers = JoinSet::new();
    for n in 0..20 {
        answers.spawn(send(&service, post(&format!("e{n}"))));
    }
    let answers = answers.join_all().await;
    assert!(answers.iter().all(|it| it.brief() == (200, "run")));
    assert_eq!(handler.runs(), 20);
}

/// Ready for nothing until told otherwise.
#[derive(Clone)]
struct Unready(Arc<AtomicBool>);

#[derive(Debug, PartialEq)]
struct NotReady;

impl<B> Service<Request<RequestBody<B>>> for Unready {
    type Response = Response<Full<Bytes>>;
    type Error = NotReady;
    type Future = Ready<Result<Self::Response, NotReady>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), NotReady>> {
        Poll::Ready(if self.0.load(Ordering::SeqCst) {
            Ok(())
        } else {
            Err(NotReady)
        })
    }

    fn call(&mut self, _: Request<RequestBody<B>>) -> Self::Future {
        ready(Ok(Response::default()))
    }
}

/// R26
#[tokio::test(start_paused = true)]
async fn an_error_of_readiness_comes_out_of_the_future_and_the_event_stays_runnable() {
    let inner = Unready(Arc::default());
    let mut service = c0(Faulty::new()).layer(inner.clone());
    let ready = ServiceExt::<Request<Full<Bytes>>>::ready(&mut service).await;
    assert!(ready.is_ok());
    let error: NotReady = service.call(post("e1")).await.unwrap_err();
    assert_eq!(error, NotReady);
    inner.0.store(true, Ordering::SeqCst);
    assert_eq!(send(&service, post("e1")).await.brief(), (200, "run"));
}

/// R26: a full inner service that sheds its load.
#[tokio::test(start_paused = true)]
async fn load_that_is_shed_inside_is_a_failed_run() {
    let handler = Handler::first_then(secs(1), 200, 200);
    let inner = LoadShedLayer::new().layer(ConcurrencyLimitLayer::new(1).layer(handler.clone()));
    let service = c0(Faulty::new()).layer(inner);
    let first = send_later(&service, post("e1"));
    handler.began(1).await;
    let shed = service.clone().oneshot(post("e2")).await.unwrap_err();
    assert!(shed.is::<tower::load_shed::error::Overloaded>());
    assert_eq!(first.await.unwrap().brief(), (200, "run"));
    assert_eq!(send(&service, post("e2")).await.brief(), (200, "run"));
}
