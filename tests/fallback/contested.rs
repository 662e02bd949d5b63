//! Events that another process had in the primary during the outage.

use tokio::time::sleep;
use tower_webhook_dedup::{Release, Switch};

use crate::{begin, done, http_support::secs, is_done, is_in_flight, key, process, run};

#[tokio::test(start_paused = true)]
async fn an_event_that_another_process_runs_meanwhile_stays_here_until_both_have_ended() {
    for both_complete in [true, false] {
        let process = process();
        let other = process.elsewhere();
        process.go_out().await;
        let mine = begin(&process.dedup, "a").await;
        let theirs = begin(&other, "a").await;
        process.come_back().await;
        assert!(matches!(
            process.switches().last(),
            Some(Switch::Back { contested: 1, .. })
        ));
        sleep(secs(20)).await;
        assert!(!mine.is_lost() && !theirs.is_lost());
        assert!(is_in_flight(&process.dedup, "a").await);
        assert!(mine.complete(done()).await);
        // Done here, whatever becomes of the other.
        assert!(is_done(&process.dedup, "a").await);
        sleep(secs(5)).await;
        assert!(is_in_flight(&other, "a").await);
        if both_complete {
            assert!(theirs.complete(done()).await);
        } else {
            theirs.release(Release::Failed { status: None }).await;
        }
        sleep(secs(2)).await;
        assert!(is_done(&other, "a").await);
        assert!(is_done(&process.dedup, "a").await);
    }
}

#[tokio::test(start_paused = true)]
async fn an_event_that_another_process_completed_meanwhile_stays_here_until_its_run_ends() {
    for complete in [true, false] {
        let process = process();
        let other = process.elsewhere();
        process.go_out().await;
        let mine = begin(&process.dedup, "a").await;
        run(&other, "a").await;
        let theirs = process.primary.entry(&key("a")).await;
        process.come_back().await;
        sleep(secs(20)).await;
        assert!(!mine.is_lost());
        assert!(is_in_flight(&process.dedup, "a").await);
        if complete {
            assert!(mine.complete(done()).await);
        } else {
            mine.release(Release::Failed { status: None }).await;
        }
        sleep(secs(2)).await;
        assert!(is_done(&process.dedup, "a").await);
        assert_eq!(process.primary.entry(&key("a")).await, theirs);
    }
}
