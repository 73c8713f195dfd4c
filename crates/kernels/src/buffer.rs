//! Aligned memory for weights, activations and KV pages.
//!
//! Invariant: the elements are initialised (fresh memory is zero) and start on a 64-byte border.
//! Large buffers come straight from the system, ask for huge pages, and go back to it when dropped. Those that
//! stay as long as a model are cut from larger reservations, so that small matrices lie on huge pages too.

use base::Bytes;
use device::DeviceError;
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::{Mutex, PoisonError};

/// Where every buffer, and every panel of a matrix, starts.
pub(crate) const ALIGN: usize = 64;
/// From this size on memory is mapped, so that dropping it returns it to the system at once.
const MAPPED: usize = 128 << 10;
/// Size and alignment of a huge page; buffers of several of them are aligned to it.
const HUGE: usize = 2 << 20;
const PAGE: usize = 4096;

/// Address space that is reserved at a time for buffers that stay; memory is taken as they are written.
const RESERVED: usize = 64 << 20;

/// What is left of the last reservation: its start, and its bytes.
static REST: Mutex<(usize, usize)> = Mutex::new((0, 0));

/// Types for which every bit pattern is a value.
///
/// # Safety
/// Implementers have no padding, no invalid bit pattern and no destructor.
pub(crate) unsafe trait Plain: Copy + Send + Sync + 'static {}
// SAFETY: integers and floats are plain.
unsafe impl Plain for u8 {}
// SAFETY: as above.
unsafe impl Plain for i8 {}
// SAFETY: as above.
unsafe impl Plain for u16 {}
// SAFETY: as above.
unsafe impl Plain for f32 {}
// SAFETY: arrays of plain elements are plain.
unsafe impl<T: Plain, const N: usize> Plain for [T; N] {}

/// A slice on the heap; see the module's invariant.
pub(crate) struct Buffer<T: Plain> {
    start: NonNull<T>,
    len: usize,
    bytes: usize,
    elements: PhantomData<T>,
}

// SAFETY: the buffer owns its memory, and plain elements may be sent and shared.
unsafe impl<T: Plain> Send for Buffer<T> {}
// SAFETY: as above; shared access only reads.
unsafe impl<T: Plain> Sync for Buffer<T> {}

impl<T: Plain> Buffer<T> {
    /// No elements and no memory.
    pub(crate) const fn empty() -> Self {
        Self { start: NonNull::dangling(), len: 0, bytes: 0, elements: PhantomData }
    }

    /// `len` zeros, or the error that the memory could not be had.
    pub(crate) fn zeroed(len: usize) -> Result<Self, DeviceError> {
        Self::with(len, map)
    }

    /// As [`Buffer::zeroed`], for what stays as long as a model and is read all the time.
    pub(crate) fn lasting(len: usize) -> Result<Self, DeviceError> {
        Self::with(len, map_lasting)
    }

    fn with(len: usize, map: fn(usize) -> Option<NonNull<u8>>) -> Result<Self, DeviceError> {
        if len == 0 || size_of::<T>() == 0 {
            return Ok(Self { len, ..Self::empty() });
        }
        let refused = |bytes: usize| DeviceError::OutOfMemory(Bytes(bytes as u64));
        let bytes = len.checked_mul(size_of::<T>()).filter(|b| *b <= isize::MAX as usize - HUGE);
        let bytes = bytes.ok_or_else(|| refused(usize::MAX))?;
        let start = if bytes >= MAPPED { map(bytes) } else { allocate(bytes) };
        let start = start.ok_or_else(|| refused(bytes))?.cast();
        Ok(Self { start, len, bytes, elements: PhantomData })
    }

    /// Sets the length. Elements keep their values only while the buffer need not grow; otherwise all
    /// are zero. Panics when the memory for scratch space cannot be had.
    pub(crate) fn resize(&mut self, len: usize) {
        if len.saturating_mul(size_of::<T>()) > self.bytes {
            // Some room on top, so that a batch that grows row by row does not reallocate each time.
            let room = len + len / 4;
            *self = Self::empty();
            *self = Self::zeroed(room).expect("memory for activations");
        }
        self.len = len;
    }
}

impl<T: Plain> Deref for Buffer<T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        // SAFETY: `start` points to at least `len` initialised elements (or is dangling with none).
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl<T: Plain> DerefMut for Buffer<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as in `deref`, and the buffer is borrowed alone.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl<T: Plain> Drop for Buffer<T> {
    fn drop(&mut self) {
        if self.bytes >= MAPPED {
            // SAFETY: `map` or `map_lasting` gave exactly this range (up to its last page's end), and nobody
            // else knows it.
            unsafe { libc::munmap(self.start.as_ptr().cast(), self.bytes) };
        } else if self.bytes > 0 {
            // SAFETY: `allocate` gave this memory with this layout.
            unsafe { dealloc(self.start.as_ptr().cast(), layout(self.bytes)) };
        }
    }
}

fn layout(bytes: usize) -> Layout {
    Layout::from_size_align(bytes, ALIGN).expect("small sizes are valid layouts")
}

fn allocate(bytes: usize) -> Option<NonNull<u8>> {
    // SAFETY: the layout is not empty.
    NonNull::new(unsafe { alloc_zeroed(layout(bytes)) })
}

