//! Points in time, to the microsecond.

use std::{
    fmt,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

/// Microseconds since 1970-01-01 00:00 UTC. Every comparison between nodes uses values that the database's
/// clock gave.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(i64);

impl Timestamp {
    /// A time from microseconds since the epoch.
    pub const fn from_micros(micros: i64) -> Self {
        Self(micros)
    }

    /// Microseconds since the epoch.
    pub const fn as_micros(self) -> i64 {
        self.0
    }

    /// This time and a span; the farthest representable time instead of an overflow.
    #[must_use]
    pub fn saturating_add(self, span: Duration) -> Self {
        Self(self.0.saturating_add(micros(span)))
    }

    /// This time less a span.
    #[must_use]
    pub fn saturating_sub(self, span: Duration) -> Self {
        Self(self.0.saturating_sub(micros(span)))
    }

    /// How long ago `earlier` was; zero if it is still to come.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_micros(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }
}

fn micros(span: Duration) -> i64 {
    i64::try_from(span.as_micros()).unwrap_or(i64::MAX)
}

impl From<SystemTime> for Timestamp {
    fn from(time: SystemTime) -> Self {
        match time.duration_since(UNIX_EPOCH) {
            Ok(after) => Self(micros(after)),
            Err(before) => Self(-micros(before.duration())),
        }
    }
}

impl From<Timestamp> for SystemTime {
    fn from(time: Timestamp) -> Self {
        let span = Duration::from_micros(time.0.unsigned_abs());
        if time.0 >= 0 { UNIX_EPOCH + span } else { UNIX_EPOCH - span }
    }
}

/// RFC 3339 in UTC, such as `2026-11-15T08:30:00.250000Z`.
impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (seconds, micros) = (self.0.div_euclid(1_000_000), self.0.rem_euclid(1_000_000));
        let (days, second) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
        let (year, month, day) = civil_from_days(days);
        let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
        write!(f, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{micros:06}Z")
    }
}

/// The Gregorian date of a day counted from 1970-01-01. Years begin in March here, so that the leap day is
/// the last of its year, and eras of 400 years repeat.
fn civil_from_days(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let era = days.div_euclid(146_097);
    let day_of_era = days.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    (year_of_era + era * 400 + i64::from(month <= 2), month, day)
}

/// As it is printed, with any offset; a date alone is its midnight in UTC, and seconds may be left out.
impl std::str::FromStr for Timestamp {
    type Err = InvalidTimestamp;

    fn from_str(text: &str) -> Result<Self, InvalidTimestamp> {
        read(text).ok_or(InvalidTimestamp)
    }
}

/// The text is no time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a time is such as 2026-11-15T08:30:00Z, 2026-11-15T08:30:00.25+02:00 or 2026-11-15")]
pub struct InvalidTimestamp;

fn read(text: &str) -> Option<Timestamp> {
    let (date, time) = text.split_once(['T', 't', ' ']).unwrap_or((text, "00:00Z"));
    let [year, month, day] = numbers(date, '-', [4, 2, 2])?;
    let (time, offset) = if let Some(time) = time.strip_suffix(['Z', 'z']) {
        (time, 0)
    } else {
        let (time, zone) = time.split_at(time.rfind(['+', '-'])?);
        let [hours, minutes] = numbers(&zone[1..], ':', [2, 2])?;
        let minutes = (hours < 24 && minutes < 60).then_some(hours * 60 + minutes)?;
        (time, if zone.starts_with('-') { -minutes } else { minutes })
    };
    let (time, fraction) = time.split_once('.').unwrap_or((time, "0"));
    let [hour, minute, second] = numbers(time, ':', [2, 2, 2]).or_else(|| {
        let [hour, minute] = numbers(time, ':', [2, 2])?;
        Some([hour, minute, 0])
    })?;
    let digits = fraction.bytes().all(|digit| digit.is_ascii_digit()) && !fraction.is_empty();
    let micros: i64 = digits.then(|| format!("{fraction:0<6}")[..6].parse().ok())??;
    let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let days = match month {
        2 => 28 + i64::from(leap),
        4 | 6 | 9 | 11 => 30,
        1..=12 => 31,
        _ => return None,
    };
    if !(1..=days).contains(&day) || hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    // Years begin in March here, so that the leap day is the last of its year.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let leaps = year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400);
    let days = year * 365 + leaps + (153 * month + 2) / 5 + day - 1 - 719_468;
    let seconds = ((days * 24 + hour) * 60 + minute - offset) * 60 + second;
    Some(Timestamp(seconds * 1_000_000 + micros))
}

/// So many numbers, of so many digits each.
fn numbers<const N: usize>(text: &str, between: char, digits: [usize; N]) -> Option<[i64; N]> {
    let parts: Vec<_> = text.split(between).collect();
    let parts: [&str; N] = parts.try_into().ok()?;
    let mut numbers = [0; N];
    for ((number, part), digits) in numbers.iter_mut().zip(parts).zip(digits) {
        let plain = part.len() == digits && part.bytes().all(|digit| digit.is_ascii_digit());
        *number = plain.then(|| part.parse().ok())??;
    }
    Some(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prints_as_rfc_3339() {
        let cases = [
            (0, "1970-01-01T00:00:00.000000Z"),
            (951_782_400_000_000, "2000-02-29T00:00:00.000000Z"),
            (1_794_731_400_250_000, "2026-11-15T08:30:00.250000Z"),
            (-1, "1969-12-31T23:59:59.999999Z"),
        ];
        for (micros, text) in cases {
            assert_eq!(Timestamp::from_micros(micros).to_string(), text);
        }
    }

    #[test]
    fn what_is_printed_is_read() {
        for micros in [0, 951_782_400_000_000, 1_794_731_400_250_000, 4_107_542_399_999_999, -1] {
            assert_eq!(Timestamp(micros).to_string().parse(), Ok(Timestamp(micros)));
        }
        let text = |text: &str| text.parse::<Timestamp>().map(|time| time.to_string());
        assert_eq!(text("2026-11-15 08:30+02:00").as_deref(), Ok("2026-11-15T06:30:00.000000Z"));
        for wrong in ["", "T", "2026-02-29", "2026-11-15T08:30", "0000-00-00", "2026-11-15T08:30:00.é1234Z", "-1"] {
            assert_eq!(text(wrong), Err(InvalidTimestamp), "{wrong}");
        }
    }

    #[test]
    fn arithmetic_saturates() {
        assert_eq!(Timestamp(5).saturating_add(Duration::MAX), Timestamp(i64::MAX));
        assert_eq!(Timestamp(5).since(Timestamp(9)), Duration::ZERO);
        assert_eq!(Timestamp(9).since(Timestamp(5)), Duration::from_micros(4));
    }

    #[test]
    fn system_time_and_back() {
        for micros in [-1_500_000, 0, 1_794_731_400_250_001] {
            let time = Timestamp(micros);
            assert_eq!(Timestamp::from(SystemTime::from(time)), time);
        }
    }
}
