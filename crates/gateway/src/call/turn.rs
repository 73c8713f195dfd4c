//! A pause in which every other task that is ready runs once.
//!
//! `tokio::task::yield_now` alone is none where its task is polled again without having been woken, as HTTP servers do
//! with bodies: it takes the second poll for its turn.

use futures::task::AtomicWaker;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use tokio::task::yield_now;

#[derive(Default)]
struct Signal {
    done: AtomicBool,
    waits: AtomicWaker,
}

impl Wake for Signal {
    fn wake(self: Arc<Self>) {
        self.done.store(true, Ordering::Release);
        self.waits.wake();
    }
}

/// Pauses; one at a time.
#[derive(Default)]
pub(super) struct Turn(Arc<Signal>);

impl Turn {
    /// Resolves when the runtime has run what was ready and seen what arrived.
    pub(super) async fn pass(&self) {
        let signal = &self.0;
        signal.done.store(false, Ordering::Release);
        let (mut yielding, mut begun) = (pin!(yield_now()), false);
        poll_fn(|context| {
            signal.waits.register(context.waker());
            if !std::mem::replace(&mut begun, true) {
                let waker = Waker::from(Arc::clone(signal));
                if yielding.as_mut().poll(&mut Context::from_waker(&waker)).is_ready() {
                    return Poll::Ready(());
                }
            }
            if signal.done.load(Ordering::Acquire) { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::poll;

    #[tokio::test]
    async fn a_pause_does_not_end_because_it_is_polled_again() {
        let turn = Turn::default();
        let mut passing = pin!(turn.pass());
        assert!(poll!(passing.as_mut()).is_pending());
        assert!(poll!(passing.as_mut()).is_pending());
        let other = tokio::spawn(async {});
        passing.await;
        assert!(other.is_finished());
    }
}
