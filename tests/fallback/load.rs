//! Very many events through an outage, or through many.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
};

use tokio::{
    task::JoinSet,
    time::{Instant, sleep},
};
use tower::Layer;
use tower_webhook_dedup::{Dedup, LeaseStore, Release, StoreErrorKind, Switch};

use crate::{
    GONE, begin, by,
    http_support::{Handler, Run, millis, post, refusing, secs, send},
    is_done, key, process,
    stores::{Call, Fault, Faulty, MemoryStore, cached},
    with,
};

/// R50, with a fifth of its numbers unless it is told to take all, which needs half a minute:
/// `EVENTS=1000000 cargo test --test fallback an_outage_fills`.
#[tokio::test(start_paused = true)]
async fn an_outage_fills_neither_the_secondary_nor_this_process() {
    const CAP: usize = 20_000;
    let process = with(MemoryStore::with_capacity(CAP));
    let events = std::env::var("EVENTS").map_or(200_000, |it| it.parse().unwrap());
    process.fail();
    for n in 0..events {
        process.run(&format!("e{n}")).await;
        assert!(n % 100 > 0 || process.secondary.len() <= CAP);
    }
    let failing = Release::Failed { status: Some(500) };
    for n in 0..events / 10 {
        let lease = begin(&process.dedup, &format!("f{n}")).await;
        lease.release(failing).await;
        assert!(n % 100 > 0 || process.secondary.len() <= CAP);
    }
    assert!(is_done(&process.dedup, &format!("e{}", events - 1)).await);
    process.come_back().await;
    let Some(Switch::Back {
        carried, dropped, ..
    }) = process.switches().pop()
    else {
        panic!("{:?}", process.switches());
    };
    assert_eq!((carried, dropped), (10_000, events - 10_000));
    assert!(is_done(&process.elsewhere(), &format!("e{}", events - 10_000)).await);
    assert!(!is_done(&process.elsewhere(), &format!("e{}", events - 10_001)).await);
}

/// Ten deliveries of each of a thousand events; the primary dies in the middle, with its data.
#[tokio::test(start_paused = true)]
async fn a_thousand_events_run_once_through_an_outage() {
    for (keeps, fault) in [(true, Fault::Hang), (false, GONE)] {
        let process = process();
        let runs = Arc::new(Mutex::new(HashMap::<String, usize>::new()));
        let counted = runs.clone();
        let handler = Handler::new(move |run: Run| {
            let counted = counted.clone();
            async move {
                let id = run.delivery().event_id().to_owned();
                *counted.lock().unwrap().entry(id).or_default() += 1;
                sleep(millis(20 + run.n as u64 % 70)).await;
                200
            }
        });
        let service = process.layer().store_timeout(millis(300)).layer(handler);
        let mut answers = JoinSet::new();
        for n in 0..10_000_u64 {
            let (service, id) = (service.clone(), n * 7919 % 1000);
            answers.spawn(async move {
                sleep(millis(n / 10)).await;
                loop {
                    let asked = Instant::now();
                    let answer = send(&service, post(&format!("e{id}"))).await;
                    assert!(asked.elapsed() <= millis(700), "{:?}", asked.elapsed());
                    // As a sender does.
                    if answer.status == 200 {
                        return;
                    }
                    sleep(millis(500)).await;
                }
            });
        }
        sleep(millis(500)).await;
        process.primary.plan(move |_| fault);
        if !keeps {
            for n in 0..1000 {
                let event = key(&format!("e{n}"));
                process
                    .primary
                    .inner
                    .forget(&event, true, by())
                    .await
                    .unwrap();
            }
        }
        answers.join_all().await;
        // What a cache remembers needs no primary: one more event does.
        if cached() {
            process.run("one more").await;
        }
        assert!(process.store.is_degraded());
        process.come_back().await;
        assert!(runs.lock().unwrap().values().all(|&runs| runs == 1));
        assert_eq!(runs.lock().unwrap().len(), 1000);

        let second = Handler::ok();
        let service = refusing(process.primary.elsewhere()).layer(second.clone());
        for n in 0..1000 {
            let answer = send(&service, post(&format!("e{n}"))).await;
            assert_eq!(answer.brief(), (200, "duplicate"));
        }
        assert_eq!(second.runs(), 0);
    }
}

/// With stores that take a moment, so that calls and switches meet in all ways.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_run_one_at_a_time_while_the_primary_comes_and_goes() {
    let slowly = |call: &Call| match call.n % 3 {
        0 => Fault::None,
        n => Fault::Delay(millis(n as u64)),
    };
    let process = with(Faulty::with(slowly));
    process.primary.plan(slowly);
    let store = process.store.clone();
    let store = store.probe_pause(millis(5)).probe_timeout(millis(20));
    let plan = process.primary.clone();
    let flapping = tokio::spawn(async move {
        for n in 0.. {
            sleep(millis(40)).await;
            plan.plan(move |call| match (n % 2, call.n % 2) {
                (0, _) => GONE,
                (_, 0) => Fault::Late(millis(3)),
                _ => Fault::After(StoreErrorKind::Unreachable),
            });
            sleep(millis(15)).await;
            plan.plan(slowly);
        }
    });
    let runs = Arc::new(Mutex::new(HashMap::<u64, usize>::new()));
    let mut workers = JoinSet::new();
    for worker in 0..16_u64 {
        let (dedup, runs) = (Dedup::new(store.clone()).lease(secs(20)), runs.clone());
        workers.spawn(async move {
            for n in 0..400 {
                let id = (n + worker % 4) / 2;
                let work = || async {
                    *runs.lock().unwrap().entry(id).or_default() += 1;
                    sleep(millis(id % 3)).await;
                    Ok::<_, std::io::Error>(())
                };
                // A call whose time was cut short may fail; it comes again.
                while dedup.run(&key(&id.to_string()), work).await.is_err() {}
            }
        });
    }
    workers.join_all().await;
    flapping.abort();
    let runs = runs.lock().unwrap();
    let twice: Vec<_> = runs.iter().filter(|(_, runs)| **runs > 1).collect();
    assert!(twice.is_empty(), "ran twice: {twice:?}");
    let switches = process.switches().len();
    // The fewer calls, the fewer of them fail.
    let enough = if cached() { 5 } else { 20 };
    assert!(switches > enough, "{switches}");
}
