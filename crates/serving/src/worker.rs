//! The thread that owns a model without state between requests: embedding models and rerankers.
//!
//! One request after the other; a request whose caller is gone is skipped. At most `queue` wait beside the one that
//! is computed, those included whose inputs are still being tokenised. A panic fails the request that it
//! happened in and the model is loaded anew. What inputs are, and when they are refused, is not known here.

use crate::inbox::{overloaded, unavailable};
use crate::metrics::{Metrics, Outcome};
use protocol::{Error, ErrorKind};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::sync::{Semaphore, mpsc, oneshot};

/// Inputs of one request that are computed without a look at whether its caller is still there.
const CHUNK: usize = 16;

const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// A pause is cut into these, to see whether the model is still wanted.
const SLICE: Duration = Duration::from_millis(250);

/// A model of which each input has one output, whatever else is computed beside it.
pub(crate) trait Computes: Send + 'static {
    type Input: Send + 'static;
    type Output: Send + 'static;
    type Spec: Clone + PartialEq;
    /// What it is called in the log.
    const KIND: &'static str;
    fn spec(&self) -> &Self::Spec;
    fn compute(&mut self, inputs: &[Self::Input]) -> Vec<Self::Output>;
}

/// Makes the model again, from its files.
pub(crate) type Reload<M> = Box<dyn FnMut() -> Result<M, String> + Send>;

/// The inputs of a request.
pub(crate) struct Inputs<I> {
    pub inputs: Vec<I>,
    /// Their tokens, in all.
    pub tokens: usize,
}

struct Job<M: Computes> {
    inputs: Vec<M::Input>,
    answer: oneshot::Sender<Result<Vec<M::Output>, Error>>,
}

/// A handle on a model's thread. The thread ends when the handle is gone.
pub(crate) struct Worker<M: Computes> {
    jobs: mpsc::Sender<Job<M>>,
    /// Places for requests, one more than may wait.
    places: Arc<Semaphore>,
    ready: Arc<AtomicBool>,
    metrics: Arc<Metrics>,
}

impl<M: Computes> Worker<M> {
    /// Starts the thread; at most `queue` requests wait.
    pub fn start(
        name: &str,
        model: M,
        reload: Reload<M>,
        queue: usize,
        metrics: Arc<Metrics>,
    ) -> std::io::Result<(Self, JoinHandle<()>)> {
        let queue = queue.clamp(1, Semaphore::MAX_PERMITS - 1);
        let (jobs, inbox) = mpsc::channel(queue);
        let places = Arc::new(Semaphore::new(queue + 1));
        let ready = Arc::new(AtomicBool::new(true));
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn({
            let (ready, metrics) = (Arc::clone(&ready), Arc::clone(&metrics));
            move || run(inbox, model, reload, &ready, &metrics)
        })?;
        Ok((Self { jobs, places, ready, metrics }, thread))
    }

    pub fn is_ready(&self) -> bool {
        self.ready.load(Ordering::Acquire)
    }

    /// Outputs for the inputs that `prepare` makes, which may take its time, and the inputs' tokens.
    pub async fn answer(
        &self,
        prepare: impl FnOnce() -> Result<Inputs<M::Input>, Error> + Send + 'static,
    ) -> Result<(Vec<M::Output>, u32), Error> {
        let result = self.outputs(prepare).await;
        self.metrics.ended(match &result {
            Ok(_) => Outcome::Finished,
            Err(error) if error.kind == ErrorKind::Overloaded => Outcome::Overloaded,
            Err(error) if error.kind.retryable() => Outcome::Failed,
            Err(_) => Outcome::Refused,
        });
        result
    }

    async fn outputs(
        &self,
        prepare: impl FnOnce() -> Result<Inputs<M::Input>, Error> + Send + 'static,
    ) -> Result<(Vec<M::Output>, u32), Error> {
        let Ok(place) = Arc::clone(&self.places).try_acquire_owned() else {
            return Err(overloaded(self.jobs.max_capacity()));
        };
        // The place goes along: a caller that leaves cannot end the work, which must not pile up unseen.
        let prepared = tokio::task::spawn_blocking(move || (prepare(), place));
        let (prepared, _place) =
            prepared.await.map_err(|_| Error::new(ErrorKind::Internal, "tokenising failed"))?;
        let Inputs { inputs, tokens } = prepared?;
        let (answer, outputs) = oneshot::channel();
        if !self.is_ready() {
            return Err(unavailable("the model is not ready; try again soon"));
        }
        match self.jobs.try_send(Job { inputs, answer }) {
            Ok(()) => {}
            Err(mpsc::error::TrySendError::Full(_)) => return Err(overloaded(self.jobs.max_capacity())),
            Err(mpsc::error::TrySendError::Closed(_)) => return Err(unavailable("the model is gone")),
        }
        let outputs = outputs.await.map_err(|_| unavailable("the model went away; try again"))??;
        self.metrics.read_whole(tokens as u64);
        Ok((outputs, u32::try_from(tokens).unwrap_or(u32::MAX)))
    }
}

