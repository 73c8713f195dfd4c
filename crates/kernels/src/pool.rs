//! A small pool of threads for parallel loops inside one step.
//!
//! A parallel region is published as one word (epoch, open bit, count of workers inside). Workers that
//! see it open enter, claim items from an atomic counter, and leave; the caller works too, then closes
//! the region and waits only for the workers that are inside, so a worker that the system has put aside
//! never holds up a step by not having started.
//!
//! Invariants: one region at a time; a job lives on its caller's stack and is only read by workers
//! that are counted inside; workers spin for some microseconds after a region and then sleep.
//!
//! What it does not do: pin threads (the thread that asks belongs to the engine, and a server's other threads
//! share the processors), nest (an inner loop runs on the thread that asked), or promise which thread
//! runs an item: results must not depend on that.

use std::any::Any;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// Looks at the word before a worker sleeps; a pause takes some tens of cycles.
const SPINS: u32 = 4_000;
const OPEN: u64 = 1 << 31;
const INSIDE: u64 = OPEN - 1;

thread_local! {
    /// Whether this thread is inside a region.
    static INSIDE_REGION: Cell<bool> = const { Cell::new(false) };
}

/// A loop body, without its lifetime; see `Pool::run`.
type Body = *const (dyn Fn(usize) + Sync);

struct Job {
    body: Body,
    items: usize,
    next: AtomicUsize,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

impl Job {
    fn work(&self) {
        INSIDE_REGION.set(true);
        let result = catch_unwind(AssertUnwindSafe(|| {
            loop {
                let item = self.next.fetch_add(1, Ordering::Relaxed);
                if item >= self.items {
                    break;
                }
                // SAFETY: the job is alive, so its caller waits in `Pool::run`, which borrows the body.
                unsafe { (*self.body)(item) };
            }
        }));
        INSIDE_REGION.set(false);
        if let Err(panic) = result {
            self.next.store(self.items, Ordering::Relaxed);
            lock(&self.panic).get_or_insert(panic);
        }
    }
}

struct Gate {
    /// `epoch << 32 | open bit | workers inside`.
    word: AtomicU64,
    job: AtomicPtr<Job>,
    sleepers: AtomicUsize,
    sleep: Mutex<()>,
    wake: Condvar,
    stop: AtomicBool,
}

/// The threads; shared by all clones of a device.
pub(crate) struct Pool {
    gate: Arc<Gate>,
    /// Held by the thread whose region is open.
    region: Mutex<()>,
    workers: Vec<JoinHandle<()>>,
}

impl Pool {
    /// A pool that works with `threads` threads, the caller's included.
    pub(crate) fn new(threads: usize) -> std::io::Result<Self> {
        let gate = Arc::new(Gate {
            word: AtomicU64::new(0),
            job: AtomicPtr::new(std::ptr::null_mut()),
            sleepers: AtomicUsize::new(0),
            sleep: Mutex::new(()),
            wake: Condvar::new(),
            stop: AtomicBool::new(false),
        });
        let mut pool = Self { gate, region: Mutex::new(()), workers: Vec::new() };
        for i in 1..threads.max(1) {
            let gate = Arc::clone(&pool.gate);
            let worker = std::thread::Builder::new().name(format!("kernels-{i}"));
            pool.workers.push(worker.spawn(move || gate.serve())?);
        }
        Ok(pool)
    }

