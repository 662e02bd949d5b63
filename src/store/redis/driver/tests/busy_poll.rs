//! A task that stays awake while a reply is awaited.

use std::{future::poll_fn, pin::Pin, time::Duration};

use futures_util::FutureExt;
use redis::Value;
use tokio::{runtime::Builder, task::yield_now, time::timeout};

use super::{Settings, packed, rig::Rig};

const LONG: Duration = Duration::from_secs(3_600);

fn rig(busy_poll: Duration) -> Rig {
    let settings = Settings {
        coalesce: true,
        busy_poll,
    };
    Rig::with(settings, 1 << 20)
}

async fn stays_awake_for_a_while(rig: &mut Rig) {
    let mut polls = 0;
    while rig.is_woken() {
        assert!(rig.poll().is_pending());
        polls += 1;
        yield_now().await;
    }
    assert!(polls > 1);
}

#[tokio::test]
async fn the_task_stays_awake_until_the_reply_is_here_and_others_have_their_turn() {
    let mut rig = rig(LONG);
    rig.come_to_rest().await;
    for _ in 0..3 {
        let reply = rig.push("ONE");
        // It went out without the task.
        assert_eq!((rig.woken(), rig.got()), (1, packed(&["ONE"])));
        for _ in 0..10 {
            assert!(rig.poll().is_pending());
            assert!(!rig.is_woken());
            yield_now().await;
            assert!(rig.is_woken());
        }
        rig.answer("+OK\r\n");
        assert!(rig.poll().is_pending());
        assert_eq!(reply.now_or_never().unwrap(), Ok(Value::Okay));
        rig.woken();
        yield_now().await;
        assert!(!rig.is_woken());
    }
}

#[tokio::test]
async fn it_sleeps_while_more_than_one_reply_is_awaited() {
    let mut rig = rig(LONG);
    rig.come_to_rest().await;
    yield_now().await;
    let (first, _second) = (rig.push("ONE"), rig.push("TWO"));
    assert!(rig.poll().is_pending());
    // It has stepped back.
    assert!(rig.poll().is_pending());
    assert_eq!(rig.got(), packed(&["ONE", "TWO"]));
    yield_now().await;
    assert!(!rig.is_woken());
    rig.answer("+OK\r\n");
    assert!(rig.poll().is_pending());
    assert!(rig.poll().is_pending());
    assert_eq!(first.now_or_never().unwrap(), Ok(Value::Okay));
    yield_now().await;
    assert!(rig.is_woken());
}

#[tokio::test]
async fn it_sleeps_when_the_time_is_over() {
    let mut rig = rig(Duration::from_millis(50));
    rig.come_to_rest().await;
    for _ in 0..3 {
        let reply = rig.push("ONE");
        stays_awake_for_a_while(&mut rig).await;
        rig.answer("+OK\r\n");
        assert!(rig.is_woken());
        assert!(rig.poll().is_pending());
        assert_eq!(reply.now_or_never().unwrap(), Ok(Value::Okay));
    }
}

/// The time of the runtime would stand still for as long as the task is awake.
#[tokio::test(start_paused = true)]
async fn the_time_is_not_that_of_a_runtime_that_is_paused() {
    let mut rig = rig(Duration::from_millis(50));
    rig.come_to_rest().await;
    let _reply = rig.push("ONE");
    stays_awake_for_a_while(&mut rig).await;
}

#[test]
fn where_several_threads_run_the_tasks_none_stays_awake() {
    for (workers, polled_again) in [(1, true), (2, false)] {
        let mut runtime = Builder::new_multi_thread();
        let runtime = runtime
            .worker_threads(workers)
            .enable_time()
            .build()
            .unwrap();
        runtime.block_on(async {
            let mut rig = rig(LONG);
            let _reply = rig.push("ONE");
            assert!(rig.poll().is_pending());
            assert_eq!(rig.got(), packed(&["ONE"]));
            assert_eq!(rig.is_woken(), polled_again, "{workers} workers");
        });
    }
}

/// A server that does not answer, while the runtime never sleeps.
#[tokio::test]
async fn timers_are_due_though_the_task_stays_awake() {
    let mut rig = rig(LONG);
    let reply = rig.push("ONE");
    let mut polls = 0;
    let driving = poll_fn(|cx| {
        polls += 1;
        Pin::new(&mut rig.task).poll(cx)
    });
    tokio::select! {
        () = driving => panic!("the connection ended"),
        late = timeout(Duration::from_millis(50), reply) => assert!(late.is_err()),
    }
    assert!(polls > 10);
}
