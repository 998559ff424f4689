//! What an answer means, and no answer.

use std::{
    error::Error,
    fmt::Write,
    time::{Duration, SystemTime},
};

use pillarbox_core::port::{Sent, SinkError};
use reqwest::{
    StatusCode,
    header::{HeaderMap, LOCATION, RETRY_AFTER},
};

/// A receiver may ask for more patience than that, and is asked again all the same.
const LONGEST_WAIT: Duration = Duration::from_hours(24);
/// A receiver that has enough for now gets as much peace, whatever it says.
const LEAST_PEACE: Duration = Duration::from_secs(1);

/// The verdict on a status; `words` is the beginning of the body.
pub(crate) fn verdict(status: StatusCode, headers: &HeaderMap, words: &str, now: SystemTime) -> Sent {
    if status.is_success() {
        return Ok(());
    }
    let mut text = format!("the receiver answered {status}");
    if status.is_redirection() {
        text.push_str(", and redirects are not followed: set the URL to where it leads");
        if let Some(location) = headers.get(LOCATION).and_then(|location| location.to_str().ok()) {
            // A query may have secrets.
            let _ = write!(text, ", {}", printable(location.split(['?', '#']).next().unwrap_or_default()));
        }
    }
    if !words.is_empty() {
        let _ = write!(text, ": {words}");
    }
    let after = retry_after(headers, now);
    Err(match (status.as_u16(), after) {
        // It takes so many in a time, whatever they are: a message is not to blame, and the others are to wait as well.
        (429, after) => SinkError::unavailable(text).after(after.unwrap_or_default().max(LEAST_PEACE)),
        // Nobody behind the gateway, or a receiver that says so itself: no message would get through.
        (502..=504, None) => SinkError::unavailable(text),
        (408 | 425 | 502..=504, Some(after)) => SinkError::unavailable(text).after(after),
        (408 | 425, None) => SinkError::failed(text),
        (400..=499, _) => SinkError::rejected(text),
        (500.., Some(after)) => SinkError::failed(text).after(after),
        (_, _) => SinkError::failed(text),
    })
}

/// No answer, whatever the reason.
pub(crate) fn no_answer(receiver: &str, error: reqwest::Error) -> SinkError {
    let error = error.without_url();
    let mut words = format!("{receiver} does not answer: {error}");
    let mut source = error.source();
    while let Some(cause) = source {
        let _ = write!(words, ": {cause}");
        source = cause.source();
    }
    SinkError::unavailable(words)
}

/// The beginning of a body as words.
pub(crate) fn printable(text: &str) -> String {
    let text: String = text.trim().chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    text.trim().to_owned()
}

/// Seconds or a date, as HTTP has it.
fn retry_after(headers: &HeaderMap, now: SystemTime) -> Option<Duration> {
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    let span = match text.parse() {
        Ok(seconds) => Duration::from_secs(seconds),
        // What is over already means now.
        Err(_) => httpdate::parse_http_date(text).ok()?.duration_since(now).unwrap_or_default(),
    };
    Some(span.min(LONGEST_WAIT))
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use pillarbox_core::port::SinkErrorKind::{self, Failed, Rejected, Unavailable};

    use super::*;

    fn kind_of(status: u16, headers: &HeaderMap) -> Option<SinkErrorKind> {
        let status = StatusCode::from_u16(status).expect("a status");
        verdict(status, headers, "", SystemTime::now()).err().map(|error| error.kind())
    }

    #[test]
    fn statuses_have_verdicts() {
        for (statuses, kind) in [
            (vec![200, 201, 202, 204, 299], None),
            (vec![300, 301, 302, 304, 307, 308], Some(Failed)),
            (vec![408, 425, 500, 501, 505, 507, 599, 600], Some(Failed)),
            (vec![429, 502, 503, 504], Some(Unavailable)),
            (vec![400, 401, 403, 404, 410, 413, 422, 451], Some(Rejected)),
        ] {
            for status in statuses {
                assert_eq!(kind_of(status, &HeaderMap::new()), kind, "{status}");
            }
        }
    }

    #[test]
    fn who_says_when_to_come_back_has_nothing_against_the_message() {
        let headers = HeaderMap::from_iter([(RETRY_AFTER, "7".parse().expect("a value"))]);
        for (statuses, kind) in [
            (vec![408, 425, 429, 502, 503, 504], Unavailable),
            (vec![302, 500, 501, 507], Failed),
            (vec![400, 404, 422], Rejected),
        ] {
            for status in statuses {
                assert_eq!(kind_of(status, &headers), Some(kind), "{status}");
            }
        }
    }

    #[test]
    fn who_has_enough_gets_peace_whatever_it_says() {
        let now = UNIX_EPOCH + Duration::from_secs(784_111_747);
        for (said, expected) in
            [(None, 1), (Some("soon"), 1), (Some("0"), 1), (Some("Sun, 06 Nov 1994 08:48:37 GMT"), 1), (Some("7"), 7)]
        {
            let headers = said.map(|said| (RETRY_AFTER, said.parse().expect("a value")));
            let headers = HeaderMap::from_iter(headers);
            let error = verdict(StatusCode::TOO_MANY_REQUESTS, &headers, "", now).expect_err("no success");
            assert_eq!(error.retry_after(), Some(Duration::from_secs(expected)), "{said:?}");
        }
    }

    #[test]
    fn retry_after_is_seconds_or_a_date() {
        // 1994-11-06 08:49:07, half a minute before the date of RFC 9110.
        let now = UNIX_EPOCH + Duration::from_secs(784_111_747);
        for (text, expected) in [
            ("120", Some(Duration::from_mins(2))),
            ("0", Some(Duration::ZERO)),
            ("Sun, 06 Nov 1994 08:49:37 GMT", Some(Duration::from_secs(30))),
            ("Sunday, 06-Nov-94 08:49:37 GMT", Some(Duration::from_secs(30))),
            ("Sun, 06 Nov 1994 08:48:37 GMT", Some(Duration::ZERO)),
            ("18446744073709551615", Some(LONGEST_WAIT)),
            ("soon", None),
            ("-1", None),
        ] {
            let headers = HeaderMap::from_iter([(RETRY_AFTER, text.parse().expect("a value"))]);
            for (status, expected) in [(408, expected), (503, expected), (500, expected), (400, None)] {
                let status = StatusCode::from_u16(status).expect("a status");
                let error = verdict(status, &headers, "", now).expect_err("no success");
                assert_eq!(error.retry_after(), expected, "{status} {text}");
            }
        }
    }

    #[test]
    fn redirects_say_where_to_without_the_query() {
        let headers = HeaderMap::from_iter([(LOCATION, "https://new.example/hooks?token=1".parse().expect("a value"))]);
        let error = verdict(StatusCode::FOUND, &headers, "", SystemTime::now()).expect_err("no success").to_string();
        assert!(error.contains("302") && error.contains("redirects are not followed"), "{error}");
        assert!(error.contains("https://new.example/hooks") && !error.contains("token"), "{error}");
    }

    #[test]
    fn words_are_printable() {
        assert_eq!(printable("  no\r\nsuch\0 order\u{1b}[31m\n"), "no  such  order [31m");
    }
}
