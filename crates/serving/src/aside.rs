//! Work that takes a model's tokenizer or template a while, off the async threads, a few pieces at a time.
//!
//! Invariants: at most so many pieces run at once, those of callers that have left included; others wait in the order
//! in which they came. A flood of requests to count tokens thus holds few of the runtime's blocking threads, which
//! answers and files need too. Does not bound who waits: each waits inside a request that its server has let in.

use protocol::{Error, ErrorKind};
use std::sync::Arc;
use tokio::sync::Semaphore;

/// Pieces of work of one model at a time.
const PLACES: usize = 8;

/// See the module.
pub(crate) struct Aside {
    places: Arc<Semaphore>,
}

impl Default for Aside {
    fn default() -> Self {
        Self::new(PLACES)
    }
}

impl Aside {
    fn new(places: usize) -> Self {
        Self { places: Arc::new(Semaphore::new(places)) }
    }

    /// Does the work once there is a place for it.
    pub async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let failed = || Error::new(ErrorKind::Internal, "preparing the prompt failed");
        let place = Arc::clone(&self.places).acquire_owned().await.map_err(|_| failed())?;
        // The place goes along: a caller that leaves cannot end the work, which must not pile up unseen.
        let done = tokio::task::spawn_blocking(move || {
            let _place = place;
            work()
        });
        done.await.map_err(|_| failed())?
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::poll;
    use std::pin::pin;
    use std::sync::Mutex;
    use std::sync::mpsc::channel;
    use tokio::sync::mpsc;

    #[tokio::test]
    async fn what_finds_no_place_waits_until_another_is_done() {
        let aside = Aside::new(1);
        let log = Arc::new(Mutex::new(Vec::new()));
        let (go, gate) = channel::<()>();
        let (begun, mut started) = mpsc::unbounded_channel();
        let told = Arc::clone(&log);
        let mut first = pin!(aside.run(move || {
            begun.send(()).unwrap();
            gate.recv().unwrap();
            told.lock().unwrap().push("first");
            Ok(())
        }));
        assert!(poll!(&mut first).is_pending());
        started.recv().await.unwrap();
        let told = Arc::clone(&log);
        let mut second = pin!(aside.run(move || {
            told.lock().unwrap().push("second");
            Ok(())
        }));
        assert!(poll!(&mut second).is_pending());
        go.send(()).unwrap();
        second.await.unwrap();
        first.await.unwrap();
        assert_eq!(*log.lock().unwrap(), ["first", "second"]);
    }

    #[tokio::test]
    async fn work_keeps_its_place_when_its_caller_leaves_and_gives_it_back_when_it_panics() {
        let aside = Aside::new(1);
        let (go, gate) = channel::<()>();
        {
            let mut left = pin!(aside.run(move || {
                let _ = gate.recv();
                Ok(())
            }));
            assert!(poll!(&mut left).is_pending());
        }
        assert_eq!(aside.places.available_permits(), 0);
        go.send(()).unwrap();
        let fault = aside.run(|| -> Result<(), Error> { panic!("as planned") }).await.unwrap_err();
        assert_eq!(fault.kind, ErrorKind::Internal);
        assert_eq!(aside.run(|| Ok(4)).await, Ok(4));
    }
}