    /// Threads that work in a region, the caller's included.
    pub(crate) fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Runs `body` once for each item of `0..items` and returns when all are done. A panic of the body
    /// is passed on (the first one) once no thread is inside; the pool stays usable.
    pub(crate) fn run(&self, items: usize, body: &(dyn Fn(usize) + Sync)) {
        if items <= 1 || self.workers.is_empty() || INSIDE_REGION.get() {
            (0..items).for_each(body);
            return;
        }
        // SAFETY: only the lifetime is changed. `Job::work` calls the body while the job is alive, and
        // this function does not return (or unwind) before every thread has left the job.
        let body = unsafe { std::mem::transmute::<*const (dyn Fn(usize) + Sync + '_), Body>(body) };
        let job = Job { body, items, next: AtomicUsize::new(0), panic: Mutex::new(None) };
        let region = lock(&self.region);
        self.gate.open(&job);
        job.work();
        self.gate.close();
        drop(region);
        let panic = lock(&job.panic).take();
        if let Some(panic) = panic {
            resume_unwind(panic);
        }
    }

    /// `run` over the ranges that cut `0..len` into pieces of `piece` (the last may be shorter).
    pub(crate) fn ranges(&self, len: usize, piece: usize, body: &(dyn Fn(std::ops::Range<usize>) + Sync)) {
        let piece = piece.max(1);
        self.run(len.div_ceil(piece), &|i| body(i * piece..len.min((i + 1) * piece)));
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.gate.stop.store(true, Ordering::SeqCst);
        drop(lock(&self.gate.sleep));
        self.gate.wake.notify_all();
        for worker in self.workers.drain(..) {
            // A worker catches the panics of its jobs; its own end carries no news.
            let _ended = worker.join();
        }
    }
}

impl Gate {
    fn open(&self, job: &Job) {
        self.job.store(std::ptr::from_ref(job).cast_mut(), Ordering::Relaxed);
        let epoch = (self.word.load(Ordering::Relaxed) >> 32).wrapping_add(1) & 0xffff_ffff;
        self.word.store((epoch << 32) | OPEN, Ordering::SeqCst);
        if self.sleepers.load(Ordering::SeqCst) > 0 {
            drop(lock(&self.sleep));
            self.wake.notify_all();
        }
    }

    /// Lets nobody in any more and waits for those inside.
    fn close(&self) {
        let mut inside = self.word.fetch_and(!OPEN, Ordering::AcqRel) & INSIDE;
        let mut looks = 0u32;
        while inside > 0 {
            looks += 1;
            if looks.is_multiple_of(SPINS) {
                std::thread::yield_now();
            } else {
                std::hint::spin_loop();
            }
            inside = self.word.load(Ordering::Acquire) & INSIDE;
        }
    }

    /// A worker's life.
    fn serve(&self) {
        let mut seen = 0;
        while let Some(word) = self.next(seen) {
            seen = word >> 32;
            if self.enter(word) {
                let job = self.job.load(Ordering::Relaxed);
                // SAFETY: the word was open when this worker was counted inside, so the job was
                // published before it and lives until this worker has left.
                unsafe { (*job).work() };
                self.word.fetch_sub(1, Ordering::Release);
            }
        }
    }

    /// Counts this worker inside the region of `word`, unless that is closed by now.
    fn enter(&self, mut word: u64) -> bool {
        let epoch = word >> 32;
        while word & OPEN != 0 && word >> 32 == epoch {
            match self.word.compare_exchange_weak(word, word + 1, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return true,
                Err(now) => word = now,
            }
        }
        false
    }

    /// Waits for an epoch other than `seen`; `None` when the pool ends.
    fn next(&self, seen: u64) -> Option<u64> {
        for _ in 0..SPINS {
            if self.stop.load(Ordering::Relaxed) {
                return None;
            }
            let word = self.word.load(Ordering::Acquire);
            if word >> 32 != seen {
                return Some(word);
            }
            std::hint::spin_loop();
        }
        let mut guard = lock(&self.sleep);
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        let found = loop {
            if self.stop.load(Ordering::SeqCst) {
                break None;
            }
            let word = self.word.load(Ordering::SeqCst);
            if word >> 32 != seen {
                break Some(word);
            }
            guard = self.wake.wait(guard).unwrap_or_else(PoisonError::into_inner);
        };
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
        drop(guard);
        found
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What these mutexes guard is valid at every point where a thread could panic.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sum(pool: &Pool, items: usize) -> usize {
        let total = AtomicUsize::new(0);
        pool.run(items, &|i| {
            total.fetch_add(i + 1, Ordering::Relaxed);
        });
        total.into_inner()
    }

    #[test]
    fn every_item_runs_once_whatever_the_number_of_threads() {
        for threads in 1..=4 {
            let pool = Pool::new(threads).expect("threads");
            for items in [0, 1, 2, 3, 100] {
                assert_eq!(sum(&pool, items), items * (items + 1) / 2);
            }
        }
    }

    #[test]
    fn many_short_regions_lose_nothing() {
        let pool = Pool::new(3).expect("threads");
        for round in 0..2_000 {
            assert_eq!(sum(&pool, 5), 15, "round {round}");
        }
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_pool_goes_on() {
        let pool = Pool::new(3).expect("threads");
        for bad in 0..8 {
            let caught = catch_unwind(AssertUnwindSafe(|| {
                pool.run(8, &|i| assert!(i != bad, "item {i} is bad"));
            }));
            let text = *caught.expect_err("the panic").downcast::<String>().expect("its text");
            assert_eq!(text, format!("item {bad} is bad"));
            assert_eq!(sum(&pool, 100), 5050);
        }
    }

    #[test]
    fn an_inner_region_runs_inside_its_item() {
        let pool = Pool::new(3).expect("threads");
        let total = AtomicUsize::new(0);
        pool.run(4, &|_| {
            total.fetch_add(sum(&pool, 10), Ordering::Relaxed);
        });
        assert_eq!(total.into_inner(), 4 * 55);
    }

    #[test]
    fn several_threads_share_one_pool() {
        let pool = Pool::new(2).expect("threads");
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..300 {
                        assert_eq!(sum(&pool, 7), 28);
                    }
                });
            }
        });
    }

