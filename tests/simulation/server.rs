//! One process's server: the layer around a handler.

use std::{
    future::Future,
    io,
    panic::{AssertUnwindSafe, resume_unwind},
    pin::{Pin, pin},
    sync::{Arc, atomic::Ordering},
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use futures_util::{
    FutureExt,
    future::{Either, pending, select},
};
use http::{Request, Response};
use http_body_util::Full;
use tokio::sync::oneshot;
use tower::{Layer, Service, ServiceExt};
use tower_webhook_dedup::{
    BoxStore, Cached, DedupEvent, Delivery, EventId, LeaseStore, RequestBody, WebhookDedup,
    WebhookDedupLayer,
};

use crate::{
    log::{How, Pid, What},
    network::event_of,
    plan::{Millis, Run},
    policy::Policy,
    process::Process,
    store::SimStore,
    world::World,
};

pub(crate) struct Server {
    pub(crate) process: Arc<Process>,
    layer: WebhookDedupLayer<BoxStore>,
    service: WebhookDedup<Handler, BoxStore>,
    /// Whether it takes connections.
    open: bool,
}

/// A panic that is part of the plan.
pub(crate) struct Planned;

impl World {
    pub(crate) fn boot(self: &Arc<Self>, slot: usize) {
        let generation = self.state().generations[slot];
        self.state().generations[slot] += 1;
        let process = Process::new(Pid { slot, generation });
        let store = SimStore::new(self.clone(), process.clone());
        let reporter = (self.clone(), process.clone());
        let layer = layer(store, &self.plan.policy_of(slot)).on_event(move |event| {
            if !reporter.1.is_dead() {
                reporter.0.report(reporter.1.pid, event);
            }
        });
        let host = process.clone();
        layer
            .dedup()
            .wrap_tasks(move |task| Box::pin(host.host(task)));
        let handler = Handler {
            world: self.clone(),
            process: process.clone(),
        };
        let service = layer.layer(handler);
        self.log(Some(process.pid), None, What::Booted);
        self.state().servers[slot] = Some(Server {
            process,
            layer,
            service,
            open: true,
        });
    }

    /// What the layer tells. The ledger believes only what nobody else could know: that it gave
    /// an event up.
    fn report(&self, pid: Pid, event: &DedupEvent) {
        let (key, what) = match event {
            DedupEvent::Lost(lost) => (
                &lost.key,
                What::Lost {
                    reason: lost.reason,
                },
            ),
            DedupEvent::LeaseLost { key } => (key, What::Emitted("that a lease is lost")),
            DedupEvent::Abandoned { key } => (key, What::Emitted("a run that was cut off")),
            DedupEvent::RunLimit { key } => (key, What::Emitted("a run over its limit")),
            DedupEvent::Detached { key } => (key, What::Emitted("a run that goes on alone")),
            DedupEvent::CompletionPending { key } => (key, What::Emitted("a pending completion")),
            DedupEvent::CompletionDropped { key } => (key, What::Emitted("a dropped completion")),
            _ => return,
        };
        self.log(Some(pid), Some(event_of(key)), what);
    }

    /// A delivery reaches this process. Its status comes through the first channel, if anything
    /// does; the sender hangs up by dropping the second.
    pub(crate) fn serve(
        self: &Arc<Self>,
        slot: usize,
        event: usize,
        delivery: u64,
        attempt: u64,
    ) -> Option<(oneshot::Receiver<u16>, oneshot::Sender<()>)> {
        let (process, service) = {
            let state = self.state();
            let server = state.servers[slot].as_ref().filter(|server| server.open)?;
            (server.process.clone(), server.service.clone())
        };
        let pid = process.pid;
        self.log(Some(pid), Some(event), What::Arrived { delivery });
        let request = Request::post("/hook")
            .header("x-attempt", attempt)
            .body(Full::<Bytes>::from(format!(r#"{{"id":"e{event}"}}"#)))
            .unwrap();
        let (answer, answered) = oneshot::channel();
        let (hang_up, hung_up) = oneshot::channel::<()>();
        let world = self.clone();
        let serving = async move {
            let response = pin!(AssertUnwindSafe(service.oneshot(request)).catch_unwind());
            let Either::Right((Ok(Ok(response)), _)) = select(hung_up, response).await else {
                return;
            };
            let status = response.status().as_u16();
            let outcome = response.headers()["webhook-dedup"]
                .to_str()
                .unwrap()
                .to_owned();
            world.log(
                Some(pid),
                Some(event),
                What::Answered {
                    delivery,
                    status,
                    outcome,
                },
            );
            _ = answer.send(status);
        };
        tokio::spawn(process.host(serving));
        Some((answered, hang_up))
    }

    /// The process is told to stop.
    pub(crate) fn drain(self: &Arc<Self>, slot: usize, limit: Millis, down: Millis) {
        let (process, drain) = {
            let mut state = self.state();
            let Some(server) = state.servers[slot].as_mut().filter(|server| server.open) else {
                return;
            };
            server.open = false;
            (server.process.clone(), server.layer.drain_handle())
        };
        let world = self.clone();
        let pid = process.pid;
        let draining = async move {
            world.log(Some(pid), None, What::Draining);
            let drained = drain.drain(Duration::from_millis(limit)).await;
            let complete = drained.is_complete();
            world.log(Some(pid), None, What::Drained { complete });
            world.ends(slot, down, What::Exited);
        };
        tokio::spawn(process.host(draining));
    }
}

fn layer(store: SimStore, policy: &Policy) -> WebhookDedupLayer<BoxStore> {
    let millis = Duration::from_millis;
    let store = match policy.remembered {
        Some(time) => Cached::new(store).ttl(millis(time)).boxed(),
        None => store.boxed(),
    };
    WebhookDedupLayer::new(store, EventId::pointer("/id"))
        .namespace("sim")
        .lease(millis(policy.lease))
        .store_timeout(millis(policy.store_timeout))
        .run_limit(millis(policy.run_limit))
        .retention(millis(policy.retention))
        .limits(policy.limits())
        .in_flight(policy.in_flight)
        .store_failure(policy.store_failure)
        .on_disconnect(policy.on_disconnect)
}

#[derive(Clone)]
pub(crate) struct Handler {
    world: Arc<World>,
    process: Arc<Process>,
}

impl Service<Request<RequestBody<Full<Bytes>>>> for Handler {
    type Response = Response<Full<Bytes>>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, io::Error>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), io::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<RequestBody<Full<Bytes>>>) -> Self::Future {
        if self.process.is_dead() {
            return Box::pin(pending());
        }
        let delivery = request.extensions().get::<Delivery>().unwrap().clone();
        let open = OpenRun::begin(self, &delivery);
        Box::pin(async move {
            let told = async {
                delivery.lease_lost().await;
                open.log(What::Told { run: open.run });
                pending::<()>().await;
            };
            let how = match select(Box::pin(told), pin!(open.work())).await {
                Either::Left(_) => unreachable!("it never ends"),
                Either::Right((how, _)) => how,
            };
            open.end(how)
        })
    }
}

/// A run that is going on.
struct OpenRun {
    handler: Handler,
    event: usize,
    run: u64,
    how: Run,
    ended: bool,
}

impl OpenRun {
    fn begin(handler: &Handler, delivery: &Delivery) -> Self {
        let (world, pid) = (&handler.world, handler.process.pid);
        let event = event_of(delivery.key());
        let (run, how, token) = {
            let mut state = world.state();
            state.run += 1;
            let run = state.run;
            let runs = &world.plan.events[event].runs;
            let how = runs
                .get(state.runs[event])
                .copied()
                .unwrap_or(Run::Succeed(1));
            state.runs[event] += 1;
            let token = delivery
                .is_protected()
                .then(|| state.take_token(pid, event, world.now()));
            (run, how, token.flatten())
        };
        let open = Self {
            handler: handler.clone(),
            event,
            run,
            how,
            ended: false,
        };
        handler.process.runs.fetch_add(1, Ordering::Relaxed);
        let (protected, attempt) = (delivery.is_protected(), delivery.attempt());
        open.log(What::Began {
            run,
            token,
            protected,
            attempt,
        });
        open
    }

    async fn work(&self) -> How {
        let (time, how) = match self.how {
            Run::Succeed(time) => (time, How::Succeeded),
            Run::Fail(time) => (time, How::Failed),
            Run::Error(time) => (time, How::Errored),
            Run::Panic(time) => (time, How::Panicked),
            Run::Hang => return pending().await,
        };
        self.handler.world.pass(time).await;
        how
    }

    fn end(mut self, how: How) -> Result<Response<Full<Bytes>>, io::Error> {
        self.ended = true;
        self.log(What::Ended { run: self.run, how });
        let status = match how {
            How::Errored => return Err(io::Error::other("as planned")),
            How::Panicked => resume_unwind(Box::new(Planned)),
            How::Failed | How::Dropped => 500,
            How::Succeeded => 200,
        };
        let mut response = Response::new(Full::default());
        *response.status_mut() = status.try_into().unwrap();
        Ok(response)
    }

    fn log(&self, what: What) {
        let Handler { world, process } = &self.handler;
        world.log(Some(process.pid), Some(self.event), what);
    }
}

impl Drop for OpenRun {
    fn drop(&mut self) {
        self.handler.process.runs.fetch_sub(1, Ordering::Relaxed);
        if !self.ended && !self.handler.process.is_dead() {
            self.log(What::Ended {
                run: self.run,
                how: How::Dropped,
            });
        }
    }
}
