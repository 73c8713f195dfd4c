//! Measures how much memory a piece of code has held at most.

// Counting what is allocated needs an allocator, and an allocator is unsafe to write.
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

thread_local! {
    static HELD: Cell<isize> = const { Cell::new(0) };
    static MOST: Cell<isize> = const { Cell::new(0) };
}

fn count(bytes: isize) {
    HELD.set(HELD.get() + bytes);
    MOST.set(MOST.get().max(HELD.get()));
}

// SAFETY: every call is handed to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: the caller keeps the contract of `dealloc`.
        unsafe { System.dealloc(at, layout) }
    }
}

/// Runs `f` on this thread and gives, beside its result, the most bytes that it held at a time. Moving a
/// block to a larger one counts both.
pub fn most_held<T>(f: impl FnOnce() -> T) -> (T, usize) {
    let before = HELD.get();
    MOST.set(before);
    let result = f();
    (result, usize::try_from(MOST.get() - before).unwrap_or(0))
}