    /// Waits, without judging how long, until `ready`.
    fn until(ready: impl Fn() -> bool) {
        while !ready() {
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_thread_that_is_held_up_in_its_item_leaves_the_rest_to_the_others() {
        let pool = Pool::new(2).expect("threads");
        for held in [0, 3, 49] {
            let done = AtomicUsize::new(0);
            pool.run(50, &|item| {
                // Items are claimed in order, so those after this one must find another thread.
                if item == held {
                    until(|| done.load(Ordering::Relaxed) == 49);
                }
                done.fetch_add(1, Ordering::Relaxed);
            });
            assert_eq!(done.into_inner(), 50);
        }
    }

    #[test]
    fn many_more_threads_than_processors_lose_nothing() {
        let pool = Pool::new(64).expect("threads");
        for round in 0..100 {
            assert_eq!(sum(&pool, 100), 5050, "round {round}");
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn four_threads_on_one_processor_lose_nothing() {
        // In a thread of its own: what it starts is bound to that processor too.
        std::thread::scope(|scope| {
            scope.spawn(|| {
                // SAFETY: a set of processors is plain bits, and the call writes no more than its size.
                let allowed: libc::cpu_set_t = unsafe {
                    let mut set = std::mem::zeroed();
                    assert_eq!(libc::sched_getaffinity(0, size_of_val(&set), &raw mut set), 0);
                    set
                };
                // SAFETY: the index is within the set.
                let first =
                    (0..libc::CPU_SETSIZE as usize).find(|i| unsafe { libc::CPU_ISSET(*i, &allowed) });
                // SAFETY: as above; the call reads the set.
                unsafe {
                    let mut one: libc::cpu_set_t = std::mem::zeroed();
                    libc::CPU_SET(first.expect("a processor"), &mut one);
                    assert_eq!(libc::sched_setaffinity(0, size_of_val(&one), &raw const one), 0);
                }
                let default = crate::Cpu::new(crate::CpuConfig::default()).expect("a device");
                assert_eq!(default.threads(), 1, "the default keeps to what this thread may use");
                let pool = Pool::new(4).expect("threads");
                for round in 0..200 {
                    assert_eq!(sum(&pool, 9), 45, "round {round}");
                }
            });
        });
    }

    /// What a paused worker waits for, and whether it waits.
    #[cfg(target_os = "linux")]
    static PAUSE: (AtomicBool, AtomicBool) = (AtomicBool::new(false), AtomicBool::new(false));

    #[cfg(target_os = "linux")]
    #[test]
    fn a_paused_worker_does_not_hold_up_a_region() {
        use std::os::unix::thread::JoinHandleExt;

        extern "C" fn pause(_signal: libc::c_int) {
            PAUSE.1.store(true, Ordering::SeqCst);
            until(|| !PAUSE.0.load(Ordering::SeqCst));
        }

        let pool = Pool::new(2).expect("threads");
        let handler: extern "C" fn(libc::c_int) = pause;
        // SAFETY: the handler only touches atomics and yields; nothing else here uses this signal.
        unsafe { libc::signal(libc::SIGUSR1, handler as libc::sighandler_t) };
        until(|| pool.gate.sleepers.load(Ordering::SeqCst) == 1);
        PAUSE.0.store(true, Ordering::SeqCst);
        {
            // It sleeps, and while this is held it cannot hold it: nobody is paused with a lock in hand.
            let _guard = lock(&pool.gate.sleep);
            // SAFETY: the worker has not been joined.
            let sent = unsafe { libc::pthread_kill(pool.workers[0].as_pthread_t(), libc::SIGUSR1) };
            assert_eq!(sent, 0);
            until(|| PAUSE.1.load(Ordering::SeqCst));
        }
        for round in 0..100 {
            assert_eq!(sum(&pool, 9), 45, "round {round}");
        }
        PAUSE.0.store(false, Ordering::SeqCst);
        // Awake again, it takes its share: this needs both threads.
        let both = AtomicUsize::new(0);
        pool.run(2, &|_| {
            both.fetch_add(1, Ordering::SeqCst);
            until(|| both.load(Ordering::SeqCst) == 2);
        });
    }
}
