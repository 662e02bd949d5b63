//! A transaction for each request, outside the layer and inside.

use std::{
    convert::Infallible,
    sync::{Arc, Mutex},
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use tokio::time::{sleep, timeout};
use tower::{Layer, Service, ServiceExt, service_fn};
use tower_webhook_dedup::{RequestBody, ResponseBody};

use crate::{
    http_support::{Handler, millis, post, refusing, secs, send},
    stores::Faulty,
};

/// Something like a transaction per request: what handlers wrote counts only if it commits.
type Ledger = Arc<Mutex<Vec<&'static str>>>;

/// Writes what the handlers below wrote, unless it runs into its own timeout first, or the
/// commit fails.
async fn in_transaction<S, B, R>(
    service: S,
    request: Request<B>,
    ledger: Ledger,
    commits: bool,
) -> Response<R>
where
    S: Service<Request<B>, Response = Response<R>, Error = Infallible>,
    R: Default,
{
    let begun = ledger.lock().unwrap().len();
    let answer = timeout(secs(10), service.oneshot(request)).await;
    match answer {
        Ok(Ok(answer)) if commits => answer,
        _ => {
            ledger.lock().unwrap().truncate(begun);
            let mut rolled_back = Response::new(R::default());
            *rolled_back.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
            rolled_back
        }
    }
}

fn writing(ledger: &Ledger, time: Duration) -> Handler {
    let ledger = ledger.clone();
    Handler::new(move |_| {
        let ledger = ledger.clone();
        async move {
            ledger.lock().unwrap().push("paid");
            sleep(time).await;
            200
        }
    })
}

/// The docs' warning, shown: a layer outside that undoes a run which this layer has recorded.
#[tokio::test(start_paused = true)]
async fn a_transaction_outside_the_layer_loses_the_event_when_it_rolls_back() {
    // Its commit fails; or its timeout cuts the handler off, which goes on, and is recorded.
    for (time, commits) in [(millis(1), false), (secs(15), true)] {
        let ledger = Ledger::default();
        let handler = writing(&ledger, time);
        let service = refusing(Faulty::new()).layer(handler.clone());
        let outside = |commits| {
            let ledger = ledger.clone();
            let unit = service
                .clone()
                .map_response(|answer: Response<ResponseBody<Full<Bytes>>>| answer.map(drop));
            in_transaction(unit, post("e1"), ledger, commits)
        };
        assert_eq!(outside(commits).await.status(), 500);
        handler.has_ended(1).await;
        sleep(millis(1)).await;
        let again = outside(true).await;
        assert_eq!(again.headers()["webhook-dedup"], "duplicate");
        assert!(ledger.lock().unwrap().is_empty(), "nothing was paid, ever");
    }
}

/// And the right order.
#[tokio::test(start_paused = true)]
async fn a_transaction_inside_the_layer_runs_again_when_it_rolls_back() {
    let ledger = Ledger::default();
    let handler = writing(&ledger, millis(1));
    let inside = service_fn({
        let (ledger, handler) = (ledger.clone(), handler.clone());
        move |request: Request<RequestBody<Full<Bytes>>>| {
            let commits = handler.runs() > 0;
            let answer = in_transaction(handler.clone(), request, ledger.clone(), commits);
            async move { Ok::<_, Infallible>(answer.await) }
        }
    });
    let service = refusing(Faulty::new()).layer(inside);
    assert_eq!(send(&service, post("e1")).await.brief(), (500, "run"));
    assert!(ledger.lock().unwrap().is_empty());
    assert_eq!(send(&service, post("e1")).await.brief(), (200, "run"));
    assert_eq!(send(&service, post("e1")).await.brief(), (200, "duplicate"));
    assert_eq!(*ledger.lock().unwrap(), ["paid"]);
}
