//! What the machine can do just now: how fast it reads memory and multiplies bytes, by loops of their own that no work on
//! the other kernels changes. Speeds are judged as shares of these rates.
//!
//! The threads are not the pool's: a probe measures the machine, not the pool.

use crate::buffer::Buffer;
use base::Bytes;
use device::DeviceError;
use std::hint::black_box;
use std::sync::Barrier;
use std::time::{Duration, Instant};

/// Each rate is the best of so many tries.
const TRIES: usize = 5;
/// Bytes that a try reads at least, so that starting threads does not count.
const READ_MIN: usize = 128 << 20;
/// How long a try of the products lasts at least.
const PRODUCTS_MIN: Duration = Duration::from_millis(4);
/// Places that a thread reads from at a time.
const STREAMS: usize = 4;
/// Accumulators of a product loop, enough to hide its latency.
const SUMS: usize = 16;

/// A block of memory that is read as fast as the machine can.
pub struct MemoryProbe {
    block: Buffer<[u8; 64]>,
}

impl MemoryProbe {
    /// Takes memory, at least a few lines a thread, and touches it.
    ///
    /// # Errors
    /// When the memory cannot be had.
    pub fn new(bytes: Bytes) -> Result<Self, DeviceError> {
        let lines = usize::try_from(bytes.0 / 64).unwrap_or(usize::MAX).max(1024);
        let mut block = Buffer::zeroed(lines)?;
        // Fresh memory is one page of zeros until it is written.
        block.fill([1; 64]);
        Ok(Self { block })
    }

    /// The size of the block.
    #[must_use]
    pub fn size(&self) -> Bytes {
        Bytes(size_of_val(&*self.block) as u64)
    }

    /// Bytes a second with so many threads, reading the first `bytes` of the block again and again; the best of some
    /// tries.
    #[must_use]
    pub fn rate(&self, threads: usize, bytes: Bytes) -> f64 {
        let lines =
            usize::try_from(bytes.0 / 64).unwrap_or(usize::MAX).clamp(threads.max(1), self.block.len());
        let block = &self.block[..lines];
        let passes = READ_MIN.div_ceil(size_of_val(block));
        let parts: Vec<&[[u8; 64]]> = block.chunks(lines.div_ceil(threads.max(1))).collect();
        let seconds = best(parts.len(), &|thread| {
            for _ in 0..passes {
                black_box(sum(black_box(parts[thread])));
            }
        });
        size_of_val(block) as f64 * passes as f64 / seconds
    }
}

/// How fast bytes are multiplied and summed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ProductRate {
    /// Operations a second over all threads; a product with its sum is two.
    pub operations: f64,
    /// The instructions that did it.
    pub instructions: &'static str,
}

/// The rate of the best 8-bit instructions that this CPU has, with so many threads, the best of some tries.
#[must_use]
pub fn product_rate(threads: usize) -> ProductRate {
    let path = *paths().last().expect("plain Rust runs everywhere");
    let mut rounds = 1 << 10;
    while timed(|| run(path, rounds)) < PRODUCTS_MIN {
        rounds *= 2;
    }
    let threads = threads.max(1);
    let seconds = best(threads, &|_| {
        run(path, rounds);
    });
    let operations = 2 * path.bytes * SUMS * rounds * threads;
    ProductRate { operations: operations as f64 / seconds, instructions: path.name }
}

/// The size of the largest cache, where the system tells.
#[must_use]
pub fn last_level_cache() -> Option<Bytes> {
    let sizes = (0..8).filter_map(|index| {
        let path = format!("/sys/devices/system/cpu/cpu0/cache/index{index}/size");
        cache_size(&std::fs::read_to_string(path).ok()?)
    });
    sizes.max().map(Bytes)
}

/// `32768K`, as Linux writes it.
fn cache_size(text: &str) -> Option<u64> {
    let text = text.trim();
    let (digits, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()));
    let shift = match unit {
        "" => 0,
        "K" => 10,
        "M" => 20,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(1 << shift)
}

