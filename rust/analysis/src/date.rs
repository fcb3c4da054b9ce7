//! Times as people and launchers write them.

use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;

/// Returns a time, in nanoseconds since the Unix epoch, to a millisecond: `2026-11-29 19:46:06.759 UTC`.
pub(crate) fn utc(time_ns: i64) -> String {
    formatted(time_ns, "%F %T%.3f UTC")
}

/// Returns a time to a microsecond: `2026-11-29 19:46:06.759123 UTC`.
pub(crate) fn utc_to_microseconds(time_ns: i64) -> String {
    formatted(time_ns, "%F %T%.6f UTC")
}

fn formatted(time_ns: i64, format: &str) -> String {
    Timestamp::from_nanosecond(i128::from(time_ns))
        .map(|time| time.strftime(format).to_string())
        .unwrap_or_default()
}

/// Returns the month and the day of a time, in UTC.
pub(crate) fn month_and_day(time_ns: i64) -> (u32, u32) {
    let date = Timestamp::from_nanosecond(i128::from(time_ns))
        .map(|time| time.to_zoned(TimeZone::UTC).date())
        .unwrap_or_default();
    let number = |part: i8| u32::from(part.unsigned_abs());
    (number(date.month()), number(date.day()))
}

/// Reads `2026-11-29_16:33:26` as seconds since 1970-01-01 00:00:00 of the same time zone, whichever that is.
pub(crate) fn local_seconds(text: &str) -> Option<i64> {
    let time = DateTime::strptime("%Y-%m-%d_%H:%M:%S", text).ok()?;
    let seconds = time.to_zoned(TimeZone::UTC).ok()?.timestamp().as_second();
    (seconds >= 0).then_some(seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_those_of_the_calendar() {
        assert_eq!(utc(0), "1970-01-01 00:00:00.000 UTC");
        assert_eq!(utc(951_782_399_999_000_000), "2000-02-28 23:59:59.999 UTC");
        assert_eq!(utc(951_782_400_000_000_000), "2000-02-29 00:00:00.000 UTC");
        let last = 1_735_689_599_999_999_999;
        assert_eq!(utc(last), "2024-12-31 23:59:59.999 UTC");
        assert_eq!(utc_to_microseconds(last), "2024-12-31 23:59:59.999999 UTC");
        assert_eq!(month_and_day(last), (12, 31));
        assert_eq!(utc(i64::MAX), "2262-04-11 23:47:16.854 UTC");
        assert_eq!(utc(i64::MIN), "1677-09-21 00:12:43.145 UTC");
    }

    #[test]
    fn a_launchers_time_is_read_and_what_is_none_is_not() {
        assert_eq!(local_seconds("1970-01-02_00:00:01"), Some(86_401));
        assert_eq!(local_seconds("2026-11-29_16:33:26"), Some(1_795_970_006));
        for wrong in [
            "",
            "2026-11-29",
            "2026-13-29_16:33:26",
            "2026-11-31_16:33:26",
            "1969-12-31_23:59:59",
            "99999-01-01_00:00:00",
            "2026-11-29_16:33",
            "2026-11-29_16:33:26 x",
        ] {
            assert_eq!(local_seconds(wrong), None, "{wrong}");
        }
    }
}
