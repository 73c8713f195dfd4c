//! `strftime_now`: the date and time in UTC, in the format letters that chat templates use.

/// Formats `unix` seconds as C's `strftime` does in the C locale; letters that it does not know stay as they are.
pub(super) fn strftime(format: &str, unix: u64) -> String {
    use std::fmt::Write as _;
    const DAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];
    const MONTHS: [&str; 12] = [
        "January",
        "February",
        "March",
        "April",
        "May",
        "June",
        "July",
        "August",
        "September",
        "October",
        "November",
        "December",
    ];
    let days = unix / 86_400;
    let (hour, minute, second) = (unix / 3600 % 24, unix / 60 % 60, unix % 60);
    let (year, month, day) = civil(days);
    let weekday = DAYS[((days + 4) % 7) as usize];
    let month_name = MONTHS[month as usize - 1];
    let mut out = String::new();
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let mut letter = chars.next();
        let padded = letter != Some('-');
        if !padded {
            letter = chars.next();
        }
        let number = |out: &mut String, n: u64, width: usize| {
            let width = if padded { width } else { 0 };
            let _ = write!(out, "{n:0width$}");
        };
        match letter {
            Some('Y') => number(&mut out, year, 4),
            Some('y') => number(&mut out, year % 100, 2),
            Some('m') => number(&mut out, month, 2),
            Some('d') => number(&mut out, day, 2),
            Some('H') => number(&mut out, hour, 2),
            Some('I') => number(&mut out, (hour + 11) % 12 + 1, 2),
            Some('M') => number(&mut out, minute, 2),
            Some('S') => number(&mut out, second, 2),
            Some('j') => number(&mut out, days - first_day(year) + 1, 3),
            Some('p') => out.push_str(if hour < 12 { "AM" } else { "PM" }),
            Some('w') => number(&mut out, (days + 4) % 7, 0),
            Some('u') => number(&mut out, (days + 3) % 7 + 1, 0),
            Some('A') => out.push_str(weekday),
            Some('a') => out.push_str(&weekday[..3]),
            Some('B') => out.push_str(month_name),
            Some('b' | 'h') => out.push_str(&month_name[..3]),
            Some('Z') => out.push_str("UTC"),
            Some('z') => out.push_str("+0000"),
            Some('s') => number(&mut out, unix, 0),
            Some('F') => out.push_str(&strftime("%Y-%m-%d", unix)),
            Some('T') => out.push_str(&strftime("%H:%M:%S", unix)),
            Some('%') => out.push('%'),
            Some(other) => out.extend(['%', other]),
            None => out.push('%'),
        }
    }
    out
}

/// Days since 1970-01-01 of a year's first day.
fn first_day(year: u64) -> u64 {
    // Howard Hinnant's days_from_civil: his years begin in March, so January belongs to the one before.
    let (era, of_era) = ((year - 1) / 400, (year - 1) % 400);
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + 306 - 719_468
}

/// Year, month and day of a count of days since 1970-01-01 (Hinnant's civil_from_days).
fn civil(days: u64) -> (u64, u64, u64) {
    let z = days + 719_468;
    let (era, of_era) = (z / 146_097, z % 146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * of_year + 2) / 153;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    (era * 400 + year_of_era + u64::from(month <= 2), month, of_year - (153 * shifted + 2) / 5 + 1)
}

#[cfg(test)]
mod tests {
    use super::strftime;

    #[test]
    fn dates_read_as_c_writes_them() {
        assert_eq!(strftime("%d %b %Y", 0), "01 Jan 1970");
        assert_eq!(
            strftime("%A, %B %-d, %Y %H:%M:%S %p %j %w %u %%", 1_709_210_096),
            "Thursday, February 29, 2024 12:34:56 PM 060 4 4 %"
        );
        assert_eq!(strftime("%Y-%m-%d %I%p %q", 1_735_689_599), "2024-12-31 11PM %q");
    }
}
