//! Errors as problem documents (RFC 9457). Every answer that is no success is one.

use std::{borrow::Cow, time::Duration};

use axum::{
    Json,
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use pillarbox_core::{
    domain::EventError,
    engine::OutboxError,
    port::{StoreError, StoreErrorKind},
};
use serde::Serialize;

/// The content type of problem documents.
pub(crate) const PROBLEM: &str = "application/problem+json";

/// What went wrong, and what to do about it.
#[derive(Debug)]
pub(crate) struct Problem(Box<Told>);

#[derive(Debug, Serialize)]
struct Told {
    /// Names the kind of problem, for programs.
    #[serde(rename = "type")]
    kind: Cow<'static, str>,
    /// The same for people.
    title: Cow<'static, str>,
    status: u16,
    /// What is wrong with this request.
    detail: String,
    /// The parameter or field that is wrong.
    #[serde(skip_serializing_if = "Option::is_none")]
    parameter: Option<String>,
    /// What would be right.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    allowed: Vec<String>,
    /// What may have been meant.
    #[serde(skip_serializing_if = "Option::is_none")]
    nearest: Option<String>,
    #[serde(skip)]
    retry_after: Option<Duration>,
    #[serde(skip)]
    challenge: bool,
}

impl Problem {
    fn new(
        status: StatusCode,
        kind: &'static str,
        title: impl Into<Cow<'static, str>>,
        detail: impl Into<String>,
    ) -> Self {
        Self(Box::new(Told {
            kind: format!("urn:pillarbox:problem:{kind}").into(),
            title: title.into(),
            status: status.as_u16(),
            detail: detail.into(),
            parameter: None,
            allowed: Vec::new(),
            nearest: None,
            retry_after: None,
            challenge: false,
        }))
    }

    /// Of a status alone, for answers that others have given.
    pub(crate) fn of(status: StatusCode) -> Self {
        let (kind, detail) = match status {
            StatusCode::NOT_FOUND => ("no-such-path", "there is nothing at this path: see openapi.json"),
            StatusCode::METHOD_NOT_ALLOWED => {
                ("method-not-allowed", "this path has other methods: see the header Allow")
            }
            StatusCode::PAYLOAD_TOO_LARGE => ("too-large", "the request is too large"),
            _ => ("refused", "the request was refused"),
        };
        Self::new(status, kind, status.canonical_reason().unwrap_or("refused"), detail)
    }

    /// The same words whether a token is missing, unknown or malformed.
    pub(crate) fn unauthorized() -> Self {
        let detail = "a valid token is needed: Authorization: Bearer TOKEN";
        let mut problem = Self::new(StatusCode::UNAUTHORIZED, "unauthorized", "who are you?", detail);
        problem.0.challenge = true;
        problem
    }

    pub(crate) fn forbidden(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, "forbidden", "this is not allowed", detail)
    }

    pub(crate) fn not_found(what: &str, id: &str) -> Self {
        let detail = format!("there is no {what} {}", shortened(id));
        Self::new(StatusCode::NOT_FOUND, "not-found", "there is no such thing", detail)
    }

    /// For an id that is none of ours.
    pub(crate) fn no_event(id: &str) -> Self {
        let mut problem = Self::not_found("event", id);
        problem.0.detail.push_str("; one whose id others have written is named by its number, the column seq");
        problem
    }

    pub(crate) fn conflict(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::CONFLICT, "wrong-state", "it is not in the right state", detail)
    }

    pub(crate) fn unknown_parameter(name: &str, allowed: &[&str]) -> Self {
        let detail = format!("there is no parameter {:?}", shortened(name));
        let mut problem = Self::new(StatusCode::BAD_REQUEST, "unknown-parameter", "an unknown parameter", detail);
        problem.0.parameter = Some(shortened(name));
        problem.0.nearest = nearest(name, allowed);
        problem.0.allowed = allowed.iter().map(|&name| name.to_owned()).collect();
        problem
    }

    pub(crate) fn bad_parameter(name: &str, detail: impl Into<String>, allowed: &str) -> Self {
        let detail = format!("{name}: {}", detail.into());
        let mut problem = Self::new(StatusCode::BAD_REQUEST, "bad-parameter", "a parameter is wrong", detail);
        problem.0.parameter = Some(name.to_owned());
        problem.0.allowed = vec![allowed.to_owned()];
        problem
    }

    pub(crate) fn bad_body(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "bad-body", "the body can't be read", detail)
    }

    pub(crate) fn unprocessable(detail: impl Into<String>) -> Self {
        let title = "it can't be changed so";
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, "unprocessable", title, detail)
    }

    pub(crate) fn too_large(limit: usize) -> Self {
        let detail = format!("the body may have at most {limit} bytes");
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "too-large", "the request is too large", detail)
    }

    pub(crate) fn not_json() -> Self {
        let detail = "a body is sent as Content-Type: application/json";
        Self::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "not-json", "the body is of another kind", detail)
    }

    pub(crate) fn too_fast(wait: Duration) -> Self {
        let detail = "too many requests of this caller: slow down";
        let mut problem = Self::new(StatusCode::TOO_MANY_REQUESTS, "too-fast", "too many requests", detail);
        problem.0.retry_after = Some(wait);
        problem
    }

    pub(crate) fn busy() -> Self {
        let detail = "too many requests at once: try again soon";
        let mut problem = Self::new(StatusCode::SERVICE_UNAVAILABLE, "busy", "too many requests at once", detail);
        problem.0.retry_after = Some(Duration::from_secs(1));
        problem
    }

    pub(crate) fn too_slow(limit: Duration) -> Self {
        let detail =
            format!("there was no answer within {limit:?}; what it had begun may be done: look before you try again");
        Self::new(StatusCode::GATEWAY_TIMEOUT, "too-slow", "it took too long", detail)
    }

    /// Of a replay that goes on without the one who asked.
    pub(crate) fn under_way(letter: &str) -> Self {
        let detail = format!(
            "the broker has given no word yet, and the replay of dead letter {letter} goes on: its history will tell of it; look \
             there before you replay it again"
        );
        Self::new(StatusCode::GATEWAY_TIMEOUT, "under-way", "it is still under way", detail)
    }

    pub(crate) fn unavailable(detail: impl Into<String>) -> Self {
        let mut problem = Self::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable", "the database fails", detail);
        problem.0.retry_after = Some(Duration::from_secs(1));
        problem
    }

    /// Tells what was done before it went wrong.
    pub(crate) fn after(mut self, changed: u64) -> Self {
        if changed > 0 {
            self.0.detail = format!("{}; {changed} were done before", self.0.detail);
        }
        self
    }

    pub(crate) fn missing(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "not-here", "this service has none", detail)
    }

    pub(crate) fn status(&self) -> StatusCode {
        StatusCode::from_u16(self.0.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let (status, wait, challenge) = (self.status(), self.0.retry_after, self.0.challenge);
        let mut response = (status, Json(self.0)).into_response();
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(PROBLEM));
        if let Some(wait) = wait {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(wait.as_secs().max(1)));
        }
        if challenge {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer realm=\"pillarbox\""));
        }
        response
    }
}