fn timed<T>(body: impl FnOnce() -> T) -> Duration {
    let start = Instant::now();
    black_box(body());
    start.elapsed()
}

/// Seconds of the fastest try of all threads together.
fn best(threads: usize, body: &(impl Fn(usize) + Sync)) -> f64 {
    let barrier = Barrier::new(threads);
    let work = |thread| {
        let mut best = f64::INFINITY;
        for _ in 0..TRIES {
            barrier.wait();
            let start = Instant::now();
            body(thread);
            barrier.wait();
            best = best.min(start.elapsed().as_secs_f64());
        }
        best
    };
    let work = &work;
    std::thread::scope(|scope| {
        for thread in 1..threads {
            scope.spawn(move || work(thread));
        }
        work(0)
    })
    .max(1e-9)
}

/// The sum of all eight-byte words, read as several streams with the widest loads.
fn sum(part: &[[u8; 64]]) -> u64 {
    let (streams, rest) = streams(part);
    let read = || {
        #[cfg(target_arch = "x86_64")]
        {
            if is_x86_feature_detected!("avx512f") {
                // SAFETY: the CPU has AVX-512 F.
                return unsafe { x86::sum_avx512(streams) };
            }
            if is_x86_feature_detected!("avx2") {
                // SAFETY: the CPU has AVX2.
                return unsafe { x86::sum_avx2(streams) };
            }
        }
        streams.map(sum_words).iter().fold(0, |sum: u64, x| sum.wrapping_add(*x))
    };
    read().wrapping_add(sum_words(rest))
}

/// Equal parts one after another, and what is left.
fn streams(part: &[[u8; 64]]) -> ([&[[u8; 64]]; STREAMS], &[[u8; 64]]) {
    let length = part.len() / STREAMS;
    (std::array::from_fn(|s| &part[s * length..][..length]), &part[STREAMS * length..])
}

/// Reads one stream with what the compiler makes of it.
fn sum_words(lines: &[[u8; 64]]) -> u64 {
    let words = lines.iter().flat_map(|line| line.as_chunks::<8>().0);
    words.fold(0, |sum, word| sum.wrapping_add(u64::from_ne_bytes(*word)))
}

/// A loop that multiplies bytes: `rounds` times the products of one vector with each of [`SUMS`] others, summed up.
///
/// Invariant: `run` is sound on this CPU, which is why only [`paths`] makes one.
#[derive(Clone, Copy)]
struct Path {
    name: &'static str,
    /// Bytes of a vector.
    bytes: usize,
    run: fn(rounds: usize, x: u8, w: i8) -> i32,
}

/// What the vectors hold in a measurement; their values do not matter.
fn run(path: Path, rounds: usize) -> i32 {
    (path.run)(rounds, black_box(3), black_box(-2))
}

/// The loops that this CPU can run, slowest first.
fn paths() -> Vec<Path> {
    #[cfg_attr(not(target_arch = "x86_64"), expect(unused_mut))]
    let mut paths = vec![Path { name: "plain Rust", bytes: 16, run: scalar }];
    #[cfg(target_arch = "x86_64")]
    {
        // SAFETY: listed below only where the CPU has AVX2.
        let avx2 = |n, x, w| unsafe { x86::avx2(n, x, w) };
        // SAFETY: listed below only where the CPU has AVX-VNNI and AVX2.
        let avx_vnni = |n, x, w| unsafe { x86::avx_vnni(n, x, w) };
        // SAFETY: listed below only where the CPU has AVX-512 F and VNNI.
        let avx512_vnni = |n, x, w| unsafe { x86::avx512_vnni(n, x, w) };
        if is_x86_feature_detected!("avx2") {
            paths.push(Path { name: "AVX2", bytes: 32, run: avx2 });
        }
        if is_x86_feature_detected!("avxvnni") && is_x86_feature_detected!("avx2") {
            paths.push(Path { name: "AVX-VNNI", bytes: 32, run: avx_vnni });
        }
        if is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512vnni") {
            paths.push(Path { name: "AVX-512 VNNI", bytes: 64, run: avx512_vnni });
        }
    }
    paths
}