fn run<M: Computes>(
    mut inbox: mpsc::Receiver<Job<M>>,
    model: M,
    mut reload: Reload<M>,
    ready: &AtomicBool,
    metrics: &Metrics,
) {
    let spec = model.spec().clone();
    let mut model = Some(model);
    while let Some(loaded) = &mut model {
        let Some(Job { inputs, answer }) = inbox.blocking_recv() else { break };
        let mut outputs = Vec::with_capacity(inputs.len());
        let computed = catch_unwind(AssertUnwindSafe(|| {
            for chunk in inputs.chunks(CHUNK).take_while(|_| !answer.is_closed()) {
                outputs.extend(loaded.compute(chunk));
            }
        }));
        if computed.is_ok() {
            let _ = answer.send(Ok(outputs));
            continue;
        }
        ready.store(false, Ordering::Release);
        metrics.restarted();
        tracing::error!("the {} panicked", M::KIND);
        let _ = answer.send(Err(unavailable("the model failed and is being loaded again; try again")));
        let broken = model.take();
        let _ = catch_unwind(AssertUnwindSafe(|| drop(broken)));
        model = load_again(&mut inbox, &mut reload, &spec);
        ready.store(model.is_some(), Ordering::Release);
    }
    ready.store(false, Ordering::Release);
}

/// Loads the model until that succeeds, with growing pauses, or until nobody wants it any more.
fn load_again<M: Computes>(
    inbox: &mut mpsc::Receiver<Job<M>>,
    reload: &mut Reload<M>,
    spec: &M::Spec,
) -> Option<M> {
    let mut pause = FIRST_PAUSE;
    loop {
        match catch_unwind(AssertUnwindSafe(&mut *reload)) {
            // Tokenizer and requests are the old one's.
            Ok(Ok(model)) if *model.spec() == *spec => return Some(model),
            Ok(Ok(_)) => tracing::error!("the {}'s files now hold another model", M::KIND),
            Ok(Err(error)) => tracing::error!(%error, "the {} could not be loaded again", M::KIND),
            Err(_) => tracing::error!("loading the {} again panicked", M::KIND),
        }
        let mut left = pause;
        while !left.is_zero() {
            while let Ok(Job { answer, .. }) = inbox.try_recv() {
                let _ = answer.send(Err(unavailable("the model is being loaded again; try again")));
            }
            if inbox.is_closed() {
                return None;
            }
            let slice = left.min(SLICE);
            std::thread::park_timeout(slice);
            left -= slice;
        }
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU32;

    /// Doubles numbers; panics over zero.
    struct Doubles;

    impl Computes for Doubles {
        type Input = u32;
        type Output = u32;
        type Spec = ();
        const KIND: &'static str = "doubling model";

        fn spec(&self) -> &() {
            &()
        }

        fn compute(&mut self, inputs: &[u32]) -> Vec<u32> {
            assert!(inputs.iter().all(|input| *input != 0), "told to panic");
            inputs.iter().map(|input| input * 2).collect()
        }
    }

    fn start(queue: usize, reload: Reload<Doubles>) -> (Worker<Doubles>, JoinHandle<()>) {
        Worker::start("m", Doubles, reload, queue, Arc::new(Metrics::default())).unwrap()
    }

    fn inputs(inputs: &[u32]) -> impl FnOnce() -> Result<Inputs<u32>, Error> + use<> {
        let inputs = inputs.to_vec();
        move || Ok(Inputs { tokens: inputs.len(), inputs })
    }

    #[tokio::test]
    async fn a_panic_fails_its_request_and_the_model_is_loaded_anew() {
        let reloads = Arc::new(AtomicU32::new(0));
        let (worker, thread) = start(4, {
            let reloads = Arc::clone(&reloads);
            Box::new(move || {
                reloads.fetch_add(1, Ordering::SeqCst);
                Ok(Doubles)
            })
        });
        assert_eq!(worker.answer(inputs(&[1, 2])).await.unwrap(), (vec![2, 4], 2));
        let error = worker.answer(inputs(&[0])).await.unwrap_err();
        assert!(error.kind == ErrorKind::Unavailable && error.retry_after.is_some(), "{error}");
        while !worker.is_ready() {
            tokio::task::yield_now().await;
        }
        assert_eq!(worker.answer(inputs(&[3])).await.unwrap().0, [6]);
        assert_eq!((reloads.load(Ordering::SeqCst), worker.metrics.stats().restarts), (1, 1));
        drop(worker);
        thread.join().unwrap();
    }

    #[tokio::test]
    async fn requests_count_from_before_their_inputs_are_prepared() {
        let (worker, thread) = start(1, Box::new(|| Err("not asked for".into())));
        let places: Vec<_> =
            (0..2).map(|_| Arc::clone(&worker.places).try_acquire_owned().unwrap()).collect();
        assert_eq!(worker.answer(inputs(&[1])).await.unwrap_err().kind, ErrorKind::Overloaded);
        drop(places);
        assert!(worker.answer(inputs(&[1])).await.is_ok());
        drop(worker);
        thread.join().unwrap();
    }
}