impl From<StoreError> for Problem {
    /// The words of the database stay in the log: they may hold what was asked.
    fn from(error: StoreError) -> Self {
        tracing::warn!(error = &error as &dyn std::error::Error, "a request failed in the database");
        match error.kind() {
            StoreErrorKind::Unavailable | StoreErrorKind::Conflict | StoreErrorKind::Rewound => {
                Self::unavailable("the database does not answer, or is busy; nothing was changed: try again")
            }
            StoreErrorKind::OutcomeUnknown => Self::unavailable(
                "the database went away during the commit: look whether it is done before you try again",
            ),
            StoreErrorKind::Schema => {
                Self::unavailable("the outbox's tables are missing or of another version: run pillarbox migrate")
            }
            _ => Self::new(
                StatusCode::INTERNAL_SERVER_ERROR,
                "failed",
                "the database refused it",
                "the database refused the statement; the log of this service says why",
            ),
        }
    }
}

impl From<OutboxError> for Problem {
    fn from(error: OutboxError) -> Self {
        match error {
            OutboxError::Store(error) => error.into(),
            OutboxError::NotFound(id) => Self::not_found("event", &id),
            OutboxError::NotDead { .. } | OutboxError::HoldsNothing(_) => Self::conflict(error.to_string()),
            OutboxError::Payload { why: EventError::TooLong { field: "payload", limit, .. }, .. } => {
                Self::too_large(limit)
            }
            other => Self::unprocessable(other.to_string()),
        }
    }
}

/// What comes from a request goes back into the answer, but not all of it.
fn shortened(text: &str) -> String {
    const MOST: usize = 80;
    if text.chars().count() <= MOST { text.to_owned() } else { text.chars().take(MOST).chain("…".chars()).collect() }
}

/// The name that differs least, if it is not another one altogether.
pub(crate) fn nearest(name: &str, allowed: &[&str]) -> Option<String> {
    let name = shortened(name).to_lowercase();
    let near = allowed.iter().map(|allowed| (strsim::damerau_levenshtein(&name, allowed), *allowed)).min()?;
    (near.0 <= 1 + near.1.len() / 3).then(|| near.1.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_name_is_near() {
        let names = ["type", "tenant", "limit", "aggregate_id", "aggregate_type"];
        for (typed, meant) in
            [("typ", Some("type")), ("Limits", Some("limit")), ("agregate_id", Some("aggregate_id")), ("zebra", None)]
        {
            assert_eq!(nearest(typed, &names).as_deref(), meant, "{typed}");
        }
        assert_eq!(nearest("x", &[]), None);
    }

    #[test]
    fn long_names_are_not_given_back_whole() {
        assert_eq!(shortened(&"é".repeat(1_000)).chars().count(), 81);
    }
}
