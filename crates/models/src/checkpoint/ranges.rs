//! Checks on the byte ranges of a file's tensors.

use std::ops::Range;

use super::error::{Fault, Quoted};

/// Refuses two tensors that share a byte.
pub(super) fn refuse_overlap<'a>(
    ranges: impl Iterator<Item = (&'a str, &'a Range<usize>)>,
) -> Result<(), Fault> {
    let mut sorted: Vec<_> = ranges.filter(|(_, range)| !range.is_empty()).collect();
    sorted.sort_unstable_by_key(|(_, range)| range.start);
    for pair in sorted.windows(2) {
        let [(first, before), (second, after)] = pair else { unreachable!("windows of two") };
        if after.start < before.end {
            return Err(Fault::tensor(second, format!("lies over tensor {}", Quoted(first))));
        }
    }
    Ok(())
}