/// Maps zeroed memory; from a few huge pages on, aligned to them and marked as wanting them.
fn map(bytes: usize) -> Option<NonNull<u8>> {
    let slack = if bytes >= 2 * HUGE { HUGE } else { 0 };
    // SAFETY: a fresh private mapping without a file; no existing memory is touched.
    let start = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            bytes + slack,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    if start == libc::MAP_FAILED {
        return None;
    }
    if slack == 0 {
        return NonNull::new(start.cast());
    }
    let head = start.align_offset(HUGE);
    let end = bytes.next_multiple_of(PAGE);
    // SAFETY: both ranges lie in the mapping made above, outside of the part that is kept; `head` is
    // a multiple of the page size because the mapping starts on a page.
    unsafe {
        let kept = start.byte_add(head);
        if head > 0 {
            libc::munmap(start, head);
        }
        if bytes + slack > head + end {
            libc::munmap(kept.byte_add(end), bytes + slack - head - end);
        }
        #[cfg(target_os = "linux")]
        libc::madvise(kept, bytes, libc::MADV_HUGEPAGE);
        NonNull::new(kept.cast())
    }
}

/// Memory as from `map`, but next to what was mapped before: the huge pages of a reservation are shared by
/// neighbours, where each small buffer alone could have none.
fn map_lasting(bytes: usize) -> Option<NonNull<u8>> {
    let size = bytes.next_multiple_of(PAGE);
    if size > RESERVED / 4 {
        return map(bytes);
    }
    let mut rest = REST.lock().unwrap_or_else(PoisonError::into_inner);
    if rest.1 < size {
        // What is left of the old one was never touched but for the end of a huge page.
        *rest = (map(RESERVED)?.as_ptr().expose_provenance(), RESERVED);
    }
    let start = rest.0;
    *rest = (start + size, rest.1 - size);
    NonNull::new(std::ptr::with_exposed_provenance_mut(start))
}

/// The bytes of plain elements.
pub(crate) fn as_bytes<T: Plain>(x: &[T]) -> &[u8] {
    // SAFETY: plain elements have no padding; the length is that of the same memory in bytes.
    unsafe { std::slice::from_raw_parts(x.as_ptr().cast(), size_of_val(x)) }
}

/// A slice that several threads write at once, each its own part.
pub(crate) struct Shared<'a, T> {
    start: *mut T,
    len: usize,
    borrow: PhantomData<&'a mut [T]>,
}

// SAFETY: parts are only given out under the promise of `part` that they do not overlap.
unsafe impl<T: Send> Send for Shared<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for Shared<'_, T> {}

impl<'a, T: Send> Shared<'a, T> {
    pub(crate) fn new(x: &'a mut [T]) -> Self {
        Self { start: x.as_mut_ptr(), len: x.len(), borrow: PhantomData }
    }

    /// The elements `[from, from + len)`.
    ///
    /// # Safety
    /// No other part that overlaps is alive.
    #[inline(always)]
    #[allow(clippy::mut_from_ref)]
    pub(crate) unsafe fn part(&self, from: usize, len: usize) -> &'a mut [T] {
        assert!(from <= self.len && len <= self.len - from, "the part lies in the slice");
        // SAFETY: the range was checked, the memory is borrowed for `'a`, and the caller promises that
        // the part is alone.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(from), len) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fresh_memory_is_zero_and_aligned() {
        for len in [1, 63, 1000, 40_000, 3 << 20] {
            let buffer = Buffer::<f32>::zeroed(len).expect("memory");
            assert!(buffer.iter().all(|x| *x == 0.0));
            assert_eq!(buffer.as_ptr().align_offset(ALIGN), 0);
        }
    }

    #[test]
    fn buffers_that_stay_are_zero_aligned_and_apart() {
        let sizes = [1, 4096, MAPPED, MAPPED + 1, 600_000, RESERVED / 4, RESERVED / 4 + 1, RESERVED];
        let mut buffers: Vec<_> = sizes.map(|len| Buffer::<u8>::lasting(len).expect("memory")).into();
        for (i, buffer) in buffers.iter_mut().enumerate() {
            assert!(buffer.iter().all(|x| *x == 0), "{} bytes", sizes[i]);
            assert_eq!(buffer.as_ptr().align_offset(ALIGN), 0);
            buffer.fill(i as u8 + 1);
        }
        // Each has its own memory still when others have given theirs back.
        buffers.remove(3);
        for (buffer, i) in buffers.iter().zip([1, 2, 3, 5, 6, 7, 8]) {
            assert!(buffer.iter().all(|x| *x == i));
        }
        let fresh = Buffer::<u8>::lasting(MAPPED).expect("memory");
        assert!(fresh.iter().all(|x| *x == 0));
    }

    #[test]
    fn absurd_sizes_are_refused_not_fatal() {
        assert!(matches!(Buffer::<f32>::zeroed(usize::MAX / 2), Err(DeviceError::OutOfMemory(_))));
        assert!(matches!(Buffer::<u8>::zeroed(1 << 60), Err(DeviceError::OutOfMemory(_))));
        assert!(matches!(Buffer::<u8>::lasting(1 << 60), Err(DeviceError::OutOfMemory(_))));
    }

    #[test]
    fn resizing_within_the_memory_keeps_the_values() {
        let mut buffer = Buffer::<f32>::empty();
        buffer.resize(100);
        buffer[3] = 7.0;
        buffer.resize(10);
        buffer.resize(100);
        assert_eq!(buffer[3], 7.0);
    }
}
