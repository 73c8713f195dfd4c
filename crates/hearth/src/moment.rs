//! Moments as people write them: seconds since 1970, a day, or a time of a day in UTC.

use protocol::workers_ai::catalog::timestamp;

/// Seconds since 1970 of `1764460800`, `2025-11-30` or `2025-11-30T12:00:00Z`; `None` when it is none of these, or a
/// day that no calendar has.
#[must_use]
pub fn parse(text: &str) -> Option<u64> {
    if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
        return text.parse().ok().filter(|seconds| i64::try_from(*seconds).is_ok());
    }
    let (day, time) = match text.split_once('T') {
        None => (text, None),
        Some((day, time)) => (day, Some(time.strip_suffix('Z')?)),
    };
    let [year, month, date] = numbers(day, '-', [4, 2, 2])?;
    let [hour, minute, second] = time.map_or(Some([0; 3]), |time| numbers(time, ':', [2, 2, 2]))?;
    let leap = year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let longest = match month {
        1 | 3 | 5 | 7 | 8 | 10 | 12 => 31,
        4 | 6 | 9 | 11 => 30,
        2 => 28 + u64::from(leap),
        _ => return None,
    };
    if year < 1970 || !(1..=longest).contains(&date) || hour > 23 || minute > 59 || second > 59 {
        return None;
    }
    // Years begin in March here, so that the leap day is the last; a month then begins after (153 * m + 2) / 5 days.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days = year * 365 + year / 4 - year / 100 + year / 400 + (153 * month + 2) / 5 + date - 1;
    // 1970-01-01 counted so.
    Some((days - 719_468) * 86_400 + hour * 3600 + minute * 60 + second)
}

/// Milliseconds since 1970 of what [`parse`] reads, of seconds with a fraction, and of a time with an offset from UTC, such as
/// `2025-11-30T12:00:00.250+01:00`.
#[must_use]
pub fn millis(text: &str) -> Option<u64> {
    let Some((day, time)) = text.split_once('T') else { return parse(text)?.checked_mul(1000) };
    let sign = time.find(['Z', '+', '-']).unwrap_or(time.len());
    let (time, offset) = time.split_at(sign);
    let offset = match offset {
        "" | "Z" => 0,
        _ => {
            let [hours, minutes] = numbers2(&offset[1..])?;
            let seconds = i64::try_from(hours * 3600 + minutes * 60).ok()?;
            if offset.starts_with('-') { -seconds } else { seconds }
        }
    };
    let (time, fraction) = time.split_once('.').unwrap_or((time, ""));
    if !fraction.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let thousandths: u64 = format!("{fraction:0<3}").get(..3)?.parse().ok()?;
    let seconds = parse(&format!("{day}T{time}Z"))?.checked_add_signed(-offset)?;
    seconds.checked_mul(1000)?.checked_add(thousandths)
}

/// Hours and minutes of an offset.
fn numbers2(text: &str) -> Option<[u64; 2]> {
    let (hours, minutes) = text.split_once(':')?;
    let number = |part: &str| {
        (part.len() == 2 && part.bytes().all(|byte| byte.is_ascii_digit())).then(|| part.parse().ok())?
    };
    Some([number(hours)?, number(minutes)?])
}

/// Milliseconds since 1970 as a time in UTC, `2025-11-30T12:00:00.250Z`.
#[must_use]
pub fn text(millis: u64) -> String {
    let seconds = timestamp(millis / 1000).replace(' ', "T");
    let seconds = seconds.split('.').next().unwrap_or_default();
    format!("{seconds}.{:03}Z", millis % 1000)
}

/// Three numbers of so many digits.
fn numbers(text: &str, between: char, digits: [usize; 3]) -> Option<[u64; 3]> {
    let mut parts = text.split(between);
    let mut numbers = [0; 3];
    for (number, digits) in numbers.iter_mut().zip(digits) {
        let part = parts.next().filter(|part| part.len() == digits)?;
        *number = part.bytes().all(|byte| byte.is_ascii_digit()).then(|| part.parse().ok())??;
    }
    parts.next().is_none().then_some(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_and_times_are_seconds_since_1970() {
        // As `date -u -d … +%s` prints them.
        for (text, seconds) in [
            ("0", 0),
            ("1764460800", 1_764_460_800),
            ("1970-01-01", 0),
            ("2000-02-29", 951_782_400),
            ("2025-11-30", 1_764_460_800),
            ("2025-11-30T23:59:59Z", 1_764_547_199),
            ("2100-03-01", 4_107_542_400),
        ] {
            assert_eq!(parse(text), Some(seconds), "{text}");
        }
    }

    #[test]
    fn fractions_and_offsets_count_and_come_back_as_utc() {
        for (written, milliseconds) in [
            ("1764460800", 1_764_460_800_000),
            ("2025-11-30", 1_764_460_800_000),
            ("2025-11-30T00:00:00Z", 1_764_460_800_000),
            ("2025-11-30T00:00:00.25Z", 1_764_460_800_250),
            ("2025-11-30T01:00:00.250+01:00", 1_764_460_800_250),
            ("2025-11-29T23:30:00.250999-00:30", 1_764_460_800_250),
        ] {
            assert_eq!(millis(written), Some(milliseconds), "{written}");
        }
        assert_eq!(text(1_764_460_800_250), "2025-11-30T00:00:00.250Z");
        for written in
            ["", "soon", "2025-11-30T00:00:00.x", "2025-11-30T00:00:00+1:00", "2025-11-30T00:00:00+é1:00"]
        {
            assert_eq!(millis(written), None, "{written}");
        }
    }

    #[test]
    fn what_no_calendar_has_is_no_moment() {
        for text in [
            "",
            "-1",
            "yesterday",
            "1969-12-31",
            "2025-02-29",
            "2100-02-29",
            "2025-13-01",
            "2025-1-1",
            "2025-11-30T24:00:00Z",
            "2025-11-30T12:00:00",
            "2025-11-30T12:00Z",
            "99999999999999999999",
            "2025-11-30-1",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