fn scalar(rounds: usize, x: u8, w: i8) -> i32 {
    let (x, weights) = black_box(([x; 16], [[w; 16]; SUMS]));
    let mut sums = [0i32; SUMS];
    for _ in 0..rounds {
        // Looked at anew in each round, so that the products are not worked out once for all.
        for (sum, w) in sums.iter_mut().zip(black_box(&weights)) {
            let products = x.iter().zip(w).map(|(x, w)| i32::from(*x) * i32::from(*w));
            *sum = sum.wrapping_add(products.sum());
        }
    }
    sums.iter().fold(0, |sum, x| sum.wrapping_add(*x))
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{STREAMS, SUMS, black_box};
    use std::arch::x86_64::*;

    #[target_feature(enable = "avx512f")]
    pub fn sum_avx512(streams: [&[[u8; 64]]; STREAMS]) -> u64 {
        let [a, b, c, d] = streams;
        let mut sums = [_mm512_setzero_si512(); STREAMS];
        for (((a, b), c), d) in a.iter().zip(b).zip(c).zip(d) {
            for (sum, line) in sums.iter_mut().zip([a, b, c, d]) {
                // SAFETY: a line is 64 readable bytes; the load needs no alignment.
                let line = unsafe { _mm512_loadu_si512(line.as_ptr().cast()) };
                *sum = _mm512_add_epi64(*sum, line);
            }
        }
        sums.iter().fold(0, |all: u64, sum| all.wrapping_add(_mm512_reduce_add_epi64(*sum).cast_unsigned()))
    }

    #[target_feature(enable = "avx2")]
    pub fn sum_avx2(streams: [&[[u8; 64]]; STREAMS]) -> u64 {
        let [a, b, c, d] = streams;
        let mut sums = [_mm256_setzero_si256(); STREAMS];
        for (((a, b), c), d) in a.iter().zip(b).zip(c).zip(d) {
            for (sum, line) in sums.iter_mut().zip([a, b, c, d]) {
                let halves = line.as_chunks::<32>().0;
                // SAFETY: half a line is 32 readable bytes; the load needs no alignment.
                let low = unsafe { _mm256_loadu_si256(halves[0].as_ptr().cast()) };
                // SAFETY: as above.
                let high = unsafe { _mm256_loadu_si256(halves[1].as_ptr().cast()) };
                *sum = _mm256_add_epi64(*sum, _mm256_add_epi64(low, high));
            }
        }
        let sum = sums.iter().fold(_mm256_setzero_si256(), |all, sum| _mm256_add_epi64(all, *sum));
        let half = _mm_add_epi64(_mm256_castsi256_si128(sum), _mm256_extracti128_si256::<1>(sum));
        let (low, high) = (_mm_extract_epi64::<0>(half), _mm_extract_epi64::<1>(half));
        low.cast_unsigned().wrapping_add(high.cast_unsigned())
    }

    /// Two halves, since there are only sixteen registers.
    #[target_feature(enable = "avx2")]
    pub fn avx2(rounds: usize, x: u8, w: i8) -> i32 {
        let (x, ones) = (_mm256_set1_epi8(x.cast_signed()), _mm256_set1_epi16(1));
        let weights = [_mm256_set1_epi8(w); SUMS / 2];
        let mut sums = [_mm256_setzero_si256(); SUMS / 2];
        for _ in 0..2 * rounds {
            for (sum, w) in sums.iter_mut().zip(black_box(&weights)) {
                let pairs = _mm256_madd_epi16(_mm256_maddubs_epi16(x, *w), ones);
                *sum = _mm256_add_epi32(*sum, pairs);
            }
        }
        total256(&sums)
    }

    #[target_feature(enable = "avx2,avxvnni")]
    pub fn avx_vnni(rounds: usize, x: u8, w: i8) -> i32 {
        let x = _mm256_set1_epi8(x.cast_signed());
        let weights = [_mm256_set1_epi8(w); SUMS / 2];
        let mut sums = [_mm256_setzero_si256(); SUMS / 2];
        for _ in 0..2 * rounds {
            for (sum, w) in sums.iter_mut().zip(black_box(&weights)) {
                *sum = _mm256_dpbusd_avx_epi32(*sum, x, *w);
            }
        }
        total256(&sums)
    }

    #[target_feature(enable = "avx512f,avx512vnni")]
    pub fn avx512_vnni(rounds: usize, x: u8, w: i8) -> i32 {
        let x = _mm512_set1_epi8(x.cast_signed());
        let weights = [_mm512_set1_epi8(w); SUMS];
        let mut sums = [_mm512_setzero_si512(); SUMS];
        for _ in 0..rounds {
            for (sum, w) in sums.iter_mut().zip(black_box(&weights)) {
                *sum = _mm512_dpbusd_epi32(*sum, x, *w);
            }
        }
        sums.iter().fold(0, |all, sum| all.wrapping_add(_mm512_reduce_add_epi32(*sum)))
    }

    #[target_feature(enable = "avx2")]
    fn total256(sums: &[__m256i]) -> i32 {
        let sum = sums.iter().fold(_mm256_setzero_si256(), |all, sum| _mm256_add_epi32(all, *sum));
        let half = _mm_add_epi32(_mm256_castsi256_si128(sum), _mm256_extracti128_si256::<1>(sum));
        let pair = _mm_hadd_epi32(half, half);
        _mm_extract_epi32::<0>(_mm_hadd_epi32(pair, pair))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_of_the_block_is_read_however_it_is_split() {
        for lines in [0usize, 1, 3, 4, 1027] {
            let block: Vec<[u8; 64]> = (0..lines).map(|i| [(i % 251) as u8; 64]).collect();
            let words = block.iter().flat_map(|line| line.as_chunks::<8>().0);
            let wanted = words.fold(0u64, |sum, word| sum.wrapping_add(u64::from_ne_bytes(*word)));
            assert_eq!(sum(&block), wanted, "{lines} lines");
            #[cfg(target_arch = "x86_64")]
            if is_x86_feature_detected!("avx2") {
                let (streams, rest) = streams(&block);
                // SAFETY: the CPU has AVX2.
                let read = unsafe { x86::sum_avx2(streams) };
                assert_eq!(read.wrapping_add(sum_words(rest)), wanted, "{lines} lines with AVX2");
            }
        }
    }

    #[test]
    fn every_path_multiplies_as_many_bytes_as_it_says() {
        for path in paths() {
            let wanted = (5 * SUMS * path.bytes) as i32 * 3 * -2;
            assert_eq!(run(path, 5), wanted, "{}", path.name);
        }
    }

    #[test]
    fn rates_are_finite_for_any_number_of_threads() {
        let memory = MemoryProbe::new(Bytes(1 << 20)).expect("memory");
        assert_eq!(memory.size(), Bytes(1 << 20));
        for threads in [0, 1, 3] {
            let (all, some) = (memory.rate(threads, memory.size()), memory.rate(threads, Bytes(0)));
            let rates = [all, some, product_rate(threads).operations];
            assert!(rates.iter().all(|rate| rate.is_finite() && *rate > 0.0), "{rates:?}");
        }
    }

    #[test]
    fn sizes_of_caches_are_read_as_linux_writes_them() {
        assert_eq!(cache_size("32768K\n"), Some(32 << 20));
        assert_eq!(cache_size("260M"), Some(260 << 20));
        assert_eq!(cache_size("4096"), Some(4096));
        for text in ["", "K", "12X"] {
            assert_eq!(cache_size(text), None, "{text:?}");
        }
    }
}
